"""Render a run report as one page of HTML that contains its styles, scripts and data."""

from __future__ import annotations

import re
from importlib import resources

from xla_debug.run_report import files
from xla_debug.run_report.schema import RunReport

_FILES = ("page.css", "timeline.css", "timeline.js", "page.js")
_PART = re.compile(r"<!--([\w.]+)-->")


def html_page(report: RunReport) -> str:
    """Render a run report as HTML."""
    folder = resources.files("xla_debug.rendering")
    parts = {"report": _embedded(report)} | {name: folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES}
    return _PART.sub(lambda match: parts[match[1]], folder.joinpath("page.html").read_text(encoding="utf-8"))


def _embedded(report: RunReport) -> str:
    """Write a run report as JSON that cannot end the HTML element around it, whatever its texts are."""
    return files.to_json(report).decode().translate({ord(char): f"\\u{ord(char):04x}" for char in "<>&"})
