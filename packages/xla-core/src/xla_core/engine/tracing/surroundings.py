"""What a recorded function depends on besides its arguments, and the functions that were recorded for good."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.tracing.bodies import Body, HostNumber
from xla_core.engine.tracing.gradients import Differentiated

_Found = TypeVar("_Found")
_KEPT = 256


def surroundings(recorder: Recorder) -> tuple[Hashable, ...]:
    """The modes that change what a function records."""
    return (
        recorder.index,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla") and torch.get_autocast_dtype("xla"),
        torch.get_default_dtype(),
    )


class Cache(Generic[_Found]):
    """Recorded pure functions by what they depend on; forgets all when there are too many."""

    def __init__(self) -> None:
        self._known: dict[Any, _Found] = {}

    def get(self, key: Any) -> _Found | None:
        """What was kept; None for a key of None."""
        return None if key is None else self._known.get(key)

    def keep(self, key: Any, found: _Found, *parts: Differentiated) -> None:
        """Keep what was recorded, unless it uses tensors from outside: they may be others at the next call."""
        if key is not None and all(isinstance(held, HostNumber) for part in parts for held in part.forward.held):
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = found


def with_fresh_seeds(parts: Differentiated, draw: Callable[[], int]) -> Differentiated:
    """The same function with random states from `draw`; its gradient sees those of the forward body."""
    bodies = [body for body in (parts.forward, parts.backward) if body is not None]
    drawn = {seed: draw() for seed in dict.fromkeys(seed for body in bodies for seed in body.seeds)}
    if not drawn:
        return parts

    def fresh(body: Body) -> Body:
        return replace(body, seeds=tuple(drawn[seed] for seed in body.seeds))

    return replace(parts, forward=fresh(parts.forward), backward=None if parts.backward is None else fresh(parts.backward))
