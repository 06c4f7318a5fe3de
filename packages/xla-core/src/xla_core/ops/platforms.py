"""One computation with several implementations: which of them a program gets is decided here, by the platform it is compiled for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class PlatformKernel:
    """One computation over jax arrays, with the kernels that JAX ships for it.

    reference: plain jax.numpy, for any shapes, on any platform. tpu, gpu: called with the same arguments; each returns None for those that
    its kernel does not take, and the reference serves these. They import what is slow to import when they are called.
    """

    reference: Function
    tpu: Function | None = None
    gpu: Function | None = None

    def __call__(self, platform: str, *args: Any, **kwargs: Any) -> Any:
        """The results. platform: as `Context.platform`."""
        native = {"tpu": self.tpu, "gpu": self.gpu, "cuda": self.gpu, "rocm": self.gpu}.get(platform)
        if native is None:
            return self.reference(*args, **kwargs)
        with jax.default_matmul_precision(None):  # a kernel multiplies in the dtype of its operands
            result = native(*args, **kwargs)
        return self.reference(*args, **kwargs) if result is None else result


def position_dtype(platform: str) -> np.dtype:
    """The integers with which positions in arrays are computed. platform: as `Context.platform`.

    TPUs have no 64-bit ones: XLA makes pairs of 32-bit ones of them, at several times the work.
    """
    return np.dtype(np.int32 if platform == "tpu" else np.int64)


def in_range(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Integers in another dtype; those that it has not become its largest, or its least but one."""
    if x.dtype.itemsize > dtype.itemsize:
        bounds = np.iinfo(dtype)
        x = lax.clamp(np.asarray(bounds.min + 1, x.dtype), x, np.asarray(bounds.max, x.dtype))
    return lax.convert_element_type(x, dtype)


def positions(index: jax.Array, size: int, platform: str) -> jax.Array:
    """Positions in the integers with which the platform computes them, if these have `size`; wrong ones stay wrong.

    platform: as `Context.platform`.
    """
    dtype = position_dtype(platform)
    bounds = np.iinfo(dtype)
    return in_range(index, dtype) if index.dtype.itemsize > dtype.itemsize and bounds.min + 1 < size < bounds.max else index


def with_32_bits(function: Function, platform: str, *arrays: jax.Array) -> Any:
    """The results of a function that is lowered as if jax had no 64-bit numbers: what it counts with has 32 bits then.

    For compilers that do not take the wider ones; `arrays` have none. platform: as `Context.platform`.
    """
    # Imported here: it is slow to import, and few programs need it.
    from jax import export

    with jax.enable_x64(False):
        described = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        lowered = export.export(jax.jit(function), platforms=(platform,))(*described)
    return lowered.call(*arrays)
