"""`scan`: a loop over the first dimension of tensors as one operation, with the gradient of its body recorded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from jax import lax

from xla_core.base.private_torch import TreeSpec, tree_flatten, tree_unflatten
from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.tensor.plain import holder
from xla_core.engine.tracing.bodies import Body, check_on_device
from xla_core.engine.tracing.gradients import Differentiated, differentiated, final
from xla_core.engine.tracing.operations import Findings, Operands, record, results_of, seed_of_turn
from xla_core.engine.tracing.surroundings import Cache, surroundings, with_fresh_seeds
from xla_core.features.control_flow.partitions import is_default, partitioned
from xla_core.ops.table import Context

Function = Callable[[Any, Any], tuple[Any, Any]]
Partition = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Scan:
    """A recorded scan: its bodies, how many tensors it carries and slices, its number of turns, and the nesting of carry and outputs."""

    parts: Differentiated
    carried: int
    sliced: int
    length: int
    reverse: bool
    avals: tuple[Aval, ...]  # of one turn's carry and slices
    trees: tuple[TreeSpec, TreeSpec]
    places: tuple[int, ...]  # indices of the tensors among the leaves of carry and output; the others are None

    @property
    def outs(self) -> list[Aval]:
        """Avals of the recorded operation's results: the last carry, stacked outputs, stacked saved values."""
        outs = self.parts.outs
        stacked = (*outs[self.carried :], *self.parts.saved)
        return [*outs[: self.carried], *[self.stacked(aval) for aval in stacked]]

    def stacked(self, aval: Aval) -> Aval:
        """The aval of all turns' values, stacked."""
        return aval_of((self.length, *aval.shape), aval.dtype, aval.manual)


_recordings = Cache[_Scan]()


def scan(
    fn: Function, init: Any, xs: Any, partition_fn: Partition | None = None, is_fn_pure: bool = False, reverse: bool = False
) -> tuple[Any, Any]:
    """Call `carry, y = fn(carry, x)` for each x along the first dimension of `xs`, and return `(carry, ys)`; ys are the y, stacked.

    init, xs: nested tensors (or None); the tensors in xs agree in their first dimension, the number of turns. fn returns a carry nested
    like `init`, of the same shapes and dtypes, and nested tensors. It is recorded once for all turns: it may not read values, and
    write only to tensors that it made. Random numbers differ from turn to turn.
    partition_fn: a partitioner of `functorch.compile`, such as `min_cut_rematerialization_partition`, which decides which values of a turn
    are kept for its gradient. Without one, or with `default_partition`, all values that torch's formulas need are kept.
    is_fn_pure: fn depends on its arguments alone, so that the same function object is recorded once for all calls with arguments of one
    kind. reverse: take the x from the last to the first; each y has the index of its x.

    Gradients are torch's, also for tensors from outside that fn uses. Raises TypeError for leaves that are not tensors, ValueError for a
    carry that changes its shapes or dtypes and for first dimensions that differ, RuntimeError for a tensor on another device,
    GraphBreakError for a function that reads a value, UnsupportedOperationError for one that writes to tensors that it did not make.
    """
    name = "scan"
    init_leaves, init_tree = tree_flatten(init)
    xs_leaves, xs_tree = tree_flatten(xs)
    carried, sliced = [leaf for leaf in init_leaves if leaf is not None], [leaf for leaf in xs_leaves if leaf is not None]
    tensors = [*carried, *sliced]
    length = _length(name, tensors, sliced)
    recorder = holder(tensors[0])._storage.value.recorder
    avals = [kind_of(tensor, index >= len(carried)) for index, tensor in enumerate(tensors)]
    requires_grad = [tensor.requires_grad for tensor in tensors]
    trees = (init_tree, xs_tree, tuple(leaf is None for leaf in (*init_leaves, *xs_leaves)))
    key = (fn, trees, tuple(avals), tuple(requires_grad), length, reverse, partition_fn, surroundings(recorder)) if is_fn_pure else None
    recorded = _recordings.get(key)
    if recorded is None:
        nested = Nested(name, fn, init_leaves, init_tree, xs_leaves, xs_tree)
        together = range(len(carried))
        parts = differentiated(recorder, name, avals, requires_grad, function_of(nested, partition_fn), kept=together, together=together)
        _check_carry(name, avals[: len(carried)], parts.outs)
        recorded = _Scan(parts, len(carried), len(sliced), length, reverse, tuple(avals), (init_tree, nested.out_tree), nested.places)
        _recordings.keep(key, recorded, parts)
    else:
        recorded = replace(recorded, parts=with_fresh_seeds(recorded.parts, recorder.draw))
    return nest(_run(recorder, recorded, tensors), recorded.trees, recorded.places)


def function_of(nested: Nested, partition_fn: Partition | None) -> Callable[[list[Any]], list[Any]]:
    """The function over flat lists to record, divided by a partitioner if there is one."""
    return nested if is_default(partition_fn) else partitioned(nested, partition_fn)


class Nested:
    """The user's function over flat lists; knows the nesting of its outputs after a call."""

    def __init__(self, name: str, fn: Function, init: list[Any], init_tree: TreeSpec, xs: list[Any], xs_tree: TreeSpec) -> None:
        self._name, self._fn = name, fn
        self._init, self._init_tree, self._xs, self._xs_tree = init, init_tree, xs, xs_tree
        self.out_tree: Any = None
        self.places: tuple[int, ...] = ()

    def __call__(self, values: list[Any]) -> list[Any]:
        remaining = iter(values)
        carry = tree_unflatten([None if leaf is None else next(remaining) for leaf in self._init], self._init_tree)
        x = tree_unflatten([None if leaf is None else next(remaining) for leaf in self._xs], self._xs_tree)
        result = self._fn(carry, x)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeError(f"the function of {self._name} returns (carry, output), got {type(result).__name__}")
        leaves, tree = tree_flatten(result[0])
        same = [leaf is None for leaf in leaves] == [leaf is None for leaf in self._init]
        if tree != self._init_tree or not same:
            raise ValueError(
                f"the function of {self._name} is given a carry nested as {self._init_tree} and returns {tree}: they must be alike"
            )
        outputs, self.out_tree = tree_flatten(result[1])
        self.places = tuple(index for index, leaf in enumerate((*leaves, *outputs)) if leaf is not None)
        return [leaf for leaf in (*leaves, *outputs) if leaf is not None]

    def nest(self, results: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        """Nest flat results as carry and outputs."""
        return nest(results, (self._init_tree, self.out_tree), self.places)


def _length(name: str, tensors: Sequence[Any], sliced: Sequence[Any]) -> int:
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} takes tensors (or None), got a {type(tensor).__name__}: make it a tensor")
    check_on_device(name, tensors)
    if not sliced:
        raise ValueError(f"{name} needs a tensor in xs, whose first dimension says how often the function runs")
    if any(tensor.dim() == 0 for tensor in sliced):
        raise ValueError(f"{name} runs over the first dimension of the tensors in xs, and one of them has none")
    lengths = {int(tensor.shape[0]) for tensor in sliced}
    if len(lengths) != 1:
        raise ValueError(f"the first dimensions of the tensors in xs differ: {sorted(lengths)}")
    return lengths.pop()


def kind_of(tensor: torch.Tensor, sliced: bool = False) -> Aval:
    """Shape and dtype of a tensor, or of a slice of it along its first dimension."""
    return aval_of(tuple(tensor.shape)[sliced:], tensor.dtype, holder(tensor)._storage.value.aval.manual)


def _check_carry(name: str, before: Sequence[Aval], after: Sequence[Aval]) -> None:
    wrong = [f"{old} as {new}" for old, new in zip(before, after, strict=False) if old is not new]
    if wrong:
        raise ValueError(
            f"the function of {name} must return its carry with the shapes and dtypes that it has, but returns {', '.join(wrong)}: convert "
            "what it returns, or what goes in"
        )


def nest(results: Sequence[torch.Tensor], trees: tuple[TreeSpec, TreeSpec], places: Sequence[int]) -> tuple[Any, Any]:
    """Nest flat results as carry and outputs. places: indices of the tensors among the leaves of both; the others are None."""
    carry_tree, out_tree = trees
    leaves: list[Any] = [None] * (carry_tree.num_leaves + out_tree.num_leaves)
    for index, result in zip(places, results, strict=True):
        leaves[index] = result
    return tree_unflatten(leaves[: carry_tree.num_leaves], carry_tree), tree_unflatten(leaves[carry_tree.num_leaves :], out_tree)


def _run(recorder: Recorder, recorded: _Scan, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    if recorded.parts.backward is None:
        return _forward(recorder, recorded, tensors)
    results: Sequence[torch.Tensor] = _DifferentiableScan.apply(recorder, recorded, *tensors, *recorded.parts.tensors)  # type: ignore[no-untyped-call]
    return results


def _forward(recorder: Recorder, recorded: _Scan, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    layout = (recorded.carried, recorded.length, recorded.reverse)
    return record(recorder, "scan", partial(_lower, *layout), layout, [recorded.parts.forward], tensors, recorded.outs)


class _DifferentiableScan(torch.autograd.Function):
    """A scan whose gradient is a scan in the other direction over the values that the turns saved."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, recorded: _Scan, *tensors: torch.Tensor) -> Any:
        sliced = tensors[recorded.carried : recorded.carried + recorded.sliced]
        results = _forward(recorder, recorded, tensors[: recorded.carried + recorded.sliced])
        count = len(recorded.parts.outs)
        ctx.recorder, ctx.recorded = recorder, recorded
        ctx.save_for_backward(*sliced, *results[count:])
        ctx.mark_non_differentiable(*[result for index, result in enumerate(results[:count]) if index not in recorded.parts.differentiable])
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        recorded: _Scan = ctx.recorded
        parts = recorded.parts
        kept, tangents = ctx.saved_tensors, [cotangents[index] for index in parts.differentiable]
        computed = _backward(ctx.recorder, recorded, kept[: recorded.sliced], kept[recorded.sliced :], tangents)
        grads = final("scan", computed, [*kept[: recorded.sliced], *tangents, *parts.tensors])
        indices = [*parts.wanted, *range(recorded.carried + recorded.sliced, recorded.carried + recorded.sliced + len(parts.tensors))]
        of = dict(zip([indices[index] for index in _given_back(recorded)], grads, strict=True))
        return None, None, *[of.get(index) for index in range(recorded.carried + recorded.sliced + len(parts.tensors))]


def _given_back(recorded: _Scan) -> list[int]:
    """Indices of the gradients that the backward operation returns: always those of the carry, and others if they depend on cotangents."""
    parts = recorded.parts
    return [
        index
        for index in range(len(parts.wanted) + len(parts.tensors))
        if index in parts.dependent or (index < len(parts.wanted) and parts.wanted[index] < recorded.carried)
    ]


def _backward(
    recorder: Recorder,
    recorded: _Scan,
    sliced: Sequence[torch.Tensor],
    saved: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    parts = recorded.parts
    outs = []
    for index in _given_back(recorded):
        if index >= len(parts.wanted):
            tensor = parts.tensors[index - len(parts.wanted)]
            outs.append(aval_of(tuple(tensor.shape), tensor.dtype))
        else:
            aval = recorded.avals[parts.wanted[index]]
            outs.append(aval if parts.wanted[index] < recorded.carried else recorded.stacked(aval))
    turn = _Turn(recorded.carried, recorded.sliced, parts.wanted, parts.differentiable, parts.dependent, tuple(_given_back(recorded)))
    layout = (*astuple(turn), recorded.length, recorded.reverse)
    lower = partial(_lower_backward, turn, recorded.length, recorded.reverse)
    return record(recorder, "scan_backward", lower, layout, [cast(Body, parts.backward)], [*sliced, *cotangents, *saved], outs)


def _lower(carried: int, length: int, reverse: bool, context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    [body], findings = bodies, Findings(context)

    def turn(carry: list[Any], item: tuple[Any, list[Any]]) -> tuple[list[Any], Any]:
        index, slices = item
        checks = findings.collect()
        seeds = [seed_of_turn(seed, index) for seed in operands.seeds[0]]
        results = results_of(context, body, [*carry, *slices], operands.held[0], seeds, checks)
        return results[:carried], (results[carried:], findings.values(checks))

    numbers = lax.iota(np.dtype(np.uint32), length)
    arguments = operands.given
    carry, (stacked, values) = lax.scan(turn, arguments[:carried], (numbers, arguments[carried:]), length=length, reverse=reverse)
    findings.report(values)
    return [*carry, *stacked]


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a turn of a backward scan takes and returns, as in `Differentiated`. given_back: indices of its results among the gradients."""

    carried: int
    sliced: int
    wanted: tuple[int, ...]
    differentiable: tuple[int, ...]
    dependent: tuple[int, ...]
    given_back: tuple[int, ...]

    def tangents(self, grads: dict[int, Any], stacked: Sequence[Any]) -> list[Any]:
        """The gradients of the body's results. grads: of the carry, by index."""
        remaining = iter(stacked)
        return [grads[index] if index < self.carried else next(remaining) for index in self.differentiable]


def _lower_backward(turn: _Turn, length: int, reverse: bool, context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    [body] = bodies
    inputs = iter(operands.given)
    sliced = {position: next(inputs) for position in range(turn.carried, turn.carried + turn.sliced)}
    cotangents = {position: next(inputs) for position in turn.differentiable}
    saved = list(inputs)
    stacked = [cotangents[position] for position in turn.differentiable if position >= turn.carried]
    # Gradients of the carry go from turn to turn, and gradients of tensors from outside are summed. The gradient of a slice overwrites the
    # slice, which no other turn reads: it needs no memory of its own, and has the same sharding.
    rows = [(position, out) for position, out in zip(turn.given_back, context.out, strict=True) if out is not None]
    inside = {turn.wanted[position]: out for position, out in rows if position < len(turn.wanted)}
    of_outside = {position: out for position, out in rows if position >= len(turn.wanted)}
    of_carry = {position: out for position, out in inside.items() if position < turn.carried}
    start = {
        position: cotangents[position] if position in cotangents else lax.full(out.shape, 0, out.dtype)
        for position, out in of_carry.items()
    }
    sums = {position: lax.full(out.shape, 0, out.dtype) for position, out in of_outside.items()}
    replaced = {position: sliced.pop(position) for position in inside if position >= turn.carried}

    def step(state: tuple[dict[int, Any], ...], item: tuple[Any, ...]) -> tuple[Any, None]:
        carry, so_far, left = state
        index, unsigned, slices, tangents, values = item
        seeds = [seed_of_turn(seed, unsigned) for seed in operands.seeds[0]]
        own = {position: lax.dynamic_index_in_dim(array, index, 0, keepdims=False) for position, array in left.items()}
        own, left = lax.optimization_barrier((own, left))  # read all before writing, or XLA copies the whole arrays
        slices = {**slices, **own}
        arguments = [*[None] * turn.carried, *[slices[position] for position in sorted(slices)], *turn.tangents(carry, tangents), *values]
        gradients = dict(zip(turn.dependent, results_of(context, body, arguments, operands.held[0], seeds, None), strict=True))
        named = {turn.wanted[position]: grad for position, grad in gradients.items() if position < len(turn.wanted)}
        carried = {position: named.get(position, lax.full_like(grad, 0)) for position, grad in carry.items()}
        added = {position: total + gradients[position] for position, total in so_far.items()}
        written = {position: lax.dynamic_update_index_in_dim(array, named[position], index, 0) for position, array in left.items()}
        return (carried, added, written), None

    indices, unsigned_indices = (lax.iota(np.dtype(dtype), length) for dtype in (np.int32, np.uint32))
    items = indices, unsigned_indices, sliced, stacked, saved
    (carry, total, written), _ = lax.scan(step, (start, sums, replaced), items, length=length, reverse=not reverse)
    of = {**carry, **written}
    return [total[position] if position in total else of[turn.wanted[position]] for position in turn.given_back]
