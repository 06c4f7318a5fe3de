"""Move nestings of tensors between CPU and xla devices, in one batch."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from xla_core.api.arena import ToXlaTensorArena
from xla_core.api.hardware import addressable_runtime_device_count
from xla_core.api.user_modules import xr
from xla_core.base.budgets import budget
from xla_core.base.nesting import Survey
from xla_core.engine.tensor.interop import alias_key, materialize
from xla_core.engine.tensor.plain import is_xla, unwrapped
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.engine.tensor.values import cpu_copies


def xla_tensors(nesting: Any) -> list[XLATensor]:
    """All xla tensors in a nesting."""
    return [unwrapped(tensor) for tensor in Survey(nesting, is_xla).leaves]


@budget(compiles=None, reads=None)
def maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """The nesting with CPU tensors in place of xla tensors; without `convert`, compute them only and return `data`.

    Tensors that show the same data become CPU tensors that share memory.
    """
    if not convert:
        materialize(xla_tensors(data))
        return data
    return ToXlaTensorArena(_to_cpu, is_xla).transform(data)


def _to_cpu(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """CPU copies from one execution for each device."""
    behind = [unwrapped(tensor) for tensor in tensors]
    keys = [alias_key(xla_tensor) for xla_tensor in behind]
    distinct = dict(zip(keys, behind, strict=True))
    copies = dict(zip(distinct, cpu_copies(list(distinct.values())), strict=True))
    returned: set[Hashable] = set()
    results = []
    for key in keys:
        results.append(copies[key].detach() if key in returned else copies[key])
        returned.add(key)
    return results


@budget()
def send_cpu_data_to_device(datas: Any, device: torch.device | str, input_sharding: Any = None) -> Any:
    """The nesting with its CPU tensors on `device`; dicts in it are also updated in place. A bare tensor becomes a list of one.

    input_sharding: a ShardingSpec; tensors of its rank are sharded by it. Raises RuntimeError if it is for minibatches and the local device
    count does not divide dimension 0 of such a tensor.
    """
    nesting = [datas] if isinstance(datas, torch.Tensor) else datas

    def send(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_sent(tensor, torch.device(device), input_sharding) for tensor in tensors]

    def on_cpu(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "cpu"

    result = ToXlaTensorArena(send, on_cpu).transform(nesting)
    _update_dicts(nesting, result, set())
    return result


def _sent(tensor: torch.Tensor, device: torch.device, sharding: Any) -> torch.Tensor:
    if sharding is None or not sharding.can_apply(tensor):
        moved = tensor.detach().to(device)
    else:
        _check_minibatch(tensor, sharding)
        moved = _sharded(tensor.detach(), device, sharding)
    return moved.requires_grad_(tensor.requires_grad)


def _check_minibatch(tensor: torch.Tensor, sharding: Any) -> None:
    count = xr(addressable_runtime_device_count)()
    if getattr(sharding, "minibatch", False) and tensor.shape[0] % count:
        raise RuntimeError(f"a minibatch of {tensor.shape[0]} cannot be split evenly over {count} local devices: make it a multiple")


def _sharded(tensor: torch.Tensor, device: torch.device, sharding: Any) -> torch.Tensor:
    """A ShardingSpec uploads its shard to each device; another object with `apply` gets a tensor on the device."""
    if hasattr(sharding, "upload"):
        uploaded: torch.Tensor = sharding.upload(tensor)
        return uploaded
    moved = tensor.to(device)
    sharding.apply(moved)
    return moved


def _update_dicts(old: Any, new: Any, seen: set[int]) -> None:
    """Put the tensors of `new` into the dicts of `old`, which has the same nesting."""
    if id(old) in seen or type(old) is not type(new):
        return
    seen.add(id(old))
    if isinstance(old, dict):
        if not all(key in new for key in old):
            return  # a tensor was a key
        for key in old:
            _update_dicts(old[key], new[key], seen)
            if isinstance(old[key], torch.Tensor):
                old[key] = new[key]
    elif isinstance(old, (list, tuple)):
        for before, after in zip(old, new, strict=True):
            _update_dicts(before, after, seen)
