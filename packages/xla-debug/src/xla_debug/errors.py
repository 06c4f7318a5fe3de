"""Errors of accounts. Nothing here needs torch.

AccountFileError (ValueError)  a file or folder holds no account that can be read; says which, why, and what to do
"""

from __future__ import annotations


class AccountFileError(ValueError):
    """A file or folder holds no account that can be read."""
