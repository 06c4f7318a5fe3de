"""Programs that call a step many times: run captured and run recorded, they must give the same, or an error that says what to do."""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, overload

import torch

Capture = Callable[..., Any]
"""`torch_xla.compile` with the options under which a program is tried: `step = capture(step)`, or as a decorator."""


Run = Callable[[Capture], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Program:
    """A program to try. run: takes `Capture` and yields what it observes; refused: pattern of the error that captured calls may raise.

    unnoticed: what changes in it is found by verified calls only.
    """

    name: str
    run: Run
    refused: str | None
    unnoticed: bool


PROGRAMS: list[Program] = []


@overload
def program(run: Run) -> Run: ...
@overload
def program(*, refused: str | None = ..., unnoticed: bool = ...) -> Callable[[Run], Run]: ...
def program(run: Run | None = None, *, refused: str | None = None, unnoticed: bool = False) -> Any:
    """Add a program. refused: it need not work captured; then it raises CaptureError with a text that has this pattern.

    unnoticed: it is not run without verification, because docs/fast-steps.md lists what changes in it as not noticed.
    """

    def add(function: Run) -> Run:
        PROGRAMS.append(Program(function.__name__, function, refused, unnoticed))
        return function

    return add if run is None else add(run)


class Unseen:
    """Counts how often Python runs, in memory where captured functions do not look."""

    def __init__(self) -> None:
        self._count = array.array("q", [-1])

    def __iter__(self) -> Unseen:
        return self

    def __next__(self) -> int:
        self._count[0] += 1
        return self._count[0]


def observed(value: Any) -> Any:
    """A copy of an observation with the values of its tensors, for comparing."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: observed(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [observed(item) for item in value]
    return value


def alike(one: Any, other: Any) -> bool:
    """Whether two observations are the same but for rounding."""
    if isinstance(one, torch.Tensor):
        same_kind = isinstance(other, torch.Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)
        return same_kind and torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)
