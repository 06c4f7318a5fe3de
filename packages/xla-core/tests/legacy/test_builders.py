"""Users' kernels: what the API asks of `torch_xla.core.xla_builder`."""

from __future__ import annotations

from typing import Any

import jax
import torch
from jax.experimental import pallas

from torch_xla.experimental import custom_kernel as kernels


def test_a_pallas_kernel_runs_without_its_hardware() -> None:
    def add_one(source: Any, target: Any) -> None:
        target[...] = source[...] + 1.0

    def added(x: jax.Array) -> jax.Array:
        return pallas.pallas_call(add_one, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    kernel = kernels.make_kernel_from_pallas(added, lambda x: [(x.shape, x.dtype)])
    assert kernel(torch.arange(8.0).reshape(1, 8).to("xla")).tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]
