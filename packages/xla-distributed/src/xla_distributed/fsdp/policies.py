"""Which submodules get a wrapper of their own: torch's policies, called as PyTorch/XLA calls them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import wrap as torch_wrap

from xla_distributed._compat import recursive_wrap as torch_recursive_wrap

Policy = Callable[..., bool]


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """True: every submodule."""
    return True


def lambda_auto_wrap_policy(module: nn.Module, recurse: bool, unwrapped_params: int, lambda_fn: Callable[[nn.Module], bool]) -> bool:
    """The submodules for which `lambda_fn(module)` is true."""
    return bool(torch_wrap.lambda_auto_wrap_policy(module, recurse, unwrapped_params, lambda_fn))


def transformer_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, transformer_layer_cls: set[type[nn.Module]]
) -> bool:
    """The submodules of these classes, of transformers or not."""
    return bool(torch_wrap.transformer_auto_wrap_policy(module, recurse, unwrapped_params, transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """The submodules with at least `min_num_params` elements in parameters that no inner wrapper has.

    force_leaf_modules: classes inside which nothing is wrapped; exclude_wrap_modules: classes that are not wrapped themselves. None: the
    sets that the function has as attributes, which programs may copy and extend.
    """
    return bool(
        torch_wrap.size_based_auto_wrap_policy(module, recurse, unwrapped_params, min_num_params, force_leaf_modules, exclude_wrap_modules)
    )


size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES = torch_wrap.size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES  # type: ignore[attr-defined]
size_based_auto_wrap_policy.FORCE_LEAF_MODULES = torch_wrap.size_based_auto_wrap_policy.FORCE_LEAF_MODULES  # type: ignore[attr-defined]


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Policy,
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: set[nn.Module],
    ignored_params: set[nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wrap the submodules that the policy chooses by `wrapper_cls(submodule, **kwargs)`, inner ones first, in place.

    auto_wrap_policy: called with module, recurse and the number of elements that no wrapper has yet, by the name `unwrapped_params`, or
    as torch's policies take it, `nonwrapped_numel`. recurse=True asks whether to look inside, recurse=False whether to wrap.
    only_wrap_children: do not ask for `module` itself. Gives the module, wrapped or not, and how many elements are in wrappers.
    """
    wrapped: tuple[nn.Module, int] = torch_recursive_wrap(
        module, _as_torch_calls(auto_wrap_policy), wrapper_cls, ignored_modules, ignored_params, only_wrap_children, **kwargs
    )
    return wrapped


def _as_torch_calls(policy: Policy) -> Policy:
    if "unwrapped_params" not in inspect.signature(policy).parameters:
        return policy

    def ask(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return policy(module=module, recurse=recurse, unwrapped_params=nonwrapped_numel)

    return ask
