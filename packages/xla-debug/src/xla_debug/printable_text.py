"""Text from elsewhere that a terminal only shows: files may come from anybody."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text in which what is neither printable nor the end of a line is replaced by U+FFFD."""
    return text if text.isprintable() else "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
