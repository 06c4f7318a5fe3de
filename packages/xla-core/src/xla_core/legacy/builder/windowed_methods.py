"""What operations do by windows: convolutions, pooling, reductions, and the scatter that undoes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from xla_core.legacy.builder.elementwise_methods import ElementwiseMethods
from xla_core.legacy.builder.nodes import XlaComputation
from xla_core.legacy.builder.windowed import Padding


class WindowedMethods(ElementwiseMethods):
    """Padding is "valid", "same" or a pair of numbers for each spatial dimension (each dimension, where there is no kernel).

    precision_config: "default", "high" or "highest", or one for each operand.
    """

    def conv(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        padding: Padding = "valid",
        precision_config: Any = None,
    ) -> Self:
        """The convolution of (N, C, *spatial) with a kernel of (O, I, *spatial)."""
        return self._make(
            "Conv",
            kernel,
            window_strides=window_strides,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            padding=padding,
            precision_config=precision_config,
        )

    def conv_with_general_padding(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        padding: Padding,
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: Any = None,
    ) -> Self:
        """`conv` with a pair of paddings for each spatial dimension."""
        return self._make(
            "Conv",
            kernel,
            window_strides=window_strides,
            padding=padding,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            precision_config=precision_config,
        )

    def conv_with_general_dimensions(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        input_batch_dimension: int,
        input_feature_dimension: int,
        kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int,
        output_batch_dimension: int,
        output_feature_dimension: int,
        input_spatial_dimensions: Sequence[int],
        kernel_spatial_dimensions: Sequence[int],
        output_spatial_dimensions: Sequence[int],
        padding: Padding = "valid",
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: Any = None,
    ) -> Self:
        """`conv` with dimensions in any order."""
        return self._make(
            "Conv",
            kernel,
            window_strides=window_strides,
            input_batch_dimension=input_batch_dimension,
            input_feature_dimension=input_feature_dimension,
            kernel_input_feature_dimension=kernel_input_feature_dimension,
            kernel_output_feature_dimension=kernel_output_feature_dimension,
            output_batch_dimension=output_batch_dimension,
            output_feature_dimension=output_feature_dimension,
            input_spatial_dimensions=input_spatial_dimensions,
            kernel_spatial_dimensions=kernel_spatial_dimensions,
            output_spatial_dimensions=output_spatial_dimensions,
            padding=padding,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            precision_config=precision_config,
        )

    def conv_general(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        padding: Padding,
        input_batch_dimension: int,
        input_feature_dimension: int,
        kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int,
        output_batch_dimension: int,
        output_feature_dimension: int,
        input_spatial_dimensions: Sequence[int],
        kernel_spatial_dimensions: Sequence[int],
        output_spatial_dimensions: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: Any = None,
    ) -> Self:
        """`conv` with dimensions in any order, and pairs of paddings."""
        return self._make(
            "Conv",
            kernel,
            window_strides=window_strides,
            padding=padding,
            input_batch_dimension=input_batch_dimension,
            input_feature_dimension=input_feature_dimension,
            kernel_input_feature_dimension=kernel_input_feature_dimension,
            kernel_output_feature_dimension=kernel_output_feature_dimension,
            output_batch_dimension=output_batch_dimension,
            output_feature_dimension=output_feature_dimension,
            input_spatial_dimensions=input_spatial_dimensions,
            kernel_spatial_dimensions=kernel_spatial_dimensions,
            output_spatial_dimensions=output_spatial_dimensions,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            precision_config=precision_config,
        )

    def conv_general_dilated(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        padding: Padding,
        lhs_dilation: Sequence[int],
        rhs_dilation: Sequence[int],
        input_batch_dimension: int,
        input_feature_dimension: int,
        kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int,
        output_batch_dimension: int,
        output_feature_dimension: int,
        input_spatial_dimensions: Sequence[int],
        kernel_spatial_dimensions: Sequence[int],
        output_spatial_dimensions: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: Any = None,
    ) -> Self:
        """`conv_general` with steps between the elements of the input and of the kernel."""
        return self._make(
            "Conv",
            kernel,
            window_strides=window_strides,
            padding=padding,
            lhs_dilation=lhs_dilation,
            rhs_dilation=rhs_dilation,
            input_batch_dimension=input_batch_dimension,
            input_feature_dimension=input_feature_dimension,
            kernel_input_feature_dimension=kernel_input_feature_dimension,
            kernel_output_feature_dimension=kernel_output_feature_dimension,
            output_batch_dimension=output_batch_dimension,
            output_feature_dimension=output_feature_dimension,
            input_spatial_dimensions=input_spatial_dimensions,
            kernel_spatial_dimensions=kernel_spatial_dimensions,
            output_spatial_dimensions=output_spatial_dimensions,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            precision_config=precision_config,
        )

    def max_pool(
        self,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        batch_dimension: int,
        feature_dimension: int,
        spatial_dimensions: Sequence[int],
        padding: Padding = "valid",
    ) -> Self:
        """The largest element of each window. kernel_size, stride: of all dimensions, or of the spatial ones."""
        return self._make(
            "MaxPool",
            kernel_size=kernel_size,
            stride=stride,
            batch_dimension=batch_dimension,
            feature_dimension=feature_dimension,
            spatial_dimensions=spatial_dimensions,
            padding=padding,
        )

    def reduce_window(
        self,
        init_value: Any,
        computation: XlaComputation,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Padding = "valid",
    ) -> Self:
        """Each window reduced by a computation of two numbers."""
        return self._make(
            "ReduceWindow",
            init_value,
            computation=computation,
            window_dimensions=window_dimensions,
            window_strides=window_strides,
            padding=padding,
        )

    def select_and_scatter(
        self,
        source: Any,
        init_value: Any,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        select_computation: XlaComputation,
        scatter_computation: XlaComputation,
        padding: Padding = "valid",
    ) -> Self:
        """`init_value`, and each element of `source` added where its window is decided: what a max-pool's gradient is."""
        return self._make(
            "SelectAndScatter",
            source,
            init_value,
            window_dimensions=window_dimensions,
            window_strides=window_strides,
            select_computation=select_computation,
            scatter_computation=scatter_computation,
            padding=padding,
        )

    def select_and_scatter_with_general_padding(
        self,
        source: Any,
        init_value: Any,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        select_computation: XlaComputation,
        scatter_computation: XlaComputation,
        padding: Padding,
    ) -> Self:
        """`select_and_scatter` with a pair of paddings for each dimension."""
        return self.select_and_scatter(
            source, init_value, window_dimensions, window_strides, select_computation, scatter_computation, padding
        )
