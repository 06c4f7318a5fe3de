"""The fused recurrent cells against the formulas and gradients of CPU torch's cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import xla_core.ops.nn.rnn  # noqa: F401 - registers the family
from xla_core.testing.lowering import lower_once

aten = torch.ops.aten
BATCH, HIDDEN = 3, 4
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


def inputs(gates: int, bias: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Gates of input and state, state, and both biases."""
    a, b = torch.randn(2, BATCH, gates * HIDDEN).unbind(0)
    biases = torch.randn(2, gates * HIDDEN).unbind(0) if bias else (None, None)
    return a.clone().requires_grad_(), b.clone().requires_grad_(), torch.randn(BATCH, HIDDEN).requires_grad_(), *biases


def with_bias(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias


@pytest.mark.parametrize("bias", [False, True])
def test_lstm_cell(bias: bool) -> None:
    a, b, cx, bias_a, bias_b = inputs(4, bias)
    ingate, forget, cell, outgate = (with_bias(a, bias_a) + with_bias(b, bias_b)).chunk(4, 1)
    cy = forget.sigmoid() * cx + ingate.sigmoid() * cell.tanh()
    hy = outgate.sigmoid() * cy.tanh()
    got_hy, got_cy, workspace = lower_once(aten._thnn_fused_lstm_cell.default, (hy, cy, a), a, b, cx, bias_a, bias_b)
    torch.testing.assert_close((got_hy, got_cy), (hy.detach(), cy.detach()), **CLOSE)
    for grad_hy, grad_cy in ((torch.randn_like(hy), torch.randn_like(cy)), (torch.randn_like(hy), None), (None, torch.randn_like(cy))):
        pairs = [(out, g) for out, g in ((hy, grad_hy), (cy, grad_cy)) if g is not None]
        to_a, to_cx = torch.autograd.grad([o for o, _ in pairs], (a, cx), [g for _, g in pairs], retain_graph=True)
        expected = (to_a, to_cx, to_a.sum(0) if bias else None)
        got = lower_once(aten._thnn_fused_lstm_cell_backward_impl.default, list(expected), grad_hy, grad_cy, cx, got_cy, workspace, bias)
        for mine, theirs in zip(got, expected, strict=True):
            if theirs is not None:
                torch.testing.assert_close(mine, theirs, **CLOSE)


@pytest.mark.parametrize("bias", [False, True])
def test_gru_cell(bias: bool) -> None:
    a, b, hx, bias_a, bias_b = inputs(3, bias)
    of_input, of_hidden = with_bias(a, bias_a).chunk(3, 1), with_bias(b, bias_b).chunk(3, 1)
    reset, update = (of_input[0] + of_hidden[0]).sigmoid(), (of_input[1] + of_hidden[1]).sigmoid()
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    hy = (1 - update) * new + update * hx
    inferred = (hy, torch.empty(BATCH, 5 * HIDDEN))
    got_hy, workspace = lower_once(aten._thnn_fused_gru_cell.default, inferred, a, b, hx, bias_a, bias_b)
    torch.testing.assert_close(got_hy, hy.detach(), **CLOSE)
    grad = torch.randn_like(hy)
    to_a, to_b, to_hx = torch.autograd.grad(hy, (a, b, hx), grad)
    expected = [to_a, to_b, to_hx, to_a.sum(0) if bias else None, to_b.sum(0) if bias else None]
    got = lower_once(aten._thnn_fused_gru_cell_backward.default, expected, grad, workspace, bias)
    for mine, theirs in zip(got, expected, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, **CLOSE)
