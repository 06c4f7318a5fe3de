"""Text that cannot act on the terminal, and tables that fit into it."""

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
"""Characters of the bar of a whole, where there is room for it."""
_MOST_ROWS = 20
"""Rows of a table that are shown; a page has them all."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a share, 0 to 1, on one line: all bars of a column are by one scale, that of its width."""

    part: float
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("█" * round(min(_BAR, options.max_width) * min(self.part, 1.0)), self.style, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, _BAR)


Cell = str | Text | Bar


def plain(text: str, style: str = "") -> Text:
    """A text as it is: no markup, and what is no printable character is replaced, since files may come from anywhere."""
    return Text(printable(text), style)


def indented(text: Text) -> Padding:
    """A paragraph that belongs to the line above."""
    return Padding(text, (0, 0, 0, 3), expand=False)


def heading(text: str, note: str = "") -> Text:
    """The heading of a section, with what is to be known of all of it."""
    return Text.assemble("\n", (text, "bold"), (f"  {note}" if note else "", "dim"))


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """A table as wide as what it holds, at most as the terminal. Columns whose name begins with `>` are of numbers."""
    rendered = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for name in columns:
        is_number = name.startswith(">")
        rendered.add_column(Text(name.removeprefix(">")), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        rendered.add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in row))
    return rendered


def section(title: str, note: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[RenderableType]:
    """A heading with its table, of the first rows; nothing without rows."""
    if not rows:
        return []
    hidden = len(rows) - _MOST_ROWS
    body = table(columns, rows[:_MOST_ROWS])
    rest = [Text(f"and {hidden} more: `--html FILE` shows all", "dim")] if hidden > 0 else []
    return [heading(title, note), Group(body, *rest)]
