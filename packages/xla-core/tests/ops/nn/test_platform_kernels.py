"""Kernels that JAX ships: which of them a program gets, and that each gives what its reference gives, interpreted."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pallas_tpu

from xla_core.ops import table
from xla_core.ops.nn.attention import flash_kernel, paged_kernel, splash_kernel
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
