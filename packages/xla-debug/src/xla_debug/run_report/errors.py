"""Errors of run reports. Nothing here imports torch.

RunReportFileError (ValueError)  a file or folder holds no readable run report; says which, why, and what to do
"""

from __future__ import annotations

from xla_debug.printable_text import printable


class RunReportFileError(ValueError):
    """A file or folder holds no readable run report. The text is one line, whatever the file contains."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text).replace("\n", "\ufffd"))
