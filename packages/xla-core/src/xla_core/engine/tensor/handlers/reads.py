"""Operations that give Python values, most of them by a value read: item, equal, allclose."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.base import metrics
from xla_core.engine.tensor.plain import mixed
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.engine.tensor.values import cpu_copies, number_of

aten = torch.ops.aten


def item(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A Python number from a one-element tensor: a value read."""
    metrics.counter_add("aten::_local_scalar_dense")
    return number_of(args[0])


def equal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors have the same shape and values."""
    left, right = args
    for side in (left, right):
        if type(side) is not XLATensor:
            raise mixed(side)
    if left.shape != right.shape:
        return False
    return bool(item((torch.eq(left, right).all(),), {}))


def allclose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors are equal within tolerances: a value read."""
    close = torch.isclose(*args, **kwargs).all()
    return bool(cpu_copies([close])[0].item())  # type: ignore[list-item]


def linalg_check_errors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise torch's LinAlgError if a factorisation failed: a value read of its `info`, as on every device."""
    aten._linalg_check_errors(cpu_copies(args[:1])[0], *args[1:], **kwargs)


def pin_memory(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_pin_memory` of a tensor on the device: torch's own error."""
    raise RuntimeError(f"cannot pin '{args[0].type()}' only dense CPU tensors can be pinned")


def is_same_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors have the same shape."""
    return bool(args[0].shape == args[1].shape)


HANDLERS: dict[str, Handler] = {
    "_local_scalar_dense": item,
    "_linalg_check_errors": linalg_check_errors,
    "equal": equal,
    "is_same_size": is_same_size,
    "is_pinned": lambda args, kwargs: False,
    "_pin_memory": pin_memory,
    "allclose": allclose,
}
