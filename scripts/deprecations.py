"""Write docs/deprecations.md: what is deprecated in the packages, since which version, and from which month a release may lack it.

usage: python scripts/deprecations.py [--check]

The rows are the calls of `Deprecation` in the sources. `--check` writes nothing and fails if the page is stale. Nothing is imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/deprecations.md"
COMMAND = "hatch run reference"
INTRODUCTION = f"""\
# Deprecations

Names and forms of calls that work and say, once in a process, what to use instead. Each has a month: releases before it have the name,
later ones may lack it, and their change logs say so under *Breaking*. Once the month has come, `hatch run release` refuses to release the
package until the name is gone or its month is a later one; a month never becomes an earlier one.

Names that PyTorch/XLA deprecated itself, such as `xm.mark_step`, stand in most programs that were written for it: they stay as long as the
API level (`torch_xla.__version__`) is 2.x, and at least until the month given here. What torch deprecates, such as masks of dtype
`torch.uint8`, goes when the oldest torch that is allowed has it no more. Written by `{COMMAND}`.

| deprecated | use instead | since | a release may lack it from |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Found:
    """A call of `Deprecation` in the sources. place: `file:line`, from the root."""

    package: str
    place: str
    old: str
    instead: str
    since: str
    removal: str


def found(root: Path = ROOT) -> list[Found]:
    """All deprecations, by package and place. Raises ValueError for one whose four texts are not written out, or of another package."""
    rows = []
    for file in sorted(root.glob("packages/*/src/**/*.py")):
        package = file.relative_to(root / "packages").parts[0]
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "Deprecation(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Deprecation":
                place = f"{file.relative_to(root).as_posix()}:{node.lineno}"
                texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
                if len(texts) != 4 or node.keywords:
                    raise ValueError(f"{place}: write the four texts of a Deprecation out, by position")
                row = Found(package, place, *map(str, texts))
                if row.since.rpartition(" ")[0] != package:
                    raise ValueError(f"{place}: since is {row.since!r}, must be a version of {package}")
                rows.append(row)
    return rows


def due(rows: Sequence[Found], package: str, month: str) -> list[Found]:
    """Those of a package whose month has come by `month`, such as `2028-12`."""
    return [row for row in rows if row.package == package and row.removal <= month]


def page(rows: Sequence[Found]) -> str:
    """The page."""
    ordered = sorted(rows, key=lambda row: (row.removal, row.old))
    return INTRODUCTION + "".join(f"| {_cell(row.old)} | {_cell(row.instead)} | {row.since} | {row.removal} |\n" for row in ordered)


def _cell(words: str) -> str:
    """Names as code, descriptions as they are."""
    return words if " " in words else f"`{words}`"


def main(options: Sequence[str]) -> str | None:
    """Write or check the page; gives the complaint, if any."""
    if [option for option in options if option != "--check"]:
        return __doc__
    wanted = page(found())
    if not options:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != wanted:
        return f"{PAGE.relative_to(ROOT)} is stale; write it again: {COMMAND}"
    return None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
