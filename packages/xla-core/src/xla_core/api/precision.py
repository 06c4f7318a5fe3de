"""The precision of matrix products and convolutions, as `torch_xla.backends` has it."""

from __future__ import annotations

from xla_core.base.budgets import budget
from xla_core.engine.runtime import client
from xla_core.ops import precision as setting


@budget()
def get_mat_mul_precision() -> str:
    """The precision in force on this process's hardware: 'default', 'high' or 'highest'. If nobody chose, 'default' on TPUs only."""
    return setting.of((client.device_kind() or "").lower())


@budget()
def set_mat_mul_precision(precision: str) -> None:
    """Choose by name for everything lowered from now on: 'highest' is exact to float32, 'default' the hardware's fastest, 'high' between.

    Raises ValueError for other names. Logs a warning if another one was chosen before: what is recorded but has not run yet is computed in
    the new one.
    """
    setting.choose(precision)
