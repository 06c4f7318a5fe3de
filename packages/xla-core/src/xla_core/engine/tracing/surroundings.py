"""What a recorded function depends on besides its arguments, and the functions that were recorded for good."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.tracing.bodies import Body, HostNumber
from xla_core.engine.tracing.gradients import Differentiated

_Recorded = TypeVar("_Recorded")
_KEPT = 256


def surroundings(recorder: Recorder) -> tuple[Hashable, ...]:
    """The modes that change what a function records."""
    return (
        recorder,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla") and torch.get_autocast_dtype("xla"),
        torch.get_default_dtype(),
    )


class Cache(Generic[_Recorded]):
    """Recorded pure functions by their keys, which hold all that they depend on; drops all of them when there are too many."""

    def __init__(self) -> None:
        self._entries: dict[Any, _Recorded] = {}

    def get(self, key: Any) -> _Recorded | None:
        """The recorded function of a key; None if there is none, or for a key of None."""
        return None if key is None else self._entries.get(key)

    def keep(self, key: Any, recorded: _Recorded, *parts: Differentiated) -> None:
        """Keep a recorded function, unless it uses tensors from outside: the next call may use other tensors."""
        if key is not None and all(isinstance(captured, HostNumber) for part in parts for captured in part.forward.held):
            if len(self._entries) >= _KEPT:
                self._entries.clear()
            self._entries[key] = recorded


def with_fresh_seeds(parts: Differentiated, draw: Callable[[], int]) -> Differentiated:
    """The same function with new random states from `draw`; the backward body gets the same states as the forward body."""
    bodies = [body for body in (parts.forward, parts.backward) if body is not None]
    drawn = {seed: draw() for seed in dict.fromkeys(seed for body in bodies for seed in body.seeds)}
    if not drawn:
        return parts

    def fresh(body: Body) -> Body:
        return replace(body, seeds=tuple(drawn[seed] for seed in body.seeds))

    return replace(parts, forward=fresh(parts.forward), backward=None if parts.backward is None else fresh(parts.backward))
