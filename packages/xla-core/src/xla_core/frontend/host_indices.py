"""Advanced indexing by CPU tensors, which torch allows on every device: `x[permutation]`, `x[mask]`, `x[index] = value`.

Their values are known, so that positions out of range raise as on the CPU, and what a mask picks has a shape without reading the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xla_core._compat import OpOverload
from xla_core.frontend.plain import ours
from xla_core.frontend.schema import Convention, Handler, calling
from xla_core.frontend.tensor import XLATensor, wrap
from xla_core.runtime.transfer import upload

_MASKS = (torch.bool, torch.uint8)


def with_host_indices(func: OpOverload, handler: Handler) -> Handler:
    """`handler`, with indices on the CPU taken to the device of the indexed tensor; `handler` itself for operations without indices."""
    arguments = func._schema.arguments
    if len(arguments) < 2 or arguments[1].name != "indices" or "Optional[Tensor]" not in str(arguments[1].type):
        return handler
    reads = calling(func).convention is Convention.FUNCTIONAL and "put" not in func._schema.name

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for index in args[1]:
            if type(index) is not XLATensor and index is not None and index.is_cpu:
                return handler((args[0], _moved(ours(args[0]), args[1], reads), *args[2:]), kwargs)
        return handler(args, kwargs)

    return run


def _moved(x: XLATensor, indices: Sequence[torch.Tensor | None], reads: bool) -> list[torch.Tensor | None]:
    """The indices on the device; masks that are read by as the positions that they pick. Raises IndexError for positions out of range."""
    recorder = x._storage.value.recorder
    moved: list[torch.Tensor | None] = []
    dim = among_indexed = 0
    for index in indices:
        if index is None or not index.is_cpu:
            moved.append(index)
            dim += _dims(index)
        elif index.dtype in _MASKS:
            # A write by a mask has a shape that is known: the mask itself goes to the device.
            picks = reads and index.dim() > 0 and index.shape == x.shape[dim : dim + index.dim()]
            parts = index.nonzero(as_tuple=True) if picks else (index,)
            moved += [wrap(upload(part, recorder)) for part in parts]
            dim += index.dim()
        else:
            if dim < x.dim():
                _check(index, among_indexed, x.shape[dim])
            moved.append(wrap(upload(index, recorder)))
            dim += 1
        among_indexed += 0 if index is None else _dims(index)
    return moved


def _dims(index: torch.Tensor | None) -> int:
    """The number of dimensions of the indexed tensor that an index covers."""
    return index.dim() if index is not None and index.dtype in _MASKS else 1


def _check(index: torch.Tensor, dim: int, size: int) -> None:
    """Raise torch's own error for positions out of range; dim: as torch counts there, among the dimensions that are indexed."""
    if index.numel():
        low, high = (int(bound) for bound in index.aminmax())
        if low < -size or high >= size:
            wrong = low if low < -size else high
            raise IndexError(f"index {wrong} is out of bounds for dimension {dim} with size {size}")
