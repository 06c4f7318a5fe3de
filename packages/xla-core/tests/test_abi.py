"""The door: its names, its locked signatures, its version check, and what comes through it."""

from __future__ import annotations

import enum
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

from xla_core import abi, errors
from xla_core.ir.text import graph_text

LOCK = Path(__file__).parent.parent / "abi.lock.json"


def describe(thing: Any) -> Any:
    """What a user of a name relies on, as text."""
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        return sorted(f"{member.name}={member.value!r}" for member in thing)
    if is_dataclass(thing):
        return [f"{field.name}: {field.type}" for field in fields(thing)]
    if callable(thing) and not isinstance(thing, type) and not hasattr(thing, "__origin__"):
        return str(inspect.signature(thing))
    return repr(thing)


def current() -> dict[str, Any]:
    return {name: describe(getattr(abi, name)) for name in abi.__all__}


def test_signatures_are_those_of_the_lock() -> None:
    """A change needs a new ABI_VERSION (a minor for an addition, a major otherwise) and a new lock, in the same commit."""
    locked = json.loads(LOCK.read_text())
    assert current() == locked, "write the new lock with: python packages/xla-core/tests/test_abi.py"


def test_the_door_holds_exactly_what_it_lists() -> None:
    public = {name for name in vars(abi) if not name.startswith("_")} - {"annotations", "activate"}
    assert public == set(abi.__all__)


def test_require_names_the_wheel_to_change() -> None:
    major, minor = abi.ABI_VERSION
    abi.require((major, minor), "xla-spmd")
    with pytest.raises(errors.AbiVersionError, match="upgrade xla-core"):
        abi.require((major, minor + 1), "xla-spmd")
    with pytest.raises(ImportError, match="upgrade xla-spmd"):
        abi.require((major - 1, 0), "xla-spmd")


def test_buffers_come_and_go_without_a_copy_and_stay_valid() -> None:
    tensor = torch.arange(4.0).to("xla") + 1
    buffer = abi.buffer_of(tensor)
    tensor.mul_(10)
    abi.sync(wait=True)
    np.testing.assert_array_equal(np.asarray(buffer), [1, 2, 3, 4])
    mine = jax.numpy.asarray(np.arange(3, dtype=np.float32))
    other = abi.tensor_from_buffer(mine)
    other.add_(5)
    abi.sync(wait=True)
    assert other.tolist() == [5.0, 6.0, 7.0]
    np.testing.assert_array_equal(np.asarray(mine), [0, 1, 2])


def test_buffer_of_wants_an_xla_tensor() -> None:
    with pytest.raises(RuntimeError, match=r"Input tensor is not an XLA tensor: torch\.FloatTensor"):
        abi.buffer_of(torch.zeros(2))


def test_tensor_from_buffer_checks_dtype() -> None:
    with pytest.raises(TypeError, match="cannot stand for"):
        abi.tensor_from_buffer(jax.numpy.zeros(2, np.float32), torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.uint16])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (300, 400)])
def test_a_tensor_that_is_given_away_is_on_the_device(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = (torch.arange(torch.Size(shape).numel()).reshape(shape) % 200).to(dtype)
    there = abi.tensor_from_host(values.clone())
    assert there.device == torch.device("xla", 0) and there.dtype is dtype and torch.equal(there.cpu(), values)
    there.copy_(values.new_ones(()))
    assert torch.equal(there.cpu(), values.new_ones(()).expand(shape))
    turned = values.transpose(-1, -2) if values.dim() > 1 else values
    assert torch.equal(abi.tensor_from_host(turned, "xla:0").cpu(), turned)


def test_what_is_on_a_device_or_for_another_cannot_be_given_away() -> None:
    with pytest.raises(errors.DeviceMismatchError, match="the tensor is on xla:0"):
        abi.tensor_from_host(torch.ones(2, device="xla"))
    with pytest.raises(errors.UnknownDeviceError, match="cpu is no xla device"):
        abi.tensor_from_host(torch.ones(2), "cpu")


def test_memory_that_is_aligned_is_used_in_place() -> None:
    tensor = torch.ones(1 << 20)
    assert tensor.data_ptr() % 64 == 0
    assert abi.buffer_of(abi.tensor_from_host(tensor)).unsafe_buffer_pointer() == tensor.data_ptr()
    with torch.device("xla"):
        uploaded = tensor.to("xla")
    abi.sync(wait=True)
    tensor.zero_()
    assert uploaded.sum().item() == 1 << 20, "an upload is a copy"


def test_annotations_belong_to_the_data() -> None:
    tensor = torch.zeros(2, 2, device="xla")
    abi.annotate(tensor, "test.mark", "here")
    assert abi.annotation(tensor.detach()[0], "test.mark") == "here"
    assert abi.annotation(tensor.clone(), "test.mark") is None
    abi.annotate(tensor, "test.mark", None)
    assert abi.annotation(tensor, "test.mark") is None


def test_tensors_that_show_the_same_have_one_key() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 3).to("xla"))
    key = abi.shown_key(weight)
    assert key == abi.shown_key(weight.detach()) == abi.shown_key(weight.data) and abi.shown_key(weight.t().t()) == key
    others = [weight.detach().clone(), weight.t(), weight[1:], weight.view(12), weight[1]]
    assert len({abi.shown_key(other) for other in others} | {key}) == 6
    assert abi.shown_key(weight[1:]) == abi.shown_key(weight.detach()[1:])


def test_computed_runs_each_device_once_and_reads_nothing(counts: Any) -> None:
    x = torch.ones(5, device="xla")
    results = [x + number for number in range(4)]
    abi.computed(results[:3])
    assert counts.ExecuteComputation == 1 and counts.MarkStep == 0
    assert [abi.is_pending(result) for result in results] == [False, False, False, True]
    (part,) = abi.owned_parts(results[3])
    assert part.index == (slice(0, 5),) and part.read().tolist() == [4.0] * 5


def test_graph_of_shows_the_pending_program_and_leaves_it_pending() -> None:
    abi.sync()
    x = torch.arange(6.0).reshape(2, 3).to("xla")
    y = (x + x).relu()
    before = abi.counter("ExecuteComputation")
    lines = [line.split("  #")[0] for line in graph_text(abi.graph_of([y])).splitlines()]
    assert lines == [
        "%0 = input : f32[2,3]",
        "%1 = aten.add.Tensor(%0, %0) : f32[2,3]",
        "%2 = aten.relu(%1) : f32[2,3]",
        "return %2",
    ]
    assert abi.counter("ExecuteComputation") == before
    assert y.sum().item() == 30.0


def test_a_registered_operation_is_recorded_and_differentiable() -> None:
    library = torch.library.Library("xla_core_test", "DEF")
    library.define("scaled_square(Tensor x, float factor) -> Tensor")
    library.impl("scaled_square", lambda x, factor: x * x * factor, "CompositeExplicitAutograd")
    library.impl("scaled_square", lambda x, factor: torch.empty_like(x), "Meta")
    func = torch.ops.xla_core_test.scaled_square

    def lower(context: abi.Context, x: jax.Array, factor: Any) -> jax.Array:
        """scaled_square(Tensor x, float factor) -> Tensor"""
        return x * x * abi.scalar(factor, context.dtype)

    abi.register_op(abi.OpSpec("xla_core_test::scaled_square", lower, frozenset({"factor"})))
    before = abi.snapshot().counters
    x = torch.tensor([1.0, 2.0, 3.0]).to("xla")
    assert func(x, 0.5).tolist() == [0.5, 2.0, 4.5]
    after = abi.snapshot().counters
    assert after["xla::scaled_square"] == before.get("xla::scaled_square", 0) + 1
    with pytest.raises(errors.RegistrationError, match="already registered"):
        abi.register_op(abi.OpSpec("xla_core_test::scaled_square", lower))
    with pytest.raises(errors.RegistrationError, match="no operation named"):
        abi.register_op(abi.OpSpec("xla_core_test::nothing", lower))


def test_a_registered_operation_is_replaced_where_that_is_asked_for() -> None:
    """As by the cell of a notebook that runs a second time with another lowering; also for a row of this package."""
    library = torch.library.Library("xla_core_again", "DEF")
    library.define("scaled(Tensor x, float factor) -> Tensor")
    library.define("scaled_(Tensor(a!) x, float factor) -> Tensor(a!)")
    library.impl("scaled", lambda x, factor: torch.empty_like(x), "Meta")
    library.impl("scaled_", lambda x, factor: x, "Meta")
    x = torch.tensor([1.0, 2.0, 3.0]).to("xla")

    def registered(power: int, replace: bool) -> tuple[list[float], list[float]]:
        def lower(context: abi.Context, x: jax.Array, factor: Any) -> jax.Array:
            return x**power * abi.scalar(factor, context.dtype)

        abi.register_op(abi.OpSpec("xla_core_again::scaled", lower, frozenset({"factor"})), replace=replace)
        y = x.clone()
        torch.ops.xla_core_again.scaled_(y, 0.5)
        return torch.ops.xla_core_again.scaled(x, 0.5).tolist(), y.tolist()

    assert registered(1, False) == ([0.5, 1.0, 1.5],) * 2
    pending = torch.ops.xla_core_again.scaled(x, 2.0)
    with pytest.raises(errors.RegistrationError, match="replace=True"):
        registered(2, False)
    before = abi.counter("xla::scaled")
    assert registered(3, True) == ([0.5, 4.0, 13.5],) * 2
    assert pending.tolist() == [2.0, 4.0, 6.0], "recorded before"
    assert abi.counter("xla::scaled") == before + 2, "counted on"

    library.define("other(Tensor x) -> Tensor")
    library.impl("other", torch.empty_like, "Meta")
    abi.register_op(abi.OpSpec("xla_core_again::other", lambda context, x: x), replace=True)
    assert torch.ops.xla_core_again.other(x).tolist() == [1.0, 2.0, 3.0], "there need be no row before"


def test_a_pass_sees_every_graph() -> None:
    seen: list[abi.Graph] = []

    def watch(graph: abi.Graph) -> abi.Graph:
        seen.append(graph)
        return graph

    remove = abi.register_pass(watch)
    try:
        (torch.ones(3, device="xla") * 3).tolist()
    finally:
        remove()
    assert len(seen) == 1
    assert "aten.mul.Tensor" in graph_text(seen[0])


def test_a_pass_that_does_not_work_is_named() -> None:
    def without_a_result(graph: abi.Graph) -> Any:
        return None

    def raising(graph: abi.Graph) -> abi.Graph:
        raise KeyError("missing")

    def on_purpose(graph: abi.Graph) -> abi.Graph:
        raise errors.TooManyGraphsError("enough")

    for graph_pass, error, text in (
        (without_a_result, errors.PluginError, r"test_abi\..*without_a_result gave None: a pass returns a graph"),
        (raising, RuntimeError, r"test_abi\..*raising raised KeyError: 'missing'"),
        (on_purpose, errors.TooManyGraphsError, "enough"),
    ):
        remove = abi.register_pass(graph_pass)
        try:
            with pytest.raises(error, match=text):
                (torch.ones(3, device="xla") * 5).tolist()
        finally:
            remove()
    assert (torch.ones(3, device="xla") * 5).tolist() == [5, 5, 5]


def test_a_build_scope_is_entered_while_a_program_is_compiled() -> None:
    told: list[str | float] = []

    @contextmanager
    def scope(graph: abi.Graph) -> Iterator[None]:
        compiled = abi.counter("UncachedCompile")
        try:
            yield
        finally:
            told.extend([graph_text(graph), abi.counter("UncachedCompile") - compiled])

    library = torch.library.Library("xla_core_scope", "DEF")
    library.define("fails(Tensor x) -> Tensor")
    library.impl("fails", torch.empty_like, "Meta")
    abi.register_op(abi.OpSpec("xla_core_scope::fails", lambda context, x: x[:1]))
    x = torch.ones(37).to("xla")
    remove = abi.register_build_scope(scope)
    try:
        for _ in range(2):
            x.cosh().cpu()
        assert "aten.cosh" in str(told[0]) and told[1:] == [1], "once, around the compilation"
        with pytest.raises(errors.LoweringError):
            torch.ops.xla_core_scope.fails(x).cpu()
        assert "fails" in str(told[2]) and told[3] == 0, "it is left after a failure, too"
        told.clear()
    finally:
        remove()
    x.sinh().cpu()
    assert not told


def test_topology_is_checked_and_restored() -> None:
    with pytest.raises(ValueError, match="process 2 is not one of 2"):
        abi.Topology(process_index=2, process_count=2)
    previous = abi.set_topology(abi.Topology(process_index=1, process_count=2, replicas=True))
    assert abi.topology().process_index == 1
    abi.set_topology(previous)
    assert abi.topology() == abi.Topology()


if __name__ == "__main__":
    LOCK.write_text(json.dumps(current(), indent=2) + "\n")
