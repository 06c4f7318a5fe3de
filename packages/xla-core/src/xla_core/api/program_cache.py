"""The cache of compiled programs: its folder on disk, and the number of programs in memory."""

from __future__ import annotations

from xla_core.base.budgets import budget
from xla_core.engine.compile import disk
from xla_core.engine.compile.cache import programs


@budget()
def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keep compiled programs in the folder `path`, and look them up there.

    readonly: look up only. Raises AssertionError after the first computation of the process.
    """
    if len(programs()):
        raise AssertionError("initialize_cache must come before the first computation: call it at the start of the program")
    disk.configure(path, readonly)


@budget()
def get_num_cached_compilation_graph() -> int:
    """The number of compiled programs that this process holds in memory."""
    return len(programs())
