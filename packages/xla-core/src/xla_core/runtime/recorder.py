"""A device as recording sees it: what is pending there, how much may be, and its random state."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import jax
import torch

from xla_core.compile.cache import Program
from xla_core.ir.graph import Graph, Inputs
from xla_core.ir.loops import Loop
from xla_core.ir.pending_graph import NO_LIMIT, PendingGraph
from xla_core.runtime import rng


class Tape(Protocol):
    """What sees the programs of a device run: `captured/tape.py` has the one that does."""

    def running(self, graph: Graph, inputs: Inputs) -> Inputs:
        """The inputs with which `graph` is to run instead."""

    def ran(self, graph: Graph, inputs: Inputs, program: Program, results: list[jax.Array]) -> None:
        """Takes note of a program that was launched."""

    def moved(self) -> None:
        """Takes note that the random state was set, or a step has ended."""

    def let_others_wait(self) -> None:
        """Called in another thread that is about to use the device."""


class Lock(Protocol):
    """A lock that a thread may take again."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take it; whether that could be done at once, if not `blocking`."""

    def release(self) -> None:
        """Give it back."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> None: ...


class Recorder:
    """One device as recording sees it: its lock, its pending graph and its random state.

    limit: of its next pending graphs. loop: the one without syncs that it is in, as far as that was noticed.
    seed: the random state, which advances on the host (runtime/rng.py), so that reading it runs nothing. tape: sees the programs that run
    while a step is captured. steps: syncs so far.
    """

    __slots__ = ("device", "eager", "index", "limit", "lock", "loop", "pending_graph", "seed", "steps", "tape")

    def __init__(self, index: int) -> None:
        self.index = index
        self.device = torch.device("xla", index)
        self.lock: Lock = threading.RLock()
        self.pending_graph = PendingGraph()
        self.seed = rng.initial_seed()
        self.eager = False  # each operation runs as soon as it is recorded
        self.limit = NO_LIMIT
        self.loop: Loop | None = None
        self.tape: Tape | None = None
        self.steps = 0

    def set_seed(self, seed: int) -> None:
        """Set the random state. Raises ValueError for what is no non-negative 64-bit integer."""
        self.seed = rng.checked(seed)
        if self.tape is not None:
            self.tape.moved()

    def draw(self) -> int:
        """The seed of one random operation; the state moves on."""
        seed = self.seed
        self.seed = rng.moved_on(seed)
        return seed

    def allow(self, limit: int) -> None:
        """Let so many entries be on its pending graphs, from the present one on."""
        self.limit = self.pending_graph.limit = limit

    def end_step(self) -> None:
        """Count a step, and move the random state past it."""
        self.steps += 1
        self.seed = rng.past_step(self.seed)
        if self.tape is not None:
            self.tape.moved()
