"""JAX beside torch."""

from __future__ import annotations

import importlib.util

import jax
import torch

from torch_xla._internal import jax_workarounds
from xla_core.abi.tensors import buffer_of


def test_jax_is_there_and_has_the_same_devices() -> None:
    jax_workarounds.jax_import_guard()
    with jax_workarounds.jax_env_context():
        assert jax_workarounds.maybe_get_jax() is jax
        assert buffer_of(torch.ones(1).to("xla")).devices() <= set(jax.devices())

    @jax_workarounds.requires_jax
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8
    assert (jax_workarounds.maybe_get_torchax() is None) == (importlib.util.find_spec("torchax") is None)
