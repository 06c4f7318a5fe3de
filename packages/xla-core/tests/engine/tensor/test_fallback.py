"""Operations without a lowering run in stock torch on the CPU, are counted, and can be forbidden."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_xla
from xla_core.base import config, metrics
from xla_core.base.config import FallbackPolicy
from xla_core.base.errors import FallbackError
from xla_core.engine.tensor import fallback

Tensor = torch.Tensor
Counts = Any
OPS = torch.ops.xla_core_fallback_tests


@pytest.fixture(scope="module", autouse=True)
def operations() -> Iterator[None]:
    """Operations that only the CPU knows."""
    library = torch.library.Library("xla_core_fallback_tests", "DEF")

    def add(schema: str, kernel: Callable[..., Any]) -> None:
        library.define(schema)
        library.impl(schema.partition("(")[0], kernel, "CPU")

    add("double(Tensor x) -> Tensor", lambda x: x * 2)
    add("scaled(Tensor x, Tensor? bias, *, float by=1.0) -> Tensor", lambda x, bias, *, by=1.0: x * by + (0 if bias is None else bias))
    add("pair(Tensor[] xs) -> (Tensor, Tensor[])", lambda xs: (xs[0] + xs[1], [x + 1 for x in xs]))
    add("count_(Tensor(a!) x, int n) -> Tensor(a!)", lambda x, n: x.add_(n))
    add("fill_all(Tensor(a!)[] xs, float value) -> ()", lambda xs, value: [x.fill_(value) for x in xs] and None)
    add("number(Tensor x) -> float", lambda x: float(x.sum()))
    add("broken(Tensor x) -> Tensor", lambda x: x.view(-1, 7))
    yield
    library._destroy()


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* runs on the CPU", category=RuntimeWarning)
        yield


def test_gives_the_cpu_answer_on_the_device(counts: Counts) -> None:
    x = torch.arange(6.0, device="xla").view(2, 3).t() + 1
    result = OPS.double(x)
    assert result.device.type == "xla"
    torch.testing.assert_close(result.cpu(), x.cpu() * 2)
    assert counts["xla_core_fallback_tests::double"] == 1


def test_arguments_of_every_kind() -> None:
    x = torch.tensor([1.0, 2.0], device="xla")
    assert OPS.scaled(x, None, by=3.0).tolist() == [3, 6]
    assert OPS.scaled(x, torch.tensor(1.0, device="xla")).tolist() == [2, 3]
    total, shifted = OPS.pair([x, x * 2])
    assert total.tolist() == [3, 6] and [each.tolist() for each in shifted] == [[2, 3], [3, 5]]
    assert OPS.number(x) == 3.0


def test_writes_reach_the_arguments_and_their_bases() -> None:
    base = torch.zeros(2, 3, device="xla")
    column = base[:, 1]
    assert OPS.count_(column, 4) is column
    assert base.tolist() == [[0, 4, 0], [0, 4, 0]]
    other = torch.zeros(1, device="xla")
    OPS.fill_all([base[0], other], 2.0)
    assert base.tolist() == [[2, 2, 2], [0, 4, 0]] and other.tolist() == [2]


def test_runs_only_what_it_needs(counts: Counts) -> None:
    needed, other = torch.ones(2, device="xla") + 1, torch.ones(3, device="xla") * 5
    torch.testing.assert_close(OPS.double(needed).cpu(), torch.tensor([4.0, 4.0]))
    assert counts.ExecuteComputation == 1 and counts.MarkStep == 0
    assert other.tolist() == [5, 5, 5]
    assert counts.ExecuteComputation == 2


def test_says_so_once_and_names_the_line() -> None:
    fallback._warned.discard("xla_core_fallback_tests::double")
    x = torch.ones(1, device="xla")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            OPS.double(x)
    messages = [str(each.message) for each in caught if issubclass(each.category, RuntimeWarning)]
    assert len(messages) == 1
    assert "xla_core_fallback_tests::double" in messages[0] and "test_fallback.py:" in messages[0]


def test_announces_an_event() -> None:
    seen: list[metrics.FallbackEvent] = []
    stop = metrics.subscribe(seen.append, metrics.FallbackEvent)
    try:
        OPS.double(torch.ones(1, device="xla"))
    finally:
        stop()
    assert [event.operator for event in seen] == ["xla_core_fallback_tests::double"]
    assert seen[0].device == "xla:0" and seen[0].duration_ns > 0 and seen[0].line is not None and "test_fallback.py:" in seen[0].line


def test_aten_operations_are_counted_under_their_names(counts: Counts) -> None:
    a, b = torch.tensor([[2.0, 0.0], [0.0, 4.0]], device="xla"), torch.ones(2, 1, device="xla")
    for _ in range(2):
        assert torch.linalg.lstsq(a, b).solution.tolist() == [[0.5], [0.25]]
    assert counts["aten::linalg_lstsq"] == 2


def test_gradients_flow_through_what_runs_on_the_cpu() -> None:
    gradients = []
    for device in ("cpu", "xla"):
        x = torch.tensor([1.0, -2.0, 3.0], device=device, requires_grad=True)
        (torch.linalg.lstsq(torch.diag(x), x.unsqueeze(1)).solution ** 2).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_errors_of_the_cpu_pass_through() -> None:
    x = torch.ones(3, device="xla")
    with pytest.raises(RuntimeError, match="shape '\\[-1, 7\\]' is invalid for input of size 3"):
        OPS.broken(x)
    assert (x + 1).tolist() == [2, 2, 2]


def test_what_the_cpu_has_no_kernel_of_either_says_so() -> None:
    packed = torch.zeros(8, 8, dtype=torch.uint8, device="xla")
    with pytest.raises(NotImplementedError, match="int4pack has neither an XLA lowering nor a CPU kernel in torch: write"):
        torch._convert_weight_to_int4pack(packed, 2)


def test_xla_fallback_error_forbids_it(counts: Counts) -> None:
    x = torch.ones(2, device="xla")
    with config.override(config.FALLBACK, FallbackPolicy.ERROR):
        with pytest.raises(FallbackError, match="xla_core_fallback_tests::double has no XLA lowering.*XLA_FALLBACK") as caught:
            OPS.double(x)
        assert isinstance(caught.value, RuntimeError)
        assert (x * 2).tolist() == [2, 2]
    assert OPS.double(x).tolist() == [2, 2]
    assert counts["xla_core_fallback_tests::double"] == 1


def test_sparse_results_are_refused_with_advice() -> None:
    with pytest.raises(NotImplementedError, match=r"xla tensors are dense, there are no sparse tensors: make it dense with \.to_dense"):
        torch.eye(2, device="xla").to_sparse()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("sparse", [Tensor.to_sparse, Tensor.to_sparse_csr])
def test_sparse_operands_are_refused_with_advice(sparse: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"layout torch.sparse_\w+ and shape \(2, 2\): xla tensors are dense. Use .to_dense\(\) first"):
        torch.sparse.mm(sparse(torch.eye(2)), torch.ones(2, 2, device="xla"))


def test_two_devices_are_refused(run: Callable[..., str]) -> None:
    output = run(
        """
        import torch, torch_xla
        try:
            torch.isin(torch.ones(2, device="xla:0").nonzero(), torch.ones(2, device="xla:1"))
        except RuntimeError as error:
            print("xla:0" in str(error) and "xla:1" in str(error))
        """,
        CPU_NUM_DEVICES="2",
    )
    assert output.strip() == "True"


def test_a_read_after_a_sync_uses_what_is_there(counts: Counts) -> None:
    x = torch.ones(2, device="xla") * 3
    torch_xla.sync()
    counts.restart()
    assert OPS.double(x).tolist() == [6, 6]
    assert counts.ExecuteComputation == 0


def test_a_kernel_for_any_device_is_recorded(counts: Counts) -> None:
    library = torch.library.Library("xla_core_any_device_tests", "DEF")
    try:
        library.define("quadruple(Tensor x) -> Tensor")
        library.impl("quadruple", lambda x: (x * 2).add_(x * 2), "CompositeExplicitAutograd")
        x = torch.ones(2, device="xla")
        assert torch.ops.xla_core_any_device_tests.quadruple(x).tolist() == [4.0, 4.0]
        assert counts["xla_core_any_device_tests::quadruple"] == 0 and counts["xla::mul"] == 2
    finally:
        library._destroy()


def test_a_kernel_for_this_device_comes_first(counts: Counts) -> None:
    library = torch.library.Library("xla_core_this_device_tests", "DEF")
    try:
        library.define("quadruple(Tensor x) -> Tensor")
        library.impl("quadruple", lambda x: x * 4, "CompositeExplicitAutograd")
        library.impl("quadruple", lambda x: x + x + x + x, "PrivateUse1")
        x = torch.ones(2, device="xla")
        assert torch.ops.xla_core_this_device_tests.quadruple(x).tolist() == [4.0, 4.0]
        assert counts["xla::mul"] == 0 and counts["xla::add"] == 3
    finally:
        library._destroy()


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered:UserWarning")
@pytest.mark.parametrize("key", ["CompositeExplicitAutograd", "PrivateUse1"])
@pytest.mark.parametrize("registered", [False, True])
def test_a_kernel_is_differentiated_by_its_parts_unless_its_gradient_is_registered(key: str, registered: bool) -> None:
    library = torch.library.Library("xla_core_gradient_tests", "DEF")
    try:
        library.define("cube(Tensor x) -> Tensor")
        for each in {key, "CPU"}:
            library.impl("cube", lambda x: x * x * x, each)
        if registered:
            torch.library.register_autograd("xla_core_gradient_tests::cube", lambda ctx, grad: grad * 100, lib=library)
        for device in ("cpu", "xla"):
            x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
            (torch.ops.xla_core_gradient_tests.cube(x) + x).sum().backward()
            assert x.grad is not None and x.grad.tolist() == ([101.0, 101.0] if registered else [4.0, 13.0])
            with torch.no_grad():
                assert not torch.ops.xla_core_gradient_tests.cube(x).requires_grad
    finally:
        library._destroy()


def test_a_factorisation_that_fails_raises_without_a_fallback(counts: Counts) -> None:
    with pytest.raises(torch.linalg.LinAlgError) as mine:
        torch.linalg.inv(torch.zeros(2, 2, device="xla"))
    with pytest.raises(torch.linalg.LinAlgError) as theirs:
        torch.linalg.inv(torch.zeros(2, 2))
    assert str(mine.value) == str(theirs.value)
    assert torch.linalg.inv(2 * torch.eye(2, device="xla")).tolist() == [[0.5, 0.0], [0.0, 0.5]]
    assert not any(counts[name] for name in metrics.snapshot().counters if name.startswith("aten::") and "scalar" not in name)


def test_kernels_see_the_conjugates_that_they_make() -> None:
    """Inside a kernel a conjugate is lazy; torch must resolve it there too."""
    x = torch.tensor([[1 + 2j, 3j], [4 - 1j, 2 + 2j], [1j, 5.0]])

    def gram(x: Tensor) -> Tensor:
        return x.mH @ x - x.conj().imag.sum() + x.imag.neg().sum()

    library = torch.library.Library("xla_core_conjugate_tests", "DEF")
    try:
        for name, key in (("on_cpu", "CPU"), ("anywhere", "CompositeExplicitAutograd")):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, gram, key)
            torch.testing.assert_close(getattr(torch.ops.xla_core_conjugate_tests, name)(x.to("xla")).cpu(), gram(x))
    finally:
        library._destroy()
    mine, theirs = (torch.linalg.lstsq(each, each[:, :1] + 1).residuals for each in (x.to("xla"), x))
    torch.testing.assert_close(mine.cpu(), theirs)
