"""Torch's own distributed stack, by process groups: `DEVICE` is xla, or cpu for the same program over gloo.

A section for each part, `MODULE` or `MODULE.FUNCTION`, gives what its test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

import harness
import torch_xla
from xla_core.abi.metrics import counter


def plain(value: Any) -> Any:
    """Tensors as lists, in dictionaries, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def finish_step(device: str) -> None:
    if device == "xla":
        torch_xla.sync()


def compiled(device: str) -> int:
    """Programs compiled so far."""
    return counter("UncachedCompile") if device == "xla" else 0


def refusal(action: Callable[[], Any]) -> list[str]:
    """Type and text of what it raises."""
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def work(rank: int, folder: str, size: str, device: str, *sections: str) -> dict[str, Any]:
    if device == "xla":
        dist.init_process_group("xla", init_method="xla://")
    else:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=int(size))
    found: dict[str, Any] = {}
    for section in sections:
        module, _, function = section.partition(".")
        results = getattr(import_module(module), function or "found")(rank, device)
        finish_step(device)  # one program for what is read now
        found[section] = plain(results)
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    folder, size, device, *sections = sys.argv[1:]
    if device == "xla":
        harness.main(work)
    else:
        torch.multiprocessing.spawn(harness.replica, (work, folder, [size, device, *sections]), int(size))
