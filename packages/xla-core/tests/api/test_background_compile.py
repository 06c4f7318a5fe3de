"""`background_compile`: no step waits for the compiler, and what runs meanwhile is what the CPU computes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xla
from torch_xla.experimental import background_compile
from xla_core.base import metrics
from xla_core.engine.compile import build
from xla_core.engine.compile.tiers import wait_for_background
from xla_core.engine.tensor.plain import ours

Run = Callable[..., str]
COUNTERS = ("UncachedCompile", "BackgroundCompile", "ExecuteByOperation")


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """Nothing of other tests is pending, or in the background."""
    torch_xla.sync()
    wait_for_background()
    yield
    wait_for_background()


class Counted:
    """How much the counters have grown since it was made, or asked before."""

    def __init__(self) -> None:
        self._before = self._now()

    def _now(self) -> list[int]:
        return [metrics.counter(name) for name in COUNTERS]

    def grown(self) -> tuple[int, ...]:
        wait_for_background()
        before, self._before = self._before, self._now()
        return tuple(now - then for then, now in zip(before, self._before, strict=True))


def used(x: Tensor) -> Tensor:
    result = x.cosh().softmax(-1)
    torch_xla.sync()
    return result


def test_a_program_is_evaluated_until_its_second_use_is_compiled() -> None:
    x = torch.randn(3, 53)
    on_device, counted = x.to("xla"), Counted()
    seen = []
    with background_compile():
        for _ in range(4):
            torch.testing.assert_close(used(on_device).cpu(), x.cosh().softmax(-1))
            seen.append(counted.grown())
    assert seen == [(0, 0, 1), (0, 1, 1), (0, 0, 0), (0, 0, 0)]


def test_new_lengths_compile_nothing() -> None:
    model = nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 5), nn.GELU())
    on_device = nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 5), nn.GELU())
    on_device.load_state_dict(model.state_dict())
    on_device.to("xla")
    counted = Counted()
    with background_compile(), torch.no_grad():
        for length in range(1, 60):
            ids = torch.arange(length) % 11
            torch.testing.assert_close(on_device(ids.to("xla")).cpu(), model(ids))
    assert counted.grown() == (0, 0, 59)


@settings(max_examples=10)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=4, max_size=9), st.sampled_from(["sgd", "adam"]))
def test_training_in_changing_sizes_is_as_on_the_cpu(steps: list[tuple[int, bool]], kind: str) -> None:
    """Whether a program is evaluated or compiled at a step: the buffers of the weights are donated, too."""
    losses = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)
        optimizer = (torch.optim.SGD if kind == "sgd" else torch.optim.Adam)(model.parameters(), lr=0.05)
        seen = []
        with background_compile() as compiler:
            for size, waits in steps:
                x = torch.linspace(-1, 1, 5 * size).reshape(size, 5).to(device)
                optimizer.zero_grad()
                loss = model(x).square().sum()
                loss.backward()
                optimizer.step()
                torch_xla.sync()
                seen.append(loss.item())
                if waits:
                    compiler.wait()
        losses.append(seen)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_random_numbers_are_the_same_as_compiled() -> None:
    def drawn() -> Tensor:
        torch_xla.manual_seed(7)
        x = torch.ones(4, 37, device="xla")
        return torch.cat([nn.functional.dropout(x, 0.3), torch.rand_like(x), torch.randn_like(x)]).cpu()

    with background_compile():
        evaluated = drawn()
    assert torch.equal(evaluated, drawn())


VALUES = {
    torch.bool: [True, False, True],
    torch.uint16: [1, 2, 65535],
    torch.uint8: [1, 2, 255],
    torch.int64: [1, -2, 1 << 60],
    torch.bfloat16: [1.5, -2.0, float("inf")],
    torch.float16: [1.5, -2.0, float("nan")],
    torch.float64: [1.5, -2.0, 1e300],
    torch.complex64: [1 + 2j, -2j, 3.0],
    torch.float8_e4m3fn: [1.5, -2.0, 448.0],
}


@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_values_of_each_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor(VALUES[dtype], dtype=dtype)
    with background_compile():
        held = x.to("xla")
        stacked = torch.stack([held, held])
        part, conj = stacked[:, 1:].clone(), stacked.conj().t()
        for result, expected in (
            (stacked, torch.stack([x, x])),
            (part, torch.stack([x[1:], x[1:]])),
            (conj.clone(), torch.stack([x, x]).conj().t().clone()),
        ):
            assert torch.equal(result.cpu().contiguous().view(torch.uint8), expected.contiguous().resolve_conj().view(torch.uint8))


def test_results_have_memory_of_their_own() -> None:
    """Programs that take them over must not write to arguments, nor to each other's results."""
    with background_compile():
        x = torch.arange(512 * 64.0).reshape(512, 64).to("xla")
        torch_xla.sync()
        same, part, again = x.view(64, 512), x[:256], x.view(64, 512)
        same, part, again = same + 0, part * 1, again + 0
        torch_xla.sync()
        for tensor, factor in ((same, 2), (again, 3), (part, 5)):
            for _ in range(4):  # evaluated, and compiled with donation
                tensor.mul_(factor)
                torch_xla.sync()
                wait_for_background()
    expected = torch.arange(512 * 64.0).reshape(512, 64)
    assert torch.equal(x.cpu(), expected) and torch.equal(part.cpu(), expected[:256] * 5**4)
    assert torch.equal(same.cpu(), expected.view(64, 512) * 2**4) and torch.equal(again.cpu(), expected.view(64, 512) * 3**4)


def test_programs_hold_no_buffers() -> None:
    with background_compile():
        x = torch.ones(700, 3).to("xla")
        buffer = weakref.ref(ours(x)._storage.value.buffer)
        used(x)
        del x
        assert buffer() is None


def test_wrong_data_is_refused_as_on_the_cpu() -> None:
    x = torch.ones(5, 2)
    with (
        background_compile(),
        pytest.raises(IndexError, match=r"index 9 is out of bounds for dimension 0 with size 5 .*test_background_compile"),
    ):
        x.to("xla")[torch.tensor([1, 9]).to("xla")].cpu()
    with background_compile(), pytest.raises(IndexError, match="Target 4 is out of bounds"):
        nn.functional.cross_entropy(torch.ones(3, 4).to("xla"), torch.tensor([0, 4, 1]).to("xla")).item()


def test_modes_of_the_user_change_nothing() -> None:
    class Counts(TorchDispatchMode):
        seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(func.name())
            return func(*args, **(kwargs or {}))

    x, y = torch.randn(6, 67), torch.randn(67, 6)
    with background_compile():
        product = x.to("xla") @ y.to("xla")
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("xla"), Counts() as mode:
            torch_xla.sync()
    torch.testing.assert_close(product.cpu(), x @ y)
    assert not mode.seen


def test_a_failing_compile_is_said_once_and_the_program_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(function: Any, arguments: Any) -> Any:
        raise NotImplementedError("planted")

    x = torch.randn(3, 59)
    on_device = x.to("xla")
    monkeypatch.setattr(build, "lowered", fails)
    with background_compile() as compiler:
        for _ in range(2):
            used(on_device)
        compiler.wait()
        with pytest.warns(
            RuntimeWarning, match=r"test_background_compile.py:\d+ could not be compiled .* runs as it did at first.*: planted"
        ) as said:
            for _ in range(3):
                torch.testing.assert_close(used(on_device).cpu(), x.cosh().softmax(-1))
    assert len(said) == 1


def test_its_end() -> None:
    x, counted = torch.ones(2, 61).to("xla"), Counted()
    with background_compile():
        inner = background_compile()
        inner.stop()
        inner.stop()
        used(x[:, 1:])
        assert counted.grown() == (0, 0, 1)
    used(x[:, 2:])
    assert counted.grown()[0] == 1


def test_what_compiles_before_it_runs() -> None:
    step = torch_xla.compile(lambda x: x.cosh().softmax(-1), capture=True)
    x, counted = torch.ones(2, 71).to("xla"), Counted()
    with background_compile():
        for _ in range(4):
            step(x)
    compiled, in_background, evaluated = counted.grown()
    assert compiled > 0 and (in_background, evaluated) == (0, 0)


def test_a_seal_holds() -> None:
    x = torch.ones(2, 73).to("xla")
    used(x)
    with background_compile(), torch_xla.seal(), pytest.raises(RuntimeError, match="the process is sealed"):
        used(x[:, 1:])


def test_threads_with_programs_of_their_own() -> None:
    wrong: list[Tensor] = []

    def work(start: int) -> None:
        for size in range(start, start + 40, 2):
            x = torch.randn(size, 3)
            for _ in range(3):
                result = x.to("xla").cosh().softmax(0).cpu()
                if not torch.allclose(result, x.cosh().softmax(0), atol=1e-6):
                    wrong.append(result)

    with background_compile():
        threads = [threading.Thread(target=work, args=(start,)) for start in (100, 101, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


LOOP = """
    import torch, torch_xla
    from torch_xla.experimental import background_compile
    from xla_core.base import metrics
    x = torch.arange(12.0).reshape(3, 4)
    with background_compile() as compiler:
        on_device = x.to("xla")
        for _ in range(4):
            result = (on_device @ on_device.t()).softmax(-1)
            torch_xla.sync()
            compiler.wait()
    print((result.cpu().float() - (x @ x.t()).softmax(-1)).abs().max().item() < 1e-2)
    print({name: metrics.counter(name) for name in ("ExecuteByOperation", "BackgroundCompile", "PersistentCacheHit", "UncachedCompile")})
"""


def test_programs_on_disk_are_loaded_in_the_background(run: Run, tmp_path: Any) -> None:
    for loaded in (0, 1):
        agrees, counters = run(LOOP, XLA_PERSISTENT_CACHE_PATH=str(tmp_path / "cache")).splitlines()
        assert agrees == "True" and f"'BackgroundCompile': 1, 'PersistentCacheHit': {loaded}, 'UncachedCompile': 0" in counters


def test_a_full_disk_is_said_and_the_program_runs_compiled(run: Run, tmp_path: Any) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    agrees, counters = run(LOOP, XLA_PERSISTENT_CACHE_PATH=str(tmp_path / "cache")).splitlines()
    assert agrees == "True" and "'ExecuteByOperation': 2, 'BackgroundCompile': 1" in counters


def test_devices_that_compute_in_other_dtypes_evaluate_by_their_own_operations(run: Run) -> None:
    agrees, counters = run(LOOP, XLA_USE_BF16="1").splitlines()
    assert agrees == "True" and "'ExecuteByOperation': 2, 'BackgroundCompile': 1" in counters


def test_programs_over_a_mesh_compile_before_they_run(run: Run) -> None:
    code = LOOP.replace("x = torch.arange", "import torch_xla.runtime as xr; xr.use_spmd(); x = torch.arange")
    agrees, counters = run(code, CPU_NUM_DEVICES="2").splitlines()
    assert agrees == "True" and "'ExecuteByOperation': 0, 'BackgroundCompile': 0" in counters


def test_inner_operators_get_their_tensors_in_order() -> None:
    """torch's gradient of layer norm reads means that are not in order as if they were."""
    gradients = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        x, rows = torch.randn(5, 4).to(device), torch.randn(10, 5, 4).to(device)
        with background_compile():
            weighted = torch.func.vmap(torch.func.grad(lambda x, row: (nn.functional.layer_norm(x, (4,)) * row).sum()), in_dims=(None, 0))
            gradients.append(weighted(x, rows).cpu())
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("kind", ["linear", "embedding", "attention", "convolution"])
def test_gradients_are_evaluated_by_kernels(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them needs an operation to be compiled."""
    from xla_core.engine.compile import by_torch

    compiled: list[str] = []
    monkeypatch.setattr(by_torch.operators, "emit", lambda signature, *others: compiled.append(signature.name))
    results = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        layer: Any = {
            "linear": lambda: nn.Linear(6, 4),
            "embedding": lambda: nn.Embedding(9, 6),
            "attention": lambda: nn.MultiheadAttention(6, 2),
            "convolution": lambda: nn.Conv1d(5, 4, 3),
        }[kind]()
        layer.to(device)
        x = (torch.arange(7) if kind == "embedding" else torch.randn(2, 5, 6)).to(device)
        with background_compile():
            result = layer(x, x, x)[0] if kind == "attention" else layer(x)
            result.square().sum().backward()
            results.append([result.detach().cpu(), *[parameter.grad.cpu() for parameter in layer.parameters()]])
    torch.testing.assert_close(results[1], results[0])
    assert not compiled


def test_a_lowering_that_the_user_has_replaced_counts(run: Run) -> None:
    assert run("""
        import jax, torch, torch_xla
        from torch_xla.experimental import background_compile
        from xla_core.abi.operators import OpSpec, register_op
        register_op(OpSpec("aten::sinh", lambda context, x: jax.numpy.full_like(x, 7)), replace=True)
        with background_compile():
            print(torch.ones(3).to("xla").sinh().tolist())
    """).endswith("[7.0, 7.0, 7.0]\n")
