"""`_foreach_*`: the lists that `torch.optim` works on. Each row maps the row of one tensor over the lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import torch
from jax import lax

from xla_core.ops.elementwise.arithmetic import power
from xla_core.ops.promote import Number, cast, compute_dtype
from xla_core.ops.table import TABLE, Context, Lowering, op

Value = Number | jax.Array
Arrays = list[jax.Array]
_op = partial(op, on_lists=True)

UNARY = (
    "abs acos asin atan ceil clone cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 max "
    "neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero"
).split()
"""Lists of one tensor each; the row has the same name."""
BINARY: Mapping[str, str] = {
    "add": "add.Tensor",
    "clamp_max": "clamp_max.Tensor",
    "clamp_min": "clamp_min.Tensor",
    "div": "div.Tensor",
    "maximum": "maximum",
    "minimum": "minimum",
    "mul": "mul.Tensor",
    "pow": "pow.Tensor_Tensor",
    "sub": "sub.Tensor",
}
"""The row for two tensors; a number in the place of the second is handled by the same kernel."""


def mapped(ctx: Context, row: str, *operands: Sequence[Any], **keywords: Any) -> Arrays:
    """The lowering of `aten::<row>`, once per position of `operands`."""
    lower: Lowering = TABLE[f"aten::{row}"].lower
    columns = zip(ctx.out, *operands, strict=True)
    return [lower(ctx.alone(inferred), *column, **keywords) for inferred, *column in columns]


def repeated(value: Any, tensors: Sequence[Any]) -> list[Any]:
    """`value` once for each tensor."""
    return [value] * len(tensors)


def _register_unary(name: str) -> None:
    @_op(f"_foreach_{name}", beyond_cpu=frozenset({torch.bool} if name == "abs" else ()))  # as the row of one tensor
    def lower(ctx: Context, self: Arrays, **_: Any) -> Arrays:
        return mapped(ctx, name, self)

    lower.__doc__ = f"_foreach_{name}(Tensor[] self) -> Tensor[]."


def _register_binary(name: str, row: str) -> None:
    # The exponent decides which program is best (x * x for 2), so it stays a constant.
    scalars = () if name == "pow" else ("scalar", "scalars")

    @_op(f"_foreach_{name}.Scalar", scalars=scalars)
    def with_scalar(ctx: Context, self: Arrays, scalar: Value) -> Arrays:
        return mapped(ctx, row, self, repeated(scalar, self))

    @_op(f"_foreach_{name}.ScalarList", scalars=scalars)
    def with_scalars(ctx: Context, self: Arrays, scalars: Iterable[Value]) -> Arrays:
        return mapped(ctx, row, self, list(scalars))

    @_op(f"_foreach_{name}.List", scalars=("alpha",))
    def with_list(ctx: Context, self: Arrays, other: Arrays, **alpha: Value) -> Arrays:
        return mapped(ctx, row, self, other, **alpha)


for _name in UNARY:
    _register_unary(_name)
for _name, _row in BINARY.items():
    _register_binary(_name, _row)


@_op("_foreach_add.Tensor", scalars=("alpha",))
def _add_tensor(ctx: Context, self: Arrays, other: jax.Array, *, alpha: Value = 1) -> Arrays:
    """_foreach_add.Tensor(Tensor[] self, Tensor other, *, Scalar alpha=1) -> Tensor[]."""
    return mapped(ctx, "add.Tensor", self, repeated(other, self), alpha=alpha)


@_op("_foreach_mul.Tensor")
def _mul_tensor(ctx: Context, self: Arrays, other: jax.Array) -> Arrays:
    """_foreach_mul.Tensor(Tensor[] self, Tensor other) -> Tensor[]."""
    return mapped(ctx, "mul.Tensor", self, repeated(other, self))


@_op("_foreach_div.Tensor")
def _div_tensor(ctx: Context, self: Arrays, other: jax.Array) -> Arrays:
    """_foreach_div.Tensor(Tensor[] self, Tensor other) -> Tensor[]."""
    return mapped(ctx, "div.Tensor", self, repeated(other, self))


@_op("_foreach_pow.ScalarAndTensor", scalars=("self",))
def _pow_scalar_and_tensor(ctx: Context, self: Value, exponent: Arrays) -> Arrays:
    """_foreach_pow.ScalarAndTensor(Scalar self, Tensor[] exponent) -> Tensor[]."""
    return mapped(ctx, "pow.Scalar", repeated(self, exponent), exponent)


def _register_ternary(name: str) -> None:
    """`_foreach_addcmul` and `_foreach_addcdiv`, whose factor comes as a number, as numbers or as a vector."""

    def each(ctx: Context, tensors: tuple[Arrays, Arrays, Arrays], factors: Sequence[Value]) -> Arrays:
        lower = TABLE[f"aten::{name}"].lower
        columns = zip(ctx.out, *tensors, factors, strict=True)
        return [lower(ctx.alone(inferred), x, y, z, value=factor) for inferred, x, y, z, factor in columns]

    @_op(f"_foreach_{name}.Scalar", scalars=("value",))
    def with_scalar(ctx: Context, self: Arrays, tensor1: Arrays, tensor2: Arrays, value: Value = 1) -> Arrays:
        return each(ctx, (self, tensor1, tensor2), repeated(value, self))

    @_op(f"_foreach_{name}.ScalarList", scalars=("scalars",))
    def with_scalars(ctx: Context, self: Arrays, tensor1: Arrays, tensor2: Arrays, scalars: Iterable[Value]) -> Arrays:
        return each(ctx, (self, tensor1, tensor2), list(scalars))

    @_op(f"_foreach_{name}.Tensor")
    def with_vector(ctx: Context, self: Arrays, tensor1: Arrays, tensor2: Arrays, scalars: jax.Array) -> Arrays:
        return each(ctx, (self, tensor1, tensor2), [lax.index_in_dim(scalars, i, keepdims=False) for i in range(len(self))])


for _name in ("addcmul", "addcdiv"):
    _register_ternary(_name)


@_op("_foreach_lerp.List")
def _lerp_list(ctx: Context, self: Arrays, tensors1: Arrays, weights: Arrays) -> Arrays:
    """_foreach_lerp.List(Tensor[] self, Tensor[] tensors1, Tensor[] weights) -> Tensor[]."""
    return mapped(ctx, "lerp.Tensor", self, tensors1, weights)


@_op("_foreach_lerp.ScalarList", scalars=("weight",))
def _lerp_scalars(ctx: Context, self: Arrays, tensors1: Arrays, weight: Iterable[Value]) -> Arrays:
    """_foreach_lerp.ScalarList(Tensor[] self, Tensor[] tensors1, Scalar[] weight) -> Tensor[]."""
    return mapped(ctx, "lerp.Scalar", self, tensors1, list(weight))


@_op("_foreach_lerp.Scalar", scalars=("weight",))
def _lerp_scalar(ctx: Context, self: Arrays, tensors1: Arrays, weight: Value) -> Arrays:
    """_foreach_lerp.Scalar(Tensor[] self, Tensor[] tensors1, Scalar weight) -> Tensor[]."""
    return mapped(ctx, "lerp.Scalar", self, tensors1, repeated(weight, self))


@_op("_foreach_copy")
def _copy(ctx: Context, self: Arrays, src: Arrays, non_blocking: bool = False) -> Arrays:
    """_foreach_copy(Tensor[] self, Tensor[] src, bool non_blocking=False) -> Tensor[]."""
    return mapped(ctx, "copy", self, src)


@_op("_foreach_norm.Scalar")
def _norm(ctx: Context, self: Arrays, ord: float = 2, dtype: Any = None) -> Arrays:
    """_foreach_norm.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None) -> Tensor[]."""
    return mapped(ctx, "linalg_vector_norm", self, ord=ord)


def _power_sum(ctx: Context, x: jax.Array, order: float) -> jax.Array:
    size = cast(lax.abs(x), compute_dtype(ctx.dtype))
    return cast(lax.reduce_sum(power(size.dtype, size, order), tuple(range(x.ndim))), ctx.dtype)


@_op("_foreach_powsum.Scalar")
def _powsum(ctx: Context, self: Arrays, ord: float = 2, dtype: Any = None) -> Arrays:
    """_foreach_powsum.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None) -> Tensor[]."""
    return [_power_sum(ctx.alone(inferred), x, ord) for inferred, x in zip(ctx.out, self, strict=True)]
