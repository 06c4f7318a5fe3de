"""Every environment variable that this package reads, beside those of the core."""

from __future__ import annotations

from xla_core.abi import Setting
from xla_debug import folders


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _text(name: str, doc: str) -> Setting[str | None]:
    return Setting(name, None, doc, str, "a text")


ACCOUNT_DIR = _text(folders.ACCOUNT_DIR, "Folder in which this process keeps its account; `xla-debug run` sets it.")

SETTINGS: tuple[Setting[object], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Setting))
