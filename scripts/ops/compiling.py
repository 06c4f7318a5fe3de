"""A worker of `pool` for `targets.py`: compiles an entry of torch's database of operators for a device that is not there."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torch_xla
from checks import short
from entries import GRADIENTS, Suite, database
from xla_core.abi.events import FallbackEvent, subscribe
from xla_core.base.errors import LoweringError, UnsupportedOperationError

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64)


class Found(Enum):
    """What became of one operator in one dtype, the worse the later."""

    COMPILES = "compiles"
    DATA = "needs data"
    FALLBACK = "runs on the host"
    REFUSED = "refused at the call"
    FAILS = "does not compile"
    TIMEOUT = "time-out"
    CRASH = "crash"


def _samples(entry: Any, dtype: torch.dtype, most: int) -> Iterator[Any]:
    torch.manual_seed(0)
    grad = dtype in GRADIENTS and dtype in entry.supported_backward_dtypes("cpu") and entry.supports_autograd
    for number, sample in enumerate(entry.sample_inputs("cpu", dtype, requires_grad=grad)):
        if number >= most:
            return
        yield sample


def _moved(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to("xla").requires_grad_(leaf.requires_grad)
    return torch.device("xla") if leaf in ("cpu", torch.device("cpu")) else leaf


def _compile(entry: Any, sample: Any) -> None:
    """Compile a call and its gradient. Raises what the device raises."""
    given, args, kwargs = pytree.tree_map(_moved, (sample.input, sample.args, sample.kwargs))
    results = entry.op(given, *args, **kwargs)
    torch_xla.sync()
    leaves = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if leaves:
        torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
        torch_xla.sync()


def _one(entry: Any, dtype: torch.dtype, most: int) -> tuple[Found, str]:
    """The worst of the samples, and its error in a line. Samples that CPU torch refuses do not count."""
    worst, detail = Found.COMPILES, ""
    fallbacks: set[str] = set()
    stop = subscribe(lambda event: fallbacks.add(event.operator), FallbackEvent)
    try:
        for sample in _samples(entry, dtype, most):
            try:
                entry.op(sample.input, *sample.args, **sample.kwargs)
            except Exception:
                continue
            found, text = Found.COMPILES, ""
            try:
                _compile(entry, sample)
            except UnsupportedOperationError as error:
                found, text = (Found.DATA if "depends on data" in str(error) else Found.REFUSED), short(error)
            except LoweringError as error:
                found, text = Found.FAILS, short(error)
            except Exception as error:
                found, text = Found.REFUSED, short(error)
            if found is Found.COMPILES and fallbacks:
                found, text = Found.FALLBACK, ", ".join(sorted(fallbacks))
            order = list(Found)
            if order.index(found) > order.index(worst):
                worst, detail = found, text
    finally:
        stop()
    return worst, detail


def main(target: str, most: int) -> None:
    """Serve tasks until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what operators print must not get among the answers
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with torch_xla.target(target):
        for line in sys.stdin:
            given = json.loads(line)
            entry = database(Suite.OPS)[given["number"]]
            start = time.perf_counter()
            rows = []
            for dtype in DTYPES:
                if dtype in entry.supported_dtypes("cpu"):
                    found, detail = _one(entry, dtype, most)
                    rows.append({"dtype": str(dtype).removeprefix("torch."), "found": found.value, "detail": detail})
            answers.write(json.dumps({"seconds": round(time.perf_counter() - start, 2), "found": rows}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
