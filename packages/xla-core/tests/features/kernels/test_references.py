"""Reference computations of kernels: compared with plain loops in NumPy or stock torch."""

from __future__ import annotations

import math

import pytest
import torch

import torch_xla
from torch_xla.experimental import custom_kernel as kernels
from torch_xla.experimental.splash_attention import splash_attention
from xla_core.base import metrics
from xla_core.base.errors import UnsupportedOperationError


@pytest.fixture
def draw() -> torch.Generator:
    """The same numbers in each test."""
    return torch.Generator().manual_seed(3)


def near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "xla"
    torch.testing.assert_close(actual.detach().cpu(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention(causal: bool, draw: torch.Generator) -> None:
    q, k, v = (torch.randn(2, 3, 8, 4, generator=draw) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    near(kernels.flash_attention(q.to("xla"), k.to("xla"), v.to("xla"), causal, sm_scale=0.5, partition_spec=("x",), mesh=None), expected)


def test_flash_attention_gradients_segments_and_bias(draw: torch.Generator) -> None:
    tensors = [torch.randn(1, 2, 6, 4, generator=draw) for _ in range(3)]
    bias = torch.randn(1, 2, 6, 6, generator=draw)
    segments = torch.tensor([[0, 0, 1, 1, 1, 2]])
    mask = (segments[:, None, :, None] == segments[:, None, None, :]) & torch.ones(6, 6).tril().bool()
    results = []
    for device in ("cpu", "xla"):
        q, k, v = (tensor.detach().to(device).requires_grad_() for tensor in tensors)
        if device == "cpu":
            scores = ((q @ k.transpose(-1, -2) + bias) * 0.25).masked_fill(~mask, -math.inf)
            out = torch.softmax(scores, -1) @ v
        else:
            out = kernels.flash_attention(q, k, v, True, segments.to(device), segments.to(device), 0.25, ab=bias.to(device))
        out.square().sum().backward()
        results.append([out.detach(), *(tensor.grad for tensor in (q, k, v))])
    for expected, actual in zip(*results, strict=True):
        near(actual, expected)


def test_flash_attention_reads_nothing(draw: torch.Generator) -> None:
    torch_xla.sync()
    q = torch.randn(1, 1, 4, 4, generator=draw).to("xla").to(torch.bfloat16)
    before = metrics.counter("ExecuteComputation")
    out = kernels.flash_attention(q, q, q, causal=True)
    assert metrics.counter("ExecuteComputation") == before
    assert out.dtype is torch.bfloat16 and out.shape == q.shape


def test_splash_attention_groups_heads(draw: torch.Generator) -> None:
    q, k, v = torch.randn(1, 4, 5, 8, generator=draw), torch.randn(1, 2, 5, 8, generator=draw), torch.randn(1, 2, 5, 8, generator=draw)
    scores = 30.0 * torch.tanh(q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 30.0)
    expected = torch.softmax(scores.masked_fill(~torch.ones(5, 5).tril().bool(), -math.inf), -1) @ v.repeat_interleave(2, 1)
    near(splash_attention(q.to("xla"), k.to("xla"), v.to("xla"), None, attn_logits_soft_cap=30.0), expected)
    segments = torch.tensor([[0, 0, 0, 1, 1]])
    apart = splash_attention(q.to("xla"), k.to("xla"), v.to("xla"), None, segments.to("xla"), causal=False)
    first = splash_attention(q[:, :, :3].to("xla"), k[:, :, :3].to("xla"), v[:, :, :3].to("xla"), None, causal=False)
    near(apart[:, :, :3], first.cpu())


def paged(draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pages of 2 heads, 7 pages of 4 places, 8 numbers; sequences use them out of order."""
    k, v = torch.randn(2, 7, 4, 8, generator=draw), torch.randn(2, 7, 4, 8, generator=draw)
    return k, v, torch.tensor([[5, 0], [2, 6]], dtype=torch.int32)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query (heads, dim) over keys (kv_heads, length, dim)."""
    groups = q.shape[0] // k.shape[0]
    rows = [torch.softmax(k[head // groups] @ q[head], 0) @ v[head // groups] for head in range(q.shape[0])]
    return torch.stack(rows)


def test_paged_attention(draw: torch.Generator) -> None:
    k, v, pages = paged(draw)
    q, lengths = torch.randn(2, 4, 8, generator=draw), torch.tensor([3, 7], dtype=torch.int32)
    expected = []
    for row, length in enumerate(lengths.tolist()):
        keys, values = (part[:, pages[row].long()].flatten(1, 2)[:, :length] for part in (k, v))
        expected.append(attend(q[row], keys, values))
    on_device = [tensor.to("xla") for tensor in (q, k, v, lengths, pages)]
    near(kernels.paged_attention(*on_device, pages_per_compute_block=2), torch.stack(expected))


def test_multi_queries_paged_attention(draw: torch.Generator) -> None:
    k, v, pages = paged(draw)
    q, lengths = torch.randn(2, 3, 4, 8, generator=draw), torch.tensor([5, 8], dtype=torch.int32)
    expected = torch.zeros_like(q)
    for row, length in enumerate(lengths.tolist()):
        keys, values = (part[:, pages[row].long()].flatten(1, 2) for part in (k, v))
        for query in range(3):
            end = length - 3 + query + 1
            expected[row, query] = attend(q[row, query], keys[:, :end], values[:, :end])
    on_device = [tensor.to("xla") for tensor in (q, k, v, lengths, pages)]
    near(kernels.multi_queries_paged_attention(*on_device, torch.tensor([3, 3]).to("xla"), 1, 1), expected)


def test_ragged_paged_attention(draw: torch.Generator) -> None:
    kv = torch.randn(7, 4, 4, 8, generator=draw)  # two key heads, two value heads, alternating
    pages = torch.tensor([[5, 0], [2, 6], [0, 0]], dtype=torch.int32)
    q, lengths = torch.randn(9, 4, 8, generator=draw), torch.tensor([6, 7, 0], dtype=torch.int32)
    starts = torch.tensor([0, 2, 7, 7], dtype=torch.int32)
    expected = torch.zeros_like(q)
    for sequence in range(2):
        rows = kv[pages[sequence].long()].flatten(0, 1)
        keys, values = rows[:, 0::2].transpose(0, 1), rows[:, 1::2].transpose(0, 1)
        start, end, length = int(starts[sequence]), int(starts[sequence + 1]), int(lengths[sequence])
        for token in range(start, end):
            seen = length - end + token + 1
            expected[token] = attend(q[token] * 0.5, keys[:, max(0, seen - 3) : seen], values[:, max(0, seen - 3) : seen])
    on_device = [tensor.to("xla") for tensor in (q, kv, lengths, pages, starts, torch.tensor([2], dtype=torch.int32))]
    near(kernels.ragged_paged_attention(*on_device, sm_scale=0.5, sliding_window=3), expected)


def test_grouped_products(draw: torch.Generator) -> None:
    lhs, rhs, sizes = torch.randn(7, 3, generator=draw), torch.randn(3, 3, 4, generator=draw), torch.tensor([2, 0, 4], dtype=torch.int32)
    expected = torch.zeros(7, 4)
    expected[:2], expected[2:6] = lhs[:2] @ rhs[0], lhs[2:6] @ rhs[2]
    near(kernels.gmm(lhs.to("xla"), rhs.to("xla"), sizes.to("xla")), expected)
    near(kernels.gmm(lhs.to("xla"), rhs.transpose(1, 2).contiguous().to("xla"), sizes.to("xla"), transpose_rhs=True), expected)
    left, right = torch.randn(3, 7, generator=draw), torch.randn(7, 4, generator=draw)
    grouped = torch.stack([left[:, :2] @ right[:2], torch.zeros(3, 4), left[:, 2:6] @ right[2:6]])
    near(kernels.tgmm(left.to("xla"), right.to("xla"), sizes.to("xla")), grouped)


def test_quantized_matmul(draw: torch.Generator) -> None:
    x = torch.randn(5, 6, generator=draw)
    weight, scale = torch.randint(-127, 128, (4, 6), generator=draw, dtype=torch.int8), torch.rand(4, generator=draw)
    zero = torch.tensor([1.0, 0.0, -2.0, 3.0])
    expected = x @ ((weight.float() - zero[:, None]) * scale[:, None]).T
    near(kernels.quantized_matmul_int8(x.to("xla"), weight.to("xla"), scale.to("xla"), zero.to("xla")), expected)
    rough = kernels.quantized_matmul_int8(x.to("xla"), weight.to("xla"), scale.to("xla"), quantize_activation=True)
    exact = x @ (weight.float() * scale[:, None]).T
    assert ((rough.cpu() - exact).abs() <= 0.02 * exact.abs().max()).all() and not torch.equal(rough.cpu(), exact)
    with pytest.raises(UnsupportedOperationError, match="block_size="):
        kernels.quantized_matmul_int8(x.to("xla"), weight.to("xla"), scale.to("xla"), quant_block_size=scale.to("xla"))
