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
    """A recorded scan of `length` turns: its bodies, how many tensors it carries, and the nesting of carry and outputs."""

    parts: Differentiated
    carried: int
    sliced: int
    length: int
    reverse: bool
    avals: tuple[Aval, ...]  # of one turn's carry and slices
    trees: tuple[TreeSpec, TreeSpec]
    places: tuple[int, ...]  # of the tensors among the leaves of carry and output: the others are None

    @property
    def outs(self) -> list[Aval]:
        """Of the recorded operation: the last carry, stacked outputs, what is saved, stacked."""
        outs = self.parts.outs
        stacked = (*outs[self.carried :], *self.parts.saved)
        return [*outs[: self.carried], *[self.stacked(aval) for aval in stacked]]

    def stacked(self, aval: Aval) -> Aval:
        """The values of all turns as one."""
        return aval_of((self.length, *aval.shape), aval.dtype, aval.manual)


_known = Cache[_Scan]()


def scan(
    fn: Function, init: Any, xs: Any, partition_fn: Partition | None = None, is_fn_pure: bool = False, reverse: bool = False
) -> tuple[Any, Any]:
    """`(carry, ys)` after `carry, y = fn(carry, x)` for each x along the first dimension of the tensors in `xs`; ys are the y, stacked.

    init, xs: nested tensors (or None); the tensors in xs agree in their first dimension, the number of turns. fn returns a carry nested
    like `init`, of the same shapes and dtypes, and nested tensors. It is recorded once for all turns: it may read no value and write to
    nothing but what it made. Random numbers differ from turn to turn.
    partition_fn: a partitioner of `functorch.compile`, which decides what of a turn is kept for its gradient, such as
    `min_cut_rematerialization_partition`. Without one, or with `default_partition`, all that torch's formulas need is kept.
    is_fn_pure: fn depends on its arguments alone, so that the same function object is recorded once for all calls with arguments of one
    kind. reverse: take the x from the last to the first; ys stand where their x stood.

    Gradients are those of torch's autograd, also for tensors from outside which fn uses. Raises TypeError for what is no tensor, ValueError
    for a carry that changes its kind and for first dimensions that differ, RuntimeError for a tensor on another device,
    GraphBreakError for a function that reads a value, UnsupportedOperationError for one that writes to what it did not make.
    """
    what = "scan"
    init_leaves, init_tree = tree_flatten(init)
    xs_leaves, xs_tree = tree_flatten(xs)
    carried, sliced = [leaf for leaf in init_leaves if leaf is not None], [leaf for leaf in xs_leaves if leaf is not None]
    tensors = [*carried, *sliced]
    length = _length(what, tensors, sliced)
    recorder = holder(tensors[0])._storage.value.recorder
    avals = [kind_of(tensor, place >= len(carried)) for place, tensor in enumerate(tensors)]
    requires_grad = [tensor.requires_grad for tensor in tensors]
    trees = (init_tree, xs_tree, tuple(leaf is None for leaf in (*init_leaves, *xs_leaves)))
    key = (fn, trees, tuple(avals), tuple(requires_grad), length, reverse, partition_fn, surroundings(recorder)) if is_fn_pure else None
    found = _known.get(key)
    if found is None:
        nested = Nested(what, fn, init_leaves, init_tree, xs_leaves, xs_tree)
        together = range(len(carried))
        parts = differentiated(recorder, what, avals, requires_grad, function_of(nested, partition_fn), kept=together, together=together)
        _check_carry(what, avals[: len(carried)], parts.outs)
        found = _Scan(parts, len(carried), len(sliced), length, reverse, tuple(avals), (init_tree, nested.out_tree), nested.places)
        _known.keep(key, found, parts)
    else:
        found = replace(found, parts=with_fresh_seeds(found.parts, recorder.draw))
    return nest(_run(recorder, found, tensors), found.trees, found.places)


def function_of(nested: Nested, partition_fn: Partition | None) -> Callable[[list[Any]], list[Any]]:
    """The function over flat lists that is recorded, parted as a partitioner says."""
    return nested if is_default(partition_fn) else partitioned(nested, partition_fn)


class Nested:
    """The user's function over flat lists; knows the nesting of its outputs after a call."""

    def __init__(self, what: str, fn: Function, init: list[Any], init_tree: TreeSpec, xs: list[Any], xs_tree: TreeSpec) -> None:
        self._what, self._fn = what, fn
        self._init, self._init_tree, self._xs, self._xs_tree = init, init_tree, xs, xs_tree
        self.out_tree: Any = None
        self.places: tuple[int, ...] = ()

    def __call__(self, given: list[Any]) -> list[Any]:
        rest = iter(given)
        carry = tree_unflatten([None if leaf is None else next(rest) for leaf in self._init], self._init_tree)
        x = tree_unflatten([None if leaf is None else next(rest) for leaf in self._xs], self._xs_tree)
        result = self._fn(carry, x)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeError(f"the function of {self._what} returns (carry, output), got {type(result).__name__}")
        leaves, tree = tree_flatten(result[0])
        same = [leaf is None for leaf in leaves] == [leaf is None for leaf in self._init]
        if tree != self._init_tree or not same:
            raise ValueError(
                f"the function of {self._what} is given a carry nested as {self._init_tree} and returns {tree}: they must be alike"
            )
        outputs, self.out_tree = tree_flatten(result[1])
        self.places = tuple(place for place, leaf in enumerate((*leaves, *outputs)) if leaf is not None)
        return [leaf for leaf in (*leaves, *outputs) if leaf is not None]

    def nest(self, results: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        """Flat results as carry and outputs."""
        return nest(results, (self._init_tree, self.out_tree), self.places)


def _length(what: str, tensors: Sequence[Any], sliced: Sequence[Any]) -> int:
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{what} takes tensors (or None), got a {type(tensor).__name__}: make it a tensor")
    check_on_device(what, tensors)
    if not sliced:
        raise ValueError(f"{what} needs a tensor in xs, whose first dimension says how often the function runs")
    if any(tensor.dim() == 0 for tensor in sliced):
        raise ValueError(f"{what} runs over the first dimension of the tensors in xs, and one of them has none")
    lengths = {int(tensor.shape[0]) for tensor in sliced}
    if len(lengths) != 1:
        raise ValueError(f"the first dimensions of the tensors in xs differ: {sorted(lengths)}")
    return lengths.pop()


def kind_of(tensor: torch.Tensor, sliced: bool = False) -> Aval:
    """Shape and dtype of a tensor, or of a slice of it along its first dimension."""
    return aval_of(tuple(tensor.shape)[sliced:], tensor.dtype, holder(tensor)._storage.value.aval.manual)


def _check_carry(what: str, before: Sequence[Aval], after: Sequence[Aval]) -> None:
    wrong = [f"{old} as {new}" for old, new in zip(before, after, strict=False) if old is not new]
    if wrong:
        raise ValueError(
            f"the function of {what} must return its carry with the shapes and dtypes that it has, but returns {', '.join(wrong)}: convert "
            "what it returns, or what goes in"
        )


def nest(results: Sequence[torch.Tensor], trees: tuple[TreeSpec, TreeSpec], places: Sequence[int]) -> tuple[Any, Any]:
    """Flat results as carry and outputs, nested. places: of the tensors among the leaves of both; the others are None."""
    carry_tree, out_tree = trees
    leaves: list[Any] = [None] * (carry_tree.num_leaves + out_tree.num_leaves)
    for place, result in zip(places, results, strict=True):
        leaves[place] = result
    return tree_unflatten(leaves[: carry_tree.num_leaves], carry_tree), tree_unflatten(leaves[carry_tree.num_leaves :], out_tree)


def _run(recorder: Recorder, found: _Scan, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    if found.parts.backward is None:
        return _forward(recorder, found, tensors)
    results: Sequence[torch.Tensor] = _Differentiable.apply(recorder, found, *tensors, *found.parts.tensors)  # type: ignore[no-untyped-call]
    return results


def _forward(recorder: Recorder, found: _Scan, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    layout = (found.carried, found.length, found.reverse)
    return record(recorder, "scan", partial(_lower, *layout), layout, [found.parts.forward], tensors, found.outs)


class _Differentiable(torch.autograd.Function):
    """A scan whose gradient is a scan in the other direction over what the turns saved."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, found: _Scan, *tensors: torch.Tensor) -> Any:
        sliced = tensors[found.carried : found.carried + found.sliced]
        results = _forward(recorder, found, tensors[: found.carried + found.sliced])
        count = len(found.parts.outs)
        ctx.recorder, ctx.found = recorder, found
        ctx.save_for_backward(*sliced, *results[count:])
        ctx.mark_non_differentiable(*[result for place, result in enumerate(results[:count]) if place not in found.parts.differentiable])
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        found: _Scan = ctx.found
        parts = found.parts
        kept, tangents = ctx.saved_tensors, [cotangents[place] for place in parts.differentiable]
        made = _backward(ctx.recorder, found, kept[: found.sliced], kept[found.sliced :], tangents)
        grads = final("scan", made, [*kept[: found.sliced], *tangents, *parts.tensors])
        places = [*parts.wanted, *range(found.carried + found.sliced, found.carried + found.sliced + len(parts.tensors))]
        of = dict(zip([places[place] for place in _given_back(found)], grads, strict=True))
        return None, None, *[of.get(place) for place in range(found.carried + found.sliced + len(parts.tensors))]


def _given_back(found: _Scan) -> list[int]:
    """The places among the gradients that the operation gives: those of the carry always, for it is carried; the others if they depend."""
    parts = found.parts
    return [
        place
        for place in range(len(parts.wanted) + len(parts.tensors))
        if place in parts.dependent or (place < len(parts.wanted) and parts.wanted[place] < found.carried)
    ]


def _backward(
    recorder: Recorder,
    found: _Scan,
    sliced: Sequence[torch.Tensor],
    saved: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    parts = found.parts
    outs = []
    for place in _given_back(found):
        if place >= len(parts.wanted):
            tensor = parts.tensors[place - len(parts.wanted)]
            outs.append(aval_of(tuple(tensor.shape), tensor.dtype))
        else:
            aval = found.avals[parts.wanted[place]]
            outs.append(aval if parts.wanted[place] < found.carried else found.stacked(aval))
    turn = _Turn(found.carried, found.sliced, parts.wanted, parts.differentiable, parts.dependent, tuple(_given_back(found)))
    layout = (*astuple(turn), found.length, found.reverse)
    lower = partial(_lower_backward, turn, found.length, found.reverse)
    return record(recorder, "scan_backward", lower, layout, [cast(Body, parts.backward)], [*sliced, *cotangents, *saved], outs)


def _lower(carried: int, length: int, reverse: bool, context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    [body], findings = bodies, Findings(context)

    def turn(carry: list[Any], item: tuple[Any, list[Any]]) -> tuple[list[Any], Any]:
        number, slices = item
        checks = findings.collect()
        seeds = [seed_of_turn(seed, number) for seed in operands.seeds[0]]
        results = results_of(context, body, [*carry, *slices], operands.held[0], seeds, checks)
        return results[:carried], (results[carried:], findings.values(checks))

    numbers = lax.iota(np.dtype(np.uint32), length)
    given = operands.given
    carry, (stacked, values) = lax.scan(turn, given[:carried], (numbers, given[carried:]), length=length, reverse=reverse)
    findings.report(values)
    return [*carry, *stacked]


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one turn of a backward scan takes and gives: as `Differentiated` has it, and the places of its results among the gradients."""

    carried: int
    sliced: int
    wanted: tuple[int, ...]
    differentiable: tuple[int, ...]
    dependent: tuple[int, ...]
    given_back: tuple[int, ...]

    def tangents(self, grads: dict[int, Any], stacked: Sequence[Any]) -> list[Any]:
        """The gradients of the body's results. grads: of the carry, by place."""
        rest = iter(stacked)
        return [grads[place] if place < self.carried else next(rest) for place in self.differentiable]


def _lower_backward(turn: _Turn, length: int, reverse: bool, context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    [body] = bodies
    given = iter(operands.given)
    sliced = {place: next(given) for place in range(turn.carried, turn.carried + turn.sliced)}
    cotangents = {place: next(given) for place in turn.differentiable}
    saved = list(given)
    stacked = [cotangents[place] for place in turn.differentiable if place >= turn.carried]
    # Gradients of the carry go from turn to turn, those of tensors from outside are summed up. That of a slice takes the place of the
    # slice, which no other turn looks at: it needs no memory of its own, and is sharded alike.
    rows = [(place, out) for place, out in zip(turn.given_back, context.out, strict=True) if out is not None]
    inside = {turn.wanted[place]: out for place, out in rows if place < len(turn.wanted)}
    of_outside = {place: out for place, out in rows if place >= len(turn.wanted)}
    of_carry = {place: out for place, out in inside.items() if place < turn.carried}
    start = {place: cotangents[place] if place in cotangents else lax.full(out.shape, 0, out.dtype) for place, out in of_carry.items()}
    sums = {place: lax.full(out.shape, 0, out.dtype) for place, out in of_outside.items()}
    replaced = {place: sliced.pop(place) for place in inside if place >= turn.carried}

    def step(state: tuple[dict[int, Any], ...], item: tuple[Any, ...]) -> tuple[Any, None]:
        carry, so_far, left = state
        index, number, slices, tangents, values = item
        seeds = [seed_of_turn(seed, number) for seed in operands.seeds[0]]
        own = {place: lax.dynamic_index_in_dim(array, index, 0, keepdims=False) for place, array in left.items()}
        own, left = lax.optimization_barrier((own, left))  # all is read before anything is written, or XLA copies the whole
        slices = {**slices, **own}
        arguments = [*[None] * turn.carried, *[slices[place] for place in sorted(slices)], *turn.tangents(carry, tangents), *values]
        found = dict(zip(turn.dependent, results_of(context, body, arguments, operands.held[0], seeds, None), strict=True))
        named = {turn.wanted[place]: grad for place, grad in found.items() if place < len(turn.wanted)}
        carried = {place: named.get(place, lax.full_like(grad, 0)) for place, grad in carry.items()}
        added = {place: total + found[place] for place, total in so_far.items()}
        written = {place: lax.dynamic_update_index_in_dim(array, named[place], index, 0) for place, array in left.items()}
        return (carried, added, written), None

    places, numbers = (lax.iota(np.dtype(kind), length) for kind in (np.int32, np.uint32))
    items = places, numbers, sliced, stacked, saved
    (carry, total, written), _ = lax.scan(step, (start, sums, replaced), items, length=length, reverse=not reverse)
    of = {**carry, **written}
    return [total[place] if place in total else of[turn.wanted[place]] for place in turn.given_back]
