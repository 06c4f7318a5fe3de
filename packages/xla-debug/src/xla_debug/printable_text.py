"""Make text from files that anybody may have written safe to show in a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Replace characters that are neither printable nor a newline by U+FFFD."""
    return text if text.isprintable() else "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
