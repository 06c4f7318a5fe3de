"""Give values to modules that were made on the `meta` device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


def materialize(modules: Sequence[nn.Module], device: torch.device, init: Callable[[nn.Module], Any] | None) -> None:
    """Give each module that itself has parameters or buffers on `meta` values: by `init(module)`, else by `reset_parameters()`.

    Parameters that were tied are tied again, to what the first of the modules has. Raises RuntimeError for a module that has no
    `reset_parameters`, and if `init` leaves something on `meta`.
    """
    ties = _ties(modules)
    for module in modules:
        if not _on_meta(module):
            continue
        with torch.no_grad():
            if init is None:
                _reset(module, device)
            else:
                init(module)
        left = _on_meta(module)
        if left:
            raise RuntimeError(f"param_init_fn left {', '.join(left)} of a {type(module).__name__} on meta: call to_empty(device=…) there")
    for (first, name), *others in ties:
        for owner, other in others:
            owner._parameters[other] = first._parameters[name]


def _ties(modules: Sequence[nn.Module]) -> list[list[tuple[nn.Module, str]]]:
    """The owners and names of each parameter on `meta` that has several."""
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in modules:
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta and (module, name) not in places.setdefault(parameter, []):
                places[parameter].append((module, name))
    return [owners for owners in places.values() if len(owners) > 1]


def _on_meta(module: nn.Module) -> list[str]:
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return [name for name, tensor in tensors if tensor.is_meta]


def _reset(module: nn.Module, device: torch.device) -> None:
    reset = getattr(module, "reset_parameters", None)
    if reset is None:
        raise RuntimeError(
            f"a {type(module).__name__} has {', '.join(_on_meta(module))} on meta and no reset_parameters(): give param_init_fn, "
            "which is called with the module"
        )
    module.to_empty(device=device, recurse=False)
    reset()
