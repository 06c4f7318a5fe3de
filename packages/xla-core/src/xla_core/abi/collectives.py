"""Collectives: reductions by name, and the checks of arguments that the core makes for one replica and another package for several.

    >>> from xla_core.abi.collectives import ReduceOp, parse_reduce_op
    >>> parse_reduce_op("sum") is ReduceOp.SUM
    True
    >>> parse_reduce_op("median")
    Traceback (most recent call last):
    ...
    ValueError: reduce_type is 'median', must be one of sum, mul, and, or, xor, min, max

* `ReduceOp` has the reductions of `xm.all_reduce` and its kin. `parse_reduce_op` takes what users give there, `parse_torch_reduce_op` what
  they give to `torch.distributed`: the reduction, and the factor that turns a sum into an average.
* `check_tensors` looks at the operands of a collective and the dimension along which it works, `tensor_list` at those that are given as
  one tensor or a list, `check_output` at the tensor or tensors that take the results, `check_groups` at the groups of replicas.
* `device_context` is this thread's state of its device, which keeps the token of the last collective. `fetch_gradients` are the gradients
  of an optimizer's parameters, in their order.
* `note_replica_wait` tells those who hear of events (`events.subscribe`) that a thread waited for the other replicas before it launched a
  program that they all run, by a `ReplicaWaitEvent`.

Guarantees: a check only looks and records nothing, so that one replica and many refuse
the same calls with the same words, before any replica waits for another.
"""

from __future__ import annotations

from xla_core.api.collective_arguments import check_groups, check_output, check_tensors, tensor_list
from xla_core.api.reductions import ReduceOp, parse_reduce_op, parse_torch_reduce_op
from xla_core.api.single_replica import fetch_gradients
from xla_core.api.step_closures import device_context
from xla_core.base.metrics import ReplicaWaitEvent
from xla_core.engine.runtime.timing import note_replica_wait

__all__ = [
    "ReduceOp",
    "ReplicaWaitEvent",
    "check_groups",
    "check_output",
    "check_tensors",
    "device_context",
    "fetch_gradients",
    "note_replica_wait",
    "parse_reduce_op",
    "parse_torch_reduce_op",
    "tensor_list",
]
