"""An account as one page that needs no network: styles, script and data are in it."""

from __future__ import annotations

import re
from importlib import resources

from xla_debug.account import files
from xla_debug.account.schema import Account

_PART = re.compile(r"<!--([\w.]+)-->")


def page(account: Account) -> str:
    """The HTML of a page about an account."""
    folder = resources.files("xla_debug")
    parts = {"account": _embedded(account)} | {name: folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")}
    return _PART.sub(lambda match: parts[match[1]], folder.joinpath("page.html").read_text(encoding="utf-8"))


def _embedded(account: Account) -> str:
    """JSON that cannot end the element it is in, whatever its texts are."""
    return files.dumped(account).decode().translate({ord(char): f"\\u{ord(char):04x}" for char in "<>&"})
