"""Lines of the user's, as short as they stay clear: without the folder that they share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xla_debug.account.schema import Account

_LIBRARIES = re.compile(r"^.*/(?:site|dist)-packages/")


@dataclass(frozen=True, slots=True)
class Places:
    """base: the folder, with a slash at its end, that lines below it are shown without; empty if there is none."""

    base: str

    @classmethod
    def of(cls, accounts: Iterable[Account]) -> Places:
        """Finds the folder that all lines outside libraries share."""
        lines = {line for account in accounts for line in _lines(account) if line and line.startswith("/")}
        folders = [os.path.dirname(line) for line in lines if not _LIBRARIES.match(line)]
        base = os.path.commonpath(folders) if folders else "/"
        return cls("" if base == "/" else f"{base}/")

    def shown(self, line: str | None) -> str:
        """A `file:line` below the folder; one in a library from the library's name on."""
        if not line:
            return "no line known"
        return line.removeprefix(self.base) if self.base and line.startswith(self.base) else _LIBRARIES.sub("…/", line)


def _lines(account: Account) -> Iterator[str | None]:
    yield from (finding.line for finding in account.findings)
    for replica in account.replicas:
        yield from (compile_.line for compile_ in replica.compiles)
        yield from (compile_.difference.line for compile_ in replica.compiles)
        for rows in (replica.syncs, replica.fallbacks, replica.transfers, replica.memory.live, replica.hot_lines, replica.findings):
            yield from (row.line for row in rows)
