"""Test helpers of this package, of siblings and of integrators."""

from xla_core.testing.lowering import check_lowering, lower_once

__all__ = ["check_lowering", "lower_once"]
