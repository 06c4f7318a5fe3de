"""Lets the Python part of torchvision be imported where its compiled part does not load: its wheel from PyPI wants a torch with CUDA.

Its import needs two operators to be declared; nobody here calls them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _compiled_part() -> Path | None:
    """The library of torchvision's operators, if there is one."""
    found = importlib.util.find_spec("torchvision")
    return next(Path(found.origin).parent.glob("_C.*"), None) if found is not None and found.origin else None


def declare() -> None:
    """Declare what the import needs, unless the compiled part loads."""
    library = _compiled_part()
    if library is None:
        return
    try:
        torch.ops.load_library(str(library))
    except OSError:  # made for another build of torch
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", SCHEMA)


declare()
