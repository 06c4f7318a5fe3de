"""An operation at one set of argument shapes, dtypes and constants: everything about it that is known once and for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from xla_core.ir.aval import Aval
from xla_core.ops.checks import Check
from xla_core.ops.table import Context


class Hole:
    """The place of a tensor or of a fed number in a signature's arguments."""

    def __repr__(self) -> str:
        return "%"


HOLE = Hole()


class Signature:
    """An operation at one set of argument shapes and constants, and how to lower it.

    name: the overload as the user's code called it (`aten.add_.Tensor`).
    args, kwargs: the arguments with HOLE wherever an operand goes, in operand order.
    promised: what the lowering must return; outs: what the slots hold (an in-place result takes the dtype it is written to).
    line: the user's `file:line` that recorded this signature first.
    pack: makes what the caller gets from the values of the results; None if that is one bare tensor.
    once: must not run twice.
    """

    __slots__ = ("__weakref__", "args", "kwargs", "line", "lower", "name", "once", "outs", "pack", "promised", "random")

    def __init__(
        self,
        name: str,
        lower: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        promised: tuple[Aval | None, ...],
        outs: tuple[Aval | None, ...] | None = None,
        random: bool = False,
        line: str | None = None,
        pack: Callable[[list[Any]], Any] | None = None,
        once: bool = False,
    ) -> None:
        self.name = name
        self.lower = lower
        self.args = args
        self.kwargs = kwargs
        self.promised = promised
        self.outs = promised if outs is None else outs
        self.random = random
        self.line = line
        self.pack = pack
        self.once = once

    def emit(self, operands: list[Any], checks: list[Check] | None = None) -> list[Any]:
        """The results over jax operands (arrays, or numbers for fed scalars; last the seed if random). checks: takes those of data."""
        seed = operands.pop() if self.random else None
        rest = iter(operands)
        args = [fill(arg, rest) for arg in self.args]
        kwargs = {name: fill(arg, rest) for name, arg in self.kwargs.items()}
        context = Context(tuple(None if aval is None else aval.struct for aval in self.promised), seed, checks)
        result = self.lower(context, *args, **kwargs)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    def text(self) -> str:
        """The same text in every process for the same operation (part of the on-disk key)."""
        inner = [repr(arg) for arg in self.args] + [f"{name}={arg!r}" for name, arg in self.kwargs.items()]
        return f"{self.name}({', '.join(inner)})->{','.join(map(repr, self.promised))};{','.join(map(repr, self.outs))}"

    def __repr__(self) -> str:
        return f"Signature({self.text()})"


def blank(aval: Aval) -> Signature:
    """The operation behind `torch.empty`: zeros, so that programs are reproducible."""
    if aval.blank is None:
        aval.blank = Signature("xla.empty", lambda context: jax.lax.full(context.shape, 0, context.dtype), (), {}, (aval,))
    signature: Signature = aval.blank
    return signature


def fill(arg: Any, operands: Iterator[Any]) -> Any:
    """`arg` with every HOLE replaced by the next operand."""
    if arg is HOLE:
        return next(operands)
    if isinstance(arg, (list, tuple)):
        return type(arg)([fill(item, operands) for item in arg])
    return arg


def check_results(signature: Signature, results: list[Any]) -> str | None:
    """Check a lowering's results against what was promised: the difference in words, or None."""
    if len(results) != len(signature.promised):
        return f"gave {len(results)} results where {len(signature.promised)} were inferred"
    for number, (result, aval) in enumerate(zip(results, signature.promised, strict=True)):
        if (result is None) != (aval is None):
            return f"result {number} is {'missing' if result is None else 'unexpected'}"
        if aval is not None and (result.shape != aval.shape or result.dtype != aval.physical):
            return f"result {number} is {result.dtype}{list(result.shape)}, inferred was {aval} (on the device {aval.physical})"
    return None


def cast(result: jax.Array | None, aval: Aval | None) -> jax.Array | None:
    """A result in the dtype its slot holds."""
    if result is None or aval is None or result.dtype == aval.physical:
        return result
    return jax.lax.convert_element_type(result, aval.physical)
