"""What Pallas kernels for TPUs compute, read from their code, beside sums by hand. Lowering them needs no compiler of TPUs."""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xla_debug.plan.hardware import KERNEL_SHARE, KERNEL_STEP_CYCLES, SPEEDS
from xla_debug.plan.kernel_code import kernel_work
from xla_debug.plan.kernels import KernelWork, Product, kernel_seconds

V6E = SPEEDS["TPU v6 lite"]


def body_of(function: Any, *shapes: tuple[tuple[int, ...], Any]) -> str:
    """The module of the one kernel in a function, as its custom call has it."""
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
    [config] = re.findall(r'backend_config = "((?:[^"\\]|\\.)*)"', text)
    body = json.loads(config.replace("\\22", '"').replace("\\5C", "\\"))["custom_call_config"]["body"]
    assert isinstance(body, str)
    return body


def product(a: jax.Array, b: jax.Array) -> Any:
    """a[512, 1024] @ b[1024, 256] in blocks of 128 × 256 × 256; the bias is added in the last step of each sum."""

    def kernel(a_ref: Any, b_ref: Any, out_ref: Any, sum_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
        def _() -> None:
            out_ref[...] = jnp.tanh(sum_ref[...])

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((512, 256), jnp.float32),
        grid=(4, 4),
        in_specs=[pl.BlockSpec((128, 256), lambda i, k: (i, k)), pl.BlockSpec((256, 256), lambda i, k: (k, 0))],
        out_specs=pl.BlockSpec((128, 256), lambda i, k: (i, 0)),
        scratch_shapes=[pltpu.VMEM((128, 256), jnp.float32)],
    )(a, b)


def test_products_run_in_each_step_and_what_is_under_a_condition_in_some() -> None:
    work = kernel_work(body_of(product, ((512, 1024), jnp.bfloat16), ((1024, 256), jnp.bfloat16)), [None, None])
    assert work is not None and work.exact and work.steps == 16
    assert work.products == (Product(16, 128, 256, 256, 16),)
    assert work.flops == 2 * 512 * 1024 * 256
    block = 128 * 256
    assert work.special == 4 * block, "tanh, in the last of four steps"
    assert work.vector == 16 * block + 4 * block, "the sum in each step, tanh in some"


def loop(x: jax.Array) -> Any:
    """As many products as the number of the step, 0 + 1 + 2 + 3."""

    def kernel(x_ref: Any, out_ref: Any) -> None:
        def turn(_: Any, total: jax.Array) -> jax.Array:
            return total + jnp.dot(x_ref[...], x_ref[...], preferred_element_type=jnp.float32)

        out_ref[...] = jax.lax.fori_loop(0, pl.program_id(0), turn, jnp.zeros((128, 128), jnp.float32))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((512, 128), jnp.float32),
        grid=(4,),
        in_specs=[pl.BlockSpec((128, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((128, 128), lambda i: (i, 0)),
    )(x)


def test_a_loop_runs_as_often_as_its_bounds_say() -> None:
    work = kernel_work(body_of(loop, ((512, 128), jnp.float32)), [None])
    assert work is not None and work.exact
    assert work.products == (Product(6, 128, 128, 128, 32),)


def masked(mask: jax.Array, x: jax.Array) -> Any:
    """A product where the mask is not 0."""

    def kernel(mask_ref: Any, x_ref: Any, out_ref: Any) -> None:
        @pl.when(mask_ref[pl.program_id(0), pl.program_id(1)] > 0)
        def _() -> None:
            out_ref[...] = jnp.dot(x_ref[...], x_ref[...], preferred_element_type=jnp.float32)

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2, 3),
        in_specs=[pl.BlockSpec((128, 128), lambda i, j, mask: (0, 0))],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, mask: (0, 0)),
    )
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((128, 128), jnp.float32), grid_spec=grid)(mask, x)


def test_a_constant_mask_leaves_out_steps_and_an_unknown_one_none() -> None:
    body = body_of(masked, ((2, 3), jnp.int32), ((128, 128), jnp.bfloat16))
    known = kernel_work(body, [np.array([[1, 0, 2], [0, 0, 1]], np.int32), None])
    unknown = kernel_work(body, [None, None])
    assert known is not None and known.exact and known.products == (Product(3, 128, 128, 128, 16),)
    assert unknown is not None and not unknown.exact and unknown.products == (Product(6, 128, 128, 128, 16),)


@pytest.mark.parametrize("body", ["", "no base64!", "QUJD"])
def test_other_bytes_are_no_kernel(body: str) -> None:
    assert kernel_work(body, []) is None


def test_a_product_fills_the_cells_of_a_matrix_unit_or_not() -> None:
    narrow = Product(10, 2048, 128, 2048, 16)
    assert narrow.padded(128) == narrow.flops == 10 * 2 * 2048 * 128 * 2048
    assert narrow.padded(256) == 2 * narrow.flops, "half of the rows of cells idle"
    assert Product(1, 8, 256, 100, 32).padded(256) == 2 * (2 * 8 * 256 * 256), "32 bits at half the speed, columns padded"


def test_a_kernel_takes_as_long_as_the_unit_that_has_most_to_do() -> None:
    step = KERNEL_STEP_CYCLES / 1.75e9
    by_matrix = KernelWork((Product(100, 1024, 256, 256, 16),), vector=1024.0)
    assert kernel_seconds(by_matrix, V6E) == pytest.approx(100 * 2 * 1024 * 256 * 256 / 918e12 / KERNEL_SHARE + step)
    by_vector = KernelWork((), vector=4096 * 1e6, steps=7)
    assert kernel_seconds(by_vector, V6E) == pytest.approx(1e6 / 1.75e9 / KERNEL_SHARE + 7 * step)
    by_special = KernelWork((), vector=1024 * 1e6, special=1024 * 1e6)
    assert kernel_seconds(by_special, V6E) == pytest.approx(1e6 / 1.75e9 / KERNEL_SHARE + step)
