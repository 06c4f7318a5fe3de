"""Record collectives in order, by a token that each takes from the one before, or run them among the threads of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xla_core.abi.collectives import Groups, get_all_reduce_token
from xla_core.abi.job import is_spmd
from xla_core.abi.operators import record as record_call
from xla_core.abi.sharding import is_manual
from xla_core.abi.tensors import materialize
from xla_distributed.collectives.apart import run_apart
from xla_distributed.collectives.definition import CollectiveOp
from xla_distributed.errors import ModeError
from xla_distributed.job import connection, thread_replicas


def record(collective: CollectiveOp, inputs: Any, *rest: Any, groups: Groups | None = None) -> Any:
    """Record a collective after those before it and return its results. groups: become its last arguments, if it has groups.

    Raises JobError without other replicas, RuntimeError for a tensor that is not on an xla device, ModeError as the message says.
    """
    tensors = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    for tensor in tensors:
        if tensor.device.type != "xla":
            raise RuntimeError(f"{collective.name}: Input tensor is not an XLA tensor: {tensor.type()}")
        if tensor.requires_grad and torch.is_grad_enabled():
            with torch.no_grad():
                return record(collective, inputs, *rest, groups=groups)
    if groups is not None:
        rest = (*rest, groups.members, groups.sizes)
    if thread_replicas.is_thread_replica():
        return collective.among_threads(collective.name, inputs, *rest)
    if is_spmd():
        _check_in_region(collective.name, tensors)
    else:
        connection.job_client()  # raises if there are no others
    token, context = get_all_reduce_token()
    if groups is not None and groups.apart:
        results, next_token = run_apart(collective, inputs, rest, groups.apart, token)
    else:
        results, next_token = record_call(collective.operation, inputs, token, *rest)
    # Kept by the device, not by a graph: the next program's collectives come after this one's, too.
    context.advance(token, next_token)
    return results


def run_pending() -> None:
    """Run the recorded collectives and what they need: call it before this process waits for others, who may wait in them."""
    token, _ = get_all_reduce_token()
    materialize([token])


def _check_in_region(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ModeError unless all tensors are local shards, in a manual region."""
    full = next((tensor for tensor in tensors if not is_manual(tensor)), None)
    if full is not None:
        raise ModeError(
            f"{name} of a tensor of shape {tuple(full.shape)}: in SPMD mode there is one replica and the compiler places collectives. "
            "Call it on parts, between enable_manual_sharding and disable_manual_sharding, or leave it out"
        )
