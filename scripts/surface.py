"""Count which public names of PyTorch/XLA 2.9 that were once missing here resolve now, module by module.

usage: python scripts/surface.py [--missing]

The list is `tests/data/surface.json`: names by module, as programs import them. `--missing` prints each name that does not resolve.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

LIST = Path(__file__).resolve().parents[1] / "tests" / "data" / "surface.json"


def unresolved() -> dict[str, list[str]]:
    """The names that do not resolve, by module: of every module, also of those that are complete."""
    names: dict[str, list[str]] = json.loads(LIST.read_text(encoding="utf-8"))
    return {
        module: [name for name in wanted if not _resolves(module, name)] if _imports(module) else wanted for module, wanted in names.items()
    }


def _imports(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    return True


def _resolves(module: str, name: str) -> bool:
    try:
        getattr(importlib.import_module(module), name)
    except AttributeError:
        return False
    return True


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description="Count which names of PyTorch/XLA 2.9 resolve.")
    parser.add_argument("--missing", action="store_true", help="print each name that does not resolve")
    asked = parser.parse_args()
    names: dict[str, list[str]] = json.loads(LIST.read_text(encoding="utf-8"))
    missing = unresolved()
    width = max(map(len, names))
    for module, wanted in names.items():
        there = _imports(module)
        print(f"{module:{width}}  {len(wanted) - len(missing[module]):3} of {len(wanted):3}{'' if there else '  does not import'}")
        for name in missing[module] if asked.missing else ():
            print(f"    {name}")
    total = sum(map(len, names.values()))
    print(f"{'all':{width}}  {total - sum(map(len, missing.values())):3} of {total:3}")


if __name__ == "__main__":
    main()
