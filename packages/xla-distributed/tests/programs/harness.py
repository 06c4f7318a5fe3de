"""Start the replicas of a test job and let each report."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch_xla.distributed.xla_multiprocessing as xmp


def report(folder: str, rank: int, content: Any) -> None:
    """Write what a replica found, whole or not at all."""
    note(folder, f"{rank}.json", json.dumps(content))


def note(folder: str, name: str, text: str) -> None:
    """Write a file that the test waits for."""
    part = Path(folder) / f"{name}.part"
    part.write_text(text, encoding="utf-8")
    part.rename(Path(folder) / name)


def replica(index: int, work: Callable[..., Any], folder: str, args: list[str]) -> None:
    """Run `work(index, folder, *args)` and report what it returns."""
    report(folder, index, work(index, folder, *args))


def main(work: Callable[..., Any], start_method: str = "fork") -> None:
    """`python program.py FOLDER ARGS…`: run `work` as each replica.

    Forked, replicas need not import what takes longer than most tests, torch and jax, nor what torch imports with the first operations.
    """
    folder, *args = sys.argv[1:]
    if start_method == "fork":
        for name in ("torch.distributed.tensor", "torch._dynamo"):
            importlib.import_module(name)
    xmp.spawn(replica, (work, folder, args), start_method=start_method)
