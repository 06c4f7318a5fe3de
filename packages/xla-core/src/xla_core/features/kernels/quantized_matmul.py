"""Products with weights of 8 or 4 bits: one scale for each output channel, or for each block of inputs; a linear layer of it."""

from __future__ import annotations

import torch

from xla_core.ops.nn.quantized import matmul_kernel
from xla_core.ops.nn.quantized.matmul_kernel import check_weight

quantized_matmul_int8_xla = matmul_kernel.MATMUL_INT8
quantized_matmul_int8_non_xla = quantized_matmul_int8_xla  # which takes CPU tensors too


def quantized_matmul_int8(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    quant_block_size: torch.Tensor | None = None,
    quantize_activation: bool = False,
    batch_block_size: int | None = None,
    out_block_size: int | None = None,
    in_block_size: int | None = None,
) -> torch.Tensor:
    """x (rows, in) times (w - zero_point) * scalar, an int8 weight w (out, in) with one scale (and zero point) per output channel.

    quantize_activation: x is rounded to int8 too, with one scale per row; its gradient is that of the exact product. The block sizes tune
    a kernel. Raises UnsupportedOperationError for quant_block_size, TypeError if w is not int8.
    """
    result: torch.Tensor = quantized_matmul_int8_xla(
        x, w, scalar, zero_point, quant_block_size, quantize_activation, batch_block_size, out_block_size, in_block_size
    )
    return result


def quantized_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    scaler: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    block_size: int = -1,
    int4_weight: bool = False,
    quantize_activation: bool = False,
) -> torch.Tensor:
    """x (…, in) times a weight of integers, which stands for w * scaler - zero_point.

    w: int8, (out, in) with scaler and zero_point (out,); with a block_size (in / block_size, block_size, out), scaler and zero_point
    (in / block_size, out). int4_weight: of each weight the lower four bits count. quantize_activation: x is rounded to int8, with one
    scale per row; its gradient is that of the exact product. Raises ValueError for shapes that do not fit, TypeError if w is not int8.
    """
    result: torch.Tensor = matmul_kernel.MATMUL(x, w, scaler, zero_point, block_size, int4_weight, quantize_activation)
    return result


class XlaQuantizedLinear(torch.nn.Module):
    """A linear layer without bias over a quantized weight, as `quantized_matmul`; load the weight before use.

    is_symmetric: no zero points. block_size: -1 for one scale per output channel.
    """

    weight: torch.Tensor
    weight_scaler: torch.Tensor
    zero_point: torch.Tensor | None

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        is_symmetric: bool = False,
        block_size: int = -1,
        int4_weight: bool = False,
        quantize_activation: bool = False,
    ) -> None:
        super().__init__()
        self.input_dim, self.output_dim, self.block_size = input_dim, output_dim, block_size
        self.is_symmetric, self.int4_weight, self.quantize_activation = is_symmetric, int4_weight, quantize_activation
        blocks = () if block_size == -1 else (input_dim // block_size,)
        shape = (output_dim, input_dim) if block_size == -1 else (*blocks, block_size, output_dim)
        self.register_buffer("weight", torch.zeros(shape, dtype=torch.int8))
        self.register_buffer("weight_scaler", torch.ones(*blocks, output_dim))
        self.register_buffer("zero_point", None if is_symmetric else torch.zeros(*blocks, output_dim))

    def load_quantized_weight(self, weight: torch.Tensor, weight_scaler: torch.Tensor, zero_point: torch.Tensor | None = None) -> None:
        """Take over a weight. Raises as `quantized_matmul`, and ValueError for a zero point where there is none, or none where there is."""
        if (zero_point is None) != self.is_symmetric:
            raise ValueError(f"a layer with is_symmetric={self.is_symmetric} takes {'no' if self.is_symmetric else 'a'} zero_point")
        check_weight(self.input_dim, self.output_dim, self.block_size, weight, weight_scaler, zero_point)
        device = self.weight.device
        self.weight, self.weight_scaler = weight.to(device), weight_scaler.to(device)
        self.zero_point = None if zero_point is None else zero_point.to(device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (…, input_dim) → (…, output_dim)."""
        return quantized_matmul(
            x, self.weight, self.weight_scaler, self.zero_point, self.block_size, self.int4_weight, self.quantize_activation
        )


quantized_matmul_xla = quantized_matmul
