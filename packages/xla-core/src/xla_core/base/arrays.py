"""Tensors on the CPU as NumPy arrays, and NumPy arrays as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xla_core.base.dtypes import natural_dtype

# NumPy arrays of these dtypes cannot become tensors, nor tensors arrays: they cross as integers of the same width.
_CARRIERS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}
_CARRIED = {
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
}


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A NumPy array of a dense CPU tensor's values in its natural dtype; shares memory where it can."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype in _CARRIED:
        wide, _ = _CARRIERS[plain.element_size()]
        carried: np.ndarray[Any, Any] = plain.view(wide).numpy()
        return carried.view(natural_dtype(plain.dtype))
    array: np.ndarray[Any, Any] = plain.numpy()
    return array


def to_torch(array: np.ndarray[Any, Any], dtype: torch.dtype, copy: bool = True) -> torch.Tensor:
    """A CPU tensor of `dtype` with `array`'s values. copy: into memory of its own; else the array is given away."""
    natural = natural_dtype(dtype)
    if array.dtype != natural:
        array, copy = array.astype(natural), False
    if dtype in _CARRIED:
        wide, narrow = _CARRIERS[natural.itemsize]
        return torch.from_numpy(np.array(array.view(narrow), copy=copy)).view(dtype)
    return torch.from_numpy(np.array(array, copy=copy))
