"""Read the user's source lines that a run report names."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from dataclasses import replace

from xla_debug.run_report.schema import Excerpt, Finding, line_number
from xla_debug.secret_values import hide_in_source

_CONTEXT_LINES = 2
_LONGEST = 200
"""Characters of a line that are kept."""


def source_line(line: str | None) -> str:
    """The text at `file:line`; empty if it cannot be read."""
    number = line_number(line)
    return linecache.getline((line or "").rpartition(":")[0], number) if number is not None else ""


def excerpt(line: str | None) -> Excerpt | None:
    """The line at `file:line` and two before and after it, without shared indentation and literal secrets; None if it cannot be read."""
    number = line_number(line)
    if number is None or not source_line(line).strip():
        return None
    path = (line or "").rpartition(":")[0]
    first = max(number - _CONTEXT_LINES, 1)
    lines = [linecache.getline(path, each).expandtabs(4).rstrip() for each in range(first, number + _CONTEXT_LINES + 1)]
    while not lines[-1]:
        lines.pop()
    skip = min(len(each) - len(each.lstrip()) for each in lines if each)
    return Excerpt(first, [hide_in_source(each[skip:])[:_LONGEST] for each in lines])


def line_of_excerpt(finding: Finding) -> str:
    """The source at a finding's own line, without indentation; empty if it is not known."""
    number = line_number(finding.line)
    lines = dict(enumerate(finding.source.lines, finding.source.first)) if finding.source else {}
    return lines.get(number, "").strip() if number is not None else ""


def with_excerpts(findings: Iterable[Finding]) -> list[Finding]:
    """The findings with the source at their lines, where it can be read and is not there yet."""
    return [finding if finding.source else replace(finding, source=excerpt(finding.line)) for finding in findings]
