"""Shorten the user's source lines (`file:line`) by the folder that they share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xla_debug.run_report.schema import RunReport

_LIBRARIES = re.compile(r"^.*/(?:site|dist)-packages/")


@dataclass(frozen=True, slots=True)
class SourceLines:
    """Shortens source lines. common_folder: cut from the lines below it, with a slash at its end; empty if there is none."""

    common_folder: str

    @classmethod
    def of(cls, reports: Iterable[RunReport]) -> SourceLines:
        """Find the folder that all lines outside libraries share."""
        lines = {line for report in reports for line in _lines(report) if line and line.startswith("/")}
        folders = [os.path.dirname(line) for line in lines if not _LIBRARIES.match(line)]
        common_folder = os.path.commonpath(folders) if folders else "/"
        return cls("" if common_folder == "/" else f"{common_folder}/")

    def shorten(self, line: str | None) -> str:
        """Cut the common folder off a `file:line`, or all before the name of a library."""
        if not line:
            return "no line known"
        below = self.common_folder and line.startswith(self.common_folder)
        return line.removeprefix(self.common_folder) if below else _LIBRARIES.sub("…/", line)


def _lines(report: RunReport) -> Iterator[str | None]:
    yield from (finding.line for finding in report.findings)
    for replica in report.replicas:
        yield from (compile_.line for compile_ in replica.compiles)
        yield from (compile_.difference.line for compile_ in replica.compiles)
        for rows in (replica.syncs, replica.fallbacks, replica.transfers, replica.memory.live, replica.hot_lines, replica.findings):
            yield from (row.line for row in rows)
