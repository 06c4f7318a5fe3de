"""The door: its names, its locked signatures, its version check, and what comes through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
import torch

from xla_core import abi, interop
from xla_core.abi import tensors, views
from xla_core.abi.graph import Graph, graph_of, register_build_scope
from xla_core.abi.job import Topology, set_topology, topology
from xla_core.abi.metrics import counter, snapshot
from xla_core.abi.operators import Context, OpSpec, register_op, scalar
from xla_core.abi.sharding import owned_shards
from xla_core.base import errors
from xla_core.engine.graph.text import graph_text

THEMES = [theme for name in abi.__all__ if isinstance(theme := getattr(abi, name), ModuleType)]


def test_the_door_holds_exactly_what_it_lists() -> None:
    files = {file.stem for file in Path(abi.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(abi.__all__) == {"ABI_VERSION", "require", *files}


def test_a_theme_is_loaded_when_it_is_asked_for(run: Any) -> None:
    said = run("import sys; from xla_core import abi; abi.events.subscribe; print(*[name for name in sys.modules if 'core.abi.' in name])")
    assert said.split() == ["xla_core.abi.events"]
    with pytest.raises(AttributeError, match="no attribute 'uploads'"):
        _ = abi.uploads


@pytest.mark.parametrize("theme", [*THEMES, interop], ids=lambda theme: theme.__name__.rpartition(".")[2])
def test_a_module_of_the_door_is_small_and_explained(theme: ModuleType) -> None:
    public = {name for name in vars(theme) if not name.startswith("_")} - {"annotations"}
    assert public == set(theme.__all__) and len(public) <= 12
    page = theme.__doc__ or ""
    assert not [name for name in theme.__all__ if name not in page], "each name is in the module's page"
    assert "Guarantees: " in page


@pytest.mark.parametrize("theme", [*THEMES, interop], ids=lambda theme: theme.__name__.rpartition(".")[2])
def test_the_example_of_a_module_runs(theme: ModuleType, run: Any) -> None:
    """In a process of its own: one of them counts, another wants two devices."""
    said = run(f"import doctest, {theme.__name__} as theme; print(doctest.testmod(theme))")
    assert "failed=0" in said and "attempted=0" not in said, said


def test_require_names_the_wheel_to_change() -> None:
    major, minor = abi.ABI_VERSION
    abi.require((major, minor), "xla-spmd")
    with pytest.raises(errors.AbiVersionError, match="upgrade xla-core"):
        abi.require((major, minor + 1), "xla-spmd")
    with pytest.raises(ImportError, match="upgrade xla-spmd"):
        abi.require((major - 1, 0), "xla-spmd")


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda t: t,
    "permuted": lambda t: t.permute(2, 0, 1),
    "transposed and back": lambda t: t.transpose(0, 2).transpose(0, 2),
    "a part": lambda t: t[1],
    "columns": lambda t: t[:, 1:],
    "every other": lambda t: t[:, :, ::2],
    "repeated": lambda t: t.unsqueeze(1).expand(2, 5, 3, 4),
    "transposed part": lambda t: t.view(-1)[4:10].view(3, 2).t(),
    "one element": lambda t: t[1, 1, 1],
    "nothing": lambda t: t[:, 3:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_can_be_shown_of_other_data(name: str) -> None:
    whole, other = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    again = views.view_function(VIEWS[name](whole.to("xla")))(other.to("xla").detach())
    assert torch.equal(again.cpu(), VIEWS[name](other))
    parameter = torch.nn.Parameter(other.to("xla"))
    again = views.view_function(VIEWS[name](whole.to("xla")))(parameter)
    assert torch.equal(again.cpu(), VIEWS[name](other)) and views.storage_key(again) == views.storage_key(parameter)


def test_a_view_is_one_of_data_of_the_same_kind() -> None:
    rows = views.view_function(torch.ones(2, 3, device="xla")[:1])
    for other in (torch.ones(3, 2, device="xla"), torch.ones(2, 3, device="xla", dtype=torch.float16)):
        with pytest.raises(ValueError, match="the view is one of data"):
            rows(other)


def test_buffers_come_and_go_without_a_copy_and_stay_valid() -> None:
    tensor = torch.arange(4.0).to("xla") + 1
    buffer = tensors.buffer_of(tensor)
    tensor.mul_(10)
    tensors.sync(wait=True)
    np.testing.assert_array_equal(np.asarray(buffer), [1, 2, 3, 4])
    mine = jax.numpy.asarray(np.arange(3, dtype=np.float32))
    other = tensors.tensor_from_buffer(mine)
    other.add_(5)
    tensors.sync(wait=True)
    assert other.tolist() == [5.0, 6.0, 7.0]
    np.testing.assert_array_equal(np.asarray(mine), [0, 1, 2])


def test_buffer_of_wants_an_xla_tensor() -> None:
    with pytest.raises(RuntimeError, match=r"Input tensor is not an XLA tensor: torch\.FloatTensor"):
        tensors.buffer_of(torch.zeros(2))


def test_tensor_from_buffer_checks_dtype() -> None:
    with pytest.raises(TypeError, match="cannot stand for"):
        tensors.tensor_from_buffer(jax.numpy.zeros(2, np.float32), torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.uint16])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (300, 400)])
def test_a_tensor_that_is_given_away_is_on_the_device(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = (torch.arange(torch.Size(shape).numel()).reshape(shape) % 200).to(dtype)
    there = tensors.tensor_from_host(values.clone())
    assert there.device == torch.device("xla", 0) and there.dtype is dtype and torch.equal(there.cpu(), values)
    there.copy_(values.new_ones(()))
    assert torch.equal(there.cpu(), values.new_ones(()).expand(shape))
    turned = values.transpose(-1, -2) if values.dim() > 1 else values
    assert torch.equal(tensors.tensor_from_host(turned, "xla:0").cpu(), turned)


def test_what_is_on_a_device_or_for_another_cannot_be_given_away() -> None:
    with pytest.raises(errors.DeviceMismatchError, match="the tensor is on xla:0"):
        tensors.tensor_from_host(torch.ones(2, device="xla"))
    with pytest.raises(errors.UnknownDeviceError, match="cpu is no xla device"):
        tensors.tensor_from_host(torch.ones(2), "cpu")


def test_memory_that_is_aligned_is_used_in_place() -> None:
    tensor = torch.ones(1 << 20)
    assert tensor.data_ptr() % 64 == 0
    assert tensors.buffer_of(tensors.tensor_from_host(tensor)).unsafe_buffer_pointer() == tensor.data_ptr()
    with torch.device("xla"):
        uploaded = tensor.to("xla")
    tensors.sync(wait=True)
    tensor.zero_()
    assert uploaded.sum().item() == 1 << 20, "an upload is a copy"


def test_tensors_that_show_the_same_have_one_key() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 3).to("xla"))
    key = tensors.alias_key(weight)
    assert key == tensors.alias_key(weight.detach()) == tensors.alias_key(weight.data) and tensors.alias_key(weight.t().t()) == key
    others = [weight.detach().clone(), weight.t(), weight[1:], weight.view(12), weight[1]]
    assert len({tensors.alias_key(other) for other in others} | {key}) == 6
    assert tensors.alias_key(weight[1:]) == tensors.alias_key(weight.detach()[1:])


def test_computed_runs_each_device_once_and_reads_nothing(counts: Any) -> None:
    x = torch.ones(5, device="xla")
    results = [x + number for number in range(4)]
    tensors.materialize(results[:3])
    assert counts.ExecuteComputation == 1 and counts.MarkStep == 0
    assert [tensors.is_pending(result) for result in results] == [False, False, False, True]
    (part,) = owned_shards(results[3])
    assert part.index == (slice(0, 5),) and part.read().tolist() == [4.0] * 5


def test_graph_of_shows_the_pending_program_and_leaves_it_pending() -> None:
    tensors.sync()
    x = torch.arange(6.0).reshape(2, 3).to("xla")
    y = (x + x).relu()
    before = counter("ExecuteComputation")
    lines = [line.split("  #")[0] for line in graph_text(graph_of([y])).splitlines()]
    assert lines == [
        "%0 = input : f32[2,3]",
        "%1 = aten.add.Tensor(%0, %0) : f32[2,3]",
        "%2 = aten.relu(%1) : f32[2,3]",
        "return %2",
    ]
    assert counter("ExecuteComputation") == before
    assert y.sum().item() == 30.0


def test_a_registered_operation_is_recorded_and_differentiable() -> None:
    library = torch.library.Library("xla_core_test", "DEF")
    library.define("scaled_square(Tensor x, float factor) -> Tensor")
    library.impl("scaled_square", lambda x, factor: x * x * factor, "CompositeExplicitAutograd")
    library.impl("scaled_square", lambda x, factor: torch.empty_like(x), "Meta")
    func = torch.ops.xla_core_test.scaled_square

    def lower(context: Context, x: jax.Array, factor: Any) -> jax.Array:
        """scaled_square(Tensor x, float factor) -> Tensor"""
        return x * x * scalar(factor, context.dtype)

    register_op(OpSpec("xla_core_test::scaled_square", lower, frozenset({"factor"})))
    before = snapshot().counters
    x = torch.tensor([1.0, 2.0, 3.0]).to("xla")
    assert func(x, 0.5).tolist() == [0.5, 2.0, 4.5]
    after = snapshot().counters
    assert after["xla::scaled_square"] == before.get("xla::scaled_square", 0) + 1
    with pytest.raises(errors.RegistrationError, match="already registered"):
        register_op(OpSpec("xla_core_test::scaled_square", lower))
    with pytest.raises(errors.RegistrationError, match="no operation named"):
        register_op(OpSpec("xla_core_test::nothing", lower))


def test_a_registered_operation_is_replaced_where_that_is_asked_for() -> None:
    """As by the cell of a notebook that runs a second time with another lowering; also for a row of this package."""
    library = torch.library.Library("xla_core_again", "DEF")
    library.define("scaled(Tensor x, float factor) -> Tensor")
    library.define("scaled_(Tensor(a!) x, float factor) -> Tensor(a!)")
    library.impl("scaled", lambda x, factor: torch.empty_like(x), "Meta")
    library.impl("scaled_", lambda x, factor: x, "Meta")
    x = torch.tensor([1.0, 2.0, 3.0]).to("xla")

    def registered(power: int, replace: bool) -> tuple[list[float], list[float]]:
        def lower(context: Context, x: jax.Array, factor: Any) -> jax.Array:
            return x**power * scalar(factor, context.dtype)

        register_op(OpSpec("xla_core_again::scaled", lower, frozenset({"factor"})), replace=replace)
        y = x.clone()
        torch.ops.xla_core_again.scaled_(y, 0.5)
        return torch.ops.xla_core_again.scaled(x, 0.5).tolist(), y.tolist()

    assert registered(1, False) == ([0.5, 1.0, 1.5],) * 2
    pending = torch.ops.xla_core_again.scaled(x, 2.0)
    with pytest.raises(errors.RegistrationError, match="replace=True"):
        registered(2, False)
    before = counter("xla::scaled")
    assert registered(3, True) == ([0.5, 4.0, 13.5],) * 2
    assert pending.tolist() == [2.0, 4.0, 6.0], "recorded before"
    assert counter("xla::scaled") == before + 2, "counted on"

    library.define("other(Tensor x) -> Tensor")
    library.impl("other", torch.empty_like, "Meta")
    register_op(OpSpec("xla_core_again::other", lambda context, x: x), replace=True)
    assert torch.ops.xla_core_again.other(x).tolist() == [1.0, 2.0, 3.0], "there need be no row before"


def test_a_build_scope_is_entered_while_a_program_is_compiled() -> None:
    told: list[str | float] = []

    @contextmanager
    def scope(graph: Graph) -> Iterator[None]:
        compiled = counter("UncachedCompile")
        try:
            yield
        finally:
            told.extend([graph_text(graph), counter("UncachedCompile") - compiled])

    library = torch.library.Library("xla_core_scope", "DEF")
    library.define("fails(Tensor x) -> Tensor")
    library.impl("fails", torch.empty_like, "Meta")
    register_op(OpSpec("xla_core_scope::fails", lambda context, x: x[:1]))
    x = torch.ones(37).to("xla")
    remove = register_build_scope(scope)
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
        Topology(process_index=2, process_count=2)
    previous = set_topology(Topology(process_index=1, process_count=2, replicas=True))
    assert topology().process_index == 1
    set_topology(previous)
    assert topology() == Topology()
