"""Turns elementwise kernels into rows of the op table, so that the same kernel serves one tensor and a list of them.

A kernel is called as `kernel(dtype, *operands)`: `dtype` is the dtype its result must have, operands are arrays, numbers or
`Weak` scalars of any shapes that broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import jax
import numpy as np

from xla_core.ops.facts import Facts
from xla_core.ops.promote import as_array, cast, expand, operands_as, widened_operands
from xla_core.ops.table import Context, Lowering, op

Kernel = Callable[..., jax.Array]
Function = Callable[..., jax.Array]


def _made_of(function: Function, made: Function) -> Function:
    """`made`, which says by `__wrapped__` what it is made of, as `functools.wraps` would, but keeps its own name and signature."""
    made.__doc__ = function.__doc__
    made.__wrapped__ = function  # type: ignore[attr-defined]
    return made


def lowered(kernel: Kernel) -> Lowering:
    """A lowering that runs `kernel` for the inferred dtype and broadcasts its result to the inferred shape."""

    def lower(ctx: Context, *args: Any, **kwargs: Any) -> jax.Array:
        result = ctx.first
        return expand(kernel(result.dtype, *args, **kwargs), result.shape)

    return _made_of(kernel, lower)


def register_kernel(kernel: Kernel, *names: str, scalars: tuple[str, ...] = (), notes: str = "", **facts: Unpack[Facts]) -> None:
    """Register `kernel` for aten overloads `names`, with the facts that `op` takes."""
    op(*names, scalars=scalars, notes=notes, **facts)(lowered(kernel))


def computing(function: Function) -> Kernel:
    """A kernel that applies `function` to operands in the compute dtype of the result, and rounds once."""

    def kernel(dtype: np.dtype, *operands: Any) -> jax.Array:
        return cast(function(*widened_operands(dtype, *operands)), dtype)

    return _made_of(function, kernel)


def exact(function: Function) -> Kernel:
    """A kernel that applies `function` to operands in the result's own dtype: for functions that only select or round."""

    def kernel(dtype: np.dtype, *operands: Any) -> jax.Array:
        return cast(function(*operands_as(dtype, *operands)), dtype)

    return _made_of(function, kernel)


def copied(dtype: np.dtype, x: Any) -> jax.Array:
    """A kernel that only converts."""
    return as_array(x, dtype)


def scipy_special(name: str) -> Callable[..., jax.Array]:
    """The function of `jax.scipy.special` with this name. Importing it takes as long as registering all of our rows."""

    def call(*operands: jax.Array) -> jax.Array:
        from jax.scipy import special

        result: jax.Array = getattr(special, name)(*operands)
        return result

    return call
