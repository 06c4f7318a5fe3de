"""From a graph to one function over jax arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.base.errors import LoweringError, XlaError
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import ScalarInput, ScalarKind
from xla_core.engine.graph.graph import Graph, operation
from xla_core.engine.graph.signature import Signature, cast, check_results
from xla_core.engine.placement.manual import is_boundary, manual_operands, on_each_device
from xla_core.engine.placement.sharding import spans_devices
from xla_core.ops.checks import Check, error_word
from xla_core.ops.table import Context


@dataclass(frozen=True, slots=True)
class Constants:
    """Numbers compiled into a program: by order of the fixed scalar inputs of each kind; None where the number is an input."""

    floats: tuple[float | None, ...]
    ints: tuple[int | None, ...]


def arrays_of(floats: list[float], ints: list[int], seeds: list[int]) -> list[np.ndarray[Any, Any]]:
    """The packed host arrays behind the buffers, in argument order; kinds that a program does not use are left out."""
    packed: list[np.ndarray[Any, Any]] = []
    if floats:
        packed.append(np.array(floats, np.float64))
    if ints:
        packed.append(np.array(ints, np.int64))
    if seeds:
        packed.append(np.array(seeds, np.uint64).view(np.uint32).reshape(-1, 2))
    return packed


# Makes a context manager from an operation's name and the user's line: source locations in the compiled text.
Scope = Callable[[str, str | None], AbstractContextManager[Any]]


def program(
    graph: Graph,
    constants: Constants,
    context: Context,
    scope: Scope | None = None,
    default: jax.sharding.Sharding | None = None,
    checked: bool = False,
) -> Callable[..., tuple[jax.Array, ...]]:
    """A function `(*buffers, *packed) -> (*results, token)` that computes `graph`; packed as `arrays_of` makes it.

    Nobody donates the token: waiting for it is waiting for the execution. It is the error word (ops/checks.py) if there are checks, else
    a scalar.
    context: says what it is compiled for. scope: entered around each lowering. default: the default sharding of buffers, for manual
    regions. checked: test data.
    """

    def run(*arguments: Any) -> tuple[jax.Array, ...]:
        checks: list[tuple[int, Check]] = []
        env = evaluate(graph, _leaves(graph, constants, arguments), context, scope, default, checks if checked else None)
        token = error_word(checks) if checks else lax.full((), 0, np.uint8)
        return (*_separate([env[slot] for slot in graph.outs], arguments), token)

    return run


def evaluate(
    graph: Graph,
    leaves: Iterable[Any],
    context: Context,
    scope: Scope | None = None,
    default: jax.sharding.Sharding | None = None,
    checks: list[tuple[int, Check]] | None = None,
) -> list[Any]:
    """The value at each slot of `graph`; None where an operation with several results stands.

    leaves: arrays, or numbers for scalar inputs, in the order of their slots. context: says what it is compiled for.
    checks: takes those of data, with their operations' slots.
    """
    rest = iter(leaves)
    env: list[Any] = []
    results: Iterator[Any] = iter(())
    for slot, entry in enumerate(graph.entries):
        if entry is None:
            env.append(next(results))
        elif type(entry) is tuple:
            found: list[Check] | None = None if checks is None else []
            made = _lower(graph, slot, [env[operand] for operand in entry[1:]], context, scope, default, found)
            if checks is not None:
                checks.extend((slot, check) for check in found or ())
            if len(made) == 1:
                env.append(made[0])
            else:
                env.append(None)
                results = iter(made)
        else:
            env.append(next(rest))
            next(results, None)  # a result computed earlier than the operation's others stands here as a leaf
    return env


def _separate(results: list[Any], arguments: tuple[Any, ...]) -> list[Any]:
    """Results that share no buffer with an input or with each other, so that each can be donated alone."""
    seen = {id(argument) for argument in arguments}
    separate = []
    for result in results:
        separate.append(jax.numpy.copy(result) if id(result) in seen else result)
        seen.add(id(result))
    return separate


def _leaves(graph: Graph, constants: Constants, arguments: tuple[Any, ...]) -> list[Any]:
    """The values of the leaves and scalar inputs, in slot order."""
    entries = [entry for entry in graph.entries if isinstance(entry, (Aval, ScalarInput))]
    buffers = iter(arguments[: sum(type(entry) is Aval for entry in entries)])
    columns = _columns(entries, constants, arguments)
    fixed = {ScalarKind.FLOAT: iter(constants.floats), ScalarKind.INT: iter(constants.ints)}
    leaves: list[Any] = []
    for entry in entries:
        if not isinstance(entry, ScalarInput):
            leaves.append(next(buffers))
            continue
        number = next(fixed[entry.kind]) if entry.fixed else None
        if number is None:
            number = next(columns[entry.kind, entry.fixed])
        leaves.append(typed(entry, number))
    return leaves


def _columns(entries: list[Any], constants: Constants, arguments: tuple[Any, ...]) -> dict[tuple[ScalarKind, bool], Iterator[Any]]:
    """Rows of the packed arrays: first the numbers that were always inputs, then those that became inputs."""
    input_data = [entry for entry in entries if isinstance(entry, ScalarInput)]
    became = {ScalarKind.FLOAT: constants.floats.count(None), ScalarKind.INT: constants.ints.count(None), ScalarKind.SEED: 0}
    packed = list(arguments[len(entries) - len(input_data) :])
    columns: dict[tuple[ScalarKind, bool], Iterator[Any]] = {}
    for kind in ScalarKind:
        always = sum(scalar.kind is kind and not scalar.fixed for scalar in input_data)
        if always + became[kind]:
            array = packed.pop(0)
            rows = [array[row] for row in range(array.shape[0])]
            columns[kind, False], columns[kind, True] = iter(rows[:always]), iter(rows[always:])
    return columns


def typed(scalar: ScalarInput, number: Any) -> Any:
    """A scalar input as its lowering expects it: in a 0-d tensor's dtype if it stands for one."""
    if scalar.aval is None:
        return number
    if isinstance(number, (int, float)):
        return jax.numpy.asarray(np.asarray(number).astype(scalar.aval.physical))
    return lax.convert_element_type(number, scalar.aval.physical)


def _lower(
    graph: Graph,
    slot: int,
    operands: list[Any],
    context: Context,
    scope: Scope | None,
    default: jax.sharding.Sharding | None,
    checks: list[Check] | None,
) -> list[Any]:
    """The results of one operation. checks: takes those of its data, outside of manual regions."""
    if default is not None and spans_devices(default):
        signature, *slots = operation(graph, slot)
        if is_boundary(signature):
            return signature.emit(operands, context)  # type: ignore[no-any-return]
        manual = manual_operands(graph.entries, slots)
        if any(manual):
            return on_each_device(lambda local: _lower_here(graph, slot, local, context, scope), operands, manual, default)
    return _lower_here(graph, slot, operands, context, scope, checks)


def _lower_here(
    graph: Graph, slot: int, operands: list[Any], context: Context, scope: Scope | None, checks: list[Check] | None = None
) -> list[Any]:
    signature: Signature = operation(graph, slot)[0]
    try:
        if scope is None:
            # Over a copy: `emit` takes the seed off it, and an error shows all operands.
            results = signature.emit(list(operands), context, checks)
        else:
            with scope(signature.name, graph.line(slot)):
                results = signature.emit(list(operands), context, checks)
    except XlaError as error:
        error.place = graph, slot
        raise
    except (MemoryError, RecursionError):  # not the operation's fault
        raise
    except Exception as error:
        raise _failed(graph, slot, operands, f"{type(error).__name__}: {error}") from error
    wrong = check_results(signature, results)
    if wrong is not None:
        raise _failed(graph, slot, operands, f"its lowering {wrong}")
    return [cast(result, aval) for result, aval in zip(results, signature.outs, strict=True)]


def _failed(graph: Graph, slot: int, operands: list[Any], what: str) -> LoweringError:
    error = LoweringError(_describe(operation(graph, slot)[0], graph.line(slot), operands, what))
    error.place = graph, slot
    return error


def _describe(signature: Signature, line: str | None, operands: list[Any], what: str) -> str:
    shapes = ", ".join(f"{x.dtype}{list(x.shape)}" if isinstance(x, (jax.Array, np.ndarray)) else repr(x) for x in operands)
    where = f", recorded at {line}," if line else ""
    return (
        f"{signature.name} over ({shapes}){where} could not be lowered: {what}. "
        "Until its lowering is mended, run that operation on CPU tensors."
    )
