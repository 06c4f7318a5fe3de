"""Settings: environment variables as typed rows, the packages' own and those that they share with the core.

    >>> from xla_core.abi.settings import RANK, flag, integer
    >>> integer("MY_PACKAGE_ROWS", 10, "How many rows are shown.").get()
    10
    >>> flag("MY_PACKAGE_COLOURS", True, "Rows have colours.").allowed
    '0, 1, true or false'
    >>> RANK.get() is None  # no launcher said which process this is
    True

* `Setting` is an environment variable with its default, type and explanation: parsed at use, with an error that names the variable.
  `flag` makes one for what is on or off, `integer` for a number of things, `text` for a text; the latter two may have no default.
* A package offers its rows by the entry point `xla_core.settings`; `installed_settings` lists those of all packages.
* The core reads some that a launcher sets: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `CPU_NUM_DEVICES`; and
  `XLA_FLAGS`, which XLA itself reads when devices start.

Guarantees: an empty variable counts as unset. Nothing is remembered: `get` reads the environment, `set` writes to it, for child processes
too. What follows from the variables of a launcher, once devices run, is told by `job`.
"""

from __future__ import annotations

from xla_core.base.config import (
    CPU_NUM_DEVICES,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    RANK,
    WORLD_SIZE,
    XLA_FLAGS,
    Setting,
    flag,
    installed_settings,
    integer,
    text,
)

__all__ = [
    "CPU_NUM_DEVICES",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "RANK",
    "Setting",
    "WORLD_SIZE",
    "XLA_FLAGS",
    "flag",
    "installed_settings",
    "integer",
    "text",
]
