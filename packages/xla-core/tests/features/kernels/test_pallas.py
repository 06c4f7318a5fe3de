"""Pallas kernels: users' own, what JAX makes of them for a TPU, and those that it ships, interpreted."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas
from jax.experimental.pallas import tpu as pallas_tpu

from torch_xla.experimental import custom_kernel as kernels
from xla_core.features.kernels import flash_attention, grouped, paged_attention, platform, splash_attention


def _double(source: Any, target: Any) -> None:
    target[...] = source[...] * 2


def doubled(x: jax.Array) -> jax.Array:
    return pallas.pallas_call(_double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def doubled_on_tpu(x: jax.Array) -> jax.Array:
    return pallas.pallas_call(_double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_an_interpreted_kernel_and_a_wrong_promise() -> None:
    x = torch.arange(8.0).reshape(2, 4)
    assert torch.equal(kernels.make_kernel_from_pallas(doubled, lambda x: [(x.shape, x.dtype)])(x.to("xla")).cpu(), x * 2)
    with pytest.raises(ValueError, match="output_shape_dtype_fn"):
        kernels.make_kernel_from_pallas(doubled, lambda x: [((2,), x.dtype)])(x.to("xla"))


def test_what_a_tpu_would_be_given() -> None:
    x = torch.zeros(8, 128, dtype=torch.float64)
    payload, tensors = kernels.trace_pallas(doubled_on_tpu, x, use_cache=True)
    assert payload.startswith("{") and tensors[0] is x
    assert payload in kernels.trace_pallas_arg_to_payload.values()
    assert kernels.trace_pallas(doubled_on_tpu, x, use_cache=True)[0] is payload
    with pytest.raises(ValueError, match="no Pallas kernel"):
        kernels.trace_pallas(jnp.sin, x)
    assert kernels.to_jax_shape_dtype_struct(x) == jax.ShapeDtypeStruct((8, 128), np.float32)
    assert kernels.convert_torch_dtype_to_jax(torch.bfloat16) == jnp.bfloat16


def _drawn(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape, np.float32)


def _native(kernel: platform.Kernel, *args: Any, **kwargs: Any) -> Any:
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
            _native(flash_attention.ATTENTION, q, q, q, *args), flash_attention.ATTENTION.reference(q, q, q, *args), rtol=2e-2, atol=2e-2
        )
    rest = ids, True, splash_attention.SplashAttentionConfig(), None
    found = _native(splash_attention.SPLASH, q * 0.1, q, q, *rest)
    np.testing.assert_allclose(found, splash_attention.SPLASH.reference(q * 0.1, q, q, *rest), rtol=2e-2, atol=2e-2)
    lhs, rhs, sizes = _drawn(128, 128), _drawn(3, 128, 128), jnp.array([32, 0, 64], np.int32)
    for offset, factors in ((None, rhs), (jnp.array([1]), rhs[1:])):
        call = lhs, factors, sizes, None, offset, False
        np.testing.assert_allclose(_native(grouped.GROUPED, *call), grouped.GROUPED.reference(*call), rtol=2e-2, atol=0.2)
    call = lhs, lhs, sizes
    np.testing.assert_allclose(_native(grouped.TRANSPOSED, *call), grouped.TRANSPOSED.reference(*call), rtol=2e-2, atol=0.2)


@pytest.mark.long
def test_the_paged_kernels_for_tpu_give_what_the_references_give() -> None:
    tables = jnp.array([20, 9], np.int32), jnp.array([[2, 0], [1, 3]], np.int32)
    call = _drawn(2, 8, 128) * 0.1, _drawn(2, 4, 16, 128), _drawn(2, 4, 16, 128) * 2, *tables, 2
    np.testing.assert_allclose(_native(paged_attention.PAGED, *call), paged_attention.PAGED.reference(*call), rtol=2e-2, atol=2e-2)
    ragged = _drawn(16, 4, 128) * 0.1, _drawn(4, 16, 4, 128), *tables, jnp.array([0, 4, 9], np.int32), jnp.array([2], np.int32)
    options = dict.fromkeys(("sliding_window", "soft_cap", "mask_value", "k_scale", "v_scale", "vmem_limit_bytes"))
    tuning = {"sm_scale": 1.0, "use_kernel": True, "num_kv_pages_per_block": 1, "num_queries_per_block": 8}
    # The interpreter lacks what this one uses, and only a TPU makes it: that it takes these arguments is all that can be seen here.
    assert paged_attention.RAGGED.tpu is not None
    assert "pallas_call" in str(jax.make_jaxpr(lambda *arrays: paged_attention.RAGGED.tpu(*arrays, **options, **tuning))(*ragged))


@pytest.mark.long
def test_the_kernels_for_gpu_give_what_the_references_give(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax.experimental.pallas.ops.gpu import attention
    from jax.experimental.pallas.ops.gpu import paged_attention as pages

    monkeypatch.setattr(attention, "mha", functools.partial(attention.mha, interpret=True))
    monkeypatch.setattr(pages, "paged_attention", functools.partial(pages.paged_attention, interpret=True))
    q = _drawn(1, 2, 128, 32).astype(np.float16)
    call: Any = q, q, q, True, None, None, 0.2, None
    assert flash_attention.ATTENTION.gpu is not None and paged_attention.PAGED.gpu is not None
    found = flash_attention.ATTENTION.gpu(*call)
    np.testing.assert_allclose(found, flash_attention.ATTENTION.reference(*call), rtol=2e-2, atol=2e-2)
    tables = jnp.array([20, 9], np.int32), jnp.array([[2, 0], [1, 3]], np.int32)
    keys = _drawn(2, 4, 16, 32).astype(np.float16)
    call = _drawn(2, 8, 32).astype(np.float16) * 0.2, keys, keys * 2, *tables, 2
    np.testing.assert_allclose(paged_attention.PAGED.gpu(*call), paged_attention.PAGED.reference(*call), rtol=2e-2, atol=2e-2)


def test_the_platform_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = platform.Kernel(lambda x: "reference", tpu=lambda x: "tpu" if x else None)
    for kind, expected in (("TPU", "tpu"), ("CUDA", "reference"), ("CPU", "reference"), (None, "reference")):
        monkeypatch.setattr(platform, "device_kind", lambda kind=kind: kind)
        assert kernel(True) == expected and kernel(False) == "reference"
