"""Arguments of a captured call: their structure, and which of their properties a program depends on."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from xla_core.base.errors import CaptureError
from xla_core.base.private_torch import TreeSpec, tree_flatten
from xla_core.engine.graph.aval import Aval
from xla_core.engine.runtime.client import placement_of
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor

_PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(slots=True)
class Arguments:
    """A call's arguments. key: equal for calls that one program may serve; tensors: on the device; objects: not tensors or plain values."""

    key: tuple[Any, ...]
    tensors: list[torch.Tensor]
    storages: list[Storage]
    objects: list[Any]


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Sort the arguments of a call. Raises CaptureError for data on the host."""
    leaves: Any = args
    tree: Any = len(args)
    if kwargs or any(type(arg) is not XLATensor for arg in args):
        leaves, tree = tree_flatten((args, kwargs))
    arguments = Arguments((), [], [], [])
    storage_numbers: dict[int, int] = {}
    items: list[Any] = [tree]
    for leaf in leaves:
        # A wrapper that shows a sharding has the tensor inside.
        tensor = leaf if type(leaf) is XLATensor else tensor_behind(getattr(leaf, "global_tensor", leaf))
        if tensor is not None:
            storage = tensor._storage
            value = storage.value
            items += (
                value.aval,
                tensor._view,
                value.recorder,
                leaf.requires_grad,
                storage_numbers.setdefault(id(storage), len(storage_numbers)),
            )
            if value.buffer is not None and placement_of(value.recorder).is_mesh:
                items.append(value.buffer.sharding)
            arguments.tensors.append(leaf)
            arguments.storages.append(storage)
        elif isinstance(leaf, float):
            items += (float, struct.pack("d", leaf))
        elif isinstance(leaf, _PLAIN):
            items += (type(leaf), leaf)
        elif isinstance(leaf, (torch.Tensor, np.ndarray)):
            raise CaptureError(
                f"an argument is a {type(leaf).__name__} of shape {tuple(leaf.shape)} on the host: move it to the device before the call, "
                "with .to('xla') or by a device loader"
            )
        else:
            items += (object, id(leaf))
            arguments.objects.append(leaf)
    arguments.key = tuple(items)
    return arguments


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Properties of a tensor argument that a program depends on. view: of the data, or None; same_as: first argument with the same data."""

    aval: Aval
    view: Any
    requires_grad: bool
    same_as: int


@dataclass(frozen=True, slots=True)
class Form:
    """The arguments (args, kwargs) that a program serves. leaves: a TensorForm for each tensor, in order, and other values unchanged."""

    tree: TreeSpec
    leaves: list[Any]


def form_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form:
    """Describe a call's arguments without keeping the tensors."""
    leaves, tree = tree_flatten((args, kwargs))
    first: dict[int, int] = {}
    form: list[Any] = []
    count = 0
    for leaf in leaves:
        tensor = tensor_behind(getattr(leaf, "global_tensor", leaf))
        if tensor is None:
            form.append(leaf)
            continue
        same_as = first.setdefault(id(tensor._storage), count)
        form.append(TensorForm(tensor._storage.value.aval, tensor._view, leaf.requires_grad, same_as))
        count += 1
    return Form(tree, form)
