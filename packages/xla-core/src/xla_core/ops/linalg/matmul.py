"""Matrix products: mm, bmm, their add- forms, vector products, linear and matmul with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.elementwise.activation import gelu, relu
from xla_core.ops.facts import Autocast
from xla_core.ops.promote import Number, broadcast, cast, compute_dtype, expand, is_complex
from xla_core.ops.table import Context, op, scalar, without_lowering

Axes = Sequence[int]


def contract(
    a: jax.Array, b: jax.Array, axes: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ()), ctx: Context | None = None
) -> jax.Array:
    """Sum of products over `axes`, in the dtype that CPU torch accumulates in: float32 for half, int32 for short integers.

    ctx: of an operation whose program may run over a mesh of accelerators. There each device sums in float32, and if a sum is one of
    several devices' it is rounded before they exchange it: half the bytes.
    """
    dtype = compute_dtype(a.dtype)
    if ctx is not None and ctx.mesh is not None and ctx.platform != "cpu" and dtype == np.float32:
        dtype = a.dtype
    if dtype.kind in "iu" and dtype.itemsize < 4:
        dtype = np.dtype(np.int32)
    numbers = ((tuple(axes[0]), tuple(axes[1])), (tuple(batch[0]), tuple(batch[1])))
    product = partial(lax.dot_general, dimension_numbers=numbers, preferred_element_type=dtype)
    if dtype.kind in "iu" and dtype.itemsize == 8:  # XLA:TPU multiplies 64-bit integers element by element only
        summed: jax.Array = lax.platform_dependent(a, b, tpu=partial(sum_of_products, numbers=numbers), default=product)
        return summed
    return product(a, b)


def sum_of_products(a: jax.Array, b: jax.Array, numbers: tuple[tuple[Axes, Axes], tuple[Axes, Axes]]) -> jax.Array:
    """`lax.dot_general` of integers without a product of matrices: the compiler fuses the products into their sum."""
    contracted, batch = numbers

    def arranged(x: jax.Array, batch: Axes, contracted: Axes) -> tuple[jax.Array, tuple[int, ...]]:
        free = tuple(axis for axis in range(x.ndim) if axis not in (*batch, *contracted))
        return lax.transpose(x, (*batch, *free, *contracted)), tuple(x.shape[axis] for axis in free)

    (left, rows), (right, columns) = arranged(a, batch[0], contracted[0]), arranged(b, batch[1], contracted[1])
    lead = len(batch[0])
    left = lax.expand_dims(left, range(lead + len(rows), lead + len(rows) + len(columns)))
    right = lax.expand_dims(right, range(lead, lead + len(rows)))
    shape = lax.broadcast_shapes(left.shape, right.shape)
    summed = tuple(range(len(shape) - len(contracted[0]), len(shape)))
    return lax.reduce_sum(lax.mul(expand(left, shape), expand(right, shape)), summed)


def matrix_product(a: jax.Array, b: jax.Array, ctx: Context | None = None) -> jax.Array:
    """a @ b over the last two dimensions; equal leading dimensions are batches. Not cast back from the dtype of `contract`."""
    lead = tuple(range(a.ndim - 2))
    return contract(a, b, ((a.ndim - 1,), (b.ndim - 2,)), (lead, lead), ctx)


def _scaled(factor: Number | jax.Array, x: jax.Array) -> jax.Array:
    """`factor * x`, leaving `x` alone for a constant 1."""
    if not isinstance(factor, jax.Array) and factor == 1:
        return x
    return lax.mul(scalar(factor, x.dtype), x)


def accumulate(ctx: Context, base: jax.Array, product: jax.Array, beta: Number | jax.Array, alpha: Number | jax.Array) -> jax.Array:
    """`beta * base + alpha * product` as a result; beta = 0 ignores `base` altogether, NaN included."""
    product = _scaled(alpha, expand(cast(product, compute_dtype(product.dtype)), ctx.shape))
    if not isinstance(beta, jax.Array) and beta == 0:
        return cast(product, ctx.dtype)
    addend = _scaled(beta, expand(cast(base, product.dtype), ctx.shape))
    if isinstance(beta, jax.Array):
        addend = lax.select(expand(lax.eq(beta, lax.full_like(beta, 0)), ctx.shape), lax.full_like(addend, 0), addend)
    return cast(lax.add(addend, product), ctx.dtype)


@op("mm", "bmm", "mm.dtype", "bmm.dtype", autocast=Autocast.LOWER)
@op("_int_mm")
def mm(ctx: Context, a: jax.Array, b: jax.Array, out_dtype: object = None) -> jax.Array:
    """mm(Tensor self, Tensor mat2) -> Tensor, batched or not, and with a wider result."""
    if ctx.dtype.itemsize > a.dtype.itemsize:
        a, b = cast(a, ctx.dtype), cast(b, ctx.dtype)
    return cast(matrix_product(a, b, ctx), ctx.dtype)


@op("_foreach_mm", on_lists=True)
def foreach_mm(ctx: Context, left: list[jax.Array], right: list[jax.Array]) -> list[jax.Array]:
    """_foreach_mm(Tensor[] self, Tensor[] mat2) -> Tensor[]"""
    return [cast(matrix_product(a, b, ctx), a.dtype) for a, b in zip(left, right, strict=True)]


@op("addmm", "baddbmm", scalars=("beta", "alpha"), autocast=Autocast.LOWER)
def addmm(ctx: Context, base: jax.Array, a: jax.Array, b: jax.Array, *, beta: Number = 1, alpha: Number = 1) -> jax.Array:
    """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor, batched or not"""
    return accumulate(ctx, base, matrix_product(a, b, ctx), beta, alpha)


@op("addmm.dtype", "baddbmm.dtype", scalars=("beta", "alpha"), autocast=Autocast.LOWER)
def addmm_dtype(
    ctx: Context, base: jax.Array, a: jax.Array, b: jax.Array, out_dtype: object, *, beta: Number = 1, alpha: Number = 1
) -> jax.Array:
    """addmm.dtype(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return accumulate(ctx, base, matrix_product(cast(a, ctx.dtype), cast(b, ctx.dtype)), beta, alpha)


@op("addbmm", scalars=("beta", "alpha"), autocast=Autocast.LOWER)
def addbmm(ctx: Context, base: jax.Array, a: jax.Array, b: jax.Array, *, beta: Number = 1, alpha: Number = 1) -> jax.Array:
    """addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor, summed over the batch"""
    return accumulate(ctx, base, contract(a, b, ((0, 2), (0, 1)), ctx=ctx), beta, alpha)


@op("mv", autocast=Autocast.LOWER)
def mv(ctx: Context, matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """mv(Tensor self, Tensor vec) -> Tensor"""
    return cast(contract(matrix, vector, ((1,), (0,)), ctx=ctx), ctx.dtype)


@op("addmv", scalars=("beta", "alpha"), autocast=Autocast.LOWER)
def addmv(ctx: Context, base: jax.Array, matrix: jax.Array, vector: jax.Array, *, beta: Number = 1, alpha: Number = 1) -> jax.Array:
    """addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return accumulate(ctx, base, contract(matrix, vector, ((1,), (0,)), ctx=ctx), beta, alpha)


def _conjugate(x: jax.Array) -> jax.Array:
    return lax.conj(x) if is_complex(x.dtype) else x


@op("dot")
def dot(ctx: Context, a: jax.Array, b: jax.Array) -> jax.Array:
    """dot(Tensor self, Tensor tensor) -> Tensor"""
    return cast(contract(a, b, ((0,), (0,)), ctx=ctx), ctx.dtype)


@op("vdot")
def vdot(ctx: Context, a: jax.Array, b: jax.Array) -> jax.Array:
    """vdot(Tensor self, Tensor other) -> Tensor"""
    return dot(ctx, _conjugate(a), b)


@op("addr", scalars=("beta", "alpha"), autocast=Autocast.LOWER)
def addr(ctx: Context, base: jax.Array, a: jax.Array, b: jax.Array, *, beta: Number = 1, alpha: Number = 1) -> jax.Array:
    """addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    column, row = lax.expand_dims(a, (1,)), lax.expand_dims(b, (0,))
    if ctx.dtype.kind == "b":
        terms = [expand(x, ctx.shape) for x in (column, row, base, scalar(alpha, ctx.dtype), scalar(beta, ctx.dtype))]
        return lax.bitwise_or(lax.bitwise_and(terms[2], terms[4]), lax.bitwise_and(terms[3], lax.bitwise_and(terms[0], terms[1])))
    dtype = compute_dtype(ctx.dtype)
    outer = lax.mul(*broadcast(cast(column, dtype), cast(row, dtype)))
    return accumulate(ctx, base, outer, beta, alpha)


@op("linear", autocast=Autocast.LOWER)
def linear(ctx: Context, x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    product = contract(x, weight, ((x.ndim - 1,), (weight.ndim - 1,)), ctx=ctx)
    return cast(product, ctx.dtype) if bias is None else accumulate(ctx, bias, product, 1, 1)


def _linear_gradients(x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, mask: list[bool]) -> tuple[torch.Tensor | None, ...]:
    """As asked for; torch's own promises a gradient of the bias with every one of the weight."""
    shapes = (x.shape, weight.shape, weight.shape[:1])
    return tuple(grad.new_empty(shape) if wanted else None for shape, wanted in zip(shapes, mask, strict=True))


@op("linear_backward", shapes=_linear_gradients)
def linear_backward(
    ctx: Context, x: jax.Array, grad: jax.Array, weight: jax.Array, output_mask: Sequence[bool]
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    """linear_backward(Tensor self, Tensor grad_output, Tensor weight, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""
    lead = tuple(range(x.ndim - 1))
    to_x = to_weight = to_bias = None
    if output_mask[0]:
        to_x = cast(contract(grad, _conjugate(weight), ((grad.ndim - 1,), (0,)), ctx=ctx), x.dtype)
    if output_mask[1]:
        to_weight = cast(contract(grad, _conjugate(x), (lead, lead), ctx=ctx), weight.dtype)
    if output_mask[2]:
        # Not in steps (ops/cpu/staged.py): a step is kept in memory, and training a GPT took a fifth longer.
        to_bias = cast(lax.reduce_sum(cast(grad, compute_dtype(grad.dtype)), lead), grad.dtype)
    return to_x, to_weight, to_bias


@op("matmul", autocast=Autocast.LOWER)
def matmul(ctx: Context, a: jax.Array, b: jax.Array) -> jax.Array:
    """matmul(Tensor self, Tensor other) -> Tensor: vectors, matrices and broadcast batches of them"""
    left = lax.expand_dims(a, (0,)) if a.ndim == 1 else a
    right = lax.expand_dims(b, (1,)) if b.ndim == 1 else b
    if right.ndim == 2:  # the batches of the left operand are rows of one product
        return lax.reshape(cast(contract(left, right, ((left.ndim - 1,), (0,)), ctx=ctx), ctx.dtype), ctx.shape)
    lead = lax.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    product = matrix_product(expand(left, (*lead, *left.shape[-2:])), expand(right, (*lead, *right.shape[-2:])), ctx)
    return lax.reshape(cast(product, ctx.dtype), ctx.shape)


without_lowering("einsum", "chain_matmul", "linalg_multi_dot", "linalg_vecdot", autocast=Autocast.LOWER)


@op("_trilinear")
def trilinear(
    ctx: Context, a: jax.Array, b: jax.Array, c: jax.Array, expand1: Axes, expand2: Axes, expand3: Axes, sumdim: Axes, unroll_dim: int = 1
) -> jax.Array:
    """_trilinear(i1, i2, i3, int[] expand1, expand2, expand3, sumdim, int unroll_dim=1): the sum of i1 * i2 * i3 over sumdim"""
    dtype = compute_dtype(ctx.dtype)
    a, b, c = (lax.expand_dims(cast(x, dtype), tuple(dims)) for x, dims in ((a, expand1), (b, expand2), (c, expand3)))
    full = lax.broadcast_shapes(a.shape, b.shape, c.shape)
    summed = {dim % len(full) for dim in sumdim}
    if ctx.platform == "tpu" and dtype.kind in "iu" and dtype.itemsize == 8:  # it has no product of matrices for them, see `contract`
        products = lax.mul(lax.mul(expand(a, full), expand(b, full)), expand(c, full))
        return lax.reshape(cast(lax.reduce_sum(products, sorted(summed)), ctx.dtype), ctx.shape)
    # Dimensions that only `a` and `b` carry are summed first, as a matrix product where one can be made of them.
    names = "".join(chr(ord("a") + i) for i in range(len(full)))
    specs = ["".join(n for n, size, whole in zip(names, x.shape, full, strict=True) if size == whole) for x in (a, b, c)]
    squeezed = [lax.squeeze(x, [i for i, (size, whole) in enumerate(zip(x.shape, full, strict=True)) if size != whole]) for x in (a, b, c)]
    out = "".join(n for i, n in enumerate(names) if i not in summed)
    result = jax.numpy.einsum(f"{','.join(specs)}->{out}", *squeezed)
    return lax.reshape(cast(result, ctx.dtype), ctx.shape)


@op("_addmm_activation", scalars=("beta", "alpha"))
def addmm_activation(
    ctx: Context, base: jax.Array, a: jax.Array, b: jax.Array, *, beta: Number = 1, alpha: Number = 1, use_gelu: bool = False
) -> jax.Array:
    """_addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, bool use_gelu=False) -> Tensor"""
    product = addmm(ctx, base, a, b, beta=beta, alpha=alpha)
    return gelu(product) if use_gelu else relu(product)
