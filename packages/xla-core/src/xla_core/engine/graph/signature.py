"""An operation at one set of argument shapes, dtypes and constants: all that is the same for every such call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import torch

from xla_core.engine.graph.aval import Aval
from xla_core.ops.checks import Check
from xla_core.ops.table import Context


class Placeholder:
    """Marks an operand, a tensor or a scalar input, among a signature's arguments."""

    def __repr__(self) -> str:
        return "%"


PLACEHOLDER = Placeholder()


class Signature:
    """An operation at one set of argument shapes and constants, and how to lower it.

    name: the overload as the user's code called it (`aten.add_.Tensor`).
    args, kwargs: the arguments with PLACEHOLDER wherever an operand goes, in operand order.
    inferred: what the lowering must return; outs: what the slots hold (an in-place result takes the dtype it is written to).
    line: the user's `file:line` that recorded this signature first.
    pack: makes the caller's results from their values; None if the result is one bare tensor.
    has_side_effects: must not run twice.
    target: the row of the op table that lowers it (`aten::add.Tensor`); empty for operations that have none.
    scheduled: an optimizer's operation, whose numbers may change with each step.
    has_bodies: it evaluates recorded functions, perhaps in a loop.
    """

    __slots__ = (
        "__weakref__",
        "args",
        "has_bodies",
        "has_side_effects",
        "kwargs",
        "line",
        "lower",
        "name",
        "outs",
        "pack",
        "inferred",
        "random",
        "scheduled",
        "target",
    )

    def __init__(
        self,
        name: str,
        lower: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inferred: tuple[Aval | None, ...],
        outs: tuple[Aval | None, ...] | None = None,
        random: bool = False,
        line: str | None = None,
        pack: Callable[[list[Any]], Any] | None = None,
        has_side_effects: bool = False,
        target: str = "",
        scheduled: bool = False,
        has_bodies: bool = False,
    ) -> None:
        self.name = name
        self.lower = lower
        self.args = args
        self.kwargs = kwargs
        self.inferred = inferred
        self.outs = inferred if outs is None else outs
        self.random = random
        self.line = line
        self.pack = pack
        self.has_side_effects = has_side_effects
        self.target = target
        self.scheduled = scheduled
        self.has_bodies = has_bodies

    def emit(self, operands: list[Any], program: Context, checks: list[Check] | None = None) -> list[Any]:
        """The results over jax operands (arrays, or numbers for scalar inputs; last the seed if random).

        program: has the platform and the mesh that it is compiled for. checks: the list to which checks of data are added.
        Raises WrongResult if the results differ from the inferred ones.
        """
        return _check_and_cast(self, self.call(operands, program, checks))

    def call(self, operands: list[Any], program: Context, checks: list[Check] | None = None) -> list[Any]:
        """Like `emit`, but does not check results: at the boundary of a manual region they differ from those inferred for one device."""
        # Recording puts the seed last, behind the operands of all arguments.
        seed = operands.pop() if self.random else None
        remaining = iter(operands)
        args = [fill(arg, remaining) for arg in self.args]
        kwargs = {name: fill(arg, remaining) for name, arg in self.kwargs.items()}
        out = tuple([None if aval is None else aval.struct for aval in self.inferred])
        context = Context(out, seed, checks, program.platform, program.mesh, program.model)
        result = self.lower(context, *args, **kwargs)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    def named_dtypes(self) -> set[torch.dtype]:
        """The dtypes among the constant arguments: in `sum(x, dtype=torch.float64)` the sum is computed in it."""
        return {arg for arg in (*self.args, *self.kwargs.values()) if isinstance(arg, torch.dtype)}

    def text(self) -> str:
        """The same text in every process for the same operation (part of the on-disk key)."""
        inner = [repr(arg) for arg in self.args] + [f"{name}={arg!r}" for name, arg in self.kwargs.items()]
        return f"{self.name}({', '.join(inner)})->{_texts(self.inferred)};{_texts(self.outs)}"

    def call_text(self, slots: Sequence[int]) -> str:
        """`aten.add.Tensor(%1, %2, alpha=2)` for a call with the operands at these slots."""
        names = iter([f"%{slot}" for slot in slots])
        texts = [_argument_text(argument, names) for argument in self.args]
        texts += [f"{name}={_argument_text(argument, names)}" for name, argument in self.kwargs.items()]
        texts += [f"seed={name}" for name in names]
        return f"{self.name}({', '.join(texts)})"

    def __repr__(self) -> str:
        return f"Signature({self.text()})"


def _texts(avals: Sequence[Aval | None]) -> str:
    return ",".join(["None" if aval is None else aval.text for aval in avals])


def _argument_text(argument: Any, names: Iterator[str]) -> str:
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join([_argument_text(item, names) for item in argument])}]"
    return next(names) if argument is PLACEHOLDER else repr(argument)


def blank(aval: Aval) -> Signature:
    """The operation behind `torch.empty`: zeros, so that programs are reproducible."""
    # One object for each aval: programs compare operations by identity.
    if aval.blank is None:
        aval.blank = Signature("xla.empty", lambda context: jax.lax.full(context.shape, 0, context.dtype), (), {}, (aval,))
    signature: Signature = aval.blank
    return signature


def fill(arg: Any, operands: Iterator[Any]) -> Any:
    """`arg` with every PLACEHOLDER replaced by the next operand."""
    if arg is PLACEHOLDER:
        return next(operands)
    if isinstance(arg, (list, tuple)):
        return type(arg)([fill(item, operands) for item in arg])
    return arg


class WrongResult(Exception):
    """The results of a lowering differ from the inferred ones; the message says how."""


def _check_and_cast(signature: Signature, results: list[Any]) -> list[Any]:
    """A lowering's results, cast to the dtypes of their slots. Raises WrongResult if they differ from the inferred ones."""
    if len(results) != len(signature.inferred):
        raise WrongResult(f"gave {len(results)} results where {len(signature.inferred)} were inferred")
    cast = []
    for index, (result, aval, out) in enumerate(zip(results, signature.inferred, signature.outs, strict=True)):
        if (result is None) != (aval is None):
            raise WrongResult(f"result {index} is {'missing' if result is None else 'unexpected'}")
        if aval is not None and (result.shape != aval.shape or result.dtype != aval.physical):
            raise WrongResult(f"result {index} is {result.dtype}{list(result.shape)}, inferred was {aval} (on the device {aval.physical})")
        if result is not None and out is not None and result.dtype != out.physical:
            result = jax.lax.convert_element_type(result, out.physical)
        cast.append(result)
    return cast
