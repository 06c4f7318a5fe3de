"""Indices and masks on the CPU: for advanced indexing, where torch allows them on every device, and for other operations.

`x[permutation]`, `x[mask]`, `x[index] = value`: the indices are known on the host, so that positions out of range raise as on the CPU, and
the shape of `x[mask]` needs no read of the device. `gather`, `index_select`, `masked_fill` and so on refuse an index on the CPU and are
then called again with the index on the device, so that their other calls pay nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from xla_core.base.errors import DeviceMismatchError
from xla_core.base.private_torch import OpOverload
from xla_core.engine.runtime.transfer import upload
from xla_core.engine.tensor.plain import PLAIN, ours, tensor_behind
from xla_core.engine.tensor.schema import Convention, Handler, calling
from xla_core.engine.tensor.tensor import XLATensor, wrap

_BYTES = torch.uint8
_MASKS = (torch.bool, _BYTES)
# Names of arguments that are indices or masks. (`offsets` is one of embedding_bag.)
_INDEX_NAMES = frozenset({"index", "indices", "mask", "offsets"})
_INDICES = (torch.int64, torch.int32, torch.bool, torch.uint8)


def with_host_indices(func: OpOverload, handler: Handler) -> Handler:
    """`handler`, with indices moved from the CPU to the device of the indexed tensor; `handler` itself for operations without indices.

    Masks of bytes become masks of booleans, with torch's warning at each call: what is inferred once for calls that are alike warns once.
    """
    arguments = func._schema.arguments
    if len(arguments) < 2 or arguments[1].name != "indices" or "Optional[Tensor]" not in str(arguments[1].type):
        return handler
    reads = calling(func).convention is Convention.FUNCTIONAL and all(argument.name != "values" for argument in arguments)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for index in args[1]:
            if index is not None and (index.dtype is _BYTES or (type(index) is not XLATensor and index.is_cpu)):
                return handler((args[0], _moved(ours(args[0]), args[1], reads), *args[2:]), kwargs)
        return handler(args, kwargs)

    return run


def other_arguments(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments, with indices and masks moved from the CPU to the device; None if `error` has another cause."""
    if not isinstance(error, DeviceMismatchError):
        return None
    on_device = next((tensor for tensor in map(tensor_behind, (*args, *kwargs.values())) if tensor is not None), None)
    if on_device is None:
        return None
    recorder = on_device._storage.value.recorder
    names = [argument.name for argument in func._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    moved = {name: wrap(upload(arg, recorder)) for name, arg in arguments.items() if name in _INDEX_NAMES and _on_the_host(arg)}
    arguments |= moved
    return (tuple(arguments[name] for name in names[: len(args)]), {name: arguments[name] for name in kwargs}) if moved else None


def _on_the_host(arg: Any) -> bool:
    return type(arg) in PLAIN and bool(arg.is_cpu) and arg.dtype in _INDICES


def _moved(x: XLATensor, indices: Sequence[torch.Tensor | None], reads: bool) -> list[torch.Tensor | None]:
    """The indices on the device; a mask that is read by becomes positions. Raises IndexError for positions out of range."""
    recorder = x._storage.value.recorder
    moved: list[torch.Tensor | None] = []
    dim = among_indexed = 0
    for index in indices:
        if index is not None and index.dtype is _BYTES:
            text = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."
            warnings.warn(text, UserWarning, stacklevel=5)
            index = torch.ops.aten.ne.Scalar(index, 0)
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
