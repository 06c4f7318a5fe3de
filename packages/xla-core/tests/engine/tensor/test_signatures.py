"""Calls that differ in anything that shapes their result never share what was worked out for one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla

F = torch.nn.functional
Call = Callable[[torch.Tensor, torch.Tensor], Any]

# Groups of calls that differ little: in a number's type, a None, a list's items or its length, a keyword, a dtype, a default.
CALLS: list[list[Call]] = [
    [lambda a, b: a + 1, lambda a, b: a + 1.0, lambda a, b: a + True, lambda a, b: a + 2, lambda a, b: a + 0.5, lambda a, b: a + 1j],
    [lambda a, b: torch.add(a, b, alpha=2), lambda a, b: torch.add(a, b, alpha=2.0) if a.is_floating_point() else a, lambda a, b: a + b],
    [lambda a, b: a.clamp(0), lambda a, b: a.clamp(None, 0), lambda a, b: a.clamp(0, 1), lambda a, b: a.clamp(0.0)],
    [lambda a, b: a.sum(0), lambda a, b: a.sum([0]), lambda a, b: a.sum([0, 1]), lambda a, b: a.sum([]), lambda a, b: a.sum(1, True)],
    [lambda a, b: a.flip([0]), lambda a, b: a.flip([1]), lambda a, b: a.flip([0, 1]), lambda a, b: a.flip([])],
    [
        lambda a, b: a.roll([1], [0]),
        lambda a, b: a.roll([1], [1]),
        lambda a, b: a.roll([1, 0], [0, 1]),
        lambda a, b: a.roll([0, 1], [0, 1]),
    ],
    [lambda a, b: a.repeat([1, 2]), lambda a, b: a.repeat([2, 1]), lambda a, b: a.repeat([1, 1, 2])],
    [lambda a, b: a.max(0), lambda a, b: a.max(1), lambda a, b: a.min(0), lambda a, b: torch.aminmax(a)],
    [
        lambda a, b: a.mul_(2) if a.is_floating_point() else a,
        lambda a, b: a.mul_(b),
        lambda a, b: a.add_(1),
        lambda a, b: a.add_(b, alpha=1),
    ],
    [
        lambda a, b: torch._foreach_add([a, b], 1),
        lambda a, b: torch._foreach_add([a, b], [1, 2]),
        lambda a, b: torch._foreach_add([a], [b]),
    ],
    [lambda a, b: torch._foreach_mul([a, b], [2.0, 3]), lambda a, b: torch._foreach_mul([a, b], [2, 3.0]), lambda a, b: [a * 2.0, b * 3]],
    [lambda a, b: torch.cat([a, b]), lambda a, b: torch.cat([a, b], 1), lambda a, b: torch.cat([a]), lambda a, b: torch.cat([b, a, b])],
    [lambda a, b: a / b.abs().add(1), lambda a, b: a / 2, lambda a, b: a / 2.0, lambda a, b: torch.div(a, 2, rounding_mode="floor")],
    [lambda a, b: torch.empty_like(a).fill_(1), lambda a, b: a.new_empty([2, 2]).fill_(1), lambda a, b: a.new_empty([4]).fill_(2.5)],
    [
        lambda a, b: F.layer_norm(a.double(), [a.shape[1]]),
        lambda a, b: F.layer_norm(a.double(), [a.shape[1]], b.double()[0]),
        lambda a, b: F.layer_norm(a.double(), [a.shape[1]], None, b.double()[0]),
        lambda a, b: F.layer_norm(a.double(), list(a.shape)),
    ],
]
OPERANDS: list[Callable[[], torch.Tensor]] = [
    lambda: torch.arange(6.0).reshape(2, 3) - 2,
    lambda: torch.arange(6).reshape(2, 3) - 2,
    lambda: (torch.arange(6.0).reshape(3, 2) / 7).t(),
    lambda: torch.arange(12.0).reshape(4, 3)[1:3].to(torch.float64),
    lambda: torch.arange(12).reshape(4, 3)[::2],
]
CHOICE = st.integers(0, len(CALLS) - 1).flatmap(lambda group: st.tuples(st.just(group), st.integers(0, len(CALLS[group]) - 1)))


def results(device: str, steps: list[list[tuple[int, int]]], operands: tuple[int, int], default: torch.dtype) -> list[torch.Tensor]:
    """What the calls of all steps give, each step on new operands."""
    found: list[torch.Tensor] = []
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for step in steps:
            # In float32 whatever the default is: only what integers become shall follow it.
            a, b = (OPERANDS[number]().to(device) for number in operands)
            for group, place in step:
                made = CALLS[group][place](a, b)
                found += list(made) if isinstance(made, (list, tuple)) else [made]
            if device == "xla":
                torch_xla.sync()
        return [each.cpu() for each in found]
    finally:
        torch.set_default_dtype(before)


def test_lists_of_integers_follow_the_default_dtype() -> None:
    step = [[(10, 0), (10, 1), (9, 0), (12, 1)]]
    for default in (torch.float64, torch.float32, torch.float64):
        for actual, expected in zip(results("xla", step, (1, 4), default), results("cpu", step, (1, 4), default), strict=True):
            assert actual.dtype is expected.dtype


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(CHOICE, min_size=1, max_size=5), min_size=1, max_size=4),
    st.tuples(st.integers(0, len(OPERANDS) - 1), st.integers(0, 2)),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_steps_that_differ_a_little(steps: list[list[tuple[int, int]]], operands: tuple[int, int], default: torch.dtype) -> None:
    try:
        wanted = results("cpu", steps, operands, default)
    except (RuntimeError, NotImplementedError):
        return  # what the CPU refuses is the subject of test_refusals.py
    for actual, expected in zip(results("xla", steps, operands, default), wanted, strict=True):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        torch.testing.assert_close(actual, expected)
