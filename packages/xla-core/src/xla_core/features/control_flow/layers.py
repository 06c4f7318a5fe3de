"""`scan_layers`: runs a stack of equal layers as a scan over their parameters, so that only one layer is compiled."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.engine.tensor.plain import holder_of
from xla_core.engine.tracing.bodies import call_with
from xla_core.features.control_flow.scan import scan


@dataclass(frozen=True)
class _OneLayer:
    """A layer as a function of its parameters and buffers. Equal for the same layer in the same mode.

    buffers: names of the buffers that it may write to.
    """

    layer: weakref.ref[torch.nn.Module]
    training: tuple[bool, ...]
    buffers: tuple[str, ...]

    def __call__(self, carry: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The layer's result, and the new values of the buffers that it wrote to."""
        layer = self.layer()
        if layer is None:
            raise RuntimeError("the layer is gone: keep the layers of scan_layers alive while they are used")
        copies = {name: state[name].clone() for name in self.buffers}
        before = {name: _value(copy) for name, copy in copies.items()}
        result = call_with(layer, {**state, **copies}, carry if isinstance(carry, tuple) else (carry,), {})
        after = {name: buffer for name, buffer in layer.named_buffers() if name in copies}
        return result, {name: buffer for name, buffer in after.items() if before[name] is None or _value(buffer) is not before[name]}


def _value(tensor: Any) -> Any:
    """The value of a tensor, which is another object after a write; None while a partitioner traces."""
    xla_tensor = holder_of(tensor)
    return None if xla_tensor is None else xla_tensor._storage.value


def scan_layers(
    layers: Iterable[torch.nn.Module], input_data: Any, partition_fn: Callable[..., Any] | None = None, is_layer_pure: bool = False
) -> Any:
    """Call `layers` one after the other on `input_data`, but compile only one of them.

    layers: of the same classes and in the same mode, whose parameters and buffers agree in names, shapes and dtypes; the code of the first
    runs for all. Each layer's result is the next layer's input, of the same nesting, shapes and dtypes; a tuple is several arguments.
    Parameters get gradients, and buffers are written to, as usual.
    partition_fn, is_layer_pure: as in `scan`. Without layers, the result is the input. Raises ValueError for layers that differ,
    UnsupportedOperationError for a layer that writes to a shared buffer, and what `scan` raises.
    """
    stack = list(layers)
    if not stack:
        return input_data
    states = [{**dict(layer.named_parameters()), **dict(layer.named_buffers())} for layer in stack]
    _check_alike(stack, states)
    if not states[0]:
        raise ValueError("scan_layers needs layers with parameters or buffers; call layers without any one after the other")
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    own = [name for name, _ in stack[0].named_buffers() if len({id(state[name]) for state in states}) == len(states)]
    layer = _OneLayer(weakref.ref(stack[0]), tuple(module.training for module in stack[0].modules()), tuple(own))
    result, written = scan(layer, input_data, stacked, partition_fn, is_layer_pure)
    with torch.no_grad():
        for name, values in written.items():
            for state, value in zip(states, values, strict=True):
                state[name].copy_(value)
    return result


def _check_alike(layers: Sequence[torch.nn.Module], states: Sequence[dict[str, Any]]) -> None:
    modules = [{name: (type(module).__qualname__, module.training) for name, module in layer.named_modules()} for layer in layers]
    for index, modes in enumerate(modules):
        if modes != modules[0]:
            differing = sorted(name or "itself" for name in {*modes, *modules[0]} if modes.get(name) != modules[0].get(name))
            raise ValueError(
                f"layer {index} has not the modules of layer 0, whose code runs for all, or another mode: {', '.join(differing)}"
            )
    specs = [{name: (tuple(tensor.shape), tensor.dtype, tensor.device) for name, tensor in state.items()} for state in states]
    for index, spec in enumerate(specs):
        if spec != specs[0]:
            differing = sorted(name for name in {*spec, *specs[0]} if spec.get(name) != specs[0].get(name))
            raise ValueError(f"the parameters and buffers of layer {index} are not those of layer 0: {', '.join(differing)} differ")
