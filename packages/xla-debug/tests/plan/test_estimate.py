"""Figures of programs that jax compiles for the CPU, beside what they must be."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import handmade_hlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from handmade_hlo import computation, op
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import torch_xla
from xla_debug.plan.estimate import described, of_module
from xla_debug.plan.hlo import Array
from xla_debug.plan.schema import Candidate, Plan, ProgramPlan, State, from_json, to_json
from xla_debug.plan.search import meshes, ranked
from xla_debug.plan.traffic import Collective, axis_of
from xla_debug.profiling.wire_format import text_field
from xla_debug.rendering.plan_limits import parse_bytes, parse_seconds


def planned(function: Callable[..., Any], *shapes: tuple[int, ...], kind: str = "NVIDIA H100 80GB HBM3") -> ProgramPlan:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    compiled = jax.jit(function).lower(*arguments).compile()
    return described(compiled, kind, jax.devices(), {}, name="program", line=None, operations=1)


def conv(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def loop(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.scan(lambda carry, _: (jnp.tanh(carry @ w), None), x, length=7)[0]


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (lambda a, b: a @ b, [(32, 64), (64, 16)], 2 * 32 * 64 * 16),
        (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), [(3, 32, 64), (3, 64, 16)], 3 * 2 * 32 * 64 * 16),
        (lambda a: jnp.sin(a) + 1, [(32, 64)], 0),
        # Of nine positions of the kernel those outside of the image are no work: (3n - 2)² of (3n)².
        (conv, [(2, 8, 8, 3), (3, 3, 3, 5)], 2 * 2 * 3 * 5 * (3 * 8 - 2) ** 2),
        (loop, [(32, 64), (64, 64)], 7 * 2 * 32 * 64 * 64),
    ],
)
def test_operations_are_those_of_products(function: Callable[..., Any], shapes: list[tuple[int, ...]], flops: int) -> None:
    assert planned(function, *shapes).flops == flops


def test_memory_is_the_compilers() -> None:
    def function(a: jax.Array) -> jax.Array:
        return jnp.sort(jnp.sort(a @ a, axis=0) @ a, axis=0).sum()

    plan = planned(function, (256, 256))
    stats = jax.jit(function).lower(jax.ShapeDtypeStruct((256, 256), jnp.float32)).compile().memory_analysis()
    assert (plan.arguments, plan.temporaries) == (stats.argument_size_in_bytes, stats.temp_size_in_bytes)
    assert max(plan.schedule) >= 256 * 256 * 4, "a product is held until it is sorted"


def test_time_is_the_longer_of_operations_and_memory() -> None:
    large, wide = planned(lambda a, b: a @ b, (4096, 4096), (4096, 4096)), planned(lambda a: a * 2, (1 << 22,))
    assert large.ms >= large.compute_ms > large.memory_ms and wide.memory_ms > wide.compute_ms == 0
    assert large.compute_ms == pytest.approx(1000 * 2 * 4096**3 / 495e12), "in TF32, as the precision is the default"
    exact = planned(lambda a, b: jnp.matmul(a, b, precision="highest"), (4096, 4096), (4096, 4096))
    assert exact.compute_ms == pytest.approx(1000 * 2 * 4096**3 / 67e12) and exact.wide_flops == exact.flops


@pytest.mark.parametrize(
    ("array", "stored"),
    [
        (Array("f32", 32, (8, 128), (1, 0), (8, 128)), 4096),
        (Array("f32", 32, (3, 100), (1, 0), (8, 128)), 4096),
        (Array("bf16", 16, (5, 3, 100), (2, 1, 0), (8, 128)), 5 * 8 * 128 * 2),
        (Array("f32", 32, (7,), (0,), (128,)), 512),
        (Array("f32", 32, (4, 5), (0, 1)), 80),
        (Array("f32", 32, (), (), (128,)), 512),
    ],
)
def test_tiles_pad_the_last_dimensions(array: Array, stored: int) -> None:
    assert array.stored == stored


def test_groups_lie_along_axes_of_the_mesh() -> None:
    mesh = {"data": 2, "fsdp": 2, "tensor": 2}
    assert [axis_of(group, mesh) for group in ((0, 4), (0, 2), (0, 1), (0, 1, 4, 5), range(8))] == [
        "data", "fsdp", "tensor", "data × tensor", "data × fsdp × tensor",
    ]  # fmt: skip
    assert axis_of((0, 1), {}) == "" and axis_of((0, 9), mesh) == ""


@pytest.mark.parametrize(
    ("kind", "sent"), [("all-reduce", 150.0), ("all-gather", 75.0), ("reduce-scatter", 75.0), ("collective-permute", 100.0)]
)
def test_a_ring_sends_its_share(kind: str, sent: float) -> None:
    assert Collective(kind, 4, (0, 1, 2, 3), 100).sent == sent


def test_a_plan_is_json_and_back() -> None:
    program = ProgramPlan("step", "train.py:3", 5, ms=2.0, flops=1e9, runs=2)
    plan = Plan("v5e", "TPU v5 lite", 1, [1, 1], 1 << 30, 197e12, ["train.py"], 2, None, State(10, 20, 30, 40), [program])
    assert from_json(to_json(plan)) == plan and plan.step == program and plan.peak == 100


def test_all_meshes_of_some_devices() -> None:
    found = list(meshes(8, ["data", "tensor"]))
    assert found == [{"data": 1, "tensor": 8}, {"data": 2, "tensor": 4}, {"data": 4, "tensor": 2}, {"data": 8, "tensor": 1}]
    assert len(list(meshes(16, ["a", "b", "c"]))) == 15


def test_candidates_are_ranked_by_time_if_they_fit() -> None:
    slow, fast = Candidate({}, True, 10, 2.0, "memory", None), Candidate({}, True, 90, 1.0, "links", None)
    large, broken = Candidate({}, False, 999, 0.5, "memory", None), Candidate({}, False, 0, None, "", "no")
    assert ranked([broken, large, slow, fast]) == [fast, slow, large, broken]


def test_quantities_have_units() -> None:
    assert parse_bytes("30GiB") == 30 << 30 and parse_bytes("1.5 MB") == 1_500_000 and parse_seconds("150ms") == 0.15
    for text in ("30", "GiB", "3 parsecs"):
        with pytest.raises(ValueError, match="--memory is"):
            parse_bytes(text)


@pytest.mark.parametrize(("opcode", "by_cycles"), [("broadcast", False), ("reduce", False), ("negate", True)])
def test_cycles_count_but_of_what_the_compiler_overrates(opcode: str, by_cycles: bool) -> None:
    cycles, size = 35_000_000, 1 << 24
    config = text_field(43, b'{"window_config": {"estimated_cycles": "%d"}}' % cycles)
    made = op(12, opcode, handmade_hlo.array(size), 11, more=config)
    module = handmade_hlo.module(1, computation(1, 12, op(11, "parameter", handmade_hlo.array(size)), made))
    plan = of_module(module, {}, "TPU v6 lite", [], {}, name="program", line=None, operations=1)
    assert plan.ms == pytest.approx(1000 * cycles / 1.75e9 if by_cycles else 1000 * plan.nbytes / 1.64e12)
    assert plan.cycles == by_cycles and plan.nbytes > 0


def test_nothing_takes_less_than_its_bytes_at_the_memorys_speed() -> None:
    size = 1 << 24
    config = text_field(43, b'{"window_config": {"estimated_cycles": "1000"}}')
    made = op(12, "negate", handmade_hlo.array(size), 11, more=config)
    module = handmade_hlo.module(1, computation(1, 12, op(11, "parameter", handmade_hlo.array(size)), made))
    plan = of_module(module, {}, "TPU v6 lite", [], {}, name="program", line=None, operations=1)
    assert plan.nbytes == 2 * 4 * size and plan.ms == pytest.approx(1000 * plan.nbytes / 1.64e12)


@pytest.mark.targets
@pytest.mark.parametrize(("name", "module"), [("v5e:2x2", "libtpu"), ("h100x8", "jax_cuda13_plugin")])
def test_what_a_loop_gathers_again_in_each_turn_is_counted(name: str, module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}: hatch run targets:test")
    turns, size = 6, 4096
    with torch_xla.target(name) as target:
        count = len(target.devices)
        mesh = Mesh(np.array(target.devices), ("fsdp",))

        def total(weight: jax.Array, batches: jax.Array) -> jax.Array:
            def turn(so_far: jax.Array, batch: jax.Array) -> tuple[jax.Array, None]:
                rows = lax.with_sharding_constraint(batch, NamedSharding(mesh, PartitionSpec("fsdp", None)))
                return so_far + jnp.tanh(rows @ weight).sum(), None

            return lax.scan(turn, jnp.float32(0), batches)[0]

        arguments = [
            jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
            for shape, spec in (((size, size), ("fsdp", None)), ((turns, 64, size), (None, "fsdp", None)))
        ]
        compiled = jax.jit(total).lower(*arguments).compile()
        plan = described(compiled, target.kind, target.devices, {"fsdp": count}, name="total", line=None, operations=0)
    (gathers,) = (row for row in plan.traffic if row.kind == "all-gather")
    assert gathers.count == turns
    assert plan.regathered == pytest.approx(gathers.nbytes * (turns - 1) / turns)
