"""Torch's functional collectives (`torch.ops._c10d_functional`) on xla tensors: new tensors, recorded like those of any operation.

Torch's own kernels would have the process group write to copies, and keep each copy until somebody waits for it. Here there is
nothing to wait for. Gradients and shapes are torch's. `torch.compile` traces these operations; the device's token keeps them in
order with the collectives before and after the compiled part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import torch_xla.core.xla_model as xm
from xla_distributed.collectives.ops.broadcast import broadcast_from
from xla_distributed.process_groups import process_group
from xla_distributed.process_groups.process_group import ProcessGroupXla, one_dim, parts_of
from xla_distributed.process_groups.reductions import parse_torch_reduce_op
from xla_distributed.process_groups.unlike import exchange_unlike

Tensors = Sequence[torch.Tensor]


def _group(name_or_group: Any) -> ProcessGroupXla:
    """The process group that an operation names. Raises RuntimeError, as torch does, if there is none with backend xla."""
    group = process_group.named.get(name_or_group) if isinstance(name_or_group, str) else name_or_group
    if not isinstance(group, ProcessGroupXla):
        raise RuntimeError(f"a collective on xla tensors needs a process group with backend xla, got {name_or_group!r}")
    return group


def _all_reduce_coalesced_(inputs: list[torch.Tensor], reduce_op: str, group_name: Any) -> list[torch.Tensor]:
    group = _group(group_name)
    op, scale = parse_torch_reduce_op(reduce_op, group.size())
    xm.all_reduce(op.value, inputs, scale=scale, groups=group.groups, pin_layout=False)
    return inputs


def _all_reduce_coalesced(inputs: Tensors, reduce_op: str, group_name: Any) -> list[torch.Tensor]:
    copies = [tensor.clone() for tensor in inputs]  # they share their values until they are written to
    return _all_reduce_coalesced_(copies, reduce_op, group_name)


def _all_reduce_(tensor: torch.Tensor, reduce_op: str, group_name: Any) -> torch.Tensor:
    return _all_reduce_coalesced_([tensor], reduce_op, group_name)[0]


def _all_reduce(tensor: torch.Tensor, reduce_op: str, group_name: Any) -> torch.Tensor:
    return _all_reduce_(tensor.clone(), reduce_op, group_name)


def _all_gather_coalesced(inputs: Tensors, group_size: int, group_name: Any) -> list[torch.Tensor]:
    listed = [one_dim(tensor) for tensor in inputs]
    results: list[torch.Tensor] = xm.all_gather(listed, groups=_group(group_name).groups, pin_layout=False)
    return results


def _all_gather(tensor: torch.Tensor, group_size: int, group_name: Any) -> torch.Tensor:
    return _all_gather_coalesced([tensor], group_size, group_name)[0]


def _all_gather_out(tensor: torch.Tensor, group_size: int, group_name: Any, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(_all_gather(tensor, group_size, group_name))


def _reduce_scatter_coalesced(inputs: Tensors, reduce_op: str, group_size: int, group_name: Any) -> list[torch.Tensor]:
    group = _group(group_name)
    op, scale = parse_torch_reduce_op(reduce_op, group.size())
    results: list[torch.Tensor] = xm.reduce_scatter(op.value, list(inputs), scale, 0, group.size(), groups=group.groups, pin_layout=False)
    return results


def _reduce_scatter(tensor: torch.Tensor, reduce_op: str, group_size: int, group_name: Any) -> torch.Tensor:
    return _reduce_scatter_coalesced([tensor], reduce_op, group_size, group_name)[0]


def _reduce_scatter_out(tensor: torch.Tensor, reduce_op: str, group_size: int, group_name: Any, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(_reduce_scatter(tensor, reduce_op, group_size, group_name))


def _all_to_all_single(tensor: torch.Tensor, output_split_sizes: Sequence[int], input_split_sizes: Sequence[int], group_name: Any) -> Any:
    group = _group(group_name)
    parts = parts_of(tensor, input_split_sizes, group.size())
    if len({*input_split_sizes, *output_split_sizes}) <= 1:  # torch gives sizes always: equal ones are taken to be so on all members
        return xm.all_to_all(tensor, 0, 0, group.size(), groups=group.groups, pin_layout=False)
    row = tensor.shape[1:].numel()
    received = exchange_unlike(parts, [size * row for size in output_split_sizes], group.mailbox.exchange, group.groups)
    return torch.cat(received).reshape(sum(output_split_sizes), *tensor.shape[1:])


def _broadcast_(tensor: torch.Tensor, src: int, group_name: Any) -> torch.Tensor:
    broadcast_from(src, [tensor], _group(group_name).groups)
    return tensor


def _broadcast(tensor: torch.Tensor, src: int, group_name: Any) -> torch.Tensor:
    return _broadcast_(tensor.clone(), src, group_name)


def _wait_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _wrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Copy the tensor. Torch wraps results in a tensor that waits at its first use; here nothing has to wait."""
    return tensor.clone()


_KERNELS: dict[str, Callable[..., Any]] = {
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_coalesced": _all_gather_coalesced,
    "all_gather_into_tensor_out": _all_gather_out,
    "all_reduce": _all_reduce,
    "all_reduce_": _all_reduce_,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "all_reduce_coalesced_": _all_reduce_coalesced_,
    "all_to_all_single": _all_to_all_single,
    "broadcast": _broadcast,
    "broadcast_": _broadcast_,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_coalesced,
    "reduce_scatter_tensor_out": _reduce_scatter_out,
    "wait_tensor": _wait_tensor,
    "_wrap_tensor_autograd": _wrapped,
}


# Those operations that have a second name, from the time when only these had gradients.
_WITH_GRADIENTS = ("all_gather_into_tensor", "all_to_all_single", "reduce_scatter_tensor")
_LIBRARY: Any = torch.library.Library
_libraries = {name: _LIBRARY(name, "IMPL") for name in ("_c10d_functional", "_c10d_functional_autograd")}


def register() -> None:
    """Give torch these kernels for device xla; it may define the operations later."""
    for name, kernel in _KERNELS.items():
        _libraries["_c10d_functional"].impl(name, kernel, "PrivateUse1")
    for name in _WITH_GRADIENTS:
        _libraries["_c10d_functional_autograd"].impl(name, _KERNELS[name], "PrivateUse1")


register()
