"""Deprecations: old names and old forms of calls, which say since when they are old and until when they work.

    >>> from xla_core.abi.deprecations import Deprecation
    >>> OLD_PLAN = Deprecation("plan(kind=…)", "plan(device=…)", "my-package 1.2.0", "2029-01")
    >>> OLD_PLAN.message
    'plan(kind=…) is deprecated, use plan(device=…) instead (since my-package 1.2.0; releases from 2029-01 on may lack it).'

* `Deprecation.warn()` logs that, once in a process; `Deprecation.message` is for those who warn otherwise.

Guarantees: what a call of `warn` costs after the first is a look-up in a set.
"""

from __future__ import annotations

from xla_core.base.deprecation import Deprecation

__all__ = ["Deprecation"]
