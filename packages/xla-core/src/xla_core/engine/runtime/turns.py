"""Run a loop that was recorded without a sync turn by turn: a small program many times, not a long one once."""

from __future__ import annotations

import warnings
from functools import partial

from xla_core.base import config
from xla_core.base.metrics import Cause
from xla_core.engine.graph.graph import Graph, inputs_of
from xla_core.engine.graph.loop import Loop
from xla_core.engine.graph.loop_search import find_loop
from xla_core.engine.graph.pending_graph import NO_LIMIT, PendingGraph, Recorder
from xla_core.engine.graph.selection import ancestors, extract, keep_live, live_slots, renamed_lines, store_results
from xla_core.engine.graph.state import promote_state
from xla_core.engine.runtime import executor, resharding
from xla_core.engine.runtime.client import placement_of
from xla_core.engine.runtime.interrupts import uninterrupted
from xla_core.engine.runtime.source_location import asking_line, user_line
from xla_core.engine.runtime.topology import topology
from xla_core.engine.runtime.transfer import filled

_PIECE = 16  # operations: fewer are not worth a program of their own
_PIECES = 50  # at most so many are cut from a pending graph: each costs a walk over all of it


def limit() -> int:
    """The number of entries that a pending graph may have."""
    return config.MAX_PENDING.get() or NO_LIMIT


def prepare(recorder: Recorder, pending_graph: PendingGraph) -> None:
    """Prepare a pending graph so that all of it can run."""
    if pending_graph.partly_run:
        keep_live(pending_graph)
    if pending_graph.filled:
        promote_state(pending_graph, partial(filled, recorder))
    # Last: it gives storages new values, which `promote_state` would mistake for writes.
    if resharding.any_sharded():
        resharding.reshard_all(recorder)


def drop_dead(pending_graph: PendingGraph) -> None:
    """Drop operations that nothing alive needs. Ctrl-C must not interrupt it: values would have slots of the old numbering."""
    with uninterrupted():
        keep_live(pending_graph)


def may_run(recorder: Recorder, pending_graph: PendingGraph) -> bool:
    """Whether programs may end elsewhere than at the user's syncs: not if other processes must run the same programs."""
    has_side_effects = any(type(entry) is tuple and entry[0].has_side_effects for entry in pending_graph.entries)
    return not has_side_effects and not (topology().process_count > 1 and placement_of(recorder).is_mesh)


def run_turns(recorder: Recorder, pending_graph: PendingGraph, layers: bool = False) -> bool:
    """If a pending graph ends in a loop, run its complete turns, and let later ones run as they end. Returns whether it does.

    Operations after the last complete turn stay pending. layers: as for `find_loop`.
    """
    pending_graph.partly_run = True
    with uninterrupted():
        prepare(recorder, pending_graph)
    loop = find_loop(pending_graph, layers)
    if loop is None:
        return False
    # Rounded up: a piece has at least `_PIECE` operations.
    turns_of_piece = -(-_PIECE // loop.length)
    pieces = loop.by(max(turns_of_piece, loop.turns // _PIECES))
    remainder = loop.turns * loop.length - pieces.turns * pieces.length
    for length in (loop.head, *[pieces.length] * pieces.turns, remainder):
        if length:
            _run_first(recorder, pending_graph, length)
    recorder.loop = loop.by(turns_of_piece)
    # So that the recording that ends a turn is past the limit, and looks.
    recorder.allow(recorder.loop.size - 1)
    _announce(recorder, loop)
    return True


def _run_first(recorder: Recorder, pending_graph: PendingGraph, count: int) -> None:
    """Run the first `count` operations of a pending graph without dead operations."""
    operations = [slot for slot, entry in enumerate(pending_graph.entries) if type(entry) is tuple]
    end = operations[count] if count < len(operations) else len(pending_graph.entries)
    # Results are the values that are referenced or that later operations read: the operations themselves are dropped.
    outs = {slot for slot in live_slots(pending_graph) if slot < end}
    for slot in operations[count:]:
        outs.update(operand for operand in pending_graph.entries[slot][1:] if operand < end and operand not in pending_graph.input_data)  # type: ignore[index]
    slots = sorted(outs)
    entries, renamed, input_data = extract(pending_graph, ancestors(pending_graph, slots))
    graph = Graph(tuple(entries), tuple(renamed[slot] for slot in slots), lines=renamed_lines(pending_graph, renamed))
    keep = partial(store_results, pending_graph, slots)
    executor.execute(recorder, graph, inputs_of(entries, input_data), keep, Cause.PENDING_LIMIT, asking_line())
    # Drops the operations that have run: the next piece comes first then.
    drop_dead(pending_graph)


LONG = 500  # entries; before a longer program for a read, a loop is searched
_no_loop: set[int] = set()  # hashes of long programs for reads before which no loop was found


def run_before(recorder: Recorder, pending_graph: PendingGraph, graph: Graph) -> bool:
    """Before a value is read by `graph`, which is long: run the turns of the loop that the pending graph ends in.

    Returns whether the pending graph has changed: the search for a loop prepares it, which gives its values other slots.
    """
    mark = hash(graph.key)
    if mark in _no_loop or limit() == NO_LIMIT:
        return False
    looks = may_run(recorder, pending_graph)
    if not looks or not run_turns(recorder, pending_graph):
        # A loop that reads the same long program each time is searched once.
        _no_loop.add(mark)
    return looks


def ended(pending_graph: PendingGraph, loop: Loop) -> bool:
    """Whether the last operation of a pending graph ends a piece of `loop`."""
    entries = pending_graph.entries
    slot = len(entries) - 1
    while type(last := entries[slot]) is not tuple:
        slot -= 1
    return last[0] is loop.last and sum(type(entry) is tuple and entry[0] is loop.last for entry in entries) % loop.times == 0


def leave(recorder: Recorder) -> None:
    """Expect no further turns: the user syncs, or the loop is over."""
    if recorder.loop is not None:
        recorder.loop = None
        recorder.allow(limit())


_announced = False


def _announce(recorder: Recorder, loop: Loop) -> None:
    """Warn, once, about a loop without a sync."""
    global _announced
    if not _announced:
        _announced = True
        warnings.warn(
            f"a loop without torch_xla.sync() has left {loop.head + loop.length * loop.turns:,} operations pending on {recorder.device}, "
            f"found at {user_line() or 'an unknown line'}: from now on its turns run as they end. Call torch_xla.sync() at the end of each "
            "step to say where that is; XLA_MAX_PENDING sets how much may be pending",
            RuntimeWarning,
            stacklevel=2,
        )
