"""Test helpers of this package, of plugins and of integrators."""

from xla_core.testing.contracts import EventSinkContract, GraphPassContract, OperatorContract
from xla_core.testing.describe import describe
from xla_core.testing.lowering import check_lowering, lower_once

__all__ = ["EventSinkContract", "GraphPassContract", "OperatorContract", "check_lowering", "describe", "lower_once"]
