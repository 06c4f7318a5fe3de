"""Bring operands of a lowering to one dtype and one shape by torch's rules; shared by all op families, registers nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.dtypes import natural_dtype, torch_dtype
from xla_core.ops.axes import is_open
from xla_core.ops.table import scalar

Number = bool | int | float | complex
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Weak:
    """A `Scalar` argument (number or 0-d array) that only lends its category to type promotion, never its width."""

    value: Number | jax.Array


Operand = jax.Array | Number | Weak


def is_float(dtype: np.dtype) -> bool:
    """Whether `dtype` is a real floating-point dtype (bfloat16 and the 8-bit floats too)."""
    return torch_dtype(dtype).is_floating_point


def is_complex(dtype: np.dtype) -> bool:
    """Whether `dtype` is complex."""
    return np.dtype(dtype).kind == "c"


def is_integral(dtype: np.dtype) -> bool:
    """Whether `dtype` is an integer dtype or bool."""
    return np.dtype(dtype).kind in "iub"


@cache
def compute_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which CPU torch computes on `dtype`: float32 for half precision, else `dtype` itself."""
    logical = torch_dtype(dtype)
    return np.dtype(np.float32) if logical in _HALF or (logical.is_floating_point and logical.itemsize == 1) else np.dtype(dtype)


def real_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of the real part of `dtype`; a real dtype is its own."""
    return np.dtype({"complex64": np.float32, "complex128": np.float64}.get(np.dtype(dtype).name, dtype))


def finfo(dtype: np.dtype) -> torch.finfo:
    """Limits of a real floating-point `dtype`."""
    return torch.finfo(torch_dtype(dtype))


def lowest(dtype: np.dtype) -> bool | int | float:
    """The value below all others of `dtype`: -inf, the smallest integer, or False."""
    return _limit(dtype, sign=-1)


def highest(dtype: np.dtype) -> bool | int | float:
    """The value above all others of `dtype`: inf, the largest integer, or True."""
    return _limit(dtype, sign=1)


def _limit(dtype: np.dtype, sign: int) -> bool | int | float:
    logical = torch_dtype(dtype)
    if logical is torch.bool:
        return sign > 0
    if logical.is_floating_point:
        return sign * float("inf")
    limits = torch.iinfo(logical)
    return int(limits.max if sign > 0 else limits.min)


def full(value: Number | jax.Array, shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """An array of `shape` filled with a number or 0-d array, converted to `dtype`."""
    return lax.broadcast(as_array(value, dtype), tuple(shape))


def cast(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """`x` converted as torch's CPU kernels convert: integers wrap, complex loses its imaginary part, non-zero is True."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    if is_complex(x.dtype) and not is_complex(dtype):
        if dtype.kind == "b":
            return lax.ne(x, lax.full_like(x, 0))
        x = lax.real(x)
    if is_float(x.dtype) and dtype.kind in "iu" and dtype.itemsize < 8 and dtype != np.int32:
        # XLA saturates; C++ goes through a wider register and keeps the low bits.
        x = lax.convert_element_type(x, np.int32 if dtype.kind == "i" else np.int64)
    if x.dtype == np.bool_ and (is_float(dtype) or is_complex(dtype)):
        # XLA takes a product with a converted boolean for a choice: inf * False would be 0, not NaN.
        return lax.select(x, lax.full(x.shape, 1, dtype), lax.full(x.shape, 0, dtype))
    return lax.convert_element_type(x, dtype)


def expand(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """`x` broadcast to `shape`, aligned at the last dimension."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    return lax.broadcast_in_dim(x, shape, tuple(range(len(shape) - x.ndim, len(shape))))


def broadcast(*arrays: jax.Array) -> list[jax.Array]:
    """`arrays` broadcast against each other."""
    shape = lax.broadcast_shapes(*(x.shape for x in arrays))
    return [expand(x, shape) for x in arrays]


def _category(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def _number_dtype(value: Number | jax.Array) -> torch.dtype:
    """The dtype that a wrapped number brings into promotion."""
    kind = "c" if isinstance(value, complex) else "f" if isinstance(value, float) else "b" if isinstance(value, bool) else "i"
    if isinstance(value, jax.Array):
        kind = "bifc"[_category(torch_dtype(np.dtype(value.dtype)))]
    default = torch.get_default_dtype()
    return {"b": torch.bool, "i": torch.int64, "f": default, "c": torch.complex128 if default is torch.float64 else torch.complex64}[kind]


def _combine(strong: torch.dtype | None, weak: torch.dtype | None) -> torch.dtype | None:
    """Promote a lower priority dtype into a higher one: it counts only when its category is higher."""
    if strong is None or weak is None:
        return strong or weak
    if _category(weak) <= _category(strong):
        return strong
    if strong.is_floating_point:
        return torch.complex128 if strong is torch.float64 else torch.complex64
    return weak


def _joined(dtypes: list[torch.dtype]) -> torch.dtype | None:
    return reduce(torch.promote_types, dtypes) if dtypes else None


def common_dtype(*operands: Operand) -> np.dtype:
    """torch's result type of arrays (0-d ones count less), numbers and `Weak` scalars (count least)."""
    sized: list[torch.dtype] = []
    zero_d: list[torch.dtype] = []
    wrapped: list[torch.dtype] = []
    for operand in operands:
        if isinstance(operand, Weak):
            wrapped.append(_number_dtype(operand.value))
        elif isinstance(operand, jax.Array):
            (sized if operand.ndim else zero_d).append(torch_dtype(np.dtype(operand.dtype)))
        else:
            wrapped.append(_number_dtype(operand))
    dtype = _combine(_combine(_joined(sized), _joined(zero_d)), _joined(wrapped))
    if dtype is None:
        raise ValueError("type promotion needs at least one operand")
    return natural_dtype(dtype)


def as_array(operand: Operand, dtype: np.dtype) -> jax.Array:
    """An operand as an array of `dtype`, shape unchanged (numbers become 0-d)."""
    value = operand.value if isinstance(operand, Weak) else operand
    if isinstance(value, jax.Array):
        return cast(value, dtype)
    if is_open(value):
        return cast(jax.numpy.asarray(value), dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # 1e40 is inf in float32, as in torch
        return scalar(value, dtype)


def promote(*operands: Operand) -> list[jax.Array]:
    """Operands as arrays of their common dtype, shapes unchanged."""
    dtype = common_dtype(*operands)
    return [as_array(operand, dtype) for operand in operands]


def operands_as(dtype: np.dtype, *operands: Operand) -> list[jax.Array]:
    """Operands as arrays of `dtype`, broadcast against each other."""
    return broadcast(*(as_array(operand, dtype) for operand in operands))


def widened_operands(dtype: np.dtype, *operands: Operand) -> list[jax.Array]:
    """Operands rounded to `dtype` as torch rounds them on entry, then in the dtype it computes in, broadcast against each other."""
    return operands_as(compute_dtype(dtype), *(as_array(operand, dtype) for operand in operands))
