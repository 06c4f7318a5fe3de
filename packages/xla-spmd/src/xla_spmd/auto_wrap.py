"""Which submodules of a module get a wrapper of their own, as a policy says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

Policy = Callable[..., bool]


def wrap_children(module: nn.Module, policy: Policy, wrap: Callable[[nn.Module], nn.Module], wrapped: type[nn.Module]) -> int:
    """Replace the submodules that the policy chooses by `wrap(submodule)`, inner ones first; how many parameter elements are in these.

    policy: called with (module, recurse, number of elements in parameters that no wrapper has yet), as torch.distributed.fsdp's own
    (`nonwrapped_numel`) or with `unwrapped_params`; recurse=True asks whether to look inside, recurse=False whether to wrap.
    Modules of class `wrapped` are left alone. A submodule that stands in several places gets one wrapper.
    """
    return _wrap_children(module, policy, wrap, wrapped, {})


def _wrap_children(module: nn.Module, policy: Policy, wrap: Any, wrapped: type[nn.Module], known: dict[nn.Module, nn.Module]) -> int:
    if not _asked(policy, module, True, _elements(module)):
        return 0
    found = 0
    for name, child in _children(module):
        if child in known:
            setattr(module, name, known[child])
            continue
        if isinstance(child, wrapped):
            continue
        total = _elements(child)
        inside = _wrap_children(child, policy, wrap, wrapped, known)
        if total > inside and _asked(policy, child, False, total - inside):
            known[child] = wrap(child)
            setattr(module, name, known[child])
            inside = total
        found += inside
    return found


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The direct children; one that stands in several places each time."""
    return [(name, child) for name, child in module.named_modules(remove_duplicate=False) if name and "." not in name]


def _elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _asked(policy: Policy, module: nn.Module, recurse: bool, elements: int) -> bool:
    names = inspect.signature(policy).parameters
    for name in ("nonwrapped_numel", "unwrapped_params"):
        if name in names:
            return bool(policy(module=module, recurse=recurse, **{name: elements}))
    return bool(policy(module, recurse, elements))
