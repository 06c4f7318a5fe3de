"""Refuse a write to a part of a tensor from another part that overlaps it, as the CPU does.

Here an operation reads everything before it writes, so that nothing would go wrong; but the same lines have to run on either device.
"""

from __future__ import annotations

from typing import Any

import torch

from xla_core.base.private_torch import OpOverload, tree_leaves, tree_map
from xla_core.engine.tensor.encode import remember
from xla_core.engine.tensor.plain import as_xla
from xla_core.engine.tensor.refusals import host_stand_in, on_cpu
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor

_ABOUT_OVERLAPS = "unsupported operation"  # how torch's errors about them begin
_refused: dict[Any, str | None] = {}


def check_overlap(func: OpOverload, storage: Storage, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what the CPU raises if arguments of a write to `storage` show overlapping parts of it. Asks the CPU once for each layout."""
    args, kwargs = tree_map(as_xla, (args, kwargs))
    key = (func, storage.value.aval, *[_part(storage, item) for item in tree_leaves((args, kwargs))])
    message = _refused[key] if key in _refused else remember(_refused, key, _refusal(func, storage, args, kwargs))
    if message is not None:
        raise RuntimeError(message)


def _part(storage: Storage, item: Any) -> Any:
    """What the CPU's answer depends on."""
    if type(item) is not XLATensor:
        return type(item)
    return item._view if item._storage is storage else (item.shape, item.dtype)


def _refusal(func: OpOverload, storage: Storage, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    base = storage.value.aval
    memory = torch.zeros(base.shape, dtype=base.dtype, device="cpu").untyped_storage()
    made: dict[int, torch.Tensor] = {}  # torch looks whether a tensor is the other one, too

    def stand_in(item: Any) -> Any:
        if type(item) is not XLATensor or item._storage is not storage:
            return host_stand_in(item)
        if id(item) not in made:
            made[id(item)] = shown(item)
        return made[id(item)]

    def shown(item: XLATensor) -> torch.Tensor:
        return torch.empty(0, dtype=item.dtype, device="cpu").set_(memory, item.storage_offset(), item.shape, item.stride())

    try:
        on_cpu(func, args, kwargs, stand_in)
    except Exception as error:  # of another kind: it is raised where the operation is recorded
        return str(error) if str(error).startswith(_ABOUT_OVERLAPS) else None
    return None
