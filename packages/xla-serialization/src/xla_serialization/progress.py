"""Report the progress of a save or a load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all, after each tensor."""


class Meter:
    """Adds up the bytes that are done, and reports the sum."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._done, self._total = 0, total

    def add(self, nbytes: int) -> None:
        """Count `nbytes` more as done, and report."""
        self._done += nbytes
        self._progress(self._done, self._total)


def no_progress(done: int, total: int) -> None:
    """Report nothing: for callers that pass no `progress`."""


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Show a bar on stderr, for `progress=` of `save`, `load` and `load_into`; nothing is shown where stderr is no terminal."""
    from rich import progress as bars  # takes a while, and most programs show none
    from rich.console import Console

    console = Console(stderr=True)
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn())
    with bars.Progress(*columns, bars.TimeRemainingColumn(), console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update
