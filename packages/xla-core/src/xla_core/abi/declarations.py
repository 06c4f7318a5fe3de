"""What stands beside a public name: until when it works, and what a call of it may cost.

    >>> import torch
    >>> import torch_xla
    >>> from xla_core.abi.declarations import Deprecation, budget
    >>> OLD_PLAN = Deprecation("plan(kind=…)", "plan(device=…)", "my-package 1.2.0", "2029-01")
    >>> OLD_PLAN.message
    'plan(kind=…) is deprecated, use plan(device=…) instead (since my-package 1.2.0; releases from 2029-01 on may lack it).'
    >>> @budget(compiles=None, reads=1)
    ... def norm(x: torch.Tensor) -> float:
    ...     return float(x.norm())
    >>> norm(torch.tensor([3.0, 4.0], device="xla")), norm.__budget__
    (5.0, Budget(compiles=None, reads=1))

* `Deprecation.warn()` logs, once in a process, that a name or a form of a call is old; `Deprecation.message` is for those who warn
  otherwise.
* `budget` says how many programs a call of the function may compile and how many values it may read; None allows as much as arguments and
  pending work make necessary. The default is neither: what asks or records must not wait for the device.

Guarantees: a call of `warn` after the first is a look-up in a set. `budget` returns the function as it is; with `XLA_ENFORCE_BUDGETS=1`
at its import, as in tests, a call that costs more raises InternalError, with the numbers.
"""

from __future__ import annotations

from xla_core.base.budgets import budget
from xla_core.base.deprecation import Deprecation

__all__ = ["Deprecation", "budget"]
