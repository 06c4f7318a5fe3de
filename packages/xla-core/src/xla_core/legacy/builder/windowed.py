"""Operations over windows: convolutions, reductions of windows, pooling, and the scatter that undoes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.legacy.builder.nodes import XlaComputation
from xla_core.legacy.builder.reducers import check_pair, reducer, single_operation

_PRECISIONS = {"default": lax.Precision.DEFAULT, "high": lax.Precision.HIGH, "highest": lax.Precision.HIGHEST}
Padding = str | Sequence[Sequence[int]]


def _padding(padding: Padding) -> Any:
    if isinstance(padding, str):
        if padding.upper() not in ("VALID", "SAME"):
            raise ValueError(f"padding is 'valid', 'same' or pairs of numbers, not {padding!r}")
        return padding.upper()
    return [(int(low), int(high)) for low, high in padding]


def precision_of(config: Any) -> Any:
    """jax's precision for `"default"`, `"high"` or `"highest"`, in any case, or for a sequence with one for each operand; None for None.

    Raises ValueError for another word.
    """
    if config is None or isinstance(config, lax.Precision):
        return config
    if isinstance(config, str):
        if config.lower() not in _PRECISIONS:
            raise ValueError(f"a precision is one of {', '.join(_PRECISIONS)}, not {config!r}")
        return _PRECISIONS[config.lower()]
    return tuple(precision_of(operand_config) for operand_config in config)


def conv(
    x: Any,
    kernel: Any,
    *,
    window_strides: Sequence[int],
    padding: Padding = "valid",
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    input_batch_dimension: int = 0,
    input_feature_dimension: int = 1,
    kernel_input_feature_dimension: int = 1,
    kernel_output_feature_dimension: int = 0,
    output_batch_dimension: int = 0,
    output_feature_dimension: int = 1,
    input_spatial_dimensions: Sequence[int] | None = None,
    kernel_spatial_dimensions: Sequence[int] | None = None,
    output_spatial_dimensions: Sequence[int] | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision_config: Any = None,
) -> Any:
    """Convolve `x` with a kernel. Dimensions default to those of (N, C, *spatial) and (O, I, *spatial)."""
    spatial = tuple(range(2, x.ndim))
    dimension_numbers = lax.ConvDimensionNumbers(
        (input_batch_dimension, input_feature_dimension, *(input_spatial_dimensions or spatial)),
        (kernel_output_feature_dimension, kernel_input_feature_dimension, *(kernel_spatial_dimensions or spatial)),
        (output_batch_dimension, output_feature_dimension, *(output_spatial_dimensions or spatial)),
    )
    return lax.conv_general_dilated(
        x,
        kernel,
        tuple(window_strides),
        _padding(padding),
        lhs_dilation and tuple(lhs_dilation),
        rhs_dilation and tuple(rhs_dilation),
        dimension_numbers,
        feature_group_count,
        batch_group_count,
        precision_of(precision_config),
    )


def reduce_window(
    x: Any,
    init_value: Any,
    *,
    computation: XlaComputation,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Padding = "valid",
) -> Any:
    """Reduce each window to one element, from `init_value`."""
    return lax.reduce_window(x, init_value, reducer(computation, x), tuple(window_dimensions), tuple(window_strides), _padding(padding))


def max_pool(
    x: Any,
    *,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    batch_dimension: int,
    feature_dimension: int,
    spatial_dimensions: Sequence[int],
    padding: Padding = "valid",
) -> Any:
    """The largest element of each window. kernel_size, stride: one for each dimension, or for each spatial one."""

    def for_all_dimensions(sizes: Sequence[int]) -> tuple[int, ...]:
        if len(sizes) == x.ndim:
            return tuple(sizes)
        by_dimension = dict(zip(spatial_dimensions, sizes, strict=True))
        return tuple(by_dimension.get(dimension, 1) for dimension in range(x.ndim))

    lowest = np.iinfo(x.dtype).min if np.issubdtype(x.dtype, np.integer) else -np.inf
    init = np.asarray(lowest, x.dtype)  # a number that jax sees while it traces, so that there are gradients
    return lax.reduce_window(x, init, lax.max, for_all_dimensions(kernel_size), for_all_dimensions(stride), _padding(padding))


def select_and_scatter(
    x: Any,
    source: Any,
    init_value: Any,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    select_computation: XlaComputation,
    scatter_computation: XlaComputation,
    padding: Padding = "valid",
) -> Any:
    """`init_value` everywhere, and each element of `source` added where its window of `x` has the largest (smallest) element."""
    for computation in (select_computation, scatter_computation):
        check_pair(computation, x)
    selects = {"Ge": lax.max, "Gt": lax.max, "Le": lax.min, "Lt": lax.min}
    pick = selects.get(single_operation(select_computation) or "")
    if pick is None or single_operation(scatter_computation) != "Add":
        raise UnsupportedOperationError(
            "SelectAndScatter selects by a comparison (>=, >, <=, <) of its two parameters and scatters by their sum: "
            "write other kinds with Gather and Scatter"
        )
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
        raise UnsupportedOperationError("SelectAndScatter takes floating-point operands: Convert them first")
    start = np.asarray(-np.inf if pick is lax.max else np.inf, x.dtype)

    def pooled(array: Any) -> Any:
        return lax.reduce_window(array, start, pick, tuple(window_dimensions), tuple(window_strides), _padding(padding))

    _, pull = jax.vjp(pooled, x)
    return lax.add(pull(source)[0], lax.broadcast(init_value, x.shape))
