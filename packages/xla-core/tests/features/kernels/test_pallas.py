"""Pallas kernels of users, and what JAX makes of them for a TPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas

from torch_xla.experimental import custom_kernel as kernels


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
