"""Quantization in exported modules: StableHLO's own operations and types, and modules with them run; beside stock torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines torch.ops.quantized_decomposed

import torch_xla.core.xla_model as xm
from torch_xla import _XLAC
from torch_xla.experimental import quantized
from torch_xla.stablehlo import StableHLOGraphModule, exported_program_to_stablehlo
from xla_core.base.errors import ExecutionError
from xla_core.features.export.stablehlo import run_stablehlo
from xla_core.features.export.uniform import Uniform

OPS: Any = torch.ops.quantized_decomposed
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(4)) * 5
SCALE, ZERO = torch.tensor([0.1, 0.25, 0.5]), torch.tensor([1, 0, -3])
EIGHT = (-128, 127, torch.int8)


def there_and_back(x: torch.Tensor) -> torch.Tensor:
    return OPS.dequantize_per_tensor(OPS.quantize_per_tensor(x, 0.1, 3, *EIGHT), 0.1, 3, *EIGHT)  # type: ignore[no-any-return]


def test_a_pair_is_two_operations_of_stablehlo() -> None:
    found = there_and_back(X.to("xla"))
    text = xm.get_stablehlo([found])
    assert text.count("stablehlo.uniform_quantize") == text.count("stablehlo.uniform_dequantize") == 1
    assert "tensor<2x3x4x!quant.uniform<i8:f32, 1.000000e-01:3>>" in text and "stablehlo.bitcast_convert" not in text
    assert torch.equal(found.cpu(), there_and_back(X))  # what runs has arithmetic


def test_channels_and_ranges_in_the_types() -> None:
    x = X.to("xla")
    by_channel = OPS.quantize_per_channel(x, SCALE.to("xla"), ZERO.to("xla"), 1, *EIGHT)
    listed = _XLAC._xla_quantize_tensor(x, SCALE.tolist(), ZERO.tolist(), -128, 127, "int8", 1)
    narrow = quantized.xla_quantize_per_tensor(x, 0.5, 8, 0, 15, torch.uint8)
    weight = quantized.xla_dequantize_per_tensor(torch.ones(3, dtype=torch.int16).to("xla"), 0.5, 0, -32768, 32767, torch.int16)
    text = xm.get_stablehlo([by_channel, listed, narrow, weight])
    assert text.count("quant.uniform<i8:f32:1, {0.10000000149011612:1,2.500000e-01,5.000000e-01:-3}>") >= 2
    assert "!quant.uniform<u8<0:15>:f32, 5.000000e-01:8>" in text and "!quant.uniform<i16:f32, 5.000000e-01>" in text
    assert isinstance(xm.get_stablehlo_bytecode([by_channel]), bytes)


def test_what_no_type_can_say_stays_arithmetic() -> None:
    x, scale = X.to("xla"), SCALE.to("xla") * 2  # computed by the program
    found = [
        OPS.quantize_per_channel(x, scale, ZERO.to("xla"), 1, *EIGHT),
        quantized.xla_quantize_per_tensor(x, 0.5, 300, -128, 127, torch.int8),
        quantized.xla_quantize_per_tensor(x.double(), 0.5, 0, -128, 127, torch.int8),
    ]
    assert "uniform_quantize" not in xm.get_stablehlo(found)
    assert torch.equal(found[0].cpu(), OPS.quantize_per_channel(X, SCALE * 2, ZERO, 1, *EIGHT))


class ByName(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", SCALE)
        self.register_buffer("zero", ZERO)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return quantized.xla_quantize_per_channel(x, self.scale, self.zero, 1, *EIGHT)


def test_functions_of_the_device_in_an_exported_program() -> None:
    made = exported_program_to_stablehlo(torch.export.export(ByName(), (X,)))
    text = made.get_stablehlo_text()
    assert text is not None and text.count("stablehlo.uniform_quantize") == 1
    expected = OPS.quantize_per_channel(X, SCALE, ZERO, 1, *EIGHT)
    assert torch.equal(made(X).cpu(), expected)
    compiled: Any = torch.compile(ByName().to("xla"), backend="openxla", fullgraph=True)
    assert torch.equal(compiled(X.to("xla")).cpu(), expected)


class ByArgument(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        return OPS.quantize_per_channel(x, scale, zero, 1, *EIGHT)  # type: ignore[no-any-return]


def test_a_scale_that_is_an_argument_stays_one() -> None:
    made = exported_program_to_stablehlo(torch.export.export(ByArgument(), (X, SCALE, ZERO)))
    for scale in (SCALE, SCALE * 2):
        assert torch.equal(made(X, scale, ZERO).cpu(), ByArgument()(X, scale, ZERO))


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.arange(12, dtype=torch.uint8).reshape(4, 3) * 20)
        self.register_buffer("scale", SCALE)
        self.register_buffer("zero", ZERO)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        integers = OPS.quantize_per_channel(x, self.scale, self.zero, 1, *EIGHT)
        rough = OPS.dequantize_per_channel(integers, self.scale, self.zero, 1, *EIGHT)
        bytes_ = OPS.quantize_per_tensor(rough, 0.05, 128, 0, 255, torch.uint8)
        weight = OPS.dequantize_per_tensor(self.weight, 0.02, 128, 0, 255, torch.uint8)
        return bytes_, rough.transpose(1, 2) @ weight.T


def test_exported_modules_run_here_too(tmp_path: Path) -> None:
    module = Layers()
    made = exported_program_to_stablehlo(torch.export.export(module, (X,)))
    text = made.get_stablehlo_text()
    assert text is not None and text.count("stablehlo.uniform_quantize") == 2 and text.count("stablehlo.uniform_dequantize") == 2
    made.save(str(tmp_path))
    expected = module(X)
    for program in (made, StableHLOGraphModule.load(str(tmp_path))):
        integers, product = program(X)
        assert torch.equal(integers.cpu(), expected[0])
        torch.testing.assert_close(product.cpu(), expected[1])


def test_modules_of_others() -> None:
    kind = "!quant.uniform<u8:f32, 5.000000e-01:130>"
    text = f"""func.func @main(%x: tensor<4xui8>) -> tensor<4xf32> {{
      %0 = stablehlo.bitcast_convert %x : (tensor<4xui8>) -> tensor<4x{kind}>
      %1 = stablehlo.add %0, %0 : tensor<4x{kind}>
      %2 = stablehlo.uniform_dequantize %0 : (tensor<4x{kind}>) -> tensor<4xf32>
      return %2 : tensor<4xf32>
    }}"""
    x = torch.tensor([0, 127, 130, 255], dtype=torch.uint8).to("xla")
    plain = "\n".join(line for line in text.splitlines() if "add" not in line)
    assert run_stablehlo(plain.encode(), [x])[0].tolist() == [-65.0, -1.5, 0.0, 62.5]
    with pytest.raises(ExecutionError, match="computes with quantized types"):
        run_stablehlo(text.encode(), [x])


@pytest.mark.parametrize(
    "kind",
    [
        Uniform(np.dtype(np.int8), -128, 127, (1e-05,), (-4,), -1),
        Uniform(np.dtype(np.uint8), 3, 200, (0.1, 1 / 3), (3, 200), 1),
    ],
    ids=["one", "channels"],
)
def test_types_are_read_as_they_were_written(kind: Uniform) -> None:
    assert kind.valid and Uniform.of(kind.text) == kind
    assert Uniform.of("i8") is None and Uniform.of("!quant.uniform<i4:f32, 1.0>") is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_quantized_as_by_torch(dtype: torch.dtype) -> None:
    low = X.to(dtype)
    found = OPS.quantize_per_tensor(low.to("xla"), 0.07, 3, *EIGHT)
    assert torch.equal(found.cpu(), OPS.quantize_per_tensor(low, 0.07, 3, *EIGHT))
    back = OPS.dequantize_per_tensor(found, 0.07, 3, *EIGHT, out_dtype=dtype)
    assert torch.equal(back.cpu(), OPS.dequantize_per_tensor(found.cpu(), 0.07, 3, *EIGHT, out_dtype=dtype))
