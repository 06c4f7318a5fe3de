"""Tensors in nested containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch


def apply_to_tensors(fn: Callable[[torch.Tensor], Any], container: Any) -> Any:
    """A copy of the nesting of dicts, lists, tuples, sets and dataclasses with `fn(tensor)` for each tensor; other things stay."""
    if isinstance(container, torch.Tensor):
        return fn(container)
    if dataclasses.is_dataclass(container) and not isinstance(container, type):
        fields = [field.name for field in dataclasses.fields(container) if field.init]
        return dataclasses.replace(container, **{name: apply_to_tensors(fn, getattr(container, name)) for name in fields})
    if isinstance(container, dict):
        converted = {key: apply_to_tensors(fn, value) for key, value in container.items()}
        return converted if type(container) is dict else type(container)(converted)
    if isinstance(container, tuple) and hasattr(container, "_fields"):
        return type(container)(*(apply_to_tensors(fn, value) for value in container))
    if isinstance(container, (list, tuple, set)):
        return type(container)(apply_to_tensors(fn, value) for value in container)
    return container


def collect_tensors(container: Any) -> list[torch.Tensor]:
    """All tensors of such a nesting, in its order; one that is there twice comes twice."""
    if isinstance(container, torch.Tensor):
        return [container]
    if dataclasses.is_dataclass(container) and not isinstance(container, type):
        container = [getattr(container, field.name) for field in dataclasses.fields(container)]
    if isinstance(container, dict):
        container = list(container.values())
    if isinstance(container, (list, tuple, set)):
        return [tensor for item in container for tensor in collect_tensors(item)]
    return []
