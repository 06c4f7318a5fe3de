"""What users call declares what it costs; tests hold each call to it (`XLA_ENFORCE_BUDGETS`)."""

from __future__ import annotations

import importlib

import pytest

from xla_core.testing import functions_without_budget

# They read files, or ask another process, without the core.
WITHOUT_TENSORS = {"operator_times", "trace", "trace_detached"}


@pytest.mark.parametrize("name", ["metrics", "profiler", "graph_saver", "metrics_saver"])
def test_each_public_function_declares_its_budget(name: str) -> None:
    assert set(functions_without_budget(importlib.import_module(f"torch_xla.debug.{name}"), "xla_debug")) <= WITHOUT_TENSORS
