"""Read the user's source lines that a run report names."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from dataclasses import replace

from xla_debug.run_report.schema import Excerpt, Finding, line_number
from xla_debug.secret_values import hide_in_source

_CONTEXT_LINES = 2
_LONGEST = 200
"""Characters of a line that are kept, at most."""


def source_line(line: str | None) -> str:
    """Read the text at `file:line`; empty if it cannot be read."""
    number = line_number(line)
    return linecache.getline((line or "").rpartition(":")[0], number) if number is not None else ""


def excerpt(line: str | None) -> Excerpt | None:
    """Read the line at `file:line` with two lines before and after it, without shared indentation and literal secrets; None on failure."""
    number = line_number(line)
    if number is None or not source_line(line).strip():
        return None
    path = (line or "").rpartition(":")[0]
    first = max(number - _CONTEXT_LINES, 1)
    lines = [linecache.getline(path, index).expandtabs(4).rstrip() for index in range(first, number + _CONTEXT_LINES + 1)]
    while not lines[-1]:
        lines.pop()
    skip = min(len(text) - len(text.lstrip()) for text in lines if text)
    return Excerpt(first, [hide_in_source(text[skip:])[:_LONGEST] for text in lines])


def line_of_excerpt(finding: Finding) -> str:
    """The source at a finding's own line, without indentation; empty if unknown."""
    number = line_number(finding.line)
    lines = dict(enumerate(finding.source.lines, finding.source.first)) if finding.source else {}
    return lines.get(number, "").strip() if number is not None else ""


def with_excerpts(findings: Iterable[Finding]) -> list[Finding]:
    """Add the source at their lines to findings that lack it, where it can be read."""
    return [finding if finding.source else replace(finding, source=excerpt(finding.line)) for finding in findings]
