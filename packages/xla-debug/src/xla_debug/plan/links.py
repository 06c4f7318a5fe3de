"""How long collectives take on the links between devices, and how much of it other work covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xla_debug.plan.hardware import HOP_SECONDS, Speed
from xla_debug.plan.traffic import Collective

Shape = Sequence[int]


@dataclass(frozen=True, slots=True)
class Way:
    """What a collective uses of the links. axes: of the torus; seconds: that it takes there, alone."""

    axes: tuple[int, ...]
    seconds: float


def way(exchanged: Collective, devices: Sequence[Any], speed: Speed) -> Way:
    """The links that a collective takes. devices: of the program, in its order.

    On a torus, the bytes go along every axis on which devices of a group differ, to both sides where the axis is closed to a ring: with n
    devices on a line instead, the last one gets all but its own part over one link. To that comes the time of the hops to the farthest.
    """
    places = [getattr(devices[number], "coords", None) for number in exchanged.first if number < len(devices)]
    if not speed.clock or not places or not all(places):
        return Way((0,), exchanged.sent / speed.link)
    sizes = [max(column) + 1 for column in zip(*[device.coords for device in devices], strict=True)]
    axes = tuple(axis for axis, column in enumerate(zip(*places, strict=True)) if len(set(column)) > 1)
    closed = {axis: sizes[axis] % speed.ring == 0 for axis in axes}
    directions = sum(2 if closed[axis] else 1 for axis in axes) or 1
    hops = sum(sizes[axis] // 2 if closed[axis] else sizes[axis] - 1 for axis in axes)
    return Way(axes, exchanged.sent / (speed.link * directions) + HOP_SECONDS * hops)


@dataclass(slots=True)
class _Waiting:
    """A collective in the background. left: seconds that its links still take, of one run; times: how often it runs."""

    axes: tuple[int, ...]
    left: float
    times: int


class Background:
    """Collectives that run beside other work. Those on the same links go one after the other."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}

    def begin(self, number: int, taken: Way, times: int) -> None:
        """A collective begins, known by a number; it does so `times` times."""
        self._waiting[number] = _Waiting(taken.axes, taken.seconds, times)

    def beside(self, seconds: float, times: int) -> None:
        """Other work takes so many seconds, `times` times."""
        left: dict[int, float] = {}
        for waiting in self._waiting.values():
            free = min([left.get(axis, seconds * times) for axis in waiting.axes], default=0.0)
            taken = min(free, waiting.left * waiting.times)
            waiting.left -= taken / waiting.times
            left |= {axis: left.get(axis, seconds * times) - taken for axis in waiting.axes}

    def end(self, number: int) -> float:
        """A collective must be done: the seconds, of one run, for which everything waits, also for those before it on the same links."""
        if number not in self._waiting:
            return 0.0
        ended, exposed = self._waiting[number], 0.0
        for waiting in self._waiting.values():
            if waiting is ended:
                break
            if set(waiting.axes) & set(ended.axes):
                exposed += waiting.left * waiting.times / ended.times
                waiting.left = 0.0
        del self._waiting[number]
        return exposed + ended.left
