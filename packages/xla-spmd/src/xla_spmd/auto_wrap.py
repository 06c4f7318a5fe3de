"""Wrap the submodules of a module that a policy chooses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

Policy = Callable[..., bool]


def wrap_children(module: nn.Module, policy: Policy, wrap: Callable[[nn.Module], nn.Module], wrapped: type[nn.Module]) -> int:
    """Replace the submodules that the policy chooses by `wrap(submodule)`, inner ones first; return how many parameter elements they hold.

    policy: called with (module, recurse, number of elements in parameters that no wrapper has yet), as torch.distributed.fsdp's own
    (`nonwrapped_numel`) or with `unwrapped_params`; recurse=True asks whether to look inside, recurse=False whether to wrap.
    Modules of class `wrapped` are left alone. A submodule that stands in several places gets one wrapper.
    """
    return _wrap_children(module, policy, wrap, wrapped, {})


def _wrap_children(module: nn.Module, policy: Policy, wrap: Any, wrapped: type[nn.Module], wrappers: dict[nn.Module, nn.Module]) -> int:
    if not _ask_policy(policy, module, True, _elements(module)):
        return 0
    covered = 0
    for name, child in _children(module):
        if child in wrappers:
            setattr(module, name, wrappers[child])
            continue
        if isinstance(child, wrapped):
            continue
        total = _elements(child)
        covered_in_child = _wrap_children(child, policy, wrap, wrapped, wrappers)
        if total > covered_in_child and _ask_policy(policy, child, False, total - covered_in_child):
            wrappers[child] = wrap(child)
            setattr(module, name, wrappers[child])
            covered_in_child = total
        covered += covered_in_child
    return covered


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The direct children with their names; a child with several names is listed under each."""
    return [(name, child) for name, child in module.named_modules(remove_duplicate=False) if name and "." not in name]


def _elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _ask_policy(policy: Policy, module: nn.Module, recurse: bool, elements: int) -> bool:
    names = inspect.signature(policy).parameters
    for name in ("nonwrapped_numel", "unwrapped_params"):
        if name in names:
            return bool(policy(module=module, recurse=recurse, **{name: elements}))
    return bool(policy(module, recurse, elements))
