"""The dtypes of tensors in a checkpoint, and of safetensors (FORMAT.md §4)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

_SAFETENSORS: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.bool: "BOOL",
        torch.uint8: "U8",
        torch.int8: "I8",
        torch.uint16: "U16",
        torch.int16: "I16",
        torch.uint32: "U32",
        torch.int32: "I32",
        torch.uint64: "U64",
        torch.int64: "I64",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.float32: "F32",
        torch.float64: "F64",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
        torch.float8_e5m2: "F8_E5M2",
        torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
        torch.complex64: "C64",
        torch.complex128: "F64",
    }
)
DTYPES: Mapping[str, torch.dtype] = MappingProxyType({str(dtype).removeprefix("torch."): dtype for dtype in _SAFETENSORS})
"""Dtypes by their names in a manifest."""
READ_AS: Mapping[str, torch.dtype] = MappingProxyType(
    {name: dtype for dtype, name in _SAFETENSORS.items() if dtype is not torch.complex128}
)
"""Dtypes by their names in a shard, for files without a manifest."""


def name_of(dtype: torch.dtype) -> str | None:
    """Name a dtype as a manifest does; None for a dtype that no checkpoint holds."""
    return str(dtype).removeprefix("torch.") if dtype in _SAFETENSORS else None


def in_numpy(dtype: torch.dtype) -> bool:
    """Whether NumPy has this dtype."""
    return dtype is not torch.bfloat16 and not str(dtype).startswith("torch.float8")


def stored(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Give the safetensors dtype and the shape with which a shard stores a tensor."""
    return _SAFETENSORS[dtype], (*shape, 2) if dtype is torch.complex128 else shape


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a contiguous CPU tensor to what a shard stores."""
    plain = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(plain) if plain.dtype is torch.complex128 else plain


def as_loaded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert back from what `as_stored` gave."""
    return torch.view_as_complex(tensor) if dtype is torch.complex128 else tensor
