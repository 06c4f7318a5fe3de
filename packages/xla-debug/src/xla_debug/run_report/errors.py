"""Errors of run reports. Nothing here needs torch.

RunReportFileError (ValueError)  a file or folder holds no run report that can be read; says which, why, and what to do
"""

from __future__ import annotations

from xla_debug.printable_text import printable


class RunReportFileError(ValueError):
    """A file or folder holds no run report that can be read. Its text is one line, whatever the file says of itself."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text).replace("\n", "\ufffd"))
