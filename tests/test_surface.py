"""The names of PyTorch/XLA 2.9: all resolve, but those that the page for migration lists with a reason."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import forked_python

from torch_xla import _XLAC
from xla_core.legacy.xlac import of_siblings

ROOT = Path(__file__).resolve().parents[1]
NAMES: dict[str, list[str]] = json.loads((ROOT / "tests" / "data" / "surface.json").read_text(encoding="utf-8"))
MOST_GONE = 40


def gone() -> set[str]:
    """The names that the page lists as gone; without those that are there and raise."""
    page = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8").partition("\n## Gone")[2]
    return {f"torch_xla.{name}" for name in re.findall(r"^\| `([\w.]+)` \| \S", page, re.M)}


def unresolved() -> set[str]:
    """The names that do not resolve in a fresh interpreter."""
    run = forked_python.run([sys.executable, ROOT / "scripts" / "surface.py", "--missing"], capture_output=True, text=True, check=True)
    found: set[str] = set()
    module = ""
    for line in run.stdout.splitlines():
        if line.startswith("    "):
            found.add(f"{module}.{line.strip()}")
        else:
            module = line.split()[0]
    return found


def test_every_name_resolves_or_is_listed_with_a_reason() -> None:
    assert unresolved() == gone()
    assert len(gone()) <= MOST_GONE


def test_what_other_packages_are_said_to_have_they_have() -> None:
    assert all(not getattr(getattr(_XLAC, name), "__doc__", "").endswith("which is not installed.") for name in of_siblings.NAMES)


def test_the_page_has_every_module() -> None:
    page = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    table = page.partition("## Module by module")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w.]+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))))
    ends = {name.rpartition(".")[2] for name in named}
    missing = [module for module in NAMES if not {module.removeprefix("torch_xla."), *module.split(".")[1:]} & (named | ends)]
    assert not missing
