"""Write run reports to files as compact JSON, atomically, and read them back with errors of one line."""

from __future__ import annotations

import functools
import json
import os
import re
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

from xla_debug.regular_files import read_bytes
from xla_debug.run_report.errors import RunReportFileError
from xla_debug.run_report.schema import FORMAT, VERSION, RunReport

_PREFIX = f'{{"format":"{FORMAT}"'.encode()
_CONTROLS = re.compile(b"\x7f|\xc2[\x80-\x9f]")
"""DEL and the second set of control characters (C1), as UTF-8."""
_LONGEST = 60
_HOW_TO_WRITE = "write a new one with `xla-debug run --json FILE SCRIPT`"


@functools.cache
def _adapter() -> TypeAdapter[RunReport]:
    return TypeAdapter(RunReport)


def to_json(report: RunReport) -> bytes:
    """Write a run report as compact JSON without control characters, so that it cannot act on a terminal."""
    try:
        data = _adapter().dump_json(report)
    except PydanticSerializationError:  # file names need not be Unicode: what is not becomes `?`
        plain = _adapter().dump_python(report, mode="json")
        data = json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    # JSON itself only escapes control characters below 32. All matches are inside strings.
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0].decode()):04x}".encode(), data)


def write(report: RunReport, path: str | os.PathLike[str]) -> None:
    """Write a run report as JSON. Readers see the old file or the new one, never a part. Raises OSError."""
    replace_file(path, to_json(report))


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace a file atomically through the core. Raises OSError."""
    # Imported here, so that commands that only read start without torch.
    from xla_debug.core import files

    files.atomic_write_bytes(path, data)


def read(path: str | os.PathLike[str]) -> RunReport:
    """Read the run report in a file. Raises RunReportFileError if it is missing, cut off, no run report, or of a newer version."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise RunReportFileError(f"{path}: there is no such file; {_HOW_TO_WRITE}") from None
    except OSError as error:
        raise RunReportFileError(f"{path}: cannot be read ({error.strerror}); give the JSON file of a run report") from error
    document = _parsed(data, path)
    version = document.get("version")
    if type(version) is not int or version < 1:
        version_text = type(version).__name__ if isinstance(version, list | dict) else _short(repr(version))
        raise RunReportFileError(f"{path}: a run report of version {version_text}, which never was; {_HOW_TO_WRITE}")
    if version > VERSION:
        raise RunReportFileError(
            f"{path}: a run report of version {_short(version)}, this xla-debug reads up to {VERSION}; upgrade it: pip install -U xla-debug"
        )
    try:
        return _adapter().validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(_short, first["loc"]))
        raise RunReportFileError(f"{path}: a run report that is damaged at {field} ({_problem(first)}); {_HOW_TO_WRITE}") from error


def _problem(error: ErrorDetails) -> str:
    return "no file:line" if error["type"] == "predicate_failed" else error["msg"].lower()


def _short(value: object) -> str:
    """Shorten a value from a file for a message."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _parsed(data: bytes, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Parse the JSON object of a file that claims to be a run report."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        # The file is cut off within the prefix, or behind it.
        if _PREFIX.startswith(data) or data.startswith(_PREFIX):
            raise RunReportFileError(f"{path}: cut off after {len(data)} bytes; copy it again, or {_HOW_TO_WRITE}") from error
        raise RunReportFileError(f"{path}: not JSON ({error}); give the JSON file of a run report") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RunReportFileError(f"{path}: JSON, but no run report; {_HOW_TO_WRITE}")
    return document
