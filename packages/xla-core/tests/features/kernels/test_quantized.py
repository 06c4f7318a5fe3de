"""Quantized values and products, beside stock torch's arithmetic."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines torch.ops.quantized_decomposed

from torch_xla import _XLAC
from torch_xla.experimental import quantized
from torch_xla.experimental.eager import eager_mode_context
from torch_xla.experimental.xla_quantized_matmul import XlaQuantizedLinear, quantized_matmul, quantized_matmul_xla

DRAW = torch.Generator().manual_seed(11)
X = torch.randn(3, 8, generator=DRAW)
WEIGHT = torch.randint(-128, 128, (4, 8), generator=DRAW, dtype=torch.int8)
SCALE, ZERO = torch.rand(4, generator=DRAW), torch.randn(4, generator=DRAW)
BLOCKS = torch.randint(-8, 8, (2, 4, 4), generator=DRAW, dtype=torch.int8)
BLOCK_SCALE, BLOCK_ZERO = torch.rand(2, 4, generator=DRAW), torch.randn(2, 4, generator=DRAW)


def near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert actual.device.type == "xla"
    torch.testing.assert_close(actual.detach().cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_values_there_and_back(axis: int) -> None:
    channels = 1 if axis < 0 else X.shape[axis]
    scale, zero = torch.rand(channels, generator=DRAW) / 16 + 0.01, torch.arange(channels) - 1
    ops = torch.ops.quantized_decomposed
    rest = (-128, 127, torch.int8)
    if axis < 0:
        expected = ops.quantize_per_tensor(X, float(scale), int(zero), *rest)
        back = ops.dequantize_per_tensor(expected, float(scale), int(zero), *rest)
        on_device = ops.quantize_per_tensor(X.to("xla"), float(scale), int(zero), *rest)
        by_name = quantized.xla_quantize_per_tensor(X.to("xla"), float(scale), int(zero), *rest)
        returned = quantized.xla_dequantize_per_tensor(by_name, float(scale), int(zero), *rest)
    else:
        expected = ops.quantize_per_channel(X, scale, zero, axis, *rest)
        back = ops.dequantize_per_channel(expected, scale, zero, axis, *rest)
        on_device = ops.quantize_per_channel(X.to("xla"), scale.to("xla"), zero.to("xla"), axis, *rest)
        by_name = quantized.xla_quantize_per_channel(X.to("xla"), scale, zero, axis, *rest)
        returned = quantized.xla_dequantize_per_channel(by_name, scale, zero, axis, *rest)
    listed = _XLAC._xla_quantize_tensor(X.to("xla"), scale.tolist(), zero.tolist(), -128, 127, "int8", axis)
    for found in (on_device, by_name, listed):
        assert torch.equal(found.cpu(), expected) and found.dtype is torch.int8
    near(returned, back)
    near(_XLAC._xla_dequantize_tensor(listed, scale.tolist(), zero.tolist(), -128, 127, "torch.int8", axis), back)


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match="int8"):
        quantized.xla_dequantize_per_tensor(X.to("xla"), 1.0, 0, -128, 127, torch.int8)
    with pytest.raises(ValueError, match="channels"):
        quantized.xla_quantize_per_channel(X.to("xla"), SCALE, ZERO, 0, -128, 127, torch.int8)
    with pytest.raises(IndexError, match="axis 2"):
        quantized.xla_quantize_per_channel(X.to("xla"), SCALE, ZERO, 2, -128, 127, torch.int8)
    with pytest.raises(ValueError, match="no dtype"):
        _XLAC._xla_quantize_tensor(X.to("xla"), [1.0], [0], 0, 1, "int99", -1)


@pytest.mark.parametrize("mode", ["lazy", "eager", "compiled"])
@pytest.mark.parametrize("block_size", [-1, 4])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_quantized_layer(symmetric: bool, block_size: int, mode: str) -> None:
    weight, scale, zero = (WEIGHT, SCALE, ZERO) if block_size == -1 else (BLOCKS, BLOCK_SCALE, BLOCK_ZERO)
    if block_size == -1:
        full = weight * scale[:, None] - (0 if symmetric else zero[:, None])
    else:
        full = (weight * scale[:, None] - (0 if symmetric else zero[:, None])).reshape(8, 4).T
    layer = XlaQuantizedLinear(8, 4, symmetric, block_size, int4_weight=block_size == 4)
    layer.load_quantized_weight(weight, scale, None if symmetric else zero)
    layer.to("xla")
    x = X.to("xla").requires_grad_()
    with eager_mode_context(mode == "eager"):
        found = (torch.compile(layer, backend="openxla") if mode == "compiled" else layer)(x)
    near(found, X @ full.T, 1e-3)
    found.sum().backward()
    near(x.grad, full.sum(0).expand(3, 8), 1e-3)


@pytest.mark.parametrize("block_size", [-1, 4])
def test_rounded_activations(block_size: int) -> None:
    weight, scale, zero = (WEIGHT, SCALE, ZERO) if block_size == -1 else (BLOCKS, BLOCK_SCALE, BLOCK_ZERO)
    step = X.abs().amax(-1, keepdim=True) / 127
    on_device = [one.to("xla") for one in (X, weight, scale, zero)]
    rounded = torch.round(X / step) * step
    exact = quantized_matmul(rounded.to("xla"), on_device[1], on_device[2], None, block_size).cpu()
    found = quantized_matmul(*on_device[:3], block_size=block_size, quantize_activation=True)
    near(found, exact, 1e-3)
    shifted = quantized_matmul_xla(*on_device, block_size, False, True)
    sums = X.sum(-1, keepdim=True) * zero if block_size == -1 else X.reshape(3, 2, 4).sum(-1) @ zero
    near(shifted, exact - sums, 1e-3)
    x = X.to("xla").requires_grad_()
    quantized_matmul(x, *on_device[1:3], block_size=block_size, quantize_activation=True).sum().backward()
    y = X.to("xla").requires_grad_()
    quantized_matmul(y, *on_device[1:3], block_size=block_size).sum().backward()
    near(x.grad, y.grad.cpu())


def test_layers_refuse_what_does_not_fit() -> None:
    layer = XlaQuantizedLinear(8, 4, is_symmetric=True)
    with pytest.raises(ValueError, match="takes no zero_point"):
        layer.load_quantized_weight(WEIGHT, SCALE, ZERO)
    with pytest.raises(TypeError, match="int8"):
        layer.load_quantized_weight(WEIGHT.float(), SCALE)
    with pytest.raises(ValueError, match="scaler"):
        layer.load_quantized_weight(WEIGHT, SCALE[:2])
    with pytest.raises(ValueError, match="2 dimensions"):
        quantized_matmul(X.to("xla"), BLOCKS.to("xla"), BLOCK_SCALE.to("xla"))
    with pytest.raises(ValueError, match="3 inputs"):
        quantized_matmul(X[:, :3].to("xla"), WEIGHT.to("xla"), SCALE.to("xla"))


def test_dot_general() -> None:
    lhs, rhs = torch.randn(2, 3, 4, generator=DRAW), torch.randn(2, 5, 4, generator=DRAW)
    a, b = lhs.to("xla").requires_grad_(), rhs.to("xla")
    found = _XLAC._xla_dot_general(a, b, (([2], [2]), ([0], [0])), "HIGHEST")
    near(found, torch.einsum("bik,bjk->bij", lhs, rhs))
    found.sum().backward()
    near(a.grad, rhs.sum(1, keepdim=True).expand(2, 3, 4))
    numbers = torch.full((3, 64), 100, dtype=torch.int8)
    wide = _XLAC._xla_dot_general(numbers.to("xla"), numbers.to("xla"), (((1,), (1,)), ((), ())), preferred_element_type=torch.int32)
    assert wide.dtype is torch.int32 and wide.cpu().tolist() == [[640_000] * 3] * 3
    low = _XLAC._xla_dot_general(X.to("xla").bfloat16(), X.to("xla").bfloat16(), (((1,), (1,)), ((), ())), None, torch.float32)
    assert low.dtype is torch.float32
    mixed = _XLAC._xla_dot_general(X.to("xla"), WEIGHT.to("xla"), (((1,), (1,)), ((), ())))
    near(mixed, X @ WEIGHT.float().T, 1e-3)


def test_dimensions_from_the_end_and_wide_results() -> None:
    numbers = torch.full((2, 3), 100, dtype=torch.int8)
    a, b = numbers.to("xla"), (numbers + 1).to("xla")
    wide = _XLAC._xla_dot_general(a, b, (([-1], [-1]), ()), preferred_element_type=torch.int64)
    assert wide.dtype is torch.int64 and wide.tolist() == [[30_300] * 2] * 2
    exact = _XLAC._xla_dot_general(a.float(), b.float(), (([-1], [1]), ([0], [-2])), None, torch.float64)
    assert exact.dtype is torch.float64 and exact.tolist() == [30_300.0] * 2
    with pytest.raises(IndexError, match="dimension 2 is out of range for 2 dimensions"):
        _XLAC._xla_dot_general(a, b, (([2], [1]), ()))


def test_gradients_of_scales() -> None:
    theirs, mine = SCALE.clone().requires_grad_(), SCALE.to("xla").requires_grad_()
    (WEIGHT * theirs[:, None]).square().sum().backward()
    zeros = torch.zeros(4, dtype=torch.int64)
    quantized.xla_dequantize_per_channel(WEIGHT.to("xla"), mine, zeros, 0, -128, 127, torch.int8).square().sum().backward()
    assert mine.grad is not None and theirs.grad is not None
    near(mine.grad, theirs.grad)


def test_four_bits() -> None:
    weight = torch.tensor([[1, -8], [7, 9]], dtype=torch.int8)
    assert "s4[2,2]" in _XLAC._get_xla_tensors_hlo([_XLAC._xla_cast_int4(weight.to("xla"), [])])
    assert _XLAC._xla_cast_int4(weight.to("xla"), []).tolist() == [[1, -8], [7, -7]]
    assert _XLAC._xla_cast_int4(weight.to("xla"), [0, 1, 2, 3]).tolist() == [[0, 1], [2, 3]]
