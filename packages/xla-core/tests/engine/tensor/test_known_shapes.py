"""A call in new sizes is inferred by rule, and gives the shapes, dtypes and errors that the CPU gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_xla
from xla_core.engine.tensor import infer

A = torch.ops.aten
SIZES = st.integers(0, 3) | st.integers(4, 40)
SHAPES = st.lists(SIZES, min_size=0, max_size=3)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])


def outcome(function: Callable[..., Any], tensors: list[Tensor]) -> Any:
    """The shapes, strides and dtypes of the results, or the type and text of the error."""
    try:
        results = function(*tensors)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        # Which kernel says that it is not written depends on the sizes.
        return type(error), re.sub(r'^"\w+" not implemented', "not implemented", str(error).partition("\n")[0])
    flat = [results] if isinstance(results, Tensor) else results
    return [None if each is None else (tuple(each.shape), strides(each), each.dtype) for each in flat]


def strides(tensor: Tensor) -> list[int]:
    """Those that tell where elements are: of dimensions with several, in tensors with any."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory. turned: its dimensions are reversed; gaps: it is a part of a longer one."""

    turned: bool = False
    gaps: bool = False

    def zeros(self, shape: list[int], dtype: torch.dtype, device: str) -> Tensor:
        sizes = shape[::-1] if self.turned else list(shape)
        if self.gaps and sizes:
            sizes[-1] += 2
        tensor = torch.zeros(sizes, dtype=dtype, device=device)
        if self.gaps and sizes:
            tensor = tensor[..., 1:-1]
        return tensor.permute(list(range(len(sizes))[::-1])) if self.turned else tensor


LAYOUTS = st.builds(Layout, st.booleans(), st.booleans())


def agree(
    function: Callable[..., Any], shapes: list[list[int]], dtypes: list[torch.dtype], words: bool = True, layouts: Sequence[Layout] = ()
) -> None:
    """Compare the device with the CPU. words: of errors too; layouts: of the tensors, contiguous ones if there are none."""
    note(f"{shapes} {dtypes} {layouts}")
    sides = []
    with torch.no_grad():
        for device in ("xla", "cpu"):
            described = zip(layouts or [Layout()] * len(shapes), shapes, dtypes, strict=True)
            sides.append(outcome(function, [layout.zeros(shape, dtype, device) for layout, shape, dtype in described]))
    on_device, on_cpu = sides
    refused = isinstance(on_device, tuple) and isinstance(on_cpu, tuple)
    assert on_device[0] == on_cpu[0] if refused and not words else on_device == on_cpu


POINTWISE: list[Callable[..., Any]] = [torch.add, torch.mul, torch.div, torch.maximum, torch.atan2, torch.logical_and, torch.eq, torch.pow]


@settings(max_examples=50)
@given(st.sampled_from(POINTWISE), SHAPES, SHAPES, DTYPES, DTYPES, LAYOUTS, LAYOUTS)
def test_pointwise_of_two(
    function: Any, one: list[int], other: list[int], first: torch.dtype, second: torch.dtype, this: Layout, that: Layout
) -> None:
    agree(function, [one, other], [first, second], layouts=[this, that])


THREE = st.tuples(LAYOUTS, LAYOUTS, LAYOUTS)


@given(st.sampled_from([torch.where, torch.lerp, torch.addcmul, torch.clamp]), st.lists(SHAPES, min_size=3, max_size=3), DTYPES, THREE)
def test_pointwise_of_three(function: Any, shapes: list[list[int]], dtype: torch.dtype, layouts: Sequence[Layout]) -> None:
    agree(function, shapes, [torch.bool if function is torch.where else dtype, dtype, dtype], layouts=layouts)


FEW = st.sampled_from([1, 2, 5, 130])
MATRICES = st.lists(FEW, min_size=1, max_size=3)


@given(st.sampled_from([torch.mm, torch.matmul, torch.bmm, torch.nn.functional.linear]), MATRICES, MATRICES, DTYPES, THREE)
def test_products(function: Any, one: list[int], other: list[int], dtype: torch.dtype, layouts: Sequence[Layout]) -> None:
    # Torch splits matmul into other products on the CPU than on any other device; the words are of the part that does not fit.
    agree(function, [one, other], [dtype, dtype], words=function is not torch.matmul, layouts=layouts[:2])


@given(st.sampled_from([torch.addmm, torch.baddbmm, torch.nn.functional.linear]), st.tuples(MATRICES, MATRICES, MATRICES), DTYPES, THREE)
def test_products_with_a_sum(function: Any, shapes: tuple[list[int], ...], dtype: torch.dtype, layouts: Sequence[Layout]) -> None:
    agree(function, list(shapes), [dtype, dtype, dtype], layouts=layouts)


@given(st.sampled_from([torch.softmax, torch.log_softmax]), SHAPES, st.integers(-3, 3), DTYPES, LAYOUTS)
def test_softmax(function: Any, shape: list[int], dim: int, dtype: torch.dtype, layout: Layout) -> None:
    agree(lambda x: function(x, dim), [shape], [dtype], layouts=[layout])


@settings(max_examples=50)
@given(SHAPES, st.lists(FEW, min_size=1, max_size=2), st.booleans(), DTYPES, LAYOUTS)
def test_layer_norm(shape: list[int], normalized: list[int], fits: bool, dtype: torch.dtype, layout: Layout) -> None:
    x = [*shape, *normalized] if fits else shape
    layouts = [layout, Layout()]
    agree(lambda x, weight: torch.nn.functional.layer_norm(x, normalized, weight), [x, normalized], [dtype, dtype], layouts=layouts)


@given(st.lists(FEW, min_size=2, max_size=2), SHAPES, st.sampled_from([torch.int64, torch.int32, torch.float32]))
def test_embedding(weight: list[int], indices: list[int], dtype: torch.dtype) -> None:
    agree(lambda weight, indices: A.embedding(weight, indices), [weight, indices], [torch.float32, dtype])


SIZES_OF_FOUR = st.lists(st.sampled_from([1, 2, 5, 17]), min_size=4, max_size=4)


@given(st.lists(SIZES_OF_FOUR, min_size=3, max_size=3), st.booleans())
def test_attention(shapes: list[list[int]], causal: bool) -> None:
    # The CPU's fused kernel does not compare the lengths of keys and values: it reads beside the shorter one. Its plain kernel does.
    with sdpa_kernel(SDPBackend.MATH):
        agree(lambda *qkv: torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal), shapes, [torch.float32] * 3)


@given(SIZES_OF_FOUR, st.integers(1, 17), st.booleans(), st.booleans())
def test_attention_of_what_fits(sizes: list[int], length: int, causal: bool, split: bool) -> None:
    """split: the heads are a view of the features of each token, as in most models."""
    batch, heads, queries, depth = sizes

    def attend(*qkv: Tensor) -> Tensor:
        apart = [x.transpose(1, 2) if split else x.view(x.shape[0], x.shape[2], x.shape[1], x.shape[3]) for x in qkv]
        return torch.nn.functional.scaled_dot_product_attention(*apart, is_causal=causal)

    agree(attend, [[batch, queries, heads, depth], *[[batch, length, heads, depth]] * 2], [torch.float32] * 3)


def _trained(x: Tensor, layers: torch.nn.Module) -> list[tuple[int, ...]]:
    layers(x).square().sum().backward()
    return [tuple(parameter.grad.shape) for parameter in layers.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("sizes", [(3, 70, 8), (70, 8), (1, 1, 8), (0, 8)])
def test_gradients(sizes: tuple[int, ...]) -> None:
    shapes = []
    for device in ("cpu", "xla"):
        layers = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.LayerNorm(6), torch.nn.GELU(), torch.nn.Softmax(-1)).to(device)
        shapes.append(_trained(torch.ones(sizes).to(device), layers))
        torch_xla.sync()
    assert shapes[0] == shapes[1]


def test_a_new_size_does_not_ask_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(size: int) -> Tensor:
        x = torch.ones(size, 7).to("xla")
        y = torch.ones(7, size).to("xla").t()
        return torch.nn.functional.gelu(x) + x + y * 2

    def asked(*args: Any) -> Any:
        raise AssertionError("torch was asked")

    step(11)
    monkeypatch.setattr(infer, "on_meta", asked)
    monkeypatch.setattr(infer, "on_cpu", asked)
    assert tuple(step(13).shape) == (13, 7)
