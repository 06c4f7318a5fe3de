"""`remat`: computes a torch function's intermediate values again for its gradient, except those that a JAX policy saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar, cast

import jax
import numpy as np
import torch
from jax.ad_checkpoint import checkpoint_name as name_in_jax

from xla_core.base.dtypes import torch_dtype
from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import tree_flatten, tree_unflatten
from xla_core.engine.compile.emit import typed
from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.entries import aval_at
from xla_core.engine.graph.pending_graph import Recorder, Value
from xla_core.engine.graph.text import graph_hash
from xla_core.engine.runtime.client import current_recorder, placement_of
from xla_core.engine.tensor.jax_call import call_jax
from xla_core.engine.tensor.plain import holder
from xla_core.engine.tensor.tensor import wrap
from xla_core.engine.tensor.values import value_of
from xla_core.engine.tracing.bodies import Body, HostNumber, check_on_device, recording
from xla_core.engine.tracing.gradients import final
from xla_core.engine.tracing.operations import Operands, bodies_alone, record, results_of
from xla_core.features.interop.recorded import conj, lines_in_errors, what_jax_sees
from xla_core.ops.table import Context

_KEPT = 256
_F = TypeVar("_F", bound=Callable[..., Any])
_POLICIES = ("nothing_saveable", "everything_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")


def checkpoint_name(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Name an xla tensor for the policies of `remat`, and of `jax.checkpoint` over functions of `to_jax`."""
    named: torch.Tensor = call_jax(name_in_jax, (tensor, name))
    return named


@dataclass(frozen=True, slots=True)
class _Policy:
    """Which values to save for the gradient: a JAX policy by name, and names of values to save or offload."""

    name: str
    save: tuple[str, ...]
    offload: tuple[str, ...]

    def of_jax(self) -> Any:
        """The policy as `jax.checkpoint` takes it."""
        policies = jax.checkpoint_policies
        base = getattr(policies, self.name)
        if not (self.save or self.offload):
            return base
        named = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=list(self.save),
            names_which_can_be_offloaded=list(self.offload),
            offload_src="device",
            offload_dst="pinned_host",
        )
        return lambda *args, **kwargs: base(*args, **kwargs) or named(*args, **kwargs)


def remat(function: _F, *, policy: str = "nothing_saveable", save: Sequence[str] = (), offload: Sequence[str] = ()) -> _F:
    """Let the gradient of `function` or a module compute values again instead of saving them: less memory, more time.

    JAX computes the gradient, by `jax.checkpoint`, also for tensors from outside, such as parameters.
    policy: one of `jax.checkpoint_policies` by name: "nothing_saveable", "everything_saveable", "dots_saveable" or
        "dots_with_no_batch_dims_saveable".
    save: names, from `checkpoint_name`, of further values to save. offload: names of values to save in the host's memory.

    Python numbers in the function are constants of its program. Raises ValueError for another policy, TypeError
    for results that are not tensors, UnsupportedOperationError if the function cuts gradients other than by `detach`, uses an
    `autograd.Function` or writes to an argument, GraphBreakError if it reads a value; RuntimeError for a second derivative.
    """
    if policy not in _POLICIES:
        raise ValueError(f"{policy!r} is no policy that remat knows: use one of {', '.join(_POLICIES)}, or save= and offload= with names")
    for names in (save, offload):
        if isinstance(names, str):
            raise ValueError(f"save and offload are sequences of names, got the text {names!r}: write [{names!r}]")
    kept = _Policy(policy, tuple(save), tuple(offload))

    def call(*args: Any, **kwargs: Any) -> Any:
        return _called(function, kept, args, kwargs)

    return wraps(function)(call) if hasattr(function, "__name__") else call  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _RematFunction:
    """A recorded function over arrays: `operands` are its arguments, then captured values, then seeds.

    numbers: for each captured value, None, or the number if it is one. wanted, places: indices of arguments, and of captured values, that
    need a gradient. differentiable: indices of results that have a gradient. arguments: how many. text: identifies it in every process.
    program: what to compile it for.
    """

    body: Body
    numbers: tuple[tuple[Any, type, Any] | None, ...]
    wanted: tuple[int, ...]
    places: tuple[int, ...]
    differentiable: tuple[int, ...]
    policy: _Policy
    arguments: int
    text: str
    program: Context

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        """Compute the results."""
        remaining = iter(operands)
        arguments = [next(remaining) for _ in range(self.arguments)]
        captured = [next(remaining) if number is None else typed(number[0], number[2]) for number in self.numbers]
        return results_of(self.program, self.body, arguments, captured, list(remaining), None)

    @property
    def chosen(self) -> tuple[int, ...]:
        """Indices of the operands that need a gradient."""
        values = [index for index, number in enumerate(self.numbers) if number is None]
        return (*self.wanted, *[self.arguments + values.index(index) for index in self.places])

    def differentiated(self, operands: Sequence[Any]) -> tuple[list[Any], Any]:
        """The results, and JAX's function from cotangents to gradients of the chosen operands, a pytree of saved values."""

        def run(chosen: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            arrays = list(operands)
            for index, array in zip(self.chosen, chosen, strict=True):
                arrays[index] = array
            results = self(arrays)
            return [results[index] for index in self.differentiable], results

        remade = jax.checkpoint(run, policy=self.policy.of_jax())
        _, pull, results = jax.vjp(remade, [operands[index] for index in self.chosen], has_aux=True)
        return results, pull


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a gradient needs. operands: for each leaf of `tree`, the index of its operand, or None; avals: avals of those that are None."""

    tree: Any
    operands: tuple[int | None, ...]
    avals: tuple[Aval, ...]


@lru_cache(maxsize=_KEPT)
def _saved(function: _RematFunction, avals: tuple[Aval, ...], seeds: int) -> _Saved:
    trees: list[Any] = []

    def saving(*operands: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(function.differentiated(operands)[1])
        trees.append(tree)
        return leaves

    structs = [*[aval.struct for aval in avals], *[jax.ShapeDtypeStruct((2,), np.uint32)] * seeds]
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(saving)(*structs).jaxpr
    at = {id(variable): index for index, variable in enumerate(jaxpr.invars[: len(avals)])}
    operands = tuple(at.get(id(variable)) for variable in jaxpr.outvars)
    to_save = [variable.aval for variable, index in zip(jaxpr.outvars, operands, strict=True) if index is None]
    return _Saved(trees[0], operands, tuple(aval_of(tuple(aval.shape), torch_dtype(aval.dtype)) for aval in to_save))


@dataclass(frozen=True, slots=True)
class _Call:
    """A call: its function, captured values, seeds, avals of operands and results, and tensors from outside that need a gradient."""

    function: _RematFunction
    held: tuple[Value, ...]
    seeds: tuple[int, ...]
    avals: tuple[Aval, ...]
    outs: tuple[Aval, ...]
    outside: tuple[torch.Tensor, ...]

    @property
    def body(self) -> Body:
        """The body with this call's values and seeds, for `record`. Numbers are not operands."""
        return replace(self.function.body, held=self.held, seeds=self.seeds)


def _called(function: Callable[..., Any], policy: _Policy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, tree = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    check_on_device("remat", tensors)
    recorder = holder(tensors[0])._storage.value.recorder if tensors else current_recorder()
    nesting: list[Any] = []

    def flat(values: list[Any]) -> list[Any]:
        remaining = iter(values)
        args, kwargs = tree_unflatten([next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], tree)
        results, shape = tree_flatten(function(*args, **kwargs))
        nesting.append(shape)
        return results

    enabled = torch.is_grad_enabled()
    advice = "use torch.utils.checkpoint"
    recorded = _recorded(recorder, what_jax_sees("remat", advice, flat) if enabled else flat, policy, tensors)
    results: Sequence[torch.Tensor]
    if enabled and recorded.function.chosen:
        results = _Rematerialized.apply(recorder, recorded, *tensors, *recorded.outside)  # type: ignore[no-untyped-call]
    else:
        results = record(
            recorder, "remat", partial(_lower, recorded.function), (recorded.function.text,), [recorded.body], tensors, recorded.outs
        )
    return tree_unflatten(list(results), nesting[0])


def _recorded(
    recorder: Recorder, function: Callable[[list[Any]], Sequence[Any]], policy: _Policy, tensors: Sequence[torch.Tensor]
) -> _Call:
    avals = tuple(aval_of(tuple(tensor.shape), tensor.dtype, holder(tensor)._storage.value.aval.manual) for tensor in tensors)
    with lines_in_errors(), recording(recorder, "remat") as trace:
        stand_ins = [trace.stand_in(aval, tensor.requires_grad) for aval, tensor in zip(avals, tensors, strict=True)]
        results = [trace.inside(result) for result in function(list(stand_ins))]
        slots = [trace.slot_of(result) for result in results]
        outs = tuple(cast(Aval, aval_at(trace.graph.entries, slot)) for slot in slots)
        body = trace.body(slots)
        differentiable = tuple(index for index, result in enumerate(results) if result.requires_grad)
        outside = [(tensor, value_of(holder(tensor))) for tensor in trace.tensors]
    index_of = {id(value): index for index, value in enumerate(body.held)}
    for tensor, value in outside:
        if id(value) not in index_of and holder(tensor)._view is not None:
            raise UnsupportedOperationError("remat cannot differentiate by a view from outside of its function: pass it as an argument")
    used = [(tensor, index_of[id(value)]) for tensor, value in outside if id(value) in index_of]
    numbers = tuple((value.kind, type(value.number), value.number) if isinstance(value, HostNumber) else None for value in body.held)
    captured = tuple(value for value in body.held if isinstance(value, Value))
    text = graph_hash(body.graph, [(feed.value, index) for feed, index in body.feeds])
    flat = _RematFunction(
        bodies_alone([body])[0],
        numbers,
        tuple(index for index, tensor in enumerate(tensors) if tensor.requires_grad),
        tuple(index for _, index in used),
        differentiable,
        policy,
        len(tensors),
        f"{text} {[number and number[2] for number in numbers]}",
        placement_of(recorder).context,
    )
    return _Call(flat, captured, body.seeds, (*avals, *[value.aval for value in captured]), outs, tuple(tensor for tensor, _ in used))


def _lower(function: _RematFunction, context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    return function([*operands.given, *operands.held[0], *operands.seeds[0]])


class _Rematerialized(torch.autograd.Function):
    """Runs the recorded function, which also returns the values to save, and its gradient as another operation."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, recorded: _Call, *tensors: torch.Tensor) -> Any:
        function = recorded.function
        saved = _saved(function, recorded.avals, len(recorded.seeds))
        lower = partial(_lower_forward, function, saved)
        arguments = tensors[: function.arguments]
        results = record(recorder, "remat", lower, _layout(function), [recorded.body], arguments, [*recorded.outs, *saved.avals])
        count = len(recorded.outs)
        operands: list[Any] = [*arguments, *map(wrap, recorded.held)]
        remaining = iter(results[count:])
        ctx.recorder, ctx.recorded, ctx.saved = recorder, recorded, saved
        ctx.save_for_backward(*[next(remaining) if index is None else operands[index] for index in saved.operands])
        ctx.mark_non_differentiable(*[result for index, result in enumerate(results[:count]) if index not in function.differentiable])
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        recorded: _Call = ctx.recorded
        function = recorded.function
        inputs = [*ctx.saved_tensors, *[cotangents[index] for index in function.differentiable]]
        lower = partial(_lower_backward, ctx.saved)
        outs = [recorded.avals[index] for index in function.chosen]
        grads = final("remat", record(ctx.recorder, "remat_backward", lower, _layout(function), [], inputs, outs), inputs)
        of = dict(zip(function.wanted, grads, strict=False))
        return None, None, *[of.get(index) for index in range(function.arguments)], *grads[len(function.wanted) :]


def _layout(function: _RematFunction) -> tuple[Any, ...]:
    policy = function.policy
    return (function.text, function.wanted, function.places, function.differentiable, policy.name, policy.save, policy.offload)


def _lower_forward(function: _RematFunction, saved: _Saved, context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    results, pull = function.differentiated([*operands.given, *operands.held[0], *operands.seeds[0]])
    leaves = jax.tree.leaves(pull)
    return [*results, *[leaf for leaf, index in zip(leaves, saved.operands, strict=True) if index is None]]


def _lower_backward(saved: _Saved, context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    count = len(saved.operands)
    pull = jax.tree.unflatten(saved.tree, operands.given[:count])
    [grads] = pull([conj(tangent) for tangent in operands.given[count:]])
    return [conj(grad) for grad in grads]
