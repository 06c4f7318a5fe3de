"""A device as recording sees it: what is pending there, how much may be, and its random state."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

import torch

from xla_core.ir.loops import Loop
from xla_core.ir.pending_graph import NO_LIMIT, PendingGraph
from xla_core.runtime import rng


class Recorder:
    """One device as recording sees it: its lock, its pending graph and its random state.

    limit: of its next pending graphs. loop: the one without syncs that it is in, as far as that was noticed.
    seed: the random state, which advances on the host (runtime/rng.py), so that reading it runs nothing.
    """

    __slots__ = ("device", "eager", "index", "limit", "lock", "loop", "seed", "pending_graph")

    def __init__(self, index: int) -> None:
        self.index = index
        self.device = torch.device("xla", index)
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self.pending_graph = PendingGraph()
        self.seed = rng.initial_seed()
        self.eager = False  # each operation runs as soon as it is recorded
        self.limit = NO_LIMIT
        self.loop: Loop | None = None

    def set_seed(self, seed: int) -> None:
        """Set the random state. Raises ValueError for what is no non-negative 64-bit integer."""
        self.seed = rng.checked(seed)

    def draw(self) -> int:
        """The seed of one random operation; the state moves on."""
        seed = self.seed
        self.seed = rng.moved_on(seed)
        return seed

    def allow(self, limit: int) -> None:
        """Let so many entries be on its pending graphs, from the present one on."""
        self.limit = self.pending_graph.limit = limit

    def end_step(self) -> None:
        """Move the random state past a step."""
        self.seed = rng.past_step(self.seed)
