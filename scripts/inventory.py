"""Write docs/internals/files.md: each source file of the packages and its one job, from the first line of its docstring.

usage: python scripts/inventory.py [--check]

`--check` writes nothing and fails if the page is stale. Nothing is imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/internals/files.md"
COMMAND = "hatch run reference"
INTRODUCTION = f"""\
# Files

Every file of the packages and its one job, folder by folder. For the order in which they are met, take the [tour](tour.md). What users
import, `torch_xla`, only re-exports: see the [reference](../reference/index.md). Written by `{COMMAND}`.
"""


def first_line(file: Path) -> str:
    """The first line of a module's docstring; empty if it has none."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def cell(text: str) -> str:
    """A text for a cell of a table."""
    return text.rstrip(".").replace("|", "\\|")


def section(package: Path) -> Iterator[str]:
    """The lines of one package: a table for the files at its top, then one for each folder."""
    top = package / "src" / package.name.replace("-", "_")
    yield from ("", f"## {package.name}", "", f"[README](../../packages/{package.name}/README.md). {first_line(top / '__init__.py')}")
    files = sorted((file for file in top.rglob("*.py") if file.name != "__init__.py"), key=lambda file: (file.parent != top, file))
    for folder, members in groupby(files, key=lambda file: file.parent):
        if folder != top:
            yield from ("", f"### {package.name}: {folder.relative_to(top).as_posix()}", "", first_line(folder / "__init__.py"))
        yield from ("", "| file | its one job |", "|---|---|")
        yield from (f"| `{file.relative_to(top).as_posix()}` | {cell(first_line(file))} |" for file in members)


def text() -> str:
    """The page."""
    packages = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
    return "\n".join([INTRODUCTION.rstrip("\n"), *(line for package in packages for line in section(package))]) + "\n"


def main(options: Sequence[str]) -> str | None:
    """Write or check the page; gives the complaint, if any."""
    if [option for option in options if option != "--check"]:
        return __doc__
    if not options:
        PAGE.write_text(text(), encoding="utf-8")
        return None
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text():
        return None
    return f"{PAGE.relative_to(ROOT)} is stale; write it again: {COMMAND}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
