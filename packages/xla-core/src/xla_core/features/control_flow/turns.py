"""One turn of a scan and its gradient as two functions, for loops that users write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from xla_core.base.private_torch import tree_flatten, tree_map, tree_unflatten
from xla_core.engine.tensor.plain import holder
from xla_core.engine.tracing.bodies import Body, check_on_device
from xla_core.engine.tracing.gradients import differentiated
from xla_core.engine.tracing.operations import Operands, record, results_of
from xla_core.features.control_flow.scan import Function, Nested, Partition, function_of, kind_of
from xla_core.ops.table import Context


def value_and_grad_partitioned(
    fn: Function, init: Any, xs: Any, partition_fn: Partition | None = None, is_fn_pure: bool = True
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """`(forward, alias_input, backward)` of one turn of `scan(fn, init, xs)`, recorded once for tensors like `init` and slices of `xs`.

    forward(carry, x) returns (carry, (y, saved)), with a list of tensors for the gradient. alias_input(saved, xs) returns the list for
    backward, which is `saved`. backward(grad_carry, (saved, grad_y)) returns (gradient of the carry, gradient of x), with zeros where there
    is no gradient. partition_fn: as in `scan`. is_fn_pure: must be true, since `fn` is not called again.

    Raises ValueError if it is false or `fn` uses a tensor from outside that needs a gradient, and what `scan` raises.
    """
    if not is_fn_pure:
        raise ValueError("value_and_grad_partitioned records its function once, so that it has to be pure: use scan for others")
    init_leaves, init_tree = tree_flatten(init)
    xs_leaves, xs_tree = tree_flatten(tree_map(lambda leaf: leaf[0], xs))
    tensors = [leaf for leaf in (*init_leaves, *xs_leaves) if leaf is not None]
    check_on_device("value_and_grad_partitioned", tensors)
    recorder = holder(tensors[0])._storage.value.recorder
    nested = Nested("value_and_grad_partitioned", fn, init_leaves, init_tree, xs_leaves, xs_tree)
    avals = [kind_of(tensor) for tensor in tensors]
    needed = [not aval.integral for aval in avals]
    with torch.enable_grad():
        parts = differentiated(recorder, "value_and_grad_partitioned", avals, needed, function_of(nested, partition_fn), range(len(avals)))
    if parts.tensors:
        raise ValueError(
            "the function of value_and_grad_partitioned uses a tensor from outside that needs a gradient: pass it as an argument"
        )
    count = len(parts.outs)

    def run(name: str, body: Body, inputs: Sequence[Any], outs: Sequence[Any]) -> list[torch.Tensor]:
        with torch.no_grad():
            return record(recorder, name, _lower, (), [body], inputs, outs)

    def forward(carry: Any, x: Any) -> tuple[Any, tuple[Any, list[torch.Tensor]]]:
        inputs = [leaf for leaf in (*tree_flatten(carry)[0], *tree_flatten(x)[0]) if leaf is not None]
        results = run("turn", parts.forward, inputs, [*parts.outs, *parts.saved])
        after, outputs = nested.nest(results[:count])
        return after, (outputs, results[count:])

    def alias_input(saved: list[torch.Tensor], xs: Any) -> list[torch.Tensor]:
        return saved

    def backward(grad_carry: Any, rest: tuple[list[torch.Tensor], Any]) -> tuple[Any, Any]:
        saved, grad_y = rest
        cotangents = [leaf for leaf in (*tree_flatten(grad_carry)[0], *tree_flatten(grad_y)[0]) if leaf is not None]
        tangents = [cotangents[index] for index in parts.differentiable]
        wanted = [parts.wanted[index] for index in parts.dependent]
        # The body does not read its own arguments: those that it needs were saved.
        filled = [*[tangents[0]] * len(avals), *tangents, *saved]
        grads = run("turn_backward", cast(Body, parts.backward), filled, [avals[index] for index in wanted])
        of = dict(zip(wanted, grads, strict=True))
        flat = iter([of[index] if index in of else torch.zeros_like(tensor) for index, tensor in enumerate(tensors)])
        leaves = [None if leaf is None else next(flat) for leaf in (*init_leaves, *xs_leaves)]
        return tree_unflatten(leaves[: len(init_leaves)], init_tree), tree_unflatten(leaves[len(init_leaves) :], xs_tree)

    return forward, alias_input, backward


def _lower(context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    return results_of(context, bodies[0], operands.given, operands.held[0], operands.seeds[0], context.checks)
