"""Expressions under construction, and computations: what an expression computes of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from xla_core.legacy.builder.shapes import Shape, shape_of, structs_of

# Makes the result of an operation from arrays (tuples of them for tuples) and its attributes.
Evaluate = Callable[..., Any]


class XlaBuilder:
    """Where the operations of one computation belong. name: of the computation, for messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parameters: dict[int, XlaOp] = {}


@dataclass(frozen=True, eq=False, repr=False)
class XlaOp:
    """An operation of a builder. structs: shape and dtype of the result, a tuple of them for a tuple. evaluate: None for a parameter."""

    builder: XlaBuilder
    name: str
    operands: tuple[XlaOp, ...]
    attributes: Mapping[str, Any]
    evaluate: Evaluate | None
    structs: Any

    def __repr__(self) -> str:
        return f"<{self.name} {Shape(shape_of(self.structs))} of builder {self.builder.name!r}>"


def parameter(builder: XlaBuilder, number: int, shape: Any) -> XlaOp:
    """The parameter of a number, from 0. Raises ValueError for a second one of that number, or a dynamic shape."""
    if number in builder.parameters:
        raise ValueError(f"builder {builder.name!r} has a parameter {number} already")
    made = XlaOp(builder, "Parameter", (), {"parameter_number": number}, None, structs_of(shape))
    builder.parameters[number] = made
    return made


def operation(builder: XlaBuilder, name: str, evaluate: Evaluate, operands: Sequence[XlaOp], attributes: Mapping[str, Any]) -> XlaOp:
    """An operation over others, its shape inferred.

    Raises ValueError for operands of another builder, or that do not fit, TypeError for an attribute that has to be a computation.
    """
    for key, value in attributes.items():
        if key.endswith(("computation", "comparator")) and not isinstance(value, XlaComputation):
            raise TypeError(f"{key} of {name} is a computation, not {value!r}: make one with create_computation")
    for operand in operands:
        if operand.builder is not builder:
            raise ValueError(
                f"{name} takes operations of one builder, but got some of {builder.name!r} and of {operand.builder.name!r}: "
                "what a nested computation needs comes in by its parameters"
            )

    def infer(*arrays: Any) -> Any:
        # Constants as the numbers that they are: what starts a reduction decides which one it is.
        given = [operand.attributes.get("value", array) for operand, array in zip(operands, arrays, strict=True)]
        return evaluate(*given, **attributes)

    try:
        inspect.signature(evaluate).bind(*operands, **attributes)
        with jax.enable_x64(True):
            structs = jax.eval_shape(infer, *[operand.structs for operand in operands])
    except (TypeError, ValueError, IndexError, KeyError) as error:
        shapes = ", ".join(repr(Shape(shape_of(operand.structs))) for operand in operands)
        having = ", ".join(f"{key}={value!r}" for key, value in attributes.items() if value is not None)
        raise ValueError(f"{name} does not fit ({shapes}){' with ' if having else ''}{having}: {error}") from error
    return XlaOp(builder, name, tuple(operands), dict(attributes), evaluate, structs)


@dataclass(frozen=True, eq=False, repr=False)
class XlaComputation:
    """A function of arrays: called with one for each parameter, it computes its result over `jax.lax`.

    parameters: their structs. function: pure, over arrays; tuples stand for tuples.
    """

    name: str
    parameters: tuple[Any, ...]
    function: Callable[..., Any]
    root: XlaOp | None = None

    def check(self, *arrays: Any) -> None:
        """Raise ValueError for arrays (or structs) of other shapes and types than the parameters'."""
        given, wanted = (shape_of(several) for several in (arrays, self.parameters))
        if given != wanted:
            raise ValueError(f"computation {self.name!r} takes {Shape(wanted)}, not {Shape(given)}")

    def __call__(self, *arrays: Any) -> Any:
        self.check(*arrays)
        # All types are explicit: a computation means the same whatever the user's jax settings.
        with jax.enable_x64(True):
            return jax.tree.map(jax.numpy.asarray, self.function(*arrays))

    def __repr__(self) -> str:
        return f"<computation {self.name!r} of {Shape(shape_of(self.parameters))}>"

    @property
    def __name__(self) -> str:
        return self.name


def build(name: str, root: XlaOp) -> XlaComputation:
    """The computation whose result is `root`, over all parameters of its builder. Raises ValueError where numbers are left out."""
    parameters = root.builder.parameters
    if sorted(parameters) != list(range(len(parameters))):
        raise ValueError(f"computation {name!r} has the parameters {sorted(parameters)}: they must be numbered from 0, without gaps")
    chosen = [parameters[number] for number in range(len(parameters))]
    order = _ordered(root)

    def run(*arrays: Any) -> Any:
        known: dict[XlaOp, Any] = dict(zip(chosen, arrays, strict=True))
        for node in order:
            if node.evaluate is not None:
                known[node] = node.evaluate(*[known[operand] for operand in node.operands], **node.attributes)
        return known[root]

    return XlaComputation(name, tuple(one.structs for one in chosen), run, root)


def _ordered(root: XlaOp) -> list[XlaOp]:
    """All operations below `root`, each behind its operands. By a stack of its own: expressions may be deeper than Python's."""
    order: list[XlaOp] = []
    seen: set[XlaOp] = set()
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((operand, False) for operand in node.operands)
    return order


def lowered(computation: XlaComputation) -> Any:
    """`jax.stages.Lowered` of a computation, all of its parameters kept."""
    with jax.enable_x64(True):
        return jax.jit(computation, keep_unused=True).lower(*computation.parameters)


def computation_text(computation: XlaComputation) -> str:
    """The HLO text of a computation, before XLA's own passes."""
    return str(lowered(computation).as_text(dialect="hlo"))
