"""What programs over eight devices share: cases, each of which reports what it saw."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch

import torch_xla._XLAC
import torch_xla.distributed.spmd as xs
from xla_core.abi.metrics import live_buffers
from xla_core.abi.sharding import device_shards
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor

MESH = xs.Mesh(range(8), (4, 2), ("x", "y"))  # devices in their order
FIRST = xs.Mesh([3, 1, 2, 0, 7, 6, 5, 4], (2, 4), ("x", "y"))  # and in another one

BUILTINS = (RuntimeError, AssertionError, ValueError, TypeError, LookupError)
Case = Callable[[], dict[str, Any]]
_cases: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Let a function be run; what it returns is reported under its module's name and its own."""
    _cases[f"{function.__module__.removesuffix('_cases')}.{function.__name__}"] = function
    return function


def why(action: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """The builtin type and the message of the error that a call raises; empty if it raises none."""
    try:
        action(*args, **kwargs)
    except BUILTINS as error:
        return [next(known.__name__ for known in BUILTINS if isinstance(error, known)), str(error)]
    return []


def text(t: torch.Tensor) -> str:
    """The text of a tensor's sharding."""
    found: str = torch_xla._XLAC._get_xla_sharding_spec(t)
    return found


def wrapped(*tensors: Any) -> list[bool]:
    """Which of these are wrappers."""
    return [isinstance(t, XLAShardedTensor) for t in tensors]


def stored(t: torch.Tensor) -> list[int]:
    """The shape of what the first device holds."""
    return list(device_shards(unwrap_sharded_tensor(t))[0].data.shape)


def bytes_of_each(t: torch.Tensor) -> list[int]:
    """What a tensor takes on each device, padding included."""
    inner = unwrap_sharded_tensor(t)
    device_shards(inner)  # computes it
    held = next(found.array for found in live_buffers() if any(one is inner or one is t for one in found.tensors))
    return [shard.data.nbytes for shard in held.addressable_shards]


def ramp(*shape: int) -> torch.Tensor:
    """0, 1, 2, … on the devices."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).to("xla")


def far(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference; shape and dtype must be equal."""
    got, wanted = mine.detach().cpu(), theirs.detach()
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), f"{got.shape} {got.dtype}, wanted {wanted.shape} {wanted.dtype}"
    return float((got - wanted).abs().max())


def run_all() -> dict[str, Any]:
    """The reports of all cases, in the order of their definition; of one that failed, its traceback."""
    found: dict[str, Any] = {}
    for name, function in _cases.items():
        try:
            found[name] = function()
        except Exception:
            found[name] = {"failed": traceback.format_exc()}
    return found
