"""Kernels that JAX ships: which of them a program gets, and that each gives what its reference gives, interpreted."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pallas_tpu

from xla_core.base import config
from xla_core.ops import table
from xla_core.ops.nn.attention import blocks, flash_kernel, paged_kernel, splash_kernel
from xla_core.ops.nn.grouped import gmm_kernel
from xla_core.ops.platforms import PlatformKernel


def _drawn(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape, np.float32)


def _native(kernel: PlatformKernel, *args: Any, **kwargs: Any) -> Any:
    assert kernel.tpu is not None
    with pallas_tpu.force_tpu_interpret_mode():
        found = kernel.tpu(*args, **kwargs)
    assert found is not None
    return found


@pytest.mark.long
def test_the_kernels_for_tpu_give_what_the_references_give() -> None:
    q = _drawn(1, 2, 128, 128)
    ids = jnp.arange(128)[None] // 50
    for args in ((True, ids, ids, 0.1, None), (False, None, None, 0.1, _drawn(1, 2, 128, 128))):
        np.testing.assert_allclose(
            _native(flash_kernel.ATTENTION, q, q, q, *args), flash_kernel.ATTENTION.reference(q, q, q, *args), rtol=2e-2, atol=2e-2
        )
    rest = ids, True, splash_kernel.SplashAttentionConfig(), None
    found = _native(splash_kernel.SPLASH, q * 0.1, q, q, *rest)
    np.testing.assert_allclose(found, splash_kernel.SPLASH.reference(q * 0.1, q, q, *rest), rtol=2e-2, atol=2e-2)
    lhs, rhs, sizes = _drawn(128, 128), _drawn(3, 128, 128), jnp.array([32, 0, 64], np.int32)
    for offset, factors in ((None, rhs), (jnp.array([1]), rhs[1:])):
        call = lhs, factors, sizes, None, offset, False
        np.testing.assert_allclose(_native(gmm_kernel.GROUPED, *call), gmm_kernel.GROUPED.reference(*call), rtol=2e-2, atol=0.2)
    call = lhs, lhs, sizes
    np.testing.assert_allclose(_native(gmm_kernel.TRANSPOSED, *call), gmm_kernel.TRANSPOSED.reference(*call), rtol=2e-2, atol=0.2)


@pytest.mark.long
def test_the_paged_kernels_for_tpu_give_what_the_references_give() -> None:
    tables = jnp.array([20, 9], np.int32), jnp.array([[2, 0], [1, 3]], np.int32)
    call = _drawn(2, 8, 128) * 0.1, _drawn(2, 4, 16, 128), _drawn(2, 4, 16, 128) * 2, *tables, 2
    np.testing.assert_allclose(_native(paged_kernel.PAGED, *call), paged_kernel.PAGED.reference(*call), rtol=2e-2, atol=2e-2)
    ragged = _drawn(16, 4, 128) * 0.1, _drawn(4, 16, 4, 128), *tables, jnp.array([0, 4, 9], np.int32), jnp.array([2], np.int32)
    options = dict.fromkeys(("sliding_window", "soft_cap", "mask_value", "k_scale", "v_scale", "vmem_limit_bytes"))
    tuning = {"sm_scale": 1.0, "use_kernel": True, "num_kv_pages_per_block": 1, "num_queries_per_block": 8}
    # The interpreter lacks what this one uses, and only a TPU makes it: that it takes these arguments is all that can be seen here.
    assert paged_kernel.RAGGED.tpu is not None
    assert "pallas_call" in str(jax.make_jaxpr(lambda *arrays: paged_kernel.RAGGED.tpu(*arrays, **options, **tuning))(*ragged))


def _gradients(function: Any, *operands: jax.Array) -> tuple[jax.Array, ...]:
    with pallas_tpu.force_tpu_interpret_mode():
        result, pull = jax.vjp(function, *operands)
        return (result, *pull(_drawn(*result.shape).astype(result.dtype)))


SHARED = _drawn(1, 4, 128, 64) * 0.1, _drawn(1, 2, 128, 64), _drawn(1, 2, 128, 64) * 2  # four heads of queries, two of keys
IDS = jnp.arange(128)[None] // 50
# A kernel for TPUs, the operands by which its result is differentiated, and the arguments behind them.
DERIVED: dict[str, tuple[PlatformKernel, tuple[jax.Array, ...], tuple[Any, ...]]] = {
    "flash": (flash_kernel.ATTENTION, (SHARED[0], SHARED[0], SHARED[0]), (True, IDS, IDS, 0.5, None)),
    "splash": (splash_kernel.SPLASH, SHARED, (IDS, True, splash_kernel.SplashAttentionConfig(), None)),
    "splash, capped": (splash_kernel.SPLASH, SHARED, (None, False, splash_kernel.SplashAttentionConfig(), 2.0)),
    "splash, window": (
        splash_kernel.SPLASH,
        SHARED,
        (None, True, splash_kernel.SplashAttentionConfig(attentiontype_local_sliding=True, slide_window_size=20), None),
    ),
    "splash, two backward kernels": (
        splash_kernel.SPLASH,
        SHARED,
        (None, True, splash_kernel.SplashAttentionConfig(sa_use_fused_bwd_kernel=False), None),
    ),
    "gmm": (gmm_kernel.GROUPED, (_drawn(128, 128), _drawn(3, 128, 128)), (jnp.array([32, 0, 96], np.int32), None, None, False)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", DERIVED)
def test_the_kernels_for_tpu_have_the_gradients_of_the_references(name: str) -> None:
    kernel, operands, rest = DERIVED[name]
    found = _gradients(lambda *values: _native(kernel, *values, *rest), *operands)
    for mine, expected in zip(found, _gradients(lambda *values: kernel.reference(*values, *rest), *operands), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-2, atol=2e-2 * float(jnp.abs(expected).max()))


@pytest.mark.long
def test_the_kernel_for_tpu_has_the_gradient_of_a_bias_for_all_batches() -> None:
    q, bias = _drawn(2, 2, 128, 64), _drawn(1, 1, 128, 128)
    rest = False, None, None, 0.1
    found = _gradients(lambda ab: _native(flash_kernel.ATTENTION, q, q, q, *rest, ab), bias)
    for mine, expected in zip(found, _gradients(lambda ab: flash_kernel.ATTENTION.reference(q, q, q, *rest, ab), bias), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-2, atol=2e-2 * float(jnp.abs(expected).max()))


def test_several_queries_are_what_ragged_attention_computes() -> None:
    """The kernel of the latter serves both on TPUs; only its reference runs here."""
    tables = jnp.array([20, 9], np.int32), jnp.array([[2, 0], [1, 3]], np.int32), jnp.array([5, 3], np.int32)
    call = _drawn(2, 5, 8, 16) * 0.1, _drawn(2, 4, 16, 16), _drawn(2, 4, 16, 16) * 2, *tables
    options = dict.fromkeys(("sliding_window", "mask_value", "k_scale", "v_scale"))
    found = paged_kernel.RAGGED.reference(*paged_kernel.as_ragged(*call), sm_scale=1.0, soft_cap=3.0, **options).reshape(call[0].shape)
    expected = paged_kernel.SEVERAL.reference(*call, attn_logits_soft_cap=3.0)
    for sequence, count in enumerate((5, 3)):  # what behind them was asked does not count
        np.testing.assert_allclose(found[sequence, :count], expected[sequence, :count], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "dtype", "head", "rows"),
    [("TPU v5 lite", jnp.bfloat16, 128, 1024), ("TPU v6 lite", jnp.bfloat16, 128, 2048), ("TPU v6 lite", np.float32, 256, 1024),
     ("", np.float32, 128, 1024), ("TPU v4", np.float32, 128, 512), ("TPU v4", np.float32, 256, 512)],
)  # fmt: skip
def test_blocks_are_as_large_as_the_memory_of_a_kernel(kind: str, dtype: Any, head: int, rows: int) -> None:
    itemsize = np.dtype(dtype).itemsize
    assert blocks.splash_rows(2048, 8192, head, itemsize, kind) == rows
    assert blocks.splash_rows(256, 8192, head, itemsize, kind) == 256, "no more than wanted"
    assert blocks.splash_rows(2048, 384, head, itemsize, kind) == 384
    assert blocks.splash_rows(1024, 1280, head, itemsize, kind) == 640, "the largest that divides the length"
    with config.override(config.LIBTPU_INIT_ARGS, "--xla_other=1 --xla_tpu_scoped_vmem_limit_kib=98304"):
        assert blocks.splash_rows(2048, 8192, head, itemsize, kind) == 2048


@pytest.mark.parametrize(
    ("length", "head", "dtype", "biased", "kind", "expected"),
    [(8192, 128, jnp.bfloat16, False, "TPU v5 lite", (2048, 512)), (8192, 128, jnp.bfloat16, False, "TPU v4", (1024, 512)),
     (4096, 128, np.float32, False, "TPU v6 lite", (1024, 512)), (8192, 256, np.float32, False, "TPU v6 lite", (512, 512)),
     (8192, 128, jnp.bfloat16, True, "TPU v6 lite", (512, 512)), (2048, 64, jnp.bfloat16, False, "TPU7x", (512, 512)),
     (768, 64, jnp.bfloat16, False, "", (256, 256)), (8320, 128, jnp.bfloat16, False, "", (128, 128))],
)  # fmt: skip
def test_blocks_of_flash_attention_divide_the_length_and_fit(
    length: int, head: int, dtype: Any, biased: bool, kind: str, expected: tuple[int, int]
) -> None:
    assert blocks.flash_blocks(length, length, head, np.dtype(dtype).itemsize, biased, kind) == expected


@pytest.mark.parametrize(
    ("kind", "page", "expected"), [("TPU v6 lite", 16, (4, 32)), ("TPU v5 lite", 128, (4, 32)), ("TPU v5 lite", 16, (8, 32))]
)
def test_blocks_of_pages_are_those_that_were_measured_or_fit(kind: str, page: int, expected: tuple[int, int]) -> None:
    q, pages = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((1024, 32, 128), (64, page, 16, 128)))
    found = blocks.ragged_blocks(q, pages, jax.ShapeDtypeStruct((2, 8), np.int32), kind)  # type: ignore[arg-type]
    assert found == expected


@pytest.mark.long
def test_the_kernels_for_gpu_give_what_the_references_give(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax.experimental.pallas.ops.gpu import attention
    from jax.experimental.pallas.ops.gpu import paged_attention as pages

    monkeypatch.setattr(attention, "mha", functools.partial(attention.mha, interpret=True))
    monkeypatch.setattr(pages, "paged_attention", functools.partial(pages.paged_attention, interpret=True))
    q = _drawn(1, 2, 128, 32).astype(np.float16)
    call: Any = q, q, q, True, None, None, 0.2, None
    assert flash_kernel.ATTENTION.gpu is not None and paged_kernel.PAGED.gpu is not None
    found = flash_kernel.ATTENTION.gpu(*call)
    np.testing.assert_allclose(found, flash_kernel.ATTENTION.reference(*call), rtol=2e-2, atol=2e-2)
    shared = tuple(part.astype(np.float16) for part in (_drawn(1, 4, 256, 80) * 0.2, _drawn(1, 2, 256, 80), _drawn(1, 2, 256, 80) * 2))
    rest = jnp.arange(256)[None] // 100, True, splash_kernel.SplashAttentionConfig(), None
    assert splash_kernel.SPLASH.gpu is not None
    derived = [
        _gradients(lambda *values, by=by: by(*values, *rest), *shared) for by in (splash_kernel.SPLASH.gpu, splash_kernel.SPLASH.reference)
    ]
    for mine, expected in zip(*derived, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-2, atol=2e-2 * float(jnp.abs(expected).max()))
    tables = jnp.array([20, 9], np.int32), jnp.array([[2, 0], [1, 3]], np.int32)
    keys = _drawn(2, 4, 16, 32).astype(np.float16)
    call = _drawn(2, 8, 32).astype(np.float16) * 0.2, keys, keys * 2, *tables, 2
    np.testing.assert_allclose(paged_kernel.PAGED.gpu(*call), paged_kernel.PAGED.reference(*call), rtol=2e-2, atol=2e-2)


def test_the_platform_chooses() -> None:
    kernel = PlatformKernel(lambda x: "reference", tpu=lambda x: "tpu" if x else None, gpu=lambda x: "gpu" if x else None)
    expected = {"tpu": "tpu", "gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "cpu": "reference", "of_a_plugin": "reference"}
    assert {name: kernel(name, True) for name in expected} == expected
    assert {kernel(name, False) for name in expected} == {"reference"}
    assert PlatformKernel(lambda x: "reference")("tpu", True) == "reference"


def _operands(*shapes: tuple[int, ...]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]


_SQUARE = (1, 2, 128, 128)
# Operators with a kernel for TPU: what they are called with, and their results.
CALLS: dict[str, tuple[list[Any], list[tuple[int, ...]]]] = {
    "xla::flash_attention": (_operands(_SQUARE, _SQUARE, _SQUARE), [_SQUARE]),
    "xla::segmented_flash_attention": ([*_operands(_SQUARE, _SQUARE, _SQUARE), True, None, None, 0.1, None, None, None], [_SQUARE]),
    "xla::splash_attention": (
        [*_operands(_SQUARE, _SQUARE, _SQUARE), splash_kernel.SplashAttentionConfig().to_json(), None, True, None],
        [_SQUARE],
    ),
    "xla::gmm": ([*_operands((128, 128), (3, 128, 128)), jax.ShapeDtypeStruct((3,), np.int32)], [(128, 128)]),
    "xla::tgmm": ([*_operands((128, 128), (128, 128)), jax.ShapeDtypeStruct((3,), np.int32)], [(3, 128, 128)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_has_the_kernel_of_the_platform_that_its_program_is_for(name: str) -> None:
    """Whatever devices this process has; its gradient too."""
    arguments, results = CALLS[name]
    out = tuple(_operands(*results))

    def text(platform: str, row: str, out: tuple[Any, ...], *extra: Any) -> str:
        given = [*extra, *arguments]
        arrays = [each for each in given if isinstance(each, jax.ShapeDtypeStruct)]

        def run(*values: Any) -> Any:
            rest = iter(values)
            filled = [next(rest) if isinstance(each, jax.ShapeDtypeStruct) else each for each in given]
            return table.TABLE[row].lower(table.Context(out, platform=platform), *filled)

        return str(jax.make_jaxpr(run)(*arrays))

    backward = tuple(_operands(*[each.shape for each in arguments[: 3 if "attention" in name else 2]]))
    assert "pallas_call" in text("tpu", name, out) and "pallas_call" not in text("cpu", name, out)
    assert "pallas_call" in text("tpu", f"{name}_backward", backward, *out)
    assert "pallas_call" not in text("cpu", f"{name}_backward", backward, *out)
