"""What users call declares what it costs; tests hold each call to it (`XLA_ENFORCE_BUDGETS`)."""

from __future__ import annotations

import importlib

import pytest

from xla_core.testing import functions_without_budget


@pytest.mark.parametrize("module", ["torch_xla.distributed.spmd", "torch_xla.distributed.spmd.xla_sharding"])
def test_each_public_function_declares_its_budget(module: str) -> None:
    assert functions_without_budget(importlib.import_module(module), "xla_spmd") == []
