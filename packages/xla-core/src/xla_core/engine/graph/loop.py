"""A loop without syncs, found while it is being recorded."""

from __future__ import annotations

from dataclasses import dataclass

from xla_core.engine.graph.signature import Signature


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop at the end of a pending graph: `head` operations, then `turns` turns of `length` operations, then a turn that has begun.

    A turn ends with operation `last`, which occurs `times` times in it, and takes about `size` slots.
    """

    head: int
    length: int
    turns: int
    last: Signature
    times: int
    size: int

    def by(self, count: int) -> Loop:
        """The same loop with `count` turns as one turn."""
        return Loop(self.head, count * self.length, self.turns // count, self.last, count * self.times, count * self.size)
