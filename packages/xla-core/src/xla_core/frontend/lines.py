"""Where the user's own code is: the innermost frame outside torch, jax and these packages."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import torch

import xla_core

_inside = tuple(f"{Path(module.__file__ or '').parent}/" for module in (torch, jax, xla_core))
_NAMESPACE = "/torch_xla/"


def pass_over(folder: Path) -> None:
    """Count the code below `folder` as none of the user's."""
    global _inside
    _inside += (f"{folder}/",)


def user_line() -> str | None:
    """`file:line` of the innermost frame of the user's code; None if there is none (a thread of ours)."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_inside) and not path.startswith("<frozen") and _NAMESPACE not in path and "/contextlib.py" not in path:
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None
