"""Find a loop in the recorded operations: the same ones again and again, up to the end of the pending graph or shortly before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import aval_at, operation_at
from xla_core.engine.graph.loop import Loop
from xla_core.engine.graph.pending_graph import PendingGraph
from xla_core.engine.graph.signature import Signature


def find_loop(pending_graph: PendingGraph, layers: bool = False) -> Loop | None:
    """The loop that a pending graph ends in, but for a few operations; None if most of it is no loop.

    Turns are cut where the least data is alive between two operations: in a training loop after the optimizer's step.
    layers: equal layers of a model count as turns, too.
    """
    slots = [slot for slot, entry in enumerate(pending_graph.entries) if type(entry) is tuple]
    signatures: list[Signature] = [pending_graph.entries[slot][0] for slot in slots]  # type: ignore[index,misc]
    for end in (len(slots), _last_of_the_most_frequent(signatures) + 1):
        loop = _loop_before(end, pending_graph, slots, signatures, layers)
        if loop is not None:
            return loop
    return None


def _last_of_the_most_frequent(signatures: list[Signature]) -> int:
    """The index of the last occurrence of the operation that occurs most often; -1 without operations. What is behind it is no loop."""
    if not signatures:
        return -1
    most = Counter(signatures).most_common(1)[0][0]
    return len(signatures) - 1 - signatures[::-1].index(most)


def _loop_before(end: int, pending_graph: PendingGraph, slots: list[int], signatures: list[Signature], layers: bool) -> Loop | None:
    """The loop that the first `end` operations end in."""
    ending = repeating_end(signatures[:end])
    if ending is None or 2 * ending[0] > end:
        return None
    begin, period = ending
    if not layers and not _carries_state(pending_graph, slots[:end], period):
        return None
    cut = _cheapest_cut(pending_graph, slots, end - 2 * period, period)
    head = begin + (cut - begin) % period
    turn = signatures[cut : cut + period]
    behind = slots[cut + period] if cut + period < len(slots) else len(pending_graph.entries)
    return Loop(head, period, (end - head) // period, turn[-1], turn.count(turn[-1]), behind - slots[cut])


def repeating_end(items: Sequence[Hashable]) -> tuple[int, int] | None:
    """The longest end of `items` that repeats one sequence, at least twice: where it begins, and the sequence's length; None without one.

    Source: the failure function of Knuth, Morris and Pratt, over the reversed items. If it is k for the first n of them, these repeat
    every n - k.
    """
    failure = [0] * len(items)
    ending = None
    matched = 0
    backwards = list(reversed(items))
    for index in range(1, len(items)):
        item = backwards[index]
        while matched and backwards[matched] != item:
            matched = failure[matched - 1]
        if backwards[matched] == item:
            matched += 1
        failure[index] = matched
        period = index + 1 - matched
        if 2 * period <= index + 1:
            ending = len(items) - index - 1, period
    return ending


def _carries_state(pending_graph: PendingGraph, slots: list[int], period: int) -> bool:
    """Whether the last turn takes at least as many results of the turn before as values of its own. Layers of a model do not."""
    last, before = slots[-period], slots[-2 * period]
    taken, taken_before = (
        {operand for slot in turn for operand in pending_graph.entries[slot][1:]}  # type: ignore[index]
        for turn in (slots[-period:], slots[-2 * period : -period])
    )
    results = {slot for slot in taken if slot not in pending_graph.input_data}
    carried = sum(before <= slot < last for slot in results)
    own = sum(slot < before for slot in results - taken_before)
    own += sum(type(pending_graph.entries[slot]) is Aval for slot in (taken - results) - taken_before)
    return bool(carried >= own)


def _cheapest_cut(pending_graph: PendingGraph, slots: list[int], begin: int, period: int) -> int:
    """The index of the operation, among `period` from `begin` on, before which the fewest bytes of results are still needed.

    Of several, it prefers one after which more are needed, then the first operation of a line of the user's code.
    """
    indices = {slot: index for index, slot in enumerate(slots)}
    until: dict[int, int] = {}  # slot of a result → the last operation that needs it
    for index, slot in enumerate(slots):
        for operand in pending_graph.entries[slot][1:]:  # type: ignore[index]
            if operand not in pending_graph.input_data:
                until[operand] = index
    for slot, reference in enumerate(pending_graph.refs):
        if slot not in pending_graph.input_data and reference() is not None:
            until[slot] = len(slots)
    change = [0] * (len(slots) + 2)
    for slot, index in until.items():
        aval = aval_at(pending_graph.entries, slot)
        if aval is not None:
            change[indices[operation_at(pending_graph.entries, slot)] + 1] += aval.nbytes
            change[index + 1] -= aval.nbytes
    signatures: list[Signature] = [pending_graph.entries[slot][0] for slot in slots]  # type: ignore[index,misc]
    alive, least = sum(change[:begin]), None
    for index in range(begin, begin + period):
        alive += change[index]
        signature, before = signatures[index], signatures[index - 1]
        rank = (alive, change[index + 1] <= 0, signature.line == before.line, signature.name, signature.line or "")
        if least is None or rank < least[0]:
            least = rank, index
    return begin if least is None else least[1]
