"""`xla-debug settings`: list every environment variable that the installed packages read."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from xla_debug.core import abi

_HEADER = ("Variable", "Default", "What it does", "Must be")


@click.command("settings")
@click.option("--markdown", "as_markdown", is_flag=True, help="As a page in Markdown.")
def command(as_markdown: bool) -> None:
    """List the environment variables that the installed packages read."""
    from xla_debug.core import abi  # here, since it imports torch and jax, which --help does not need

    settings = abi.settings.installed_settings()
    if as_markdown:
        click.echo(markdown(settings), nl=False)
        return
    console = Console()
    for package, rows in settings.items():
        table = Table(*_HEADER, title=package, title_justify="left")
        table.columns[0].no_wrap = True
        for setting in rows:
            table.add_row(*(Text(cell) for cell in (setting.name, _default(setting) or "unset", setting.doc, setting.allowed)))
        console.print(table)


def markdown(settings: Mapping[str, Sequence[abi.settings.Setting[Any]]]) -> str:
    """Write the page of `docs/settings.md`. settings: by name of the distribution."""
    lines = [
        "# Settings",
        "",
        "Every environment variable that the packages read, with what it does. They are read when they are needed, so that a change in",
        "`os.environ` counts from then on, unless the row says when it is fixed; an empty one counts as unset, and a value that is",
        "not allowed raises ValueError. Written by `xla-debug settings --markdown`; `xla-debug settings` prints the same for what is",
        "installed.",
    ]
    for package, rows in settings.items():
        lines += ["", f"## {package}", "", f"| {' | '.join(_HEADER)} |", f"|{'---|' * len(_HEADER)}"]
        for setting in rows:
            default = _default(setting)
            cells = (f"`{setting.name}`", f"`{default}`" if default else "unset", setting.doc, setting.allowed)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _default(setting: abi.settings.Setting[Any]) -> str:
    """Write a default as the environment would hold it; empty where there is none."""
    value = setting.default
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ":".join(map(str, value))
    return "" if value is None else str(value)
