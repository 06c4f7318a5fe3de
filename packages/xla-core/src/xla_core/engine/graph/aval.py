"""Abstract values: shape, dtype and strides, interned, so that equality is identity and hashing costs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
import torch

from xla_core.base.dtypes import device_dtype
from xla_core.ops.axes import is_open

_SMALL = 1 << 14  # bytes


_SHORT = {
    torch.bool: "pred",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


class Aval:
    """Shape and torch dtype of one value, and the dtype that stands for it on the device.

    strides: that torch shows for it, if they are others than row-major ones; XLA chooses its own layout, whatever they are. manual: each of
    the devices behind `xla:0` has a value like this (engine/placement/manual.py). small: its memory is not worth taking over.
    Make avals with `aval_of` only: two equal ones are the same object. Avals of open sizes, which exported programs have, are never equal.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, manual: bool = False, strides: tuple[int, ...] | None = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        self.manual = manual
        self.physical: np.dtype = device_dtype(dtype)
        name = _SHORT.get(dtype, str(dtype).removeprefix("torch."))
        self.text = f"{name}[{','.join(map(str, shape))}]{' on each device' if manual else ''}"  # `f32[8,4]`
        self.small = not any(map(is_open, shape)) and self.nbytes < _SMALL
        self.integral = not (dtype.is_floating_point or dtype.is_complex)
        # Set at first use, and kept here because a look-up costs nothing.
        self.root: Any = None  # the view that shows all of such a base
        self.blank: Any = None  # the operation that makes such a value with any content

    @cached_property
    def meta(self) -> torch.Tensor:
        """A meta tensor of this shape, dtype and strides. Read it only: it is shared."""
        if self.strides is None:
            return torch.empty(self.shape, dtype=self.dtype, device="meta")
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")

    @cached_property
    def struct(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a result as a lowering sees them."""
        return jax.ShapeDtypeStruct(self.shape, self.physical)

    @cached_property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return math.prod(self.shape) * self.physical.itemsize

    def __repr__(self) -> str:
        return self.text


_INTERNED: dict[tuple[tuple[int, ...], torch.dtype, bool, tuple[int, ...] | None], Aval] = {}


def aval_of(shape: tuple[int, ...], dtype: torch.dtype, manual: bool = False, strides: tuple[int, ...] | None = None) -> Aval:
    """The one Aval of `shape`, `dtype` and `strides` (None: row-major); raises UnsupportedDtypeError for a dtype that XLA does not have."""
    key = (shape, dtype, manual, strides)
    aval = _INTERNED.get(key)
    if aval is None:
        shape = tuple(int(size) for size in shape)
        if strides == row_major(shape):
            return aval_of(shape, dtype, manual)
        aval = _INTERNED.setdefault(key, Aval(shape, dtype, manual, strides))
    return aval


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of `shape`."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    strides.reverse()
    return tuple(strides)


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of a copy of a tensor, in the order of its dimensions in memory, as torch preserves it; None for row-major ones."""
    shape, strides = tensor.shape, tensor.stride()
    if strides == row_major(shape):
        return None
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != expected:  # not in one piece, or several elements in one place
            return tuple(torch.empty_like(tensor, device="meta").stride())
        expected *= size
    return tuple(strides)
