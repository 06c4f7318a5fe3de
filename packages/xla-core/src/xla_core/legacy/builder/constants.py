"""Constants: arrays made of users' values, and numbers in the place of operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xla_core.base.dtypes import natural_dtype
from xla_core.legacy.builder.shapes import dtype_named, to_torch_type, type_name

Number = bool | int | float | complex


def number_of(value: Any) -> Number | None:
    """A number, or a tensor or NumPy array without dimensions, as a Python number; None for anything else."""
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)) and value.ndim == 0:
        value = value.item()
    return value if isinstance(value, (bool, int, float, complex)) else None


def array_of(value: Any) -> np.ndarray[Any, Any]:
    """Copy a tensor, NumPy array, nested list or number to a new array; numbers have torch's dtypes."""
    if isinstance(value, (np.generic, np.ndarray)):
        type_name(value.dtype)
        return np.array(value)
    tensor = torch.as_tensor(value).detach().cpu().resolve_conj().resolve_neg()
    small = tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4  # NumPy alone has not all of these
    return np.array((tensor.float() if small else tensor).numpy()).astype(natural_dtype(tensor.dtype))


def scalar_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    """An array of one number in the type of this name, converted as torch does. Raises ValueError for one that this type cannot hold."""
    number = number_of(value)
    if number is None:
        raise TypeError(f"a scalar is a number, or a tensor or array without dimensions, not {value!r}")
    try:
        return array_of(torch.tensor(number, dtype=to_torch_type(name), device="cpu"))
    except (RuntimeError, OverflowError, TypeError) as error:
        raise ValueError(f"{number!r} is no {name}: {error}") from error


def operand_array(value: Any, name: str, operator: str) -> np.ndarray[Any, Any]:
    """The array of a number in the place of an operation of type `name`.

    Raises TypeError for what is neither, ValueError for a number of a wider kind: a fraction beside integers would be cut.
    """
    number = number_of(value)
    if number is None:
        raise TypeError(f"{operator} takes operations and numbers, not a {type(value).__name__}: make a constant with Op.constant")
    kinds = (np.bool_, np.integer, np.floating, np.complexfloating)
    dtype = dtype_named(name)
    own_rank = next((rank for rank, kind in enumerate(kinds) if np.issubdtype(dtype, kind)), 2)  # NumPy does not know bf16 as floating
    if (bool, int, float, complex).index(type(number)) > own_rank:
        raise ValueError(f"{operator} of {name} and the number {number!r}: cast the operation first, or make the number a {name}")
    return scalar_array(number, name)
