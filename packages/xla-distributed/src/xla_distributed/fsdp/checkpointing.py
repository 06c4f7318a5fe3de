"""Modules that compute their inner results again in backward: `checkpoint_module`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from torch_xla.utils.checkpoint import checkpoint


def checkpoint_module(module: nn.Module) -> nn.Module:
    """Let `module` keep its inputs only and compute the rest again in backward, in place. Returns `module`.

    Wrap it before or after. Parameters get gradients only if an input requires one, as with torch's reentrant checkpoints.
    """
    module.forward = partial(_checkpointed, module.forward)
    return module


def _checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    names = list(kwargs)

    def run(*values: Any) -> Any:
        return forward(*values[: len(args)], **dict(zip(names, values[len(args) :], strict=True)))

    return checkpoint(run, *args, *kwargs.values())
