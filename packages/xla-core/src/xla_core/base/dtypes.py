"""torch dtypes and the XLA dtypes that stand for them on the device.

The pair is fixed for the life of a process, with the first tensor or program that it could change: `XLA_USE_BF16`, `XLA_DOWNCAST_BF16`
and `XLA_USE_32BIT_LONG` are read then, once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache

import ml_dtypes
import numpy as np
import torch

from xla_core.base import config
from xla_core.base.errors import UnsupportedDtypeError

_NATURAL: Mapping[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
}
_QUANTIZED = "integers and their scale in two tensors, as torch.ops.quantized_decomposed gives them"
_INSTEAD: Mapping[torch.dtype, str] = {
    torch.complex32: "complex64",
    torch.qint8: _QUANTIZED,
    torch.quint8: _QUANTIZED,
    torch.qint32: _QUANTIZED,
}
DTYPES = tuple(_NATURAL)  # of tensors on xla devices
_TORCH: Mapping[np.dtype, torch.dtype] = {physical: logical for logical, physical in _NATURAL.items()}


def natural_dtype(dtype: torch.dtype) -> np.dtype:
    """The NumPy dtype with the same values as `dtype`, whatever the device computes in.

    Raises UnsupportedDtypeError (a TypeError) for dtypes without a counterpart in XLA.
    """
    try:
        return _NATURAL[dtype]
    except KeyError:
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in _NATURAL))
        raise UnsupportedDtypeError(f"{dtype} has no counterpart on XLA devices; use {_INSTEAD.get(dtype, f'one of {names}')}") from None


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """The torch dtype whose natural NumPy dtype is `dtype`; raises UnsupportedDtypeError if there is none."""
    try:
        return _TORCH[np.dtype(dtype)]
    except KeyError:
        raise UnsupportedDtypeError(f"{dtype} is not a dtype that torch has; convert the array first") from None


_REDUCIBLE = frozenset({torch.float32, torch.float64, torch.int64})
"""Dtypes that environment variables can make the device compute in another dtype."""


def _asked_for() -> Mapping[torch.dtype, np.dtype]:
    """The device's dtype for each dtype that the environment variables now make it compute in another dtype."""
    half, single = _NATURAL[torch.bfloat16], _NATURAL[torch.float32]
    long = {torch.int64: _NATURAL[torch.int32]} if config.USE_32BIT_LONG.get() else {}
    if config.USE_BF16.get():
        return {torch.float32: half, torch.float64: half, **long}
    if config.DOWNCAST_BF16.get():
        return {torch.float32: half, torch.float64: single, **long}
    return long


_reduced = cache(_asked_for)


def device_dtype(dtype: torch.dtype) -> np.dtype:
    """The dtype in which the device holds and computes tensors that report `dtype`."""
    if dtype not in _REDUCIBLE:
        return natural_dtype(dtype)
    return _reduced().get(dtype, _NATURAL[dtype])


def check_conversions() -> None:
    """Warn if the environment variables ask for other dtypes than the device uses: they were set too late for this process."""
    if _reduced.cache_info().currsize == 0:
        return
    requested = _asked_for()
    if requested != _reduced():
        variables = ", ".join(
            f"{setting.name}={int(setting.get())}" for setting in (config.USE_BF16, config.DOWNCAST_BF16, config.USE_32BIT_LONG)
        )
        warnings.warn(
            f"{variables} has no effect any more: the first tensor of this process fixed the dtypes in which the device computes "
            f"({conversions() or 'those of the tensors'}), and now others are asked for ({_text(requested) or 'those of the tensors'}). "
            "Set the variables before the first tensor, or run this in a process of its own",
            stacklevel=2,
        )


def conversions() -> str:
    """The mapping of `device_dtype` as text, for program keys: a program compiled under one mapping does not serve another."""
    return _text(_reduced())


def _text(reduced: Mapping[torch.dtype, np.dtype]) -> str:
    return ", ".join(f"{logical}: {physical}" for logical, physical in reduced.items())
