"""`F.scaled_dot_product_attention` on device `xla`: values, gradients, strides and errors as on the CPU, fused where it can be."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import torch_xla
from xla_core.engine.runtime.client import current_recorder

FUSED = "aten._scaled_dot_product_flash_attention_for_cpu"
MASKS = {
    "none": None,
    "boolean": torch.tensor([[True, False, True, True, True]] * 4 + [[False] * 5]),
    "bias": torch.linspace(-2, 2, 25).view(1, 1, 5, 5),
    "broadcast": torch.linspace(-1, 1, 30).view(2, 3, 1, 5),
}


@pytest.fixture(autouse=True)
def _nothing_pending() -> None:
    torch_xla.sync()


def recorded() -> list[str]:
    """Names of the pending operations."""
    return [entry[0].name for entry in current_recorder().pending_graph.entries if type(entry) is tuple]


def attended(device: str, dtype: torch.dtype, mask: Tensor | None, **options: Any) -> tuple[list[Tensor], tuple[int, ...]]:
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(2, 3, 5, 8, generator=generator, dtype=dtype).to(device).requires_grad_() for _ in range(3)]
    if mask is not None:
        options["attn_mask"] = (mask if mask.dtype == torch.bool else mask.to(dtype)).to(device)
    output = F.scaled_dot_product_attention(*inputs, **options)
    gradients = torch.autograd.grad(output.square().sum(), inputs)
    return [output.detach().cpu(), *(each.cpu() for each in gradients)], output.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.2}], ids=str)
@pytest.mark.parametrize("mask", list(MASKS.values()), ids=list(MASKS))
def test_values_gradients_and_strides(mask: Tensor | None, options: dict[str, Any], dtype: torch.dtype) -> None:
    try:
        theirs, expected_strides = attended("cpu", dtype, mask, **options)
    except RuntimeError as error:  # from torch 2.14 on, for a mask in what is causal anyway
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            attended("xla", dtype, mask, **options)
        return
    mine, strides = attended("xla", dtype, mask, **options)
    close = {"rtol": 2e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {}
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, **close)
    assert strides == expected_strides


def test_one_operation_is_recorded() -> None:
    x = torch.randn(1, 2, 4, 8).to("xla").requires_grad_()
    output = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    assert recorded().count(FUSED) == 1 and not any("softmax" in name for name in recorded())
    output.sum().backward()
    assert recorded().count(f"{FUSED}_backward") == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference"])
def test_outside_autograd(mode: Any) -> None:
    x = torch.randn(1, 2, 4, 8)
    with mode():
        output = F.scaled_dot_product_attention(*[x.to("xla")] * 3)
        assert recorded().count(FUSED) == 1
        torch.testing.assert_close(output.cpu(), F.scaled_dot_product_attention(x, x, x))


def test_a_trained_mask_is_split() -> None:
    x, bias = torch.randn(2, 2, 4, 8), torch.randn(4, 4)
    found = []
    for device in ("xla", "cpu"):
        trained = bias.to(device).requires_grad_()
        F.scaled_dot_product_attention(*[x.to(device)] * 3, attn_mask=trained).square().sum().backward()
        assert trained.grad is not None
        found.append(trained.grad.cpu())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(("query", "keys"), [((2, 4, 3, 8), (2, 2, 5, 8)), ((4, 3, 8), (4, 5, 8)), ((2, 1, 3, 8), (2, 1, 0, 8))], ids=str)
def test_other_shapes(query: tuple[int, ...], keys: tuple[int, ...]) -> None:
    """Grouped queries, three dimensions, no keys."""
    inputs = [torch.randn(shape) for shape in (query, keys, keys)]
    grouped = len(query) == 4 and query[1] != keys[1]
    mine, theirs = (
        F.scaled_dot_product_attention(*[each.to(device) for each in inputs], enable_gqa=grouped).cpu() for device in ("xla", "cpu")
    )
    torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_dropout_draws_on_the_device() -> None:
    x = torch.ones(1, 1, 64, 64, device="xla")
    torch.manual_seed(1)
    first = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    torch.manual_seed(1)
    again = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    assert torch.equal(first, again) and 0.9 < first.mean().item() < 1.1 and first.std().item() > 0.05


def test_errors_are_those_of_the_cpu() -> None:
    x = torch.randn(1, 2, 4, 8)
    wrong: list[tuple[tuple[Tensor, ...], dict[str, Any]]] = [
        ((x, x[..., :3], x), {}),
        ((x, x, x.double()), {}),
        ((x, x, x), {"attn_mask": torch.ones(4, 4).double()}),
        ((x, x, x), {"attn_mask": torch.ones(4, 3)}),
    ]
    for inputs, options in wrong:
        raised = []
        for device in ("cpu", "xla"):
            moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in options.items()}
            with pytest.raises(RuntimeError) as caught:
                F.scaled_dot_product_attention(*[each.to(device) for each in inputs], **moved)
            raised.append(str(caught.value))
        assert raised[0] == raised[1]


def test_autocast_and_vmap() -> None:
    x = torch.randn(2, 1, 2, 4, 8, device="xla")
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert F.scaled_dot_product_attention(x[0], x[0], x[0]).dtype == torch.bfloat16
    each = torch.func.vmap(lambda one: F.scaled_dot_product_attention(one, one, one))(x)
    torch.testing.assert_close(each[1], F.scaled_dot_product_attention(x[1], x[1], x[1]))
