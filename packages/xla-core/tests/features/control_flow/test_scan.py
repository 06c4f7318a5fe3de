"""`scan` against the same loop in Python on the CPU: values, gradients, random numbers, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import torch_xla
import torch_xla.core.xla_model
from torch_xla.experimental import eager_mode_context
from torch_xla.experimental.scan import scan, value_and_grad_partitioned
from torch_xla.utils.checkpoint import checkpoint
from xla_core.base.errors import GraphBreakError, UnsupportedOperationError

from ...conftest import Counts

Function = Callable[[Any, Any], tuple[Any, Any]]


def in_python(fn: Function, carry: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """The loop as users would write it."""
    leaves, tree = tree_flatten(xs)
    outputs: list[Any] = []
    turns = range(leaves[0].shape[0])
    for turn in reversed(turns) if reverse else turns:
        carry, output = fn(carry, tree_unflatten([leaf[turn] for leaf in leaves], tree))
        outputs.append(output)
    if reverse:
        outputs.reverse()
    flat = [tree_flatten(output)[0] for output in outputs]
    nesting = tree_flatten(outputs[0])[1]
    return carry, tree_unflatten([torch.stack(each) for each in zip(*flat, strict=True)], nesting)


def compare(fn: Callable[[str], Function], init: Any, xs: Any, **options: Any) -> None:
    """Values and all gradients on the device and on the CPU are alike. fn: makes the function for a device."""
    found = []
    for device in ("cpu", "xla"):
        start = tree_map(lambda leaf, device=device: leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad), (init, xs))
        run = in_python if device == "cpu" else scan
        rest = {"reverse": options["reverse"]} if device == "cpu" and "reverse" in options else options if device == "xla" else {}
        results = run(fn(device), *start, **rest)
        leaves = tree_flatten(results)[0]
        wanted = [leaf for leaf in tree_flatten(start)[0] if leaf.requires_grad]
        total = sum((leaf * leaf).sum() * (place + 1) for place, leaf in enumerate(leaves) if leaf.is_floating_point())
        if wanted:
            total.backward()
        grads = [leaf.grad for leaf in wanted]
        found.append([leaf.detach().cpu() for leaf in (*leaves, *grads)])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def recurrent(carry: dict[str, Any], x: tuple[Any, Any]) -> tuple[Any, Any]:
    hidden = torch.tanh(carry["h"] * x[0] + x[1].t())
    return {"h": hidden, "n": carry["n"] + 1}, [hidden.sum(0), (hidden * x[0]).relu()]


@pytest.fixture(params=[False, True], ids=["lazy", "eager"])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with eager_mode_context(True) if request.param else nullcontext():
        yield


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("pure", [False, True])
def test_nested_carry_and_outputs(reverse: bool, pure: bool) -> None:
    torch.manual_seed(0)
    init = {"h": torch.randn(2, 3, requires_grad=True), "n": torch.tensor(0)}
    xs = torch.randn(4, 2, 3, requires_grad=True), torch.randn(4, 3, 2, requires_grad=True)
    compare(lambda device: recurrent, init, xs, reverse=reverse, is_fn_pure=pure)


@given(
    st.lists(st.sampled_from(["tanh", "product", "flip", "expand", "slice", "detach", "square"]), min_size=1, max_size=4),
    st.integers(1, 3),
    st.booleans(),
)
def test_bodies_of_any_shape(names: list[str], turns: int, reverse: bool) -> None:
    steps: dict[str, Callable[[Any, Any], Any]] = {
        "tanh": lambda c, x: torch.tanh(c + x),
        "product": lambda c, x: c @ x.t() @ x,
        "flip": lambda c, x: c.flip(0) * x,
        "expand": lambda c, x: c[:1].expand(2, 3) + x[1],
        "slice": lambda c, x: torch.cat([c[1:], x[:1]]),
        "detach": lambda c, x: c * x.detach() + c.detach(),
        "square": lambda c, x: c * c * 0.5 - x,
    }

    def fn(c: Any, x: Any) -> tuple[Any, Any]:
        for name in names:
            c = steps[name](c, x)
        return c, (c[0], x.sum())

    generator = torch.Generator().manual_seed(turns)
    init = torch.rand(2, 3, generator=generator).requires_grad_()
    xs = torch.rand(turns, 2, 3, generator=generator).requires_grad_()
    if names == ["detach"] or "tanh" in names or len(names) < 4:
        compare(lambda device: fn, init, xs, reverse=reverse)


def test_gradients_of_tensors_from_outside() -> None:
    torch.manual_seed(1)
    reference = torch.nn.Linear(3, 3)
    module = copy.deepcopy(reference).to("xla")
    init, xs = torch.randn(2, 3), torch.randn(5, 2, 3)
    for layer, device, run in ((reference, "cpu", in_python), (module, "xla", scan)):
        scale = torch.full((3,), 0.5, device=device).requires_grad_() * 2  # not a leaf

        def fn(c: Any, x: Any, layer: Any = layer, scale: Any = scale) -> tuple[Any, Any]:
            return torch.tanh(layer(c) * scale) + x, c.sum(0)

        carry, _ = run(fn, init.to(device), xs.to(device))
        carry.square().sum().backward()
    for expected, got in zip(reference.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(got.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)


def test_tensors_from_outside_that_depend_on_each_other() -> None:
    found = []
    for device, run in (("cpu", in_python), ("xla", scan)):
        leaf = torch.full((2,), 0.5, device=device, requires_grad=True)
        double = leaf * 2
        carry, outputs = run(lambda c, x, d=double, w=leaf: (torch.sin(c * w + d * x), w), leaf + 1, torch.ones(3, 2, device=device))
        (carry.sum() + outputs.sum() + double.sum()).backward()
        found.append([carry.detach().cpu(), leaf.grad.cpu()])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_inside(use_reentrant: bool) -> None:
    torch.manual_seed(2)
    start = torch.randn(3, 3)

    def make(device: str) -> Function:
        def fn(c: Any, x: Any) -> tuple[Any, Any]:
            return checkpoint(lambda a, b: torch.tanh(a @ b).sin(), c, x, use_reentrant=use_reentrant), c.sum()

        return fn

    compare(make, start.requires_grad_(), torch.randn(4, 3, 3, requires_grad=True))


def test_barriers_inside() -> None:
    def fn(c: Any, x: Any) -> tuple[Any, Any]:
        hidden = torch.tanh(c @ x)
        torch_xla.core.xla_model.optimization_barrier_([hidden])
        return hidden.sin(), hidden

    start, xs = torch.ones(3, 3), torch.full((4, 3, 3), 0.1)
    expected, _ = in_python(lambda c, x: (torch.tanh(c @ x).sin(), c), start, xs)
    torch.testing.assert_close(scan(fn, start.to("xla"), xs.to("xla"))[0].cpu(), expected)


def test_custom_gradients_are_kept() -> None:
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 3

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad.clamp(-0.1, 0.1)

    compare(lambda device: lambda c, x: (Clipped.apply(c) + x, c), torch.ones(2, requires_grad=True), torch.ones(3, 2, requires_grad=True))


def test_scans_nest() -> None:
    def make(device: str) -> Function:
        run = in_python if device == "cpu" else scan

        def outer(c: Any, x: Any) -> tuple[Any, Any]:
            inner, rows = run(lambda d, z: (torch.sin(d * z), d + z), c, x)
            return c + inner, rows.sum()

        return outer

    compare(make, torch.tensor(0.5, requires_grad=True), torch.rand(3, 2, requires_grad=True))


@pytest.mark.parametrize("pure", [False, True])
def test_random_numbers_differ_between_turns_and_calls_and_gradients_see_them(pure: bool) -> None:
    def fn(c: Any, x: Any) -> tuple[Any, Any]:
        kept = torch.dropout(x, 0.5, True)
        return c + kept, kept

    xs = torch.ones(6, 64, device="xla", requires_grad=True)
    found = []
    for _ in range(2):
        xs.grad = None
        carry, kept = scan(fn, torch.zeros(64, device="xla"), xs, is_fn_pure=pure)
        carry.sum().backward()
        torch.testing.assert_close(xs.grad.cpu(), kept.detach().cpu())
        torch.testing.assert_close(carry.cpu(), kept.sum(0).cpu())
        found.append(kept.detach().cpu())
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0][0], found[0][1])
    torch.manual_seed(3)
    first = scan(fn, torch.zeros(64, device="xla"), xs.detach())[0].cpu()
    torch.manual_seed(3)
    assert torch.equal(first, scan(fn, torch.zeros(64, device="xla"), xs.detach())[0].cpu())


def test_pure_functions_are_called_once_and_compiled_once(counts: Counts) -> None:
    calls = []

    def fn(c: Any, x: Any) -> tuple[Any, Any]:
        calls.append(1)
        return c * x, c

    for turn in range(3):
        carry, _ = scan(fn, torch.tensor([turn + 1.0] * 2).to("xla"), torch.full((3, 2), 2.0).to("xla"), is_fn_pure=True)
        torch_xla.sync()
        assert carry.tolist() == [8.0 * (turn + 1)] * 2
    assert len(calls) == 1
    assert counts.UncachedCompile <= 1


@pytest.mark.parametrize("turns", [0, 1])
def test_few_turns(turns: int) -> None:
    weight = torch.ones(2, device="xla", requires_grad=True)
    start = torch.full((2,), 3.0, device="xla", requires_grad=True)
    carry, outputs = scan(lambda c, x: (c * weight * x, c + weight), start, torch.full((turns, 2), 2.0, device="xla"))
    (carry.sum() + outputs.sum()).backward()
    assert (carry.tolist(), outputs.tolist()) == (([3.0, 3.0], []) if turns == 0 else ([6.0, 6.0], [[4.0, 4.0]]))
    assert (weight.grad.tolist(), start.grad.tolist()) == (([0.0, 0.0], [1.0, 1.0]) if turns == 0 else ([7.0, 7.0], [3.0, 3.0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_any_dtype_is_carried(dtype: torch.dtype) -> None:
    needs_grad = dtype.is_floating_point
    init, xs = ((torch.arange(1.0, size + 1) / 4).to(dtype) for size in (2, 6))
    fn: Function = (lambda c, x: (c | x, c & x)) if dtype is torch.bool else (lambda c, x: (c * x + c, c + x))
    start = init.requires_grad_(needs_grad), xs.reshape(3, 2).clone().requires_grad_(needs_grad)
    expected, got = in_python(fn, *start), scan(fn, *[tensor.detach().to("xla") for tensor in start])
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(other.cpu(), one.detach())


def test_the_body_is_compiled_once_for_any_number_of_turns() -> None:
    def operations(turns: int) -> int:
        carry, _ = scan(lambda c, x: (torch.sin(c) * x, c), torch.ones(2, device="xla"), torch.ones(turns, 2, device="xla"))
        text: str = torch_xla._XLAC._get_xla_tensors_hlo([carry])
        return text.count("sine(")

    assert operations(3) == operations(30) == 1


@pytest.mark.usefixtures("mode")
def test_without_gradients() -> None:
    with torch.no_grad():
        init, xs = torch.ones(2, device="xla", requires_grad=True), torch.ones(3, 2, device="xla")
        carry, outputs = scan(lambda c, x: (c + x, c), init, xs)
    assert not carry.requires_grad
    assert carry.tolist() == [4.0, 4.0]
    assert outputs.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_autocast_in_the_body() -> None:
    weight = torch.randn(4, 4)
    for _ in range(2):  # nothing that autocast keeps comes out of the body
        with torch.autocast("xla", dtype=torch.bfloat16):
            outside = torch.mm(weight.to("xla"), weight.to("xla"))
            on_device = weight.to("xla").requires_grad_()
            _, outputs = scan(lambda c, x, w=on_device: (c, torch.mm(x, w)), torch.ones((), device="xla"), weight.to("xla").expand(2, 4, 4))
            assert outputs.dtype == outside.dtype == torch.bfloat16
        outputs.float().sum().backward()
        expected = (weight.bfloat16().float() @ weight.bfloat16().float()).bfloat16()
        torch.testing.assert_close(outputs[1].detach().cpu(), expected, rtol=2e-2, atol=2e-2)
        assert on_device.grad.dtype == torch.float32


def test_outputs_and_carry_may_be_none_or_views() -> None:
    carry, outputs = scan(lambda c, x: (None, {"a": None, "b": x[1:]}), None, torch.arange(6.0, device="xla").reshape(2, 3))
    assert carry is None
    assert outputs["a"] is None
    assert outputs["b"].tolist() == [[1.0, 2.0], [4.0, 5.0]]


def test_partitioners_of_functorch() -> None:
    from functorch.compile import default_partition, min_cut_rematerialization_partition

    torch.manual_seed(3)
    init, xs = torch.randn(2, 3, requires_grad=True), torch.randn(4, 2, 3, requires_grad=True)
    for partition in (default_partition, min_cut_rematerialization_partition):
        compare(lambda device: lambda c, x: (torch.tanh(c * x).sin(), c.exp().sum()), init, xs, partition_fn=partition)


def test_a_turn_and_its_gradient_as_functions() -> None:
    torch.manual_seed(4)
    init, xs = torch.randn(3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    carry, ys = in_python(recurrent_step, init, xs)
    (carry.sum() + ys.sum()).backward()
    on_device = init.detach().to("xla"), xs.detach().to("xla")
    forward, alias_input, backward = value_and_grad_partitioned(recurrent_step, *on_device)
    state, kept = on_device[0], []
    for x in on_device[1]:
        state, (_, saved) = forward(state, x)
        kept.append(saved)
    grad, slices = torch.ones(3, device="xla"), []
    for turn in reversed(range(4)):
        grad, of_x = backward(grad, (alias_input(kept[turn], on_device[1]), torch.ones(3, device="xla")))
        slices.append(of_x.cpu())
    torch.testing.assert_close(state.cpu(), carry.detach())
    torch.testing.assert_close(grad.cpu(), init.grad)
    torch.testing.assert_close(torch.stack(slices[::-1]), xs.grad)
    weight = torch.ones(3, device="xla", requires_grad=True)
    with pytest.raises(ValueError, match="pass it as an argument"):
        value_and_grad_partitioned(lambda c, x: (c * weight, x), *on_device)
    with pytest.raises(ValueError, match="pure"):
        value_and_grad_partitioned(recurrent_step, *on_device, is_fn_pure=False)


def recurrent_step(c: Any, x: Any) -> tuple[Any, Any]:
    hidden = torch.tanh(c * x)
    return hidden, hidden * x.exp()


def test_an_index_out_of_range_is_found_in_any_turn() -> None:
    table, places = torch.arange(3.0, device="xla"), torch.tensor([[0], [5], [1]], device="xla")
    carry, _ = scan(lambda c, i: (c + table.gather(0, i), None), torch.zeros(1, device="xla"), places)
    with pytest.raises(RuntimeError, match="index 5 is out of bounds for dimension 0 with size 3"):
        carry.cpu()


@pytest.mark.parametrize(
    ("fn", "error", "text"),
    [
        (lambda c, x: (c, x.sum().item()), GraphBreakError, "may not read a value"),
        (lambda c, x: (c.double(), x), ValueError, "f32\\[2\\] as f64\\[2\\]"),
        (lambda c, x: ((c, c), x), ValueError, "nested as"),
        (lambda c, x: c, TypeError, "returns \\(carry, output\\)"),
        (lambda c, x: (c, 3), TypeError, "got a int"),
        (lambda c, x: (c, x.cpu()), GraphBreakError, "read the value before"),
        (lambda c, x: (c, torch_xla.sync()), GraphBreakError, "a sync cannot run in the function of scan"),
    ],
)
def test_wrong_functions(fn: Function, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        scan(fn, torch.zeros(2, device="xla"), torch.ones(3, 2, device="xla"))


def test_writes_to_what_is_outside_are_refused_and_undone() -> None:
    total = torch.zeros(2, device="xla")
    buffers = torch.nn.BatchNorm1d(2).to("xla")
    with torch.no_grad(), pytest.raises(UnsupportedOperationError, match="writes to a tensor from outside"):
        scan(lambda c, x: (c, total.add_(x)), torch.zeros(2, device="xla"), torch.ones(3, 2, device="xla"))
    with torch.no_grad(), pytest.raises(UnsupportedOperationError, match="writes to one of its arguments"):
        scan(lambda c, x: (c.add_(x), None), torch.zeros(2, device="xla"), torch.ones(3, 2, device="xla"))
    with pytest.raises(UnsupportedOperationError, match="writes to a tensor from outside"):
        scan(lambda c, x: (c, buffers(x)), torch.zeros(2, device="xla"), torch.ones(3, 4, 2, device="xla"))
    assert total.tolist() == [0.0, 0.0]
    assert buffers.running_mean.tolist() == [0.0, 0.0]


def test_what_stays_in_the_body_has_no_value_outside_and_views_of_outside_do() -> None:
    kept: list[torch.Tensor] = []
    matrix = torch.arange(4.0, device="xla").reshape(2, 2)
    turned = matrix.t()

    def fn(c: Any, x: Any) -> tuple[Any, Any]:
        kept.append(x * 2)
        return c + turned.clone()[0], None

    carry, _ = scan(fn, torch.zeros(2, device="xla"), torch.ones(3, 2, device="xla"))
    with pytest.raises(GraphBreakError, match="has to return it"):
        kept[0].cpu()
    assert (turned + 0).tolist() == [[0.0, 2.0], [1.0, 3.0]]
    assert carry.tolist() == [0.0, 6.0]


def test_wrong_arguments() -> None:
    ones = torch.ones(3, device="xla")
    with pytest.raises(RuntimeError, match="not an XLA tensor"):
        scan(lambda c, x: (c, x), torch.zeros(1), ones)
    with pytest.raises(TypeError, match="got a float"):
        scan(lambda c, x: (c, x), 1.0, ones)
    with pytest.raises(ValueError, match="first dimensions"):
        scan(lambda c, x: (c, x[0]), ones, (ones, ones[:2]))
    with pytest.raises(ValueError, match="needs a tensor in xs"):
        scan(lambda c, x: (c, x), ones, None)
    with pytest.raises(ValueError, match="has none"):
        scan(lambda c, x: (c, x), ones, ones[0])
