"""Wrap the handler of a recorded overload: generators by position, other devices, default values, shardings, filled tensors, gradients."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.base.private_torch import OpOverload, in_backward, tree_map
from xla_core.engine.graph.pending_graph import BLANK
from xla_core.engine.graph.state import note_filled
from xla_core.engine.runtime.client import recorder_of
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.sharding import with_sharding_of
from xla_core.engine.tensor.tensor import XLATensor, wrap
from xla_core.engine.tensor.values import moved, value_of
from xla_core.ops.table import OpSpec


def with_generator_by_position(func: OpOverload, handler: Handler) -> Handler:
    """`handler`, given a generator by name where `func` takes it by position."""
    indices = [index for index, argument in enumerate(func._schema.arguments) if argument.name == "generator" and not argument.kwarg_only]
    if not indices:
        return handler
    [index] = indices

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if index < len(args) and args[index] is not None:
            return handler((*args[:index], None, *args[index + 1 :]), {**kwargs, "generator": args[index]})
        return handler(args, kwargs)

    return run


def with_other_devices(func: OpOverload, handler: Handler) -> Handler:
    """`handler`, unless a `device=` argument asks for a result on another device."""
    if not any(argument.name == "device" for argument in func._schema.arguments):
        return handler

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        if device is not None:
            target = torch.device(device)
            if target.type != "xla":
                return func(
                    *tree_map(lambda item: torch.empty_like(item, device=target) if type(item) is XLATensor else item, args), **kwargs
                )
            source = next((arg for arg in args if type(arg) is XLATensor), None)
            recorder = recorder_of(target)
            if source is not None and target.index is not None and source._storage.value.recorder is not recorder:
                return wrap(moved(value_of(handler(args, kwargs)), recorder))
        return handler(args, kwargs)

    return run


def with_default_values(func: OpOverload, functional: OpOverload, handler: Handler) -> Handler:
    """`handler`, given the default values of `func` that its functional form lacks: torch leaves them out of a call."""
    needed = {argument.name for argument in functional._schema.arguments if not argument.has_default_value()}
    arguments = func._schema.arguments
    defaults = [(index, argument.default_value) for index, argument in enumerate(arguments) if argument.has_default_value()]
    missing = [(index, value) for index, value in defaults if arguments[index].name in needed and not arguments[index].kwarg_only]
    if not missing:
        return handler
    names = [argument.name for argument in arguments]

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        filled = args + tuple(value for index, value in missing if index >= len(args) and names[index] not in kwargs)
        return handler(filled, kwargs)

    return run


def with_sharding_of_operand(spec: OpSpec, handler: Handler) -> Handler:
    """`handler`, whose result has the sharding of its operand if its row says so."""
    if not spec.keeps_sharding:
        return handler
    return lambda args, kwargs: with_sharding_of(args[0], handler(args, kwargs))


def with_note_of_filling(spec: OpSpec, handler: Handler) -> Handler:
    """`handler`, with a note of each tensor that it fills: the tensor may turn out to be state (engine/graph/state.py)."""
    number_of = spec.fills
    if number_of is None:
        return handler

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = handler(args, kwargs)
        storage = tensor._storage
        pending_graph = storage.value.pending_graph
        if pending_graph is not None:
            note_filled(pending_graph, storage, number_of(args))
        return tensor

    return run


def with_first_gradient(handler: Handler) -> Handler:
    """`handler`, except that adding a gradient to zeros that were just set gives that gradient.

    So the steps after `zero_grad(set_to_none=False)` are the same program as the first one, which found no gradients. (XLA leaves out
    an addition of zeros, too.)
    """

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = args[0]
        if type(target) is XLATensor and target._storage.value.slot == BLANK and not kwargs and target._view is None and in_backward():
            zeros, gradient = target._storage.value, tensor_behind(args[1])
            if gradient is not None:
                value = value_of(gradient)
                if value.aval is zeros.aval and value.recorder is zeros.recorder:
                    target._storage.value = value
                    return target
        return handler(args, kwargs)

    return run
