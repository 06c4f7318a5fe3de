"""The page of the results, and the same as JSON."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exclusions import EXCLUSIONS
from outcomes import Counts


def share(part: int, whole: int) -> str:
    """A percentage with one digit behind the point, rounded down."""
    return f"{int(1000 * part / whole) / 10:.1f} %" if whole else ""


def line(counts: Counts) -> str:
    """A file in one line, for the terminal."""
    if counts.error:
        return f"{counts.file}: cannot be loaded: {counts.error.splitlines()[0]}"
    failed = "; ".join(f"{number} × {cause}" for cause, number in counts.failed.most_common(3))
    refused = f", {sum(counts.refused.values())} refused" if counts.refused else ""
    return f"{counts.file}: {counts.passed} of {counts.dense} pass ({share(counts.passed, counts.dense)}){refused}. {failed}"


def table(rows: Sequence[Counts]) -> str:
    """All files as a table, and their sum."""
    text = [
        "| file | tests | asked | passed | | refused | failed | skipped | not on the CPU | seconds, CPU and xla |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        if row.error:
            text.append(f"| {row.file} | | | | | | | | | cannot be loaded: {row.error.splitlines()[0]} |")
            continue
        counted = (row.asked, row.passed, share(row.passed, row.dense), *(sum(part.values()) for part in _parts(row)))
        times = ", ".join(f"{row.seconds[device]:,.0f}" for device in ("cpu", "xla"))
        run = f"{row.tests:,}" if row.run == row.tests else f"{row.run:,} of {row.tests:,}"
        text.append(f"| {row.file} | {run} | {' | '.join(f'{item:,}' if isinstance(item, int) else item for item in counted)} | {times} |")
    passed, dense = sum(row.passed for row in rows), sum(row.dense for row in rows)
    text.append(f"| all | | {sum(row.asked for row in rows):,} | {passed:,} | {share(passed, dense)} | | | | | |")
    return "\n".join(text)


def _parts(row: Counts) -> tuple[Counter[str], ...]:
    return row.refused, row.failed, row.skipped, row.not_on_cpu


def _plain(row: Counts) -> dict[str, Any]:
    fields = {each.name: getattr(row, each.name) for each in dataclasses.fields(row)}
    return {name: dict(value.most_common()) if isinstance(value, Counter) else value for name, value in fields.items()}


def exclusions() -> str:
    """What is refused or excluded, as a table."""
    rows = [f"| {each.kind} | {each.reason} | {each.remedy} |" for each in EXCLUSIONS]
    return "\n".join(["| refused or excluded | reason | instead |", "|---|---|---|", *rows])


def _replaced(text: str, mark: str, content: str) -> str:
    """A page with other content between `<!-- mark -->` and `<!-- /mark -->`."""
    before, rest = text.split(f"<!-- {mark} -->")
    behind = rest.split(f"<!-- /{mark} -->")[1]
    return f"{before}<!-- {mark} -->\n{content}\n<!-- /{mark} -->{behind}"


def _merged(version: str, known: Mapping[str, Any] | None, rows: Sequence[Counts]) -> dict[str, Any]:
    """What conformance.json has of this torch, with other rows for the files that were counted now; the others stay, in their order."""
    earlier = {fields["file"]: fields for fields in known["files"]} if known else {}
    files = earlier | {row.file: _plain(row) for row in rows}
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return {"torch": version, "machine": machine, "files": list(files.values())}


def _counts(fields: Mapping[str, Any]) -> Counts:
    counters = {each.name for each in dataclasses.fields(Counts) if each.default_factory is Counter}
    return Counts(**{name: Counter(value) if name in counters else value for name, value in fields.items()})


def write(folder: Path, rows: Sequence[Counts]) -> None:
    """Replace the marked parts of conformance.md, and write conformance.json. Rows of other files and other versions of torch stay."""
    from torch import __version__ as installed  # takes seconds, and the terminal's lines do not need it

    file, page = folder / "conformance.json", folder / "conformance.md"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    by_torch = {version["torch"]: version for version in known}
    by_torch[installed] = _merged(installed, by_torch.get(installed), rows)
    tables = [
        f"torch {version['torch']}, {version['machine']}:\n\n{table([_counts(fields) for fields in version['files']])}"
        for version in by_torch.values()
    ]
    text = _replaced(page.read_text(encoding="utf-8"), "conformance", "\n\n".join(tables))
    page.write_text(_replaced(text, "exclusions", exclusions()), encoding="utf-8")
    file.write_text(json.dumps(list(by_torch.values()), indent=1) + "\n", encoding="utf-8")
