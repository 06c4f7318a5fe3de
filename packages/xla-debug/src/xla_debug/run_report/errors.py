"""Errors of run reports. Nothing here needs torch.

RunReportFileError (ValueError)  a file or folder holds no run report that can be read; says which, why, and what to do
"""

from __future__ import annotations


class RunReportFileError(ValueError):
    """A file or folder holds no run report that can be read."""
