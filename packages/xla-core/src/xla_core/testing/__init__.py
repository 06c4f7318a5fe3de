"""Test helpers of this package, of plugins and of integrators."""

from xla_core.testing.backends import (
    check_checkpoint_writer,
    check_collective_backend,
    check_launcher,
    check_reports,
    check_sharding_backend,
)
from xla_core.testing.budgets import functions_without_budget
from xla_core.testing.contracts import EventSinkContract, GraphPassContract, OperatorContract
from xla_core.testing.describe import describe
from xla_core.testing.lowering import check_lowering, lower_as_for, lower_once
from xla_core.testing.targets import planned_cpu

__all__ = [
    "EventSinkContract",
    "GraphPassContract",
    "OperatorContract",
    "check_checkpoint_writer",
    "check_collective_backend",
    "check_launcher",
    "check_lowering",
    "check_reports",
    "check_sharding_backend",
    "describe",
    "functions_without_budget",
    "lower_as_for",
    "lower_once",
    "planned_cpu",
]
