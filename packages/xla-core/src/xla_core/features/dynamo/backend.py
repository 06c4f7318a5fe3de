"""Entry point for each FX graph of stock torch's backends, and set-up of torch's compiler once it is imported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from xla_core.base import private_torch
from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.features.dynamo import tracing


def compiled(model: fx.GraphModule, fake_tensor_inputs: Any, boxed: bool = False) -> Any:
    """A callable that records the graph at its first call. boxed: it takes one list of all arguments.

    Torch's own callable drops the graph at the first call, which several threads may make at once.
    """
    from xla_core.features.dynamo.bridge import CompiledGraph

    graph = CompiledGraph(model)
    return private_torch.boxed(graph) if boxed else graph


def _serve(module: Any) -> None:
    module.xla_backend_helper = compiled


def _save_random_state(op: Any, *args: Any, **kwargs: Any) -> Any:
    from xla_core.features.dynamo import random_states

    return random_states.save(op, *args, **kwargs)


def _repeat_random_state(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    from xla_core.features.dynamo import random_states

    return random_states.repeat(state, op, *args, **kwargs)


def _serve_random_states(module: Any) -> None:
    """Let torch's operators of `module` (`private_torch.RANDOM_STATES_DEFINED_IN`) run on xla tensors."""
    private_torch.serve_random_states(module, XLATensor, _save_random_state, _repeat_random_state)


def _check_devices(values: Iterable[Any]) -> None:
    if any(isinstance(value, torch.Tensor) and value.device.type == "xla" for value in values):
        raise UnsupportedOperationError(
            "inductor, the default backend of torch.compile, makes no programs for xla devices: use torch.compile(..., backend='openxla')"
        )


def register() -> None:
    """Let torch's compiler trace xla tensors and hand over its graphs. Does not import the compiler."""
    tracing.register()
    tracing.when_imported("torch._dynamo.backends.torchxla", _serve)
    tracing.when_imported(private_torch.RANDOM_STATES_DEFINED_IN, _serve_random_states)
    tracing.when_imported(private_torch.INDUCTOR_STARTS_IN, lambda module: private_torch.check_before_inductor(module, _check_devices))
