"""All entries of the table, in its order."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "clients"), str(ROOT / "benchmarks")]
import torchvision_operators  # noqa: E402, F401

# isort: split
from case import Entry  # noqa: E402
from transformers_families import FAMILIES  # noqa: E402

ENTRIES: tuple[Entry, ...] = (*FAMILIES,)


def named(name: str) -> Entry:
    """The entry of that name."""
    return next(entry for entry in ENTRIES if entry.name == name)
