"""Arguments of a captured call: their structure, and which of their properties a program depends on.

The values of some places are arguments, too: those of which two recorded calls found others, such as a batch, a hidden state or a counter
that is kept on an object.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from xla_core.base.errors import CaptureError
from xla_core.base.private_torch import TreeSpec, function_modes, saved_tensors_are_hooked, tree_flatten
from xla_core.engine.compile.passes import pass_keys
from xla_core.engine.graph.aval import Aval
from xla_core.engine.runtime.client import placement_of
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.features.captured.passed import Passed, is_number
from xla_core.features.captured.places import instance_dict
from xla_core.features.captured.results import flatten_values
from xla_core.ops import precision

_PLAIN = (bool, int, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size, range)
CONTAINERS = (dict, list, OrderedDict, defaultdict, deque)
_INTEGERS = (int, np.integer)


@dataclass(slots=True)
class Arguments:
    """A call's arguments. key: equal for calls that one program may serve; tensors: on the device; objects: not tensors or plain values.

    numbers: those that programs take as inputs, in the order of their symbols. containers: dicts, lists and the `__dict__`s of objects
    whose contents are arguments; opened: these objects.
    """

    key: tuple[Any, ...] = ()
    tensors: list[torch.Tensor] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)


def modes() -> tuple[Any, ...]:
    """The caller's settings that decide what is recorded."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        function_modes(),
        saved_tensors_are_hooked(),
        precision.chosen(),
        *pass_keys(),
    )


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any], passed: Passed, values: list[Any]) -> Arguments:
    """Sort the arguments of a call, and the values of passed places. Raises CaptureError for data on the host."""
    arguments = Arguments()
    items: list[Any] = []
    storage_numbers: dict[int, int] = {}
    if passed.numbered:
        args, kwargs = _without_numbers(args, kwargs, passed.numbered, arguments.numbers, items)
    leaves: Any = args
    tree: Any = len(args)
    if kwargs or any(type(arg) is not XLATensor for arg in args):
        leaves, tree = flatten_values((args, kwargs), passed.opened)
        _add_containers((args, tuple(kwargs.values())), passed.opened, arguments)
    items.append(tree)
    if passed.nested:
        leaves = list(_without_nested((*args, *kwargs.values()), passed.opened, arguments.numbers, items))
    _sort(leaves, arguments, items, storage_numbers)
    if values:
        leaves, tree = flatten_values(values, passed.opened)
        _add_containers(values, passed.opened, arguments)
        numbers = [leaf for leaf in leaves if is_number(leaf)]
        arguments.numbers += numbers
        items += [tree, *[isinstance(number, _INTEGERS) for number in numbers]]
        _sort([leaf for leaf in leaves if not is_number(leaf)], arguments, items, storage_numbers)
    arguments.key = tuple(items)
    return arguments


def _without_numbers(
    args: tuple[Any, ...], kwargs: dict[str, Any], numbered: list[int | str], numbers: list[Any], items: list[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments without the numbers that programs take as inputs, which are added to `numbers`, and their kinds to `items`."""
    others, named = list(args), dict(kwargs)
    for at in numbered_in(args, kwargs, numbered):
        holder: Any = others if isinstance(at, int) else named
        numbers.append(holder[at])
        items.append((at, isinstance(holder[at], _INTEGERS)))
        holder[at] = None
    return tuple(others), named


def _without_nested(values: Any, opened: Collection[type], numbers: list[Any], items: list[Any]) -> Iterator[Any]:
    """The leaves of arguments, but for numbers that they hold, which are added to `numbers`, and their kinds to `items`."""
    for value in values:
        for leaf in (value,) if is_number(value) else flatten_values(value, opened)[0]:
            if leaf is not value and is_number(leaf):
                numbers.append(leaf)
                items.append(isinstance(leaf, _INTEGERS))
            else:
                yield leaf


def numbered_in(args: tuple[Any, ...], kwargs: dict[str, Any], numbered: list[int | str]) -> Iterator[int | str]:
    """Those arguments among `numbered`, by position or name, that are numbers in this call."""
    for at in numbered:
        if is_number(kwargs.get(at)) if isinstance(at, str) else at < len(args) and is_number(args[at]):
            yield at


def _add_containers(value: Any, opened: Collection[type], arguments: Arguments) -> None:
    for item in value:
        kind = type(item)
        if kind in opened:
            arguments.opened.append(item)
            item = vars(item) if instance_dict(item) is not None else item
            kind = dict if isinstance(item, dict) else list
        if kind in CONTAINERS:
            arguments.containers.append(item)
            _add_containers(list(item.values() if isinstance(item, dict) else item), opened, arguments)
        elif isinstance(item, tuple):
            _add_containers(item, opened, arguments)


def _sort(leaves: Any, arguments: Arguments, items: list[Any], storage_numbers: dict[int, int]) -> None:
    """Add leaves to arguments, and to the items of the key. storage_numbers: of the storages so far, by id."""
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
            if leaf.__dict__ and leaf is tensor:
                attributes = list(leaf.__dict__.values())
                items += (*leaf.__dict__, len(attributes))
                _sort(attributes, arguments, items, storage_numbers)
        elif isinstance(leaf, float):
            items += (type(leaf), struct.pack("d", leaf))
        elif isinstance(leaf, _PLAIN):
            items += (type(leaf), leaf)
        elif isinstance(leaf, np.generic):
            items += (type(leaf), leaf.tobytes())
        elif isinstance(leaf, slice):
            items += (slice, leaf.start, leaf.stop, leaf.step)
        elif isinstance(leaf, (torch.Tensor, np.ndarray)):
            raise CaptureError(
                f"an argument is a {type(leaf).__name__} of shape {tuple(leaf.shape)} on the host: move it to the device before the call, "
                "with .to('xla') or by a device loader"
            )
        else:
            items += (object, id(leaf))
            arguments.objects.append(leaf)


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
