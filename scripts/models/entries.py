"""All entries of the table, in its order."""

from __future__ import annotations

import sys
from pathlib import Path

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
