"""Budgets of public functions: how many programs a call may compile, and how many values it may read.

    >>> import torch
    >>> import torch_xla
    >>> from xla_core.abi.budgets import budget
    >>> @budget(compiles=None, reads=1)
    ... def norm(x: torch.Tensor) -> float:
    ...     return float(x.norm())
    >>> norm(torch.tensor([3.0, 4.0], device="xla")), norm.__budget__
    (5.0, Budget(compiles=None, reads=1))

* `budget` stands beside the function; None allows as much as arguments and pending work make necessary. The default is neither: what
  asks or records must not wait for the device.

Guarantees: the function is returned as it is. With `XLA_ENFORCE_BUDGETS=1` at its import, as in tests, a call that costs more raises
InternalError, with the numbers.
"""

from __future__ import annotations

from xla_core.base.budgets import budget

__all__ = ["budget"]
