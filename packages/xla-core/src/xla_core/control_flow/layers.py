"""`scan_layers`: a stack of layers of one kind as a scan over their parameters, so that one layer is compiled and not all."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.control_flow.bodies import call_with
from xla_core.control_flow.scan import scan


@dataclass(frozen=True)
class _OneLayer:
    """A layer as a function of its parameters and buffers; equal for the same layer in the same mode."""

    layer: weakref.ref[torch.nn.Module]
    training: tuple[bool, ...]

    def __call__(self, carry: Any, state: dict[str, Any]) -> tuple[Any, None]:
        layer = self.layer()
        if layer is None:
            raise RuntimeError("the layer is gone: keep the layers of scan_layers alive while they are used")
        return call_with(layer, state, carry if isinstance(carry, tuple) else (carry,), {}), None


def scan_layers(
    layers: Iterable[torch.nn.Module], input_data: Any, partition_fn: Callable[..., Any] | None = None, is_layer_pure: bool = False
) -> Any:
    """The result of calling `layers` one after the other on `input_data`, with one of them compiled for all.

    layers: of the same kind, whose parameters and buffers agree in names, shapes and dtypes; the code of the first runs for all. Each takes
    what the one before it gives, of the same nesting, shapes and dtypes; a tuple is its arguments. Parameters get their gradients as usual.
    partition_fn, is_layer_pure: as `scan` has them. Without layers, the input. Raises ValueError for layers that differ,
    UnsupportedOperationError for one that writes to a buffer, and what `scan` raises.
    """
    stack = list(layers)
    if not stack:
        return input_data
    states = [{**dict(layer.named_parameters()), **dict(layer.named_buffers())} for layer in stack]
    _check_alike(states)
    if not states[0]:
        raise ValueError("scan_layers needs layers with parameters or buffers; call layers without any one after the other")
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    one = _OneLayer(weakref.ref(stack[0]), tuple(module.training for module in stack[0].modules()))
    result, _ = scan(one, input_data, stacked, partition_fn, is_layer_pure)
    return result


def _check_alike(states: Sequence[dict[str, Any]]) -> None:
    kinds = [{name: (tuple(tensor.shape), tensor.dtype, tensor.device) for name, tensor in state.items()} for state in states]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            differing = sorted(name for name in {*kind, *kinds[0]} if kind.get(name) != kinds[0].get(name))
            raise ValueError(f"the parameters and buffers of layer {number} are not those of layer 0: {', '.join(differing)} differ")
