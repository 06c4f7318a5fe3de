"""A loop without syncs, in which recording was noticed to be."""

from __future__ import annotations

from dataclasses import dataclass

from xla_core.engine.graph.signature import Signature


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop at the end of a pending graph: `head` operations, then `turns` times `length` of them, then those of a turn that has begun.

    A turn ends with operation `last`, of which it has `times`, and takes about `size` slots.
    """

    head: int
    length: int
    turns: int
    last: Signature
    times: int
    size: int

    def by(self, count: int) -> Loop:
        """The same loop, `count` turns as one."""
        return Loop(self.head, count * self.length, self.turns // count, self.last, count * self.times, count * self.size)
