"""Both ways between torch and JAX; `xla_core.abi.interop` under the name that users import, with its manual."""

from __future__ import annotations

from xla_core.abi.interop import JaxModule, call_jax, checkpoint_name, remat, to_jax, to_torch

__all__ = ["JaxModule", "call_jax", "checkpoint_name", "remat", "to_jax", "to_torch"]
