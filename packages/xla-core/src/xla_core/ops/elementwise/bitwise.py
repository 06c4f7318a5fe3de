"""Bits: and, or, xor, not and shifts."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jax import lax

from xla_core.ops.kernel import Function, exact, register_kernel


def _outside(amount: jax.Array) -> jax.Array:
    """The mask of shift amounts that are negative or not below the width."""
    width = lax.full_like(amount, amount.dtype.itemsize * 8)
    return lax.lt(amount, lax.full_like(amount, 0)) | lax.ge(amount, width)


def left_shift(x: jax.Array, amount: jax.Array) -> jax.Array:
    """x << amount, 0 for amounts out of range."""
    return lax.select(_outside(amount), lax.full_like(x, 0), lax.shift_left(x, amount))


def right_shift(x: jax.Array, amount: jax.Array) -> jax.Array:
    """x >> amount, only sign bits for amounts out of range."""
    shift = lax.shift_right_logical if x.dtype.kind == "u" else lax.shift_right_arithmetic
    farthest = lax.full_like(amount, amount.dtype.itemsize * 8 - 1)
    signs = lax.full_like(x, 0) if x.dtype.kind == "u" else shift(x, farthest)
    return lax.select(_outside(amount), signs, shift(x, amount))


BITS: Mapping[str, Function] = {"bitwise_and": lax.bitwise_and, "bitwise_or": lax.bitwise_or, "bitwise_xor": lax.bitwise_xor}
SHIFTS: Mapping[str, tuple[Function, str]] = {
    "bitwise_left_shift": (left_shift, "__lshift__"),
    "bitwise_right_shift": (right_shift, "__rshift__"),
}

register_kernel(exact(lax.bitwise_not), "bitwise_not")
for _name, _function in BITS.items():
    register_kernel(exact(_function), f"{_name}.Tensor", f"{_name}.Scalar", f"{_name}.Scalar_Tensor", scalars=("self", "other"))
for _name, (_function, _operator) in SHIFTS.items():
    _names = (f"{_name}.Tensor", f"{_name}.Tensor_Scalar", f"{_name}.Scalar_Tensor", f"{_operator}.Tensor", f"{_operator}.Scalar")
    register_kernel(exact(_function), *_names, scalars=("self", "other"))
