"""What an entry of the table is: a network with its batches, or a run of a library's own training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Any]


def loss_of(output: Any) -> Tensor:
    """The loss that a model of transformers computes from its labels."""
    loss: Tensor = output.loss
    return loss


@dataclass(frozen=True, slots=True)
class Case:
    """A network in training mode, keyword arguments for step n, and the loss of what it returns.

    also: something that uses the network on the device that it is on, such as a pipeline, whose result is compared too.
    """

    model: nn.Module
    batch: Callable[[int], Batch]
    loss: Callable[[Any], Tensor] = loss_of
    also: Callable[[nn.Module], Any] | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run of a library's loop gave: results to compare, weights, milliseconds a step, programs compiled after step 3."""

    results: Any
    weights: dict[str, Tensor]
    ms: float
    late_compiles: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One row. make: the case, on the CPU; or run: on "cpu" or "xla", in a process of its own.

    outputs, gradients: relative differences that are still equal. inductor: whether it is worth compiling. note: what to know of this row.
    """

    name: str
    library: str
    what: str
    make: Callable[[], Case] | None = None
    run: Callable[[str], Ran] | None = None
    outputs: float = 1e-4
    gradients: float = 1e-3
    inductor: bool = True
    note: str = ""


def generator(step: int) -> torch.Generator:
    """Random numbers of one step, the same at each call."""
    return torch.Generator().manual_seed(1000 + step)


def words(step: int, vocabulary: int, *shape: int) -> Tensor:
    """Random tokens; 0, 1 and 2 are left to paddings and ends."""
    return torch.randint(3, vocabulary, shape, generator=generator(step))


def pictures(step: int, *shape: int) -> Tensor:
    """Random images, or other normal numbers."""
    return torch.randn(shape, generator=generator(step))
