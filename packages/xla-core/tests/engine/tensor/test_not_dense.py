"""Sparse, quantized and nested tensors on an xla device are refused, by whatever route they are asked for, with what to do."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla  # noqa: F401  # registers the device

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of each of these kinds by itself
ROWS = [torch.ones(2), torch.ones(3)]


def parts() -> list[torch.Tensor]:
    return [row.to("xla") for row in ROWS]


SPARSE: list[Callable[[], Any]] = [
    lambda: torch.eye(3, device="xla").to_sparse(),
    lambda: torch.eye(3, device="xla").to_sparse_csr(),
    lambda: torch.eye(3).to_sparse().to("xla"),
    lambda: torch.eye(3).to_sparse_csr().to("xla"),
    lambda: torch.sparse_coo_tensor([[0]], [1.0], (3,), device="xla"),
    lambda: torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 3), device="xla"),
    lambda: torch.zeros(3, layout=torch.sparse_coo, device="xla"),
    lambda: torch.empty(3, 3, layout=torch.sparse_csr, device="xla"),
    lambda: torch.zeros_like(torch.eye(3).to_sparse(), device="xla"),
    lambda: torch.ones(3, device="xla").to_mkldnn(),
]
QUANTIZED: list[Callable[[], Any]] = [
    lambda: torch.quantize_per_tensor(torch.ones(3, device="xla"), 1.0, 0, torch.qint8),
    lambda: torch.quantize_per_channel(torch.ones(3, device="xla"), *[torch.ones(3, device="xla")] * 2, 0, torch.qint8),
    lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.quint8).to("xla"),
    lambda: torch._empty_affine_quantized([3], scale=1.0, zero_point=0, dtype=torch.qint8, device="xla"),
    lambda: torch._empty_per_channel_affine_quantized(
        [3], scales=torch.ones(3), zero_points=torch.zeros(3), axis=0, dtype=torch.qint8, device="xla"
    ),
    lambda: torch.zeros(3, dtype=torch.qint32, device="xla"),
    lambda: torch.empty_strided((3,), (2,), dtype=torch.qint8, device="xla"),
    lambda: torch.empty_like(torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.quint8), device="xla"),
]
NESTED: list[Callable[[], Any]] = [
    lambda: torch.nested.nested_tensor(ROWS, device="xla") + 1,  # torch makes it without a call that a device could see
    lambda: torch.nested.nested_tensor(ROWS, device="xla", layout=torch.jagged),
    lambda: torch.nested.nested_tensor(ROWS).to("xla"),
    lambda: torch.nested.nested_tensor(parts(), device="xla"),
    lambda: torch.nested.as_nested_tensor(parts()),
    lambda: torch.nested.as_nested_tensor(parts(), dtype=torch.float64, device="xla"),
    lambda: torch.nested.as_nested_tensor(parts(), layout=torch.jagged),
]


@pytest.mark.parametrize("make", SPARSE, ids=lambda make: f"line {make.__code__.co_firstlineno}")
def test_sparse(make: Callable[[], Any]) -> None:
    with pytest.raises(NotImplementedError, match=r"there are no sparse tensors: make it dense with \.to_dense\(\)"):
        make()


@pytest.mark.parametrize("make", QUANTIZED, ids=lambda make: f"line {make.__code__.co_firstlineno}")
def test_quantized(make: Callable[[], Any]) -> None:
    with pytest.raises((NotImplementedError, TypeError), match="integers and their scale .*quantized_decomposed"):
        make()


@pytest.mark.parametrize("make", NESTED, ids=lambda make: f"line {make.__code__.co_firstlineno}")
def test_nested(make: Callable[[], Any]) -> None:
    with pytest.raises(NotImplementedError, match="there are no nested tensors: pad it with torch.nested.to_padded_tensor"):
        make()


def test_what_is_advised() -> None:
    padded = torch.nested.to_padded_tensor(torch.nested.nested_tensor(ROWS), 0.0)
    assert padded.to("xla").cpu().equal(padded)
    x = torch.tensor([0.1, 0.7, -0.4])
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor
    arguments = (0.01, 0, -128, 127, torch.int8)
    assert quantize(x.to("xla"), *arguments).cpu().equal(torch.quantize_per_tensor(x, 0.01, 0, torch.qint8).int_repr())


@pytest.mark.parametrize("other", [1 + 2j, torch.tensor(1 + 2j)], ids=["number", "tensor"])
def test_complex_numbers_of_half_precision(other: Any) -> None:
    """Python's operators take a TypeError for operands that they do not know."""
    with pytest.raises(NotImplementedError, match=r"aten.mul.Tensor: torch.complex32 has no counterpart on XLA devices; use complex64"):
        torch.ones(3, device="xla", dtype=torch.float16) * other
