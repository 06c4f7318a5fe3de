"""Names of element types as XLA writes them, and shapes as dictionaries of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch

from xla_core.base.dtypes import natural_dtype, torch_dtype


class Type:
    """The names of element types, as XLA writes them."""

    F32 = "f32"
    F64 = "f64"
    BF16 = "bf16"
    F16 = "f16"
    U8 = "u8"
    S8 = "s8"
    U16 = "u16"
    S16 = "s16"
    U32 = "u32"
    S32 = "s32"
    U64 = "u64"
    S64 = "s64"
    C64 = "c64"
    C128 = "c128"
    PRED = "pred"


_DTYPES: Mapping[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    **{f"s{8 * size}": np.dtype(f"i{size}") for size in (1, 2, 4, 8)},
    **{f"u{8 * size}": np.dtype(f"u{size}") for size in (1, 2, 4, 8)},
    **{f"f{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
    "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def dtype_named(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a type's name. Raises ValueError for an unknown one, with those that are known."""
    try:
        return _DTYPES[name]
    except KeyError:
        raise ValueError(f"{name!r} is no element type; use one of {', '.join(_DTYPES)}") from None


def type_name(dtype: Any) -> str:
    """The name of a NumPy dtype, `"f32"` for float32. Raises ValueError for one that has none."""
    try:
        return _NAMES[np.dtype(dtype)]
    except KeyError:
        raise ValueError(f"{dtype} has no element type in XLA") from None


def to_torch_type(name: str) -> torch.dtype:
    """The torch dtype of a type name; float32 for an empty one."""
    return torch_dtype(dtype_named(name)) if name else torch.float32


def from_torch_type(dtype: torch.dtype) -> str:
    """The type name of a torch dtype."""
    return type_name(natural_dtype(dtype))


class Shape:
    """The shape of an operation: sizes and element type, or a tuple of such.

    shape: `{"type": "f32", "sizes": [2, 3]}`, with `"dynamic_dimensions"` (a bool for each) if one is; a list of them for a tuple.
    """

    def __init__(self, shape: Any) -> None:
        self._shape = shape

    @classmethod
    def create(cls, dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[bool] | None = None) -> Shape:
        """The shape of an array of type `dtype`."""
        dtype_named(dtype)
        description: dict[str, Any] = {"type": dtype, "sizes": [int(size) for size in sizes]}
        if dynamic_dimensions is not None:
            description["dynamic_dimensions"] = list(dynamic_dimensions)
        return cls(description)

    @property
    def shape(self) -> Any:
        """The dictionary, or the list of them."""
        return self._shape

    def is_tuple(self) -> bool:
        """Whether this is the shape of a tuple."""
        return isinstance(self._shape, (list, tuple))

    def tuple_size(self) -> int:
        """How many elements the tuple has. Raises ValueError for an array's shape."""
        return len(self._elements())

    def tuple_shape(self, index: int) -> Shape:
        """The shape of one element of the tuple. Raises ValueError for an array's shape, IndexError past the end."""
        return Shape(self._elements()[index])

    def is_dynamic(self) -> bool:
        """Whether a dimension, of an element for a tuple, is dynamic."""
        if self.is_tuple():
            return any(Shape(element).is_dynamic() for element in self._shape)
        return any(self._shape.get("dynamic_dimensions") or ())

    def as_scalar(self) -> Shape:
        """The shape of one number of the same type."""
        return Shape.create(self.dtype, ())

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """The sizes of the dimensions. Raises ValueError for a tuple."""
        return list(self._array()["sizes"])

    @property
    def dynamic_dimensions(self) -> list[bool] | None:
        """Which dimensions are dynamic, or None where that was not said."""
        dynamic = self._array().get("dynamic_dimensions")
        return None if dynamic is None else list(dynamic)

    @property
    def dtype(self) -> str:
        """The element type's name. Raises ValueError for a tuple."""
        return str(self._array()["type"])

    def _array(self) -> dict[str, Any]:
        if self.is_tuple():
            raise ValueError(f"this is the shape of a tuple of {len(self._shape)}, not of an array: take tuple_shape(index) first")
        return self._shape  # type: ignore[no-any-return]

    def _elements(self) -> list[Any]:
        if not self.is_tuple():
            raise ValueError(f"{self} is the shape of an array, not of a tuple")
        return self._shape  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> Any:
        """The same for lists and tuples of the same sizes."""
        if self.is_tuple():
            return tuple(Shape(element)._key() for element in self._shape)
        return self.dtype, tuple(self.sizes), tuple(self.dynamic_dimensions or ())

    def __repr__(self) -> str:
        if self.is_tuple():
            return f"({', '.join(repr(Shape(element)) for element in self._shape)})"
        return f"{self.dtype}[{','.join(map(str, self.sizes))}]"


def structs_of(shape: Any) -> Any:
    """The dictionary of a shape as jax's struct; a list of them as a tuple. Raises ValueError for dynamic dimensions."""
    if isinstance(shape, (list, tuple)):
        return tuple(structs_of(element) for element in shape)
    if Shape(shape).is_dynamic():
        raise ValueError(f"{shape} has dynamic dimensions, but programs here have fixed shapes: pad to the bound and mask")
    return jax.ShapeDtypeStruct(tuple(shape["sizes"]), dtype_named(shape["type"]))


def shape_of(structs: Any) -> Any:
    """The dictionary of a jax struct, a list of them for a tuple: the inverse of `structs_of`."""
    if isinstance(structs, (list, tuple)):
        return [shape_of(element) for element in structs]
    return {"type": type_name(structs.dtype), "sizes": list(structs.shape)}
