"""Make text without control characters, and tables that fit into the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from xla_debug.printable_text import printable

_BAR = 24
"""Characters of a full bar, where there is room for it."""
_MOST_ROWS = 20
"""Rows of a table that are shown, at most; the HTML page shows all."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar that shows a share, 0 to 1, on one line; all bars of a column have the same scale."""

    part: float
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("█" * round(min(_BAR, options.max_width) * min(self.part, 1.0)), self.style, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, _BAR)


Cell = str | Text | Bar


def plain(text: str, style: str = "") -> Text:
    """Make text without markup, and replace characters that are not printable, since files may come from anywhere."""
    return Text(printable(text), style)


def indented(text: Text) -> Padding:
    """Indent a paragraph that belongs to the line above."""
    return Padding(text, (0, 0, 0, 3), expand=False)


def heading(text: str, note: str = "") -> Text:
    """Make the heading of a section, with a note on all of it."""
    return Text.assemble("\n", (text, "bold"), (f"  {note}" if note else "", "dim"))


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """Make a table as wide as its contents, or at most the terminal. Columns whose name begins with `>` have numbers."""
    rendered = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for name in columns:
        is_number = name.startswith(">")
        rendered.add_column(Text(name.removeprefix(">")), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        rendered.add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in row))
    return rendered


def section(title: str, note: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[RenderableType]:
    """Make a heading and a table of the first rows; nothing without rows."""
    if not rows:
        return []
    hidden = len(rows) - _MOST_ROWS
    body = table(columns, rows[:_MOST_ROWS])
    rest = [Text(f"and {hidden} more: `--html FILE` shows all", "dim")] if hidden > 0 else []
    return [heading(title, note), Group(body, *rest)]
