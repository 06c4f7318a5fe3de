"""Captured steps with autocast, with loss scaling, and of inference, against the same steps recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_xla
from torch_xla import amp
from torch_xla.amp import syncfree
from xla_core.base import metrics
from xla_core.base.errors import CaptureError
from xla_core.base.metrics import Cause, SyncEvent

STEPS = 20


def net() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(7, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 5)).to("xla")


def run(step: Any, model: nn.Module, capture: bool, infinite: int = -1) -> tuple[list[Any], list[Any], int]:
    """What the step returns, parameters, and how many calls were captured; the inputs of step `infinite` are."""
    called = torch_xla.compile(step, capture=capture, verify_every=None)
    generator = torch.Generator().manual_seed(6)
    seen: list[SyncEvent] = []
    end = metrics.subscribe(lambda event: seen.append(event) if event.cause is Cause.CAPTURED else None, SyncEvent)
    returned = []
    for number in range(STEPS):
        x = torch.randn(6, 7, generator=generator)
        if number == infinite:
            x[0, 0] = torch.inf
        returned.append(called(x.to("xla"), torch.randint(5, (6,), generator=generator).to("xla")))
    end()
    return [[part.tolist() for part in parts] for parts in returned], [p.tolist() for p in model.parameters()], len(seen)


def with_autocast(capture: bool) -> tuple[list[Any], list[Any], int]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        with torch.autocast("xla", torch.bfloat16):
            logits = model(x)
            loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        assert logits.dtype is torch.bfloat16
        return loss.detach(), logits.detach()

    return run(step, model, capture)


def test_autocast_inside() -> None:
    losses, parameters, none = with_autocast(False)
    found, mine, calls = with_autocast(True)
    assert found == losses
    assert mine == parameters
    assert (none, calls) == (0, STEPS - 3)


def with_scaler(capture: bool, kind: Any, **settings: Any) -> tuple[list[Any], list[Any], int]:
    model = net()
    optimizer = kind(model.parameters(), lr=0.02)
    scaler = amp.GradScaler(init_scale=1024.0, growth_interval=4, **settings)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        with torch.autocast("xla", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaled = scaler.scale(loss)
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), scaled.detach()

    return run(step, model, capture, infinite=9)


@pytest.mark.parametrize("kind", [syncfree.SGD, syncfree.Adam, syncfree.AdamW])
def test_loss_scaling_with_optimizers_that_skip_on_the_device(kind: Any) -> None:
    losses, parameters, _ = with_scaler(False, kind)
    found, mine, calls = with_scaler(True, kind)
    assert repr(found) == repr(losses), "NaN among them"
    assert mine == parameters
    assert calls >= STEPS - 5


def test_loss_scaling_that_zeroes_gradients() -> None:
    losses, parameters, _ = with_scaler(False, torch.optim.Adam, use_zero_grad=True)
    found, mine, calls = with_scaler(True, torch.optim.Adam, use_zero_grad=True)
    assert repr(found) == repr(losses)
    assert mine == parameters
    assert calls >= STEPS - 5


def test_loss_scaling_that_reads_says_what_to_do() -> None:
    with pytest.raises(CaptureError, match=r"reads a value .*torch_xla.amp.syncfree"):
        with_scaler(True, torch.optim.SGD)


def decoded(capture: bool) -> tuple[list[int], int]:
    """Twenty tokens, each the likeliest after the window of the ones before."""
    torch.manual_seed(8)
    embed, mix, out = nn.Embedding(31, 16).to("xla"), nn.GRU(16, 16, batch_first=True).to("xla"), nn.Linear(16, 31).to("xla")

    def step(window: Tensor) -> tuple[Tensor, Tensor]:
        token = out(mix(embed(window))[0][:, -1]).argmax(-1)
        return torch.cat([window[:, 1:], token[:, None]], 1), token

    called = torch_xla.compile(step, capture=capture, verify_every=None)
    window, tokens = torch.randint(31, (1, 9)).to("xla"), []
    seen: list[SyncEvent] = []
    end = metrics.subscribe(lambda event: seen.append(event) if event.cause is Cause.CAPTURED else None, SyncEvent)
    with torch.no_grad():
        for _ in range(20):
            window, token = called(window)
            tokens.append(token)
    end()
    return [token.item() for token in tokens], len(seen)


def test_greedy_decoding() -> None:
    expected, none = decoded(False)
    found, calls = decoded(True)
    assert found == expected
    assert len(set(found)) > 1
    assert (none, calls) == (0, 18)
