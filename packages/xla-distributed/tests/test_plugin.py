"""The names that this package offers are those that the core's table expects of it."""

from __future__ import annotations

import importlib

from xla_distributed.collectives import ops
from xla_distributed.plugin import offered


def test_offered_names_are_names_of_users_modules() -> None:
    for name in offered():
        module, _, attribute = name.rpartition(".")
        assert attribute in importlib.import_module(module).__all__, name


def test_each_collective_is_offered() -> None:
    functions = ops.offered()
    assert {"torch_xla.core.xla_model.all_reduce", "torch_xla.core.xla_model.send"} <= functions.keys() <= offered().keys()
    assert all(function.__module__.startswith("xla_distributed.collectives.ops.") for function in functions.values())
