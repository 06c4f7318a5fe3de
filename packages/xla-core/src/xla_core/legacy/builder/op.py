"""`Op`, an operation as users write with it: operators, and methods by the names of 2.9's builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_core.legacy.builder import nodes, shapes
from xla_core.legacy.builder.constants import array_of, number_of, operand_array, scalar_array
from xla_core.legacy.builder.methods import Methods
from xla_core.legacy.builder.nodes import XlaBuilder, XlaComputation, XlaOp
from xla_core.legacy.builder.shapes import Shape
from xla_core.legacy.builder.table import operator


def mkop(name: str, ops: Sequence[Any], **kwargs: Any) -> Op:
    """The operation of this name in the builder's table, over `ops`. kwargs: its attributes.

    Raises ValueError for an unknown name, for operations of two builders, and for shapes or attributes that do not fit; TypeError for
    operands that are no operations.
    """
    operands = Op._extract_xla_ops(ops)
    if not operands:
        raise ValueError(f"{name} over no operations needs its builder: use mkleaf")
    return Op(nodes.operation(operands[0].builder, name, operator(name), operands, kwargs))


def mkleaf(name: str, builder: XlaBuilder, **kwargs: Any) -> Op:
    """An operation without operands: "Constant", "Iota" or an empty "Tuple"."""
    return Op(nodes.operation(builder, name, operator(name), (), kwargs))


def mkparam(builder: XlaBuilder, param_no: int, shape: Shape) -> Op:
    """The parameter at an index, from 0, of a computation under construction."""
    if not isinstance(shape, Shape):
        raise TypeError(f"the shape of parameter {param_no} is a Shape, not a {type(shape).__name__}: mkshape and tensor_shape make one")
    return Op(nodes.parameter(builder, param_no, shape.shape))


def create_computation(name: str, fn: Callable[..., Any], shapes: Sequence[Shape], **kwargs: Any) -> XlaComputation:
    """The computation of `fn(*parameters, **kwargs)`, called once with an `Op` for each shape; it returns one, or several.

    A function of no parameters makes its operations with a builder of its own.
    """
    builder = XlaBuilder(name)
    parameters = [mkparam(builder, index, shape) for index, shape in enumerate(shapes)]
    root = fn(*parameters, **kwargs)
    if isinstance(root, (tuple, list)):
        root = Op.tuple(root, builder=builder)
    if not isinstance(root, Op):
        raise TypeError(f"the function of computation {name!r} gave a {type(root).__name__}: it has to give an Op, or several")
    if shapes and root.op.builder is not builder:
        raise ValueError(f"the result of computation {name!r} belongs to builder {root.op.builder.name!r}: it uses none of its parameters")
    return root.build(name)


class Op(Methods):
    """An operation of a builder. Its methods and operators make others of the same builder; nothing runs.

    A number (of Python or NumPy, or a tensor without dimensions) in the place of an operand is a constant of the other one's type; a float
    beside integers is a ValueError.
    """

    def __init__(self, op: XlaOp) -> None:
        self.op = op

    def shape(self) -> Shape:
        """The shape of the result."""
        return Shape(shapes.shape_of(self.op.structs))

    def builder(self) -> XlaBuilder:
        """The builder that the operation belongs to."""
        return self.op.builder

    def build(self, name: str) -> XlaComputation:
        """The computation that gives this result, over all parameters of the builder."""
        return nodes.build(name, self.op)

    def _make(self, name: str, *others: Any, **kwargs: Any) -> Op:
        return mkop(name, (self, *[self._operand(name, operand) for operand in others]), **kwargs)

    def _operand(self, name: str, value: Any, like: Any = None) -> Op:
        if isinstance(value, (Op, XlaOp)):
            return value if isinstance(value, Op) else Op(value)
        dtype = self.shape().dtype if like is None else like
        return mkleaf("Constant", self.builder(), value=operand_array(value, dtype, name))

    def dynamic_slice(self, start_indices: Any, slice_sizes: Sequence[int]) -> Op:
        """A slice that begins where operations (or numbers) say: one for each dimension, or one vector of them."""
        return self._make("DynamicSlice", *self._starts(start_indices), slice_sizes=slice_sizes)

    def dynamic_update_slice(self, update: Op, start_indices: Any) -> Op:
        """This array, with `update` written where operations (or numbers) say."""
        return self._make("DynamicUpdateSlice", update, *self._starts(start_indices))

    def _starts(self, starts: Any) -> list[Op]:
        indices = starts if isinstance(starts, (tuple, list)) else (starts,)
        dtype = next((index.shape().dtype for index in indices if isinstance(index, Op)), "s32")
        return [self._operand("a start index", index, dtype) for index in indices]

    def select(self, true_value: Op, false_value: Op) -> Op:
        """One value where this is true, the other where it is not; one of them may be a number."""
        values = true_value, false_value
        dtype = next((value.shape().dtype for value in values if isinstance(value, Op)), None)
        if dtype is None:
            raise TypeError("Select between two numbers does not say their type: make one with Op.scalar")
        return self._make("Select", *[self._operand("Select", value, dtype) for value in values])

    def conditional(self, true_operand: Any, false_operand: Any, true_computation: XlaComputation, false_computation: XlaComputation) -> Op:
        """The result of one of two computations, which this predicate chooses."""
        choices = (true_operand, true_computation), (false_operand, false_computation)
        operands = [typed for operand, computation in choices for typed in _typed((operand,), computation, self)]
        return self._make("Conditional", *operands, true_computation=true_computation, false_computation=false_computation)

    @classmethod
    def wrap_function(cls, fn: Callable[..., Any]) -> Callable[..., Op]:
        """`fn` of several operations as a function of one tuple; several results become a tuple."""

        def wrapped(elements: Op, **kwargs: Any) -> Op:
            result = fn(*[elements.get_tuple_element(index) for index in range(elements.shape().tuple_size())], **kwargs)
            return cls.tuple(result) if isinstance(result, (tuple, list)) else result

        return wrapped

    @classmethod
    def make_computation(cls, name: str, computation: Any, args_or_shapes: Sequence[Any], **kwargs: Any) -> XlaComputation:
        """The computation itself, or the computation of a function over shapes (or operations with these shapes)."""
        if isinstance(computation, XlaComputation):
            return computation
        return create_computation(name, computation, [item.shape() if isinstance(item, Op) else item for item in args_or_shapes], **kwargs)

    def mkconditional(self, ops: Sequence[Op], true_fn: Any, false_fn: Any, **kwargs: Any) -> Op:
        """The result of one of two functions (or computations of a tuple) over `ops`, which this predicate chooses."""
        operands = Op.tuple(ops)
        branches = [
            branch if isinstance(branch, XlaComputation) else Op.make_computation(name, Op.wrap_function(branch), (operands,), **kwargs)
            for name, branch in (("CondTrue", true_fn), ("CondFalse", false_fn))
        ]
        return self.conditional(operands, operands, *branches)

    @classmethod
    def mkwhile(cls, ops: Sequence[Op], condition_fn: Any, body_fn: Any, **kwargs: Any) -> Op:
        """The tuple of `ops` after body_fn, again and again while condition_fn holds.

        The functions take one operation for each of `ops` (and kwargs), or are computations of the tuple.
        """
        state = Op.tuple(ops)
        computations = [
            function if isinstance(function, XlaComputation) else Op.make_computation(name, Op.wrap_function(function), (state,), **kwargs)
            for name, function in (("WhileCondition", condition_fn), ("WhileBody", body_fn))
        ]
        return state.while_loop(*computations)

    def get_dimension_size(self, dimension: int) -> Op:
        """The size of a dimension, an s32. It is known now: a constant."""
        sizes = self.shape().sizes
        if not 0 <= dimension < len(sizes):
            raise ValueError(f"dimension {dimension} is out of range for {self.shape()}")
        return Op.scalar(self.builder(), sizes[dimension], "s32")

    def set_dimension_size(self, size: Any, dimension: int) -> Op:
        """Itself for its own size; raises ValueError or NotImplementedError for another."""
        return self._make("SetDimensionSize", self._operand("SetDimensionSize", size, "s32"), dimension=dimension)

    def scalar_like(self, value: Any) -> Op:
        """A number of this one's type and builder."""
        return Op.scalar(self.builder(), value, self.shape().dtype)

    def zeros_like(self) -> Op:
        """Zeros of the same shape and type."""
        return self.scalar_like(0).broadcast(self.shape().sizes)

    def ones_like(self) -> Op:
        """Ones of the same shape and type."""
        return self.scalar_like(1).broadcast(self.shape().sizes)

    @classmethod
    def _extract_xla_ops(cls, ops: Sequence[Any]) -> list[XlaOp]:
        for op in ops:
            if not isinstance(op, (Op, XlaOp)):
                raise TypeError(f"an operand is an Op, not a {type(op).__name__}: make one with Op.scalar or Op.constant")
        return [op.op if isinstance(op, Op) else op for op in ops]

    @classmethod
    def tuple(cls, ops: Sequence[Any], builder: XlaBuilder | None = None) -> Op:
        """A tuple of several results. builder: needed if there are none."""
        return _over(builder, "Tuple", ops)

    @classmethod
    def concat_in_dim(cls, ops: Sequence[Any], dimension: int, builder: XlaBuilder | None = None) -> Op:
        """Concatenate operations along a dimension."""
        return _over(builder, "ConcatInDim", ops, dimension=dimension)

    @classmethod
    def call(cls, computation: XlaComputation, ops: Sequence[Any], builder: XlaBuilder | None = None) -> Op:
        """A computation applied to operations (or, for some of them, numbers)."""
        return _over(builder, "Call", _typed(ops, computation), computation=computation)

    @classmethod
    def constant(cls, builder: XlaBuilder, value: Any) -> Op:
        """A tensor, a NumPy array, a nested list or a number as it is; numbers have torch's types."""
        return mkleaf("Constant", builder, value=array_of(value))

    @classmethod
    def scalar(cls, builder: XlaBuilder, value: Any, dtype: str | None = None) -> Op:
        """One number; f32 where no type is named, c64 for a complex one. Raises ValueError for one that the type cannot hold."""
        chosen = dtype or ("c64" if isinstance(number_of(value), complex) else "f32")
        return mkleaf("Constant", builder, value=scalar_array(value, chosen))

    @classmethod
    def zero(cls, builder: XlaBuilder, dtype: str | None = None) -> Op:
        """The number 0."""
        return cls.scalar(builder, 0, dtype)

    @classmethod
    def one(cls, builder: XlaBuilder, dtype: str | None = None) -> Op:
        """The number 1."""
        return cls.scalar(builder, 1, dtype)

    @classmethod
    def iota(cls, builder: XlaBuilder, shape: Shape, iota_dimension: int) -> Op:
        """The index in one dimension, everywhere in a shape."""
        return mkleaf("Iota", builder, shape=shape.shape, iota_dimension=iota_dimension)

    @classmethod
    def sort(cls, ops: Sequence[Any], comparator: XlaComputation, dimension: int | None = None, is_stable: bool | None = None) -> Op:
        """Operations sorted together along a dimension (the last if None); the comparator takes a pair of numbers of each."""
        return mkop("Sort", ops, comparator=comparator, dimension=dimension, is_stable=is_stable)

    @classmethod
    def map(
        cls,
        ops: Sequence[Any],
        computation: XlaComputation,
        dimensions: Sequence[int],
        static_operands: Sequence[Any] = (),
        builder: XlaBuilder | None = None,
    ) -> Op:
        """A computation of numbers applied to all elements of operations."""
        return _over(
            builder, "Map", _typed(ops, computation), computation=computation, dimensions=dimensions, static_operands=static_operands
        )

    @classmethod
    def to_torch_type(cls, dtype: str) -> torch.dtype:
        """The torch dtype of a type's name."""
        return shapes.to_torch_type(dtype)

    @classmethod
    def from_torch_type(cls, dtype: torch.dtype) -> str:
        """The type's name of a torch dtype."""
        return shapes.from_torch_type(dtype)


def _typed(ops: Sequence[Any], computation: XlaComputation, owner: Op | None = None) -> list[Any]:
    """Replace the numbers among `ops` by constants of the types that the computation takes. owner: an operation of their builder."""
    first = next((op for op in (owner, *ops) if isinstance(op, Op)), None)
    if first is None or not isinstance(computation, XlaComputation) or len(ops) != len(computation.parameters):
        return list(ops)
    expected = [shapes.shape_of(struct) for struct in computation.parameters]
    return [op if isinstance(shape, list) else first._operand("Call", op, shape["type"]) for op, shape in zip(ops, expected, strict=True)]


def _over(builder: XlaBuilder | None, name: str, ops: Sequence[Any], **kwargs: Any) -> Op:
    return mkop(name, ops, **kwargs) if ops or builder is None else mkleaf(name, builder, **kwargs)
