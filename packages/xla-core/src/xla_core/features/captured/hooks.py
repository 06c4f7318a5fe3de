"""Every kind of hook that torch lets users register: programs depend on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch.nn.modules import module as _of_all_modules
from torch.optim import optimizer as _of_all_optimizers

MEMBERS = ("_parameters", "_buffers", "_modules")
"""The dicts of a module that hold no hooks."""
OF_OPTIMIZERS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
)
"""The dicts of an optimizer that hold hooks of its step."""
_GLOBAL: tuple[dict[Any, Any], ...] = tuple(
    value
    for namespace in (_of_all_modules, _of_all_optimizers)
    for name, value in vars(namespace).items()
    if name.startswith("_global_") and name.endswith(("hooks", "hooks_with_kwargs", "hooks_always_called")) and isinstance(value, dict)
)
_of_tensor = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")


def of_everything(tensors: Iterable[torch.Tensor] = ()) -> list[Any]:
    """The hooks of all modules, of all optimizers, and of these tensors, those on their accumulated gradients included."""
    dicts: Iterator[Any] = chain(_GLOBAL, chain.from_iterable(map(_of_tensor, tensors)))
    return list(chain.from_iterable([hooks.values() for hooks in dicts if hooks]))


def are_there(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether there are any of these hooks."""
    return any(_GLOBAL) or any(chain.from_iterable(map(_of_tensor, tensors)))


def of_tensor(tensor: torch.Tensor) -> list[Any]:
    """The hooks of one tensor."""
    return list(chain.from_iterable([hooks.values() for hooks in _of_tensor(tensor) if hooks]))
