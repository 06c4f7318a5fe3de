"""Who asked for a program, for events about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xla_core.base.metrics import Cause
from xla_core.engine.compile.cache import Program


@dataclass(frozen=True, slots=True)
class Request:
    """Who requested a program, for events. region: name of the region of the user's code; line: the user's `file:line`."""

    region: str | None
    cause: Cause | None
    line: str | None

    def fields(self, program: Program) -> dict[str, Any]:
        """The fields of an event about a program."""
        return {**program.described, "cause": self.cause, "line": self.line, "name": self.region}
