"""What CPU torch refuses must be refused on device `xla`: at the call, with an error of the same type.

As a program it is a worker of `pool`: it answers each task with the findings about an entry of `op_db`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

import torch_xla
from checks import short
from entries import Suite, database, name_of
from mutations import Case, Change, cases
from xla_core.base import errors


class Verdict(Enum):
    """How the device takes a call that the CPU refuses."""

    SAME = "same type"
    OTHER = "other type"
    NONE = "no error"
    LATE = "late"
    INTERNAL = "internal type"


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict over one case. what: the case; mine, cpu: the errors, a line each."""

    entry: str
    change: str
    verdict: str
    what: str
    mine: str
    cpu: str


# Raised where a check is missing, never for users to read.
_INTERNAL = (errors.LoweringError, errors.ExecutionError, errors.InternalError, ArithmeticError, AssertionError, KeyError, AttributeError)
# What the CPU says of values, though it says so for stand-ins, too: positions, lengths and divisors are known on the device only.
_ABOUT_VALUES = re.compile(
    r"out of (bounds|range) (for|with) |ZeroDivisionError|Class values must be|argument #2 'targets'|Expected all rows of lengths"
)
# The CPU lacks the kernel; what other devices do is their own matter.
_NO_KERNEL = re.compile(
    r"not implemented for '(ComplexHalf|Float8\w*|UInt(16|32|64))'|^Could not run '"
    r"|\"(abs_cpu|avg_pool3d|compute_index_ranges|histogram_cpu|multi_margin|multilabel_margin|rrelu|trace)\w*\" not implemented for"
    r"|nansum on CPU does not support complex|categories cannot exceed 2\^24"
)
# Operations that take operands from other devices, or ask for nothing but their shape or dtype.
_ANY_DEVICE = frozenset(
    (
        "__getitem__ _unsafe_masked_index broadcast_tensors expand_as index_put narrow nn.functional.ctc_loss reshape_as resize_as_ "
        "tensor_split to type_as view_as"
    ).split()
)
# Operations that take the place of an index or mask from the CPU to the device.
_INDEX_ANYWHERE = frozenset(
    (
        "gather index_add index_copy index_fill index_reduce index_select masked_fill masked_scatter masked_select nn.functional.embedding "
        "nn.functional.embedding_bag put scatter scatter_add scatter_reduce take"
    ).split()
)
_INDEX_DTYPES = (torch.int64, torch.int32, torch.bool, torch.uint8)


def _index_stays(entry: Any, case: Case) -> bool:
    """Whether the tensor that stays on the CPU is an index that is taken to the device."""
    leaves = pytree.tree_leaves(case.arguments)
    named = entry.name in _INDEX_ANYWHERE or entry.name.startswith(("index_reduce", "scatter_reduce"))
    return named and case.staying is not None and leaves[case.staying].dtype in _INDEX_DTYPES


def _call(entry: Any, arguments: Any) -> Any:
    torch.manual_seed(7)
    given, args, kwargs = arguments
    return entry.op(given, *args, **kwargs)


def _copied(arguments: Any, copy: Callable[[int, torch.Tensor], torch.Tensor], device: str) -> Any:
    """Arguments with each tensor replaced by `copy(place, tensor)`; tensors without data stay, devices become `device`."""
    leaves, tree = pytree.tree_flatten(arguments)

    def replaced(place: int, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf if leaf.is_meta else copy(place, leaf.detach()).requires_grad_(leaf.requires_grad)
        return device if leaf in ("cpu", torch.device("cpu")) else leaf

    return pytree.tree_unflatten([replaced(place, leaf) for place, leaf in enumerate(leaves)], tree)


def _refusal(entry: Any, arguments: Any, copy: Callable[[torch.Tensor], torch.Tensor]) -> Exception | None:
    try:
        _call(entry, _copied(arguments, lambda _, tensor: copy(tensor), "cpu"))
    except Exception as error:
        return error
    return None


def expected(entry: Any, case: Case) -> Exception | None:
    """What stock torch raises for the shapes, dtypes, devices and types of a call; None where it raises nothing.

    An error is about values, which no call on a device can know, if stand-ins of the same shapes and dtypes raise none.
    """
    found = _refusal(entry, case.arguments, torch.clone)
    if case.change is Change.DEVICE:
        mixed = found is None and entry.name not in _ANY_DEVICE and not _index_stays(entry, case)
        return RuntimeError("Expected all tensors to be on the same device") if mixed else None
    if found is None or isinstance(found, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        return None
    if _ABOUT_VALUES.search(str(found)) or _NO_KERNEL.search(str(found)):
        return None
    if any(_refusal(entry, case.arguments, stand_in) is None for stand_in in (torch.zeros_like, torch.ones_like)):
        return None
    return found


def verdict_of(entry: Any, case: Case, wanted: Exception) -> tuple[Verdict, str]:
    """How the device takes a call, and what it says."""

    def copy(place: int, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if place == case.staying else tensor.to("xla")

    try:
        result = _call(entry, _copied(case.arguments, copy, "xla"))
    except Exception as error:
        if isinstance(error, type(wanted)):
            return Verdict.SAME, short(error)
        internal = isinstance(error, _INTERNAL) or type(error).__module__.startswith("jax")
        return Verdict.INTERNAL if internal else Verdict.OTHER, short(error)
    try:
        torch_xla.sync()
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                leaf.cpu()
    except Exception as error:
        return Verdict.LATE, short(error)
    return Verdict.NONE, "no error"


def findings(entry: Any, samples: int) -> Iterator[Finding]:
    """The verdicts over those cases of an entry that the CPU refuses."""
    for case in cases(entry, samples):
        wanted = expected(entry, case)
        if wanted is not None:
            verdict, mine = verdict_of(entry, case, wanted)
            yield Finding(name_of(entry), case.change.value, verdict.value, case.what, mine, short(wanted))


def serve(samples: int) -> None:
    """Answer tasks until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what operators print must not get among the answers
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        start = time.perf_counter()
        found = [asdict(finding) for finding in findings(database(Suite.OPS)[json.loads(line)["number"]], samples)]
        answers.write(json.dumps({"seconds": round(time.perf_counter() - start, 2), "found": found}) + "\n")
        jax.clear_caches()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
