"""Turn a graph into one function over jax arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

from xla_core.base.errors import LoweringError, XlaError
from xla_core.engine.graph.entries import ScalarInput, ScalarKind
from xla_core.engine.graph.graph import Graph, recorded_at
from xla_core.engine.graph.signature import Signature, WrongResult
from xla_core.engine.placement.manual import is_boundary, is_manual, on_each_device
from xla_core.ops import precision
from xla_core.ops.checks import Check, examples
from xla_core.ops.compiled_for import compiled_for
from xla_core.ops.random.threefry import drawn_at_once
from xla_core.ops.table import Context


@dataclass(frozen=True, slots=True)
class Constants:
    """Numbers compiled into a program, in the order of the fixed scalar inputs of each kind; None where the number is an input."""

    floats: tuple[float | None, ...]
    ints: tuple[int | None, ...]


def arrays_of(floats: list[float], ints: list[int], seeds: list[int]) -> list[np.ndarray[Any, Any]]:
    """The packed host arrays that follow the buffers, in argument order; without the kinds that a program does not use."""
    packed: list[np.ndarray[Any, Any]] = []
    if floats:
        packed.append(np.array(floats, np.float64))
    if ints:
        packed.append(np.array(ints, np.int64))
    if seeds:
        packed.append(np.array(seeds, np.uint64).view(np.uint32).reshape(-1, 2))
    return packed


# The numbers of each kind, as 0-d arrays (seeds: two words), in the arguments behind the buffers, and how many of each kind there are.
Rows = Callable[[Sequence[Any], Mapping[ScalarKind, int]], Mapping[ScalarKind, list[Any]]]


def rows_of_arrays(packed: Sequence[Any], numbers: Mapping[ScalarKind, int]) -> dict[ScalarKind, list[Any]]:
    """The rows of the arrays that `arrays_of` makes."""
    arrays = iter(packed)
    return {kind: [array[row] for array in ([next(arrays)] if count else []) for row in range(count)] for kind, count in numbers.items()}


# Computes the results of an operation over operands; `Signature.emit` by default.
Emitter = Callable[[Signature, list[Any], Context, list[Check] | None], list[Any]]

# Makes a context manager from an operation's name and the user's line: source locations in the compiled text.
Scope = Callable[[str, str | None], AbstractContextManager[Any]]


def program(
    graph: Graph,
    constants: Constants,
    context: Context,
    scope: Scope | None = None,
    manual: Mesh | None = None,
    checked: bool = False,
    emitter: Emitter = Signature.emit,
    rows: Rows = rows_of_arrays,
) -> Callable[..., tuple[jax.Array, ...]]:
    """A function `(*buffers, *packed) -> (*results, token)` that computes `graph`; packed as `rows` reads it.

    The token is never donated: waiting for it is waiting for the execution. It is what the checks of data found, a vector, if there are
    any (ops/checks.py), else a scalar.
    context: what lowerings are told. scope: entered around each lowering. manual: the mesh of manual regions, in SPMD mode. checked: make
    checks of data. emitter: computes operations. rows: reads the numbers behind the buffers.
    """

    def run(*arguments: Any) -> tuple[jax.Array, ...]:
        checks: list[tuple[int, Check]] = []
        env = evaluate(graph, leaves_of(graph, constants, arguments, rows), context, scope, manual, checks if checked else None, emitter)
        token = examples([check for _, check in checks]) if checks else lax.full((), 0, np.uint8)
        return (*_separate([env[slot] for slot in graph.outs], arguments), token)

    return run


def evaluate(
    graph: Graph,
    leaves: Iterable[Any],
    context: Context,
    scope: Scope | None = None,
    manual: Mesh | None = None,
    checks: list[tuple[int, Check]] | None = None,
    emitter: Emitter = Signature.emit,
    frees: bool = False,
) -> list[Any]:
    """The value at each slot of `graph`; None at the slot of an operation with several results.

    leaves: arrays, or numbers for scalar inputs, in the order of their slots. context: what lowerings are told.
    checks: list to which the checks of data are added, with their operations' slots. frees: drop the values that are no results behind
    their last use, so that they take no memory.
    """
    with precision.within(context.platform), compiled_for(context.platform, context.model):
        values = list(leaves)
        # Over a mesh each operation's numbers are made where they are needed.
        on_one_device = emitter is Signature.emit and manual is None and context.mesh is None
        with drawn_at_once(_random_sizes(graph, values) if on_one_device else ()):
            return _evaluate(graph, values, context, scope, manual, checks, emitter, _last_uses(graph) if frees else {})


def _random_sizes(graph: Graph, leaves: Sequence[Any]) -> list[tuple[jax.Array, int]]:
    """The seed of each random operation and the number of elements of its result."""
    values = dict(zip(graph.parts.inputs, leaves, strict=True))
    sizes = []
    for slot in graph.parts.operations:
        signature, *operands = recorded_at(graph.entries, slot)
        aval = signature.inferred[0] if signature.random else None
        if aval is not None and operands[-1] in values:
            sizes.append((values[operands[-1]], math.prod(aval.shape)))
    return sizes


def _last_uses(graph: Graph) -> dict[int, list[int]]:
    """The slots of the values that an operation is the last one to take, by its slot."""
    seen, uses = set(graph.outs), {}
    for slot in reversed(graph.parts.operations):
        _, *operands = recorded_at(graph.entries, slot)
        last = set(operands) - seen
        if last:
            uses[slot] = list(last)
            seen |= last
    return uses


def _evaluate(
    graph: Graph,
    leaves: Iterable[Any],
    context: Context,
    scope: Scope | None,
    manual: Mesh | None,
    checks: list[tuple[int, Check]] | None,
    emitter: Emitter,
    last_uses: Mapping[int, Sequence[int]],
) -> list[Any]:
    remaining = iter(leaves)
    env: list[Any] = []
    results: Iterator[Any] = iter(())
    lower = partial(_lower, emitter, context, scope) if manual is None else partial(_lower_in_regions, emitter, context, scope, manual)
    for slot, entry in enumerate(graph.entries):
        if entry is None:
            env.append(next(results))
        elif type(entry) is tuple:
            own_checks: list[Check] | None = None if checks is None else []
            values = lower(graph, slot, entry[0], [env[operand] for operand in entry[1:]], own_checks)
            if checks is not None:
                checks.extend([(slot, check) for check in own_checks or ()])
            for operand in last_uses.get(slot, ()):
                env[operand] = None
            if len(values) == 1:
                env.append(values[0])
            else:
                env.append(None)
                results = iter(values)
        else:
            env.append(next(remaining))
            next(results, None)  # a result computed earlier than the operation's others stands here as a leaf
    return env


def _separate(results: list[Any], arguments: tuple[Any, ...]) -> list[Any]:
    """The results, copied where they share a buffer with an input or with each other, so that each can be donated alone."""
    seen = {id(argument) for argument in arguments}
    separate = []
    for result in results:
        separate.append(jax.numpy.copy(result) if id(result) in seen else result)
        seen.add(id(result))
    return separate


def leaves_of(graph: Graph, constants: Constants, arguments: tuple[Any, ...], rows: Rows = rows_of_arrays) -> list[Any]:
    """The values of the leaves and scalar inputs in slot order, from the arguments of `program`."""
    parts = graph.parts
    values = dict(zip(parts.leaf_slots, arguments, strict=False))
    packed = rows(arguments[len(parts.leaves) :], counts(parts.scalars, constants))
    columns = {key: iter(column) for key, column in _columns(parts.scalars, packed).items()}
    fixed = {ScalarKind.FLOAT: iter(constants.floats), ScalarKind.INT: iter(constants.ints)}
    for slot, scalar in zip(parts.scalar_slots, parts.scalars, strict=True):
        number = next(fixed[scalar.kind]) if scalar.fixed else None
        if number is None:
            number = next(columns[scalar.kind, scalar.fixed])
        values[slot] = typed(scalar, number)
    return [values[slot] for slot in parts.inputs]


def _columns(scalars: Sequence[ScalarInput], rows: Mapping[ScalarKind, list[Any]]) -> dict[tuple[ScalarKind, bool], list[Any]]:
    """The numbers of each kind that were always inputs, which stand first in its rows, and those that became inputs."""
    columns: dict[tuple[ScalarKind, bool], list[Any]] = {}
    for kind, numbers in rows.items():
        always = sum([scalar.kind is kind and not scalar.fixed for scalar in scalars])
        columns[kind, False], columns[kind, True] = numbers[:always], numbers[always:]
    return columns


def counts(scalars: Sequence[ScalarInput], constants: Constants) -> dict[ScalarKind, int]:
    """How many numbers of each kind a program takes as inputs, in the order of `arrays_of`."""
    became = {ScalarKind.FLOAT: constants.floats.count(None), ScalarKind.INT: constants.ints.count(None), ScalarKind.SEED: 0}
    return {kind: number + sum([scalar.kind is kind and not scalar.fixed for scalar in scalars]) for kind, number in became.items()}


def typed(scalar: ScalarInput, number: Any) -> Any:
    """A scalar input as its lowering expects it: in a 0-d tensor's dtype if it stands for one."""
    if scalar.aval is None:
        return number
    if isinstance(number, (int, float)):
        return jax.numpy.asarray(np.asarray(number).astype(scalar.aval.physical))
    return lax.convert_element_type(number, scalar.aval.physical)


def _lower_in_regions(
    emitter: Emitter,
    context: Context,
    scope: Scope | None,
    mesh: Mesh,
    graph: Graph,
    slot: int,
    signature: Signature,
    operands: list[Any],
    checks: list[Check] | None,
) -> list[Any]:
    """`_lower` in SPMD mode: an operation over manual values runs on each device of the mesh by itself, without checks of data."""
    if is_boundary(signature):
        return signature.call(operands, context)
    _, *slots = recorded_at(graph.entries, slot)
    manual = [is_manual(graph.parts.avals[at]) for at in slots]
    if not any(manual):
        return _lower(emitter, context, scope, graph, slot, signature, operands, checks)
    return on_each_device(lambda local: _lower(Signature.emit, context, scope, graph, slot, signature, local), operands, manual, mesh)


def _lower(
    emitter: Emitter,
    context: Context,
    scope: Scope | None,
    graph: Graph,
    slot: int,
    signature: Signature,
    operands: list[Any],
    checks: list[Check] | None = None,
) -> list[Any]:
    """The results of one operation. checks: list to which its checks of data are added."""
    try:
        if scope is None:
            # Over a copy: `emit` takes the seed off it, and an error shows all operands.
            return emitter(signature, list(operands), context, checks)
        with scope(signature.name, graph.lines.get(slot) or signature.line):
            return emitter(signature, list(operands), context, checks)
    except XlaError as error:
        error.place = graph, slot
        raise
    except (MemoryError, RecursionError):  # not the operation's fault
        raise
    except WrongResult as error:
        raise _failed(graph, slot, signature, operands, f"its lowering {error}") from None
    except Exception as error:
        raise _failed(graph, slot, signature, operands, f"{type(error).__name__}: {error}") from error


def _failed(graph: Graph, slot: int, signature: Signature, operands: list[Any], problem: str) -> LoweringError:
    error = LoweringError(_describe(signature, graph.line(slot), operands, problem))
    error.place = graph, slot
    return error


def _describe(signature: Signature, line: str | None, operands: list[Any], problem: str) -> str:
    shapes = ", ".join(f"{x.dtype}{list(x.shape)}" if isinstance(x, (jax.Array, np.ndarray)) else repr(x) for x in operands)
    where = f", recorded at {line}," if line else ""
    return (
        f"{signature.name} over ({shapes}){where} could not be lowered: {problem}. "
        "Until its lowering is mended, run that operation on CPU tensors."
    )
