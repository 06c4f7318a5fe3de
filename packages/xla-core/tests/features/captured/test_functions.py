"""Captured calls of what is recorded for no overload of torch: loops, branches, functions of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import torch_xla
from torch_xla.core.xla_builder import call_jax
from torch_xla.experimental.assume_pure import assume_pure
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.scan import scan
from xla_core.features.control_flow.conditional import cond

from .test_training import captured_calls

# (x, weight) -> results; the same from stock torch
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "call_jax": (lambda x, w: call_jax(jnp.add, (x, w)), lambda x, w: x + w),
    "scan": (lambda x, w: scan(lambda c, y: (c + y * w, c), x, x.expand(3, 2))[0], lambda x, w: x + 3 * x * w),
    "while_loop": (lambda x, w: while_loop(lambda v: v.sum() < 0, lambda v: (v + w,), (x - 100,))[0], None),
    "fori_loop": (lambda x, w: fori_loop(0, 3, lambda v: v * 2 + w, x)[1], lambda x, w: x * 8 + w * 7),
    "cond": (lambda x, w: cond(w.sum() > 7, lambda a: a + w, lambda a: a - w, (x,)), lambda x, w: x + w if w.sum() > 7 else x - w),
    "assume_pure": (assume_pure(lambda x, w: (x + w).sin()), lambda x, w: (x + w).sin()),
}


def _doubled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x = x - 100
    while x.sum() < 0:
        x = x + w
    return x


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_follow_arguments_and_weights(name: str) -> None:
    program, stock = PROGRAMS[name]
    weight = torch.full((2,), 2.0, device="xla")
    program(torch.ones(2, device="xla"), weight)  # imports what torch imports late, which runs Python of pytest
    with captured_calls() as calls:
        step = torch_xla.compile(lambda x: program(x, weight), capture=True, verify_every=None)
        for turn in range(5):
            x = torch.tensor([turn + 1.0, 0.5])
            torch.testing.assert_close(step(x.to("xla")).cpu(), (stock or _doubled)(x, weight.cpu()))
            weight.add_(1)
    assert len(calls) == 3


def test_accumulated_gradients() -> None:
    model = torch.nn.Linear(2, 1, bias=False).to("xla")
    with torch.no_grad():
        model.weight.fill_(1.0)
    step = torch_xla.compile(lambda x: gradient_accumulation(lambda part: model(part).mean(), (x,), model), capture=True, verify_every=None)
    for turn in range(5):
        loss = step(torch.full((3, 2), turn + 1.0, device="xla"))
        assert float(loss) == 2 * (turn + 1)
    assert model.weight.grad.tolist() == [[15.0, 15.0]]


def test_random_numbers_differ_from_call_to_call() -> None:
    step = torch_xla.compile(lambda x: scan(lambda c, y: (c, torch.dropout(y, 0.5, True)), x[0], x)[1], capture=True, verify_every=None)
    found = [step(torch.ones(2, 64, device="xla")).cpu() for _ in range(5)]
    assert not any(torch.equal(one, other) for one, other in zip(found, found[1:], strict=False))


class _Cache:
    """An object that keeps what it was given, as caches of keys and values do."""

    def __init__(self, start: float) -> None:
        self.sums = torch.full((2,), start, device="xla")


def test_an_argument_may_be_returned_whatever_it_is() -> None:
    def add(x: torch.Tensor, cache: _Cache) -> dict[str, Any]:
        cache.sums.add_(x)
        return {"sums": cache.sums * 2, "cache": cache}

    with captured_calls() as calls:
        step = torch_xla.compile(add, capture=True, verify_every=None)
        for start in (0.0, 10.0):
            cache = _Cache(start)
            for turn in range(1, 6):
                found = step(torch.ones(2, device="xla"), cache)
                assert found["cache"] is cache
                assert found["sums"].tolist() == [2 * (start + turn)] * 2
    assert len(calls) == 6
