"""Emission: programs as text, aliases of parameters and results, results that share nothing, errors that name their cause."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import lax

from xla_core.base.errors import LoweringError, UnsupportedOperationError
from xla_core.engine.compile.compiler import jitted
from xla_core.engine.compile.emit import Constants, arrays_of, program
from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.entries import FLOAT_FIXED, FLOAT_INPUT, INT_FIXED, INT_INPUT, SEED, ScalarInput, ScalarKind
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.placement.placement import OneDevice, Replicas, over_mesh
from xla_core.engine.placement.target import attached
from xla_core.ops.table import Context, scalar

F32, F64, HALF, I64 = (aval_of((3,), dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64))
NOTHING = Constants((), ())
HERE = Context(())
X = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def op(
    lower: Any, *args: Any, outs: tuple[Aval | None, ...] = (F32,), holds: tuple[Aval | None, ...] | None = None, **options: Any
) -> Signature:
    return Signature("test.op", lower, args, options.pop("kwargs", {}), outs, holds, **options)


SCALE = op(lambda context, x, number: x * scalar(number, context.dtype), PLACEHOLDER, PLACEHOLDER)
ADD = op(lambda context, x, y: x + y, PLACEHOLDER, PLACEHOLDER)
SPLIT = op(lambda context, x: (x + 1, x + 2), PLACEHOLDER, outs=(F32, F32))


def on_first_device(graph: Graph) -> Any:
    placement = OneDevice(jax.local_devices()[0], attached(jax.local_devices()))
    return jitted(graph, NOTHING, placement, placement.layout(graph, ()), name="step", checked=False)


def outcome(graph: Graph, *arguments: Any, constants: Constants = NOTHING) -> list[Any]:
    """Results without the token, traced and eager alike."""
    function = program(graph, constants, HERE)
    traced = jax.jit(function)(*arguments)
    for left, right in zip(traced, function(*map(np.asarray, arguments)), strict=True):
        np.testing.assert_array_equal(left, right)
    assert traced[-1].shape == () and traced[-1].dtype == np.uint8
    return [np.asarray(each) for each in traced[:-1]]


def test_operations_run_in_order_and_results_come_in_the_order_asked_for() -> None:
    graph = Graph((F32, (ADD, 0, 0), (ADD, 1, 0)), (2, 1))
    triple, double = outcome(graph, X)
    np.testing.assert_array_equal(triple, X * 3)
    np.testing.assert_array_equal(double, X * 2)


def test_numbers_are_compiled_in_or_fed() -> None:
    graph = Graph((F32, FLOAT_FIXED, (SCALE, 0, 1), FLOAT_INPUT, (SCALE, 2, 3), INT_FIXED, (SCALE, 4, 5), INT_INPUT, (SCALE, 6, 7)), (8,))
    fixed = Constants((2.0,), (5,))
    (result,) = outcome(graph, X, *arrays_of([3.0], [7], []), constants=fixed)
    np.testing.assert_array_equal(result, X * 2 * 3 * 5 * 7)
    varying = Constants((None,), (None,))
    (result,) = outcome(graph, X, *arrays_of([3.0, 4.0], [7, 11], []), constants=varying)
    np.testing.assert_array_equal(result, X * 4 * 3 * 11 * 7)


def test_numbers_stay_in_their_own_order() -> None:
    entries = (F32, FLOAT_FIXED, FLOAT_INPUT, FLOAT_FIXED, FLOAT_INPUT, (SCALE, 0, 1), (SCALE, 0, 2), (SCALE, 0, 3), (SCALE, 0, 4))
    results = outcome(Graph(entries, (5, 6, 7, 8)), X, *arrays_of([20.0, 40.0, 30.0], [], []), constants=Constants((10.0, None), ()))
    assert [each[0] for each in results] == [10, 20, 30, 40]


def test_a_fed_tensor_of_no_dimensions_has_its_dtype() -> None:
    kinds = [ScalarInput(ScalarKind.FLOAT, False, aval_of((), torch.float64)), ScalarInput(ScalarKind.INT, False, aval_of((), torch.int8))]
    take = op(lambda context, x: x, PLACEHOLDER, outs=(aval_of((), torch.float64),))
    narrow = op(lambda context, x: x, PLACEHOLDER, outs=(aval_of((), torch.int8),))
    results = outcome(Graph((*kinds, (take, 0), (narrow, 1)), (2, 3)), *arrays_of([0.1], [-5], []))
    assert [(each.dtype, each.item()) for each in results] == [(np.float64, 0.1), (np.int8, -5)]


def test_seeds_are_pairs_of_words() -> None:
    draw = op(lambda context: lax.convert_element_type(context.seed, np.int64), outs=(aval_of((2,), torch.int64),), random=True)
    graph = Graph((SEED, (draw, 0), SEED, (draw, 2)), (1, 3))
    first, second = outcome(graph, *arrays_of([], [], [5, (7 << 32) + 3]))
    assert first.tolist() == [5, 0] and second.tolist() == [3, 7]


def test_several_results_take_the_slots_behind() -> None:
    graph = Graph((F32, (SPLIT, 0), None, None, (ADD, 2, 3)), (3, 4))
    second, total = outcome(graph, X)
    np.testing.assert_array_equal(second, X + 2)
    np.testing.assert_array_equal(total, 2 * X + 3)


def test_a_result_computed_earlier_stands_among_its_siblings() -> None:
    graph = Graph((F32, (SPLIT, 0), F32, None, (ADD, 2, 3)), (4,))
    (total,) = outcome(graph, X, X * 100)
    np.testing.assert_array_equal(total, X * 100 + X + 2)


def test_an_absent_result_is_absent() -> None:
    masked = op(lambda context, x: (x, None, x * 2), PLACEHOLDER, outs=(F32, None, F32))
    (last,) = outcome(Graph((F32, (masked, 0), None, None, None), (4,)), X)
    np.testing.assert_array_equal(last, X * 2)


def test_results_are_cast_to_what_their_slots_hold() -> None:
    wide = op(lambda context, x: lax.convert_element_type(x, np.float64) / 3, PLACEHOLDER, outs=(F64,), holds=(HALF,))
    (result,) = outcome(Graph((F32, (wide, 0)), (1,)), X)
    assert result.dtype == HALF.physical


def test_no_two_results_share_a_buffer_with_each_other_or_an_input() -> None:
    same = op(lambda context, x: x, PLACEHOLDER)
    graph = Graph((F32, (same, 0), (same, 1)), (0, 1, 2))
    argument = jax.numpy.asarray(X)
    *results, _ = jax.jit(program(graph, NOTHING, HERE))(argument)
    addresses = {each.unsafe_buffer_pointer() for each in (argument, *results)}
    assert len(addresses) == 4


def test_arguments_are_nested_as_they_were_given() -> None:
    def lower(context: Any, arrays: Any, order: Any, *, scale: Any, also: Any) -> Any:
        assert type(arrays) is list and order == (1, None, "x") and also == [[2]]
        return sum(arrays[1:], arrays[0]) * scalar(scale, context.dtype)

    signature = op(lower, [PLACEHOLDER, PLACEHOLDER], (1, None, "x"), kwargs={"scale": PLACEHOLDER, "also": [[2]]})
    (result,) = outcome(Graph((F32, F32, FLOAT_INPUT, (signature, 0, 1, 2)), (3,)), X, X, *arrays_of([10.0], [], []))
    np.testing.assert_array_equal(result, X * 20)
    assert signature.text() == "test.op([%, %], (1, None, 'x'), scale=%, also=[[2]])->f32[3];f32[3]"


WRONG: dict[str, tuple[Signature, str]] = {
    "raises": (
        op(lambda context, x: {}["key"], PLACEHOLDER, line="train.py:3"),
        r"test\.op over \(float32\[3\]\), recorded at train\.py:3, could not be lowered: KeyError: 'key'",
    ),
    "shape": (op(lambda context, x: x[:2], PLACEHOLDER), r"result 0 is float32\[2\], inferred was f32\[3\]"),
    "dtype": (
        op(lambda context, x: lax.convert_element_type(x, np.float64), PLACEHOLDER),
        r"result 0 is float64\[3\], inferred was f32\[3\]",
    ),
    "too_many": (op(lambda context, x: (x, x), PLACEHOLDER), "gave 2 results where 1 were inferred"),
    "missing": (op(lambda context, x: (x, None), PLACEHOLDER, outs=(F32, F32)), "result 1 is missing"),
    "unexpected": (op(lambda context, x: (x, x), PLACEHOLDER, outs=(F32, None)), "result 1 is unexpected"),
}


@pytest.mark.parametrize(("signature", "message"), list(WRONG.values()), ids=list(WRONG))
def test_a_lowering_that_fails_is_named(signature: Signature, message: str) -> None:
    results = [None] * len(signature.outs) if len(signature.outs) > 1 else []
    with pytest.raises(LoweringError, match=message):
        jax.jit(program(Graph((F32, (signature, 0), *results), (0,)), NOTHING, HERE))(X)


def test_errors_of_ours_pass_as_they_are() -> None:
    def lower(context: Any, x: Any) -> Any:
        raise UnsupportedOperationError("do that instead")

    with pytest.raises(UnsupportedOperationError, match="^do that instead$"):
        program(Graph((F32, (op(lower, PLACEHOLDER), 0)), (1,)), NOTHING, HERE)(X)


def test_every_lowering_runs_in_its_scope() -> None:
    seen: list[tuple[str, str | None]] = []

    @contextlib.contextmanager
    def scope(name: str, line: str | None) -> Iterator[None]:
        seen.append((name, line))
        yield

    program(Graph((F32, (ADD, 0, 0), (SPLIT, 1), None, None), (3,), lines={2: "here.py:8"}), NOTHING, HERE, scope)(X)
    assert seen == [("test.op", None), ("test.op", "here.py:8")]


def test_dead_buffers_are_donated_where_a_result_fits() -> None:
    graph = Graph((F32, F32, I64, F32, (ADD, 0, 1), (ADD, 4, 3)), (5,), dead=(0, 2, 3))
    assert graph.parts.donated == (0,), "one result, so one buffer; the first that fits"
    arguments = [jax.device_put(each) for each in (X, X * 2, np.arange(3), X * 3)]
    with jax.enable_x64(True):
        result, _ = on_first_device(graph)(*arguments)
    np.testing.assert_array_equal(result, X * 6)
    assert [each.is_deleted() for each in arguments] == [True, False, False, False]


def test_a_program_without_inputs_runs_on_its_device() -> None:
    device = jax.local_devices()[0]
    fill = op(lambda context: lax.full((3,), 7, np.float32))
    result, token = on_first_device(Graph(((fill,),), (0,)))()
    assert result.devices() == {device} and token.devices() == {device} and result.tolist() == [7, 7, 7]


def test_a_lowering_knows_what_its_program_is_for() -> None:
    contexts: list[Context] = []

    def lower(context: Context, x: jax.Array) -> jax.Array:
        contexts.append(context)
        return x

    graph = Graph((F32, (op(lower, PLACEHOLDER), 0)), (1,))
    mesh = jax.sharding.Mesh(jax.devices(), ("all",))
    program(graph, NOTHING, Context((), platform="tpu", mesh=mesh))(X)
    assert contexts[0].platform == "tpu" and contexts[0].mesh is mesh and contexts[0].shape == X.shape
    here = attached(jax.devices())
    placements = [
        Replicas(jax.devices()[0], mesh, here),
        over_mesh(np.array(jax.devices()), jax.devices(), here),
        OneDevice(jax.devices()[0], here),
    ]
    contexts = [placement.context for placement in placements]
    assert [context.platform for context in contexts] == ["cpu"] * 3
    assert contexts[0].mesh is mesh and contexts[1].mesh is not None and contexts[2].mesh is None
