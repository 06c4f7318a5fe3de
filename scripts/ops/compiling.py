"""A worker of `pool` for `targets.py`: compiles an entry of torch's database of operators for a device that is not there."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torch_xla
from checks import arguments, short
from entries import Suite, database
from xla_core.abi.events import ExecuteEvent, FallbackEvent, subscribe
from xla_core.base.errors import LoweringError

DTYPES = ("float32", "bfloat16", "int64", "complex64")


class Found(Enum):
    """What became of one operator in one dtype, the worse the later."""

    COMPILES = "compiles"
    DATA = "needs data"
    FALLBACK = "runs on the host"
    REFUSED = "refused when recorded"
    FAILS = "does not compile"
    TIMEOUT = "time-out"
    CRASH = "crash"


_ORDER = list(Found)
# What torch and the device say where a value decides, which nothing has: the shape of a result, or a test that torch itself makes.
_ABOUT_VALUES = ("depends on data", "making it ill-defined", "weights cannot be negative")


@dataclass(slots=True)
class Outcome:
    """The worst of the samples of one operator in one dtype, and its error in a line."""

    found: Found = Found.COMPILES
    detail: str = ""
    samples: int = 0
    programs: int = 0
    fallbacks: set[str] = field(default_factory=set)

    def note(self, event: ExecuteEvent | FallbackEvent) -> None:
        """Count a program that would be launched, or an operator that ran on the host."""
        if isinstance(event, FallbackEvent):
            self.fallbacks.add(event.operator)
        else:
            self.programs += 1

    def worsen(self, found: Found, detail: str) -> None:
        """Take the outcome of another sample."""
        if _ORDER.index(found) > _ORDER.index(self.found):
            self.found, self.detail = found, detail


def _samples(entry: Any, dtype: torch.dtype, most: int) -> list[Any]:
    """Samples from all along the list, those with empty tensors only where there are no others, without those that CPU torch refuses."""
    torch.manual_seed(0)
    grad = entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
    every = list(entry.sample_inputs("cpu", dtype, requires_grad=grad))
    full = [sample for sample in every if not _has_empty(sample)] or every
    count = min(most, len(full))
    spread = [full[round(index * (len(full) - 1) / max(count - 1, 1))] for index in range(count)]
    return [sample for sample in spread if _accepted(entry, sample)]


def _has_empty(sample: Any) -> bool:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return any(isinstance(leaf, torch.Tensor) and not leaf.numel() for leaf in leaves)


def _accepted(entry: Any, sample: Any) -> bool:
    given, args, kwargs = arguments(entry, sample, "cpu")
    try:
        entry.op(given, *args, **kwargs)
    except Exception:
        return False
    return True


def _compile(entry: Any, sample: Any) -> None:
    """Compile a call, with the reads of its results, and its gradient. Raises what the device raises."""
    given, args, kwargs = arguments(entry, sample, "xla")
    results = entry.op(given, *args, **kwargs)
    made = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    kept = [leaf.detach().clone() for leaf in made if leaf.device.type == "xla"]  # a view is computed when it is read
    torch_xla.sync()
    del kept
    # The part that has a gradient: the singular vectors themselves have none.
    smooth = pytree.tree_leaves(sample.output_process_fn_grad(results))
    leaves = [leaf for leaf in smooth if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if leaves:
        torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
        torch_xla.sync()


def _try(entry: Any, sample: Any) -> tuple[Found, str]:
    try:
        _compile(entry, sample)
    except LoweringError as error:
        return Found.FAILS, short(error)
    except Exception as error:
        return (Found.DATA if any(text in str(error) for text in _ABOUT_VALUES) else Found.REFUSED), short(error)
    return Found.COMPILES, ""


def _one(entry: Any, dtype: torch.dtype, most: int) -> Outcome:
    outcome = Outcome()
    stop = subscribe(outcome.note, ExecuteEvent, FallbackEvent)
    try:
        for sample in _samples(entry, dtype, most):
            outcome.samples += 1
            outcome.worsen(*_try(entry, sample))
    finally:
        stop()
    if outcome.fallbacks:
        outcome.worsen(Found.FALLBACK, ", ".join(sorted(outcome.fallbacks)))
    return outcome


def main(target: str, most: int, names: list[str]) -> None:
    """Serve tasks until stdin ends. most: samples of an entry and dtype. names: of the dtypes."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what operators print must not get among the answers
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        entry = database(Suite.OPS)[json.loads(line)["number"]]
        rows = []
        for name in names:
            dtype = getattr(torch, name)
            if dtype in entry.supported_dtypes("cpu"):
                start = time.perf_counter()
                with torch_xla.target(target):  # devices of their own: what fails stays pending there
                    outcome = _one(entry, dtype, most)
                row = {"dtype": name, "found": outcome.found.value, "detail": outcome.detail}
                counts = {"samples": outcome.samples, "programs": outcome.programs}
                rows.append({**row, **counts, "seconds": round(time.perf_counter() - start, 2)})
        answers.write(json.dumps({"found": rows}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","))
