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
    """The builder to which the operations of one computation belong. name: of the computation, for messages."""

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


def parameter(builder: XlaBuilder, index: int, shape: Any) -> XlaOp:
    """Add the parameter at an index, from 0. Raises ValueError for a second one at that index, or a dynamic shape."""
    if index in builder.parameters:
        raise ValueError(f"builder {builder.name!r} has a parameter {index} already")
    op = XlaOp(builder, "Parameter", (), {"parameter_number": index}, None, structs_of(shape))
    builder.parameters[index] = op
    return op


def operation(builder: XlaBuilder, name: str, evaluate: Evaluate, operands: Sequence[XlaOp], attributes: Mapping[str, Any]) -> XlaOp:
    """Make an operation over others, and infer its shape.

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
        # Pass constants as NumPy values: jax recognises a reduction by its initial value.
        values = [operand.attributes.get("value", array) for operand, array in zip(operands, arrays, strict=True)]
        return evaluate(*values, **attributes)

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
        actual, expected = (shape_of(structs) for structs in (arrays, self.parameters))
        if actual != expected:
            raise ValueError(f"computation {self.name!r} takes {Shape(expected)}, not {Shape(actual)}")

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
    """The computation whose result is `root`, over all parameters of its builder. Raises ValueError if indices are missing."""
    parameters = root.builder.parameters
    if sorted(parameters) != list(range(len(parameters))):
        raise ValueError(f"computation {name!r} has the parameters {sorted(parameters)}: they must be numbered from 0, without gaps")
    in_order = [parameters[index] for index in range(len(parameters))]
    order = _ordered(root)

    def run(*arrays: Any) -> Any:
        results: dict[XlaOp, Any] = dict(zip(in_order, arrays, strict=True))
        for node in order:
            if node.evaluate is not None:
                results[node] = node.evaluate(*[results[operand] for operand in node.operands], **node.attributes)
        return results[root]

    return XlaComputation(name, tuple(op.structs for op in in_order), run, root)


def _ordered(root: XlaOp) -> list[XlaOp]:
    """All operations below `root`, each after its operands. Uses no recursion: expressions may be deeper than Python's stack."""
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
