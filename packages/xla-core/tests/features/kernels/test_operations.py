"""The operations `torch.ops.xla`: on every way to run them, with gradients; compared with stock torch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import export

import torch_xla
from torch_xla.experimental import custom_kernel as kernels
from torch_xla.experimental.eager import eager_mode_context
from torch_xla.experimental.splash_attention import SplashAttention, SplashAttentionConfig, splash_attention
from torch_xla.experimental.xla_quantized_matmul import quantized_matmul, quantized_matmul_xla
from torch_xla.stablehlo import exported_program_to_stablehlo

DRAW = torch.Generator().manual_seed(5)
Q, K, V = (torch.randn(2, 2, 6, 4, generator=DRAW) for _ in range(3))
LHS, RHS, SIZES = torch.randn(7, 3, generator=DRAW), torch.randn(3, 3, 4, generator=DRAW), torch.tensor([2, 0, 4])
X, W, SCALE = (
    torch.randn(5, 6, generator=DRAW),
    torch.randint(-127, 128, (4, 6), generator=DRAW, dtype=torch.int8),
    torch.rand(4, generator=DRAW),
)
PAGES = [torch.randn(2, 7, 4, 8, generator=DRAW) for _ in range(2)]
ONE, IDS = torch.zeros(2, 4, 8), torch.tensor([[0, 0, 1, 1, 2, 2]] * 2)
TABLES = [torch.tensor([3, 7], dtype=torch.int32), torch.tensor([[5, 0], [2, 6]], dtype=torch.int32)]

RAGGED = [
    torch.randn(5, 4, 8, generator=DRAW),
    torch.randn(7, 4, 4, 8, generator=DRAW),
    *TABLES,
    torch.tensor([0, 2, 5], dtype=torch.int32),
    torch.tensor([2], dtype=torch.int32),
]


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)


def by_group(lhs: torch.Tensor, rhs: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    return torch.stack([lhs[:, :2] @ rhs[:2], lhs[:, :0] @ rhs[:0], lhs[:, 2:6] @ rhs[2:6]])


def repeated(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.repeat_interleave(rows, counts, dim=0), rows[-1:], rows[-1:]])


def grouped(lhs: torch.Tensor, rhs: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    return torch.cat([lhs[:2] @ rhs[0], lhs[2:6] @ rhs[2], lhs[6:] @ rhs[2] * 0])


def product(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x @ (w.float() * scale[:, None]).T


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]] = {
    "flash_attention": (lambda *args: torch.ops.xla.flash_attention(*args, True), attended, [Q, K, V]),
    "gmm": (lambda *args: torch.ops.xla.gmm(*args), grouped, [LHS, RHS, SIZES]),
    "tgmm": (lambda *args: torch.ops.xla.tgmm(*args), by_group, [LHS.T.contiguous(), torch.randn(7, 2, generator=DRAW), SIZES]),
    "repeat": (lambda *args: kernels.repeat_with_fixed_output_size(*args, 5), repeated, [LHS[:3], torch.tensor([1, 0, 2])]),
    "quantized_matmul": (lambda *args: torch.ops.xla.quantized_matmul(*args), product, [X, W, SCALE]),
    "quantized_matmul_int8": (lambda *args: torch.ops.xla.quantized_matmul_int8(*args), product, [X, W, SCALE]),
}


def moved(tensors: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """Fresh copies, of which those that can require gradients."""
    return [one.detach().to(device).clone().requires_grad_(one.is_floating_point() and one is not SCALE) for one in tensors]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare up to the rounding of sums of numbers as large as the largest."""
    size = max(expected.detach().abs().max().item(), 1)
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=2e-5, atol=2e-5 * size)


@pytest.mark.parametrize("way", ["lazy", "eager", "no_grad", "compiled", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, way: str) -> None:
    function, reference, inputs = CASES[name]
    mine, theirs = moved(inputs, "cpu" if way == "cpu" else "xla"), moved(inputs, "cpu")
    mode: Any = {"eager": eager_mode_context(True), "no_grad": torch.no_grad()}.get(way, contextlib.nullcontext())
    with mode:
        found = (torch.compile(function, backend="openxla", fullgraph=True) if way == "compiled" else function)(*mine)
    expected = reference(*theirs)
    close(found, expected)
    assert found.requires_grad == (way != "no_grad")
    if way == "no_grad":
        return
    found.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        if other.grad is not None:
            close(one.grad, other.grad)


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("name", CASES)
def test_exported_programs_hold_the_operation(name: str) -> None:
    function, reference, inputs = CASES[name]
    program = export(_Module(function), tuple(inputs))
    assert name == "repeat" or any(str(node.target) == f"xla.{name}.default" for node in program.graph.nodes)
    close(exported_program_to_stablehlo(program)(*inputs), reference(*inputs))


def test_fake_tensors_know_the_shapes() -> None:
    q, k, v = (part.to("meta") for part in (Q, K, V))
    results = torch.ops.xla.fa_custom_forward(q, k, v, True, None, None, 1.0, None, None, None, [True] * 3)
    assert [tuple(one.shape) for one in results] == [tuple(q.shape)] * 4 + [(2, 2, 6)] * 2 + [(0,)]
    one = torch.empty(2, 4, 8, device="meta")
    pages, tables = [part.to("meta") for part in PAGES], [part.to("meta") for part in TABLES]
    assert torch.ops.xla.paged_attention(one, *pages, *tables, 2).shape == one.shape
    assert torch.ops.xla.sa_custom_forward(q, k, v, "{}", None, True, None)[0].shape == q.shape
    assert torch.ops.xla.tgmm(LHS.to("meta"), torch.empty(3, 5, device="meta"), SIZES.to("meta")).shape == (3, 7, 5)


def test_statistics_of_the_rows_and_gradients_by_hand() -> None:
    q, k, v = (part.to("xla") for part in (Q, K, V))
    rest = (True, None, None, 0.5, None, None, None, [True] * 3)
    output, *_, total, largest, bias = torch.ops.xla.fa_custom_forward(q, k, v, *rest)
    scores = (Q @ K.mT * 0.5).masked_fill(~torch.ones(6, 6).tril().bool(), -math.inf)
    close(largest, scores.amax(-1))
    close(total, (scores - scores.amax(-1, keepdim=True)).exp().sum(-1))
    assert bias.numel() == 0
    shapes = [list(Q.shape), list(K.shape), None]
    grads = torch.ops.xla.fa_custom_backward(output, q, k, v, output, total, largest, None, None, None, True, 0.5, None, None, *shapes, [])
    theirs = moved([Q, K, V], "cpu")
    expected = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True, scale=0.5)
    expected.backward(expected.detach())
    for found, one in zip(grads, theirs, strict=False):
        close(found, one.grad)


def test_the_classes_are_functions_to_apply() -> None:
    theirs = moved([Q, K, V], "cpu")
    attended(*theirs).sum().backward()
    calls = (
        lambda *qkv: kernels.FlashAttention.apply(*qkv, True, None, None, 1.0, None, None, None),
        lambda *qkv: SplashAttention.apply(*qkv, SplashAttentionConfig().to_json(), None, True, None),
    )
    for apply in calls:
        mine = moved([Q, K, V], "xla")
        apply(*mine).sum().backward()
        for one, other in zip(mine, theirs, strict=True):
            close(one.grad, other.grad)


def test_attention_in_a_compiled_training_step_with_bias() -> None:
    bias = torch.randn(2, 2, 6, 6, generator=DRAW)
    mine, theirs = moved([Q, K, V, bias], "xla"), moved([Q, K, V, bias], "cpu")

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ab: torch.Tensor) -> torch.Tensor:
        return kernels.flash_attention(q, k, v, sm_scale=0.5, ab=ab)

    with torch_xla.step():
        torch.compile(step, backend="openxla")(*mine).sum().backward()
    (torch.softmax((theirs[0] @ theirs[1].mT + theirs[3]) * 0.5, -1) @ theirs[2]).sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        close(one.grad, other.grad)


def test_half_precision_keeps_its_dtype_in_autocast() -> None:
    q, k, v = (part.to("xla") for part in (Q, K, V))
    with torch.autocast("xla", dtype=torch.bfloat16):
        low = q @ torch.eye(4, device="xla")
        found = kernels.flash_attention(low, k, v, True)
    assert low.dtype is found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float().cpu(), attended(Q, K, V), rtol=0.05, atol=0.05)


def test_gradients_of_grouped_products() -> None:
    theirs = moved([LHS, RHS, SIZES], "cpu")
    grouped(*theirs).square().sum().backward()
    for apply in (kernels.gmm, kernels.GMM.apply):
        mine = moved([LHS, RHS, SIZES], "xla")
        found = apply(*mine)
        found.square().sum().backward()
        by_hand = kernels.gmm_backward(2 * found.detach(), *(one.detach() for one in mine))
        for one, other, hand in zip(mine, theirs, by_hand, strict=False):
            close(one.grad, other.grad)
            close(hand, other.grad)
    offset = kernels.gmm(mine[0].detach(), mine[1].detach()[1:], mine[2], group_offset=torch.tensor([1]).to("xla"))
    close(offset, torch.cat([torch.zeros(2, 4), LHS[2:6] @ RHS[2], torch.zeros(1, 4)]))
    some = kernels.tgmm(LHS.T.to("xla"), torch.ones(7, 2).to("xla"), SIZES.to("xla"), group_offset=1, num_actual_groups=2)
    close(some, torch.stack([torch.zeros(3, 2), LHS[2:6].T @ torch.ones(4, 2)]))


def test_repeats_of_fixed_size() -> None:
    for repeats in ([1, 2, 3], [0, 2, 1], [1, 2, 0]):
        rows, counts = torch.arange(6.0).reshape(3, 2), torch.tensor(repeats)
        expected = torch.repeat_interleave(rows, counts, dim=0)
        expected = torch.cat([expected, rows[-1:].expand(5, 2)])[:5]
        found = kernels.repeat_with_fixed_output_size(rows.to("xla"), counts.to("xla"), 5)
        assert torch.equal(found.cpu(), expected)


def test_splash_attention_with_gradients_and_windows() -> None:
    config = SplashAttentionConfig(attentiontype_local_sliding=True, slide_window_size=2)
    assert SplashAttentionConfig.from_json(config.to_json()) == config
    distance = torch.arange(6)[:, None] - torch.arange(6)[None, :]
    theirs, mine = moved([Q, K[:, :1], V[:, :1]], "cpu"), moved([Q, K[:, :1], V[:, :1]], "xla")
    scores = (theirs[0] @ theirs[1].mT).masked_fill((distance < 0) | (distance > 2), -math.inf)
    expected = torch.softmax(scores, -1) @ theirs[2]
    found = splash_attention(*mine, config.to_json())
    close(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        close(one.grad, other.grad)
    with pytest.raises(ValueError, match="slide_window_size"):
        SplashAttentionConfig(attentiontype_local_sliding=True)
    with pytest.raises(TypeError, match="no configuration"):
        SplashAttentionConfig.from_json('{"sa_block": 1}')


def test_rows_that_see_nothing_give_the_mean() -> None:
    theirs, mine = moved([Q, K, V], "cpu"), moved([Q, K, V], "xla")
    ones = torch.ones(2, 6, dtype=torch.int64)
    others = ones.clone()
    others[:, 2] = 7  # no key has this segment
    scores = (theirs[0] @ theirs[1].mT).masked_fill((others != 1)[:, None, :, None], -1e38)
    expected = torch.softmax(scores, -1) @ theirs[2]
    found = kernels.flash_attention(*mine, False, others.to("xla"), ones.to("xla"))
    close(found, expected)
    close(found[:, :, 2], V.mean(2))
    expected.square().sum().backward()
    found.square().sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        close(one.grad, other.grad)


def test_splash_attention_takes_its_configuration_into_a_whole_graph() -> None:
    config = SplashAttentionConfig(attentiontype_local_sliding=True, slide_window_size=1)
    mine = moved([Q, K, V], "xla")
    compiled: Any = torch.compile(lambda *qkv: splash_attention(*qkv, config), backend="openxla", fullgraph=True)
    close(compiled(*mine), splash_attention(*mine, config).detach().cpu())


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_gradients_that_there_are_not_are_errors(device: str) -> None:
    q = torch.ones(2, 4, 8).to(device).requires_grad_()
    output = kernels.paged_attention(q, *[one.to(device) for one in (*PAGES, *TABLES)], 2)
    with pytest.raises(NotImplementedError, match="xla::paged_attention has no gradient: run it under torch.no_grad()"):
        output.sum().backward()
    leaves = moved([Q, K, V], device)
    (grad,) = torch.autograd.grad(kernels.flash_attention(*leaves).square().sum(), leaves[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="has no second derivative"):
        grad.sum().backward()


def test_small_helpers() -> None:
    close(kernels.flash_attention_non_xla(Q, K, V, causal=True), kernels.flash_attention_xla(q=Q, k=K, v=V, causal=True))
    close(quantized_matmul_xla(X, W, scaler=SCALE, zero_point=None), quantized_matmul(X, W, SCALE))
    assert kernels.safe_empty_like(None) is None and kernels.safe_empty_like(Q).shape == Q.shape
    assert kernels.generate_ctx_need_grad(Q, 1, Q.clone().requires_grad_()) == [False, False, True]
    close(kernels.non_xla_attetion(Q, K, V, "flash"), torch.softmax(Q @ K.mT, -1) @ V)
    pair, first, second = kernels.FlashAttention.prepare_segment_ids(SIZES, None)
    assert pair is None and first.dtype is torch.int32 and second is None


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_shapes_that_do_not_fit_are_refused_at_the_call(device: str) -> None:
    def there(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [one.to(device) for one in tensors]

    wrong: list[tuple[Callable[..., Any], list[torch.Tensor], str]] = [
        (kernels.flash_attention, there(Q, K[..., :3], V), "do not fit together"),
        (kernels.flash_attention, there(Q[0], K, V), "3, 4 and 4 dimensions"),
        (kernels.flash_attention, there(Q, K[:, :1], V[:, :1]), "as many key heads"),
        (lambda *qkv: kernels.flash_attention(*qkv, ab=qkv[0]), there(Q, K, V), "the bias"),
        (lambda *args: kernels.flash_attention(*args[:3], False, args[3]), there(Q, K, V, IDS), "both or neither"),
        (lambda *args: kernels.flash_attention(*args[:3], False, *args[3:]), there(Q, K, V, IDS, IDS[:, :3]), r"shape \(2, 6\) here"),
        (lambda *qkv: kernels.flash_attention(*qkv, partition_spec=("data",) * 5), there(Q, K, V), "more entries"),
        (lambda *args: splash_attention(*args[:3], None, args[3]), there(Q, K, V, IDS[:, :3]), r"shape \(2, 6\) here"),
        (lambda *qkv: splash_attention(*qkv, "{"), there(Q, K, V), "no configuration"),
        (lambda *qkv: splash_attention(*qkv, attn_logits_soft_cap=0.0), there(Q, K, V), "soft cap"),
        (splash_attention, there(Q, K[:, [0, 0, 0]], V[:, [0, 0, 0]]), "a multiple of its key heads"),
        (splash_attention, there(Q, K[:1], V), "do not fit together"),
        (kernels.gmm, there(LHS, RHS[:, :2], SIZES), r"\(7, 3\) and \(3, 2, 4\)"),
        (kernels.gmm, there(LHS, RHS, SIZES[:2]), "2 sizes for the 3 groups"),
        (lambda *args: kernels.gmm(*args, tiling=(8, 8)), there(LHS, RHS, SIZES), "three numbers"),
        (kernels.tgmm, there(LHS, RHS[0].T, SIZES), "tgmm takes"),
        (kernels.quantized_matmul_int8, there(X, W[:, :2], SCALE), "do not fit together"),
        (lambda *args: kernels.paged_attention(*args, 2), there(torch.zeros(2, 3, 8), *PAGES, *TABLES), "3 query heads"),
        (lambda *args: kernels.paged_attention(*args, 2), there(Q, *PAGES, *TABLES), r"\(batch, heads, head_dim\)"),
        (lambda *args: kernels.paged_attention(*args, 2), there(ONE, *PAGES, TABLES[0][:1], TABLES[1]), "lengths of paged attention"),
        (lambda *args: kernels.multi_queries_paged_attention(*args, 1, 1), there(ONE[:, None], *PAGES, *TABLES, SIZES), "effective_q_lens"),
        (lambda *args: kernels.ragged_paged_attention(*args, sliding_window=0), there(*RAGGED), "sliding_window is 1 or more"),
        (kernels.ragged_paged_attention, there(*RAGGED[:2], SIZES, *RAGGED[3:]), "kv_lens of paged attention"),
        (kernels.ragged_paged_attention, there(*RAGGED[:5], SIZES), "num_seqs is one number"),
        (lambda *args: kernels.repeat_with_fixed_output_size(*args, 3), there(LHS, SIZES), "one for each row"),
        (lambda *args: torch.ops.xla.quantized_matmul(*args), there(X[:, :3], W, SCALE), "x has 3 inputs"),
        (kernels.ragged_paged_attention, there(Q[0], Q[:, :, :5], *TABLES, SIZES, SIZES), "ragged attention takes"),
    ]
    for function, tensors, words in wrong:
        with pytest.raises(ValueError, match=words):
            function(*tensors)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_dtypes_that_do_not_fit_are_refused_at_the_call(device: str) -> None:
    def there(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [one.to(device) for one in tensors]

    wrong: list[tuple[Callable[..., Any], list[torch.Tensor], str]] = [
        (kernels.flash_attention, there(Q.int(), K, V), "flash attention computes in floating point, got q of torch.int32"),
        (splash_attention, there(Q, K, V.int()), "got v of torch.int32"),
        (lambda *qkv: splash_attention(*qkv, {"sa_block_q": 128}), there(Q, K, V), "got a dict"),
        (kernels.gmm, there(LHS, RHS, SIZES.float()), "group_sizes of a grouped product are integers"),
        (lambda *args: kernels.paged_attention(*args, 2), there(ONE, *PAGES, TABLES[0].float(), TABLES[1]), "convert them to torch.int32"),
        (kernels.quantized_matmul_int8, there(X, W.float(), SCALE), "int8, got torch.float32"),
        (lambda *args: torch.ops.xla.quantized_matmul(*args), there(X, W.float(), SCALE), "int8, got torch.float32"),
    ]
    for function, tensors, words in wrong:
        with pytest.raises(TypeError, match=words):
            function(*tensors)
