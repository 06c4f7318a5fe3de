"""Every environment variable that this package reads, beside those of the core."""

from __future__ import annotations

import enum

from xla_core.abi import Setting


class GraphFormat(enum.Enum):
    """How a program is written to a file."""

    TEXT = "text"
    DOT = "dot"
    HLO = "hlo"


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _text(name: str, doc: str) -> Setting[str | None]:
    return Setting(name, None, doc, str, "a text")


ACCOUNT_DIR = _text("XLA_DEBUG_ACCOUNT_DIR", "Folder in which this process keeps its account; `xla-debug run` sets it.")
SAVE_GRAPH_FMT = Setting(
    "SAVE_GRAPH_FMT",
    GraphFormat.TEXT,
    "How `torch_xla.debug.graph_saver` writes a program: as text, Graphviz's dot, or HLO.",
    GraphFormat,
    "text, dot or hlo",
)

SETTINGS: tuple[Setting[object], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Setting))
