"""All entries of the table, in its order."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / folder) for folder in ("clients", "clients/programs", "benchmarks")]
import torchvision_operators  # noqa: E402, F401

# isort: split
from case import Entry  # noqa: E402
from diffusion import PIPELINES  # noqa: E402
from image_models import IMAGES  # noqa: E402
from loops import LOOPS  # noqa: E402
from transformers_families import FAMILIES  # noqa: E402

ENTRIES: tuple[Entry, ...] = (*FAMILIES, *IMAGES, *LOOPS, *PIPELINES)


def named(name: str) -> Entry:
    """The entry of that name."""
    return next(entry for entry in ENTRIES if entry.name == name)


def chosen(names: Sequence[str], among: Sequence[Entry]) -> list[Entry]:
    """The entries of those names or libraries, all for none. Raises `click.UsageError` for an unknown one."""
    known = {entry.name for entry in among} | {entry.library for entry in among}
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"{', '.join(unknown)} is not one of {', '.join(sorted(known))}")
    return [entry for entry in among if not names or entry.name in names or entry.library in names]
