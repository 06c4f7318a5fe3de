"""Limit the pending operations: run a program that nobody syncs in parts, a loop at the ends of its turns."""

from __future__ import annotations

from collections.abc import Sequence

from xla_core.base.errors import XlaError
from xla_core.base.metrics import Cause
from xla_core.engine.graph.loop import Loop
from xla_core.engine.graph.pending_graph import PendingGraph, Recorder, Value
from xla_core.engine.runtime import faults, turns, uploads
from xla_core.engine.runtime.source_location import asking_line
from xla_core.engine.runtime.sync import compute, reads_forbidden, run_live

_FOR_A_LOOP = 4  # times the limit: how far to look for the end of a second turn


def relieve(recorder: Recorder, values: Sequence[Value]) -> None:
    """Run pending operations after a recording made `values` and left more entries than its pending graph may have. In eager mode, compute
    the values; else run everything live, as a step would, and drop what is dead.
    """
    if recorder.eager:
        compute(values, None)
        faults.look(recorder, wait=True)
        return
    faults.look(recorder, wait=False)  # as a sync would
    with recorder.lock:
        pending_graph = recorder.pending_graph
        if len(pending_graph.entries) <= pending_graph.limit:
            return  # done by another thread
        if reads_forbidden() or not turns.may_run(recorder, pending_graph):
            pending_graph.limit = max(turns.limit(), 2 * len(pending_graph.entries))
        elif recorder.loop is None:
            _reduce(recorder, pending_graph)
        else:
            _follow(recorder, pending_graph, recorder.loop)


def _reduce(recorder: Recorder, pending_graph: PendingGraph) -> None:
    """Drop dead operations; if that frees little, run the turns of a loop, or everything if no loop is found in a long program."""
    entries, allowed = len(pending_graph.entries), turns.limit()
    far = entries >= _FOR_A_LOOP * allowed or uploads.much(recorder)
    pending_graph.partly_run = True
    turns.drop_dead(pending_graph)
    if 2 * len(pending_graph.entries) <= entries:
        pending_graph.limit, pending_graph.uploaded = max(allowed, 2 * len(pending_graph.entries)), 0
        return
    try:
        if turns.run_turns(recorder, pending_graph, layers=far):
            pending_graph.uploaded = 0
            return
    except XlaError:  # run_live runs all that can run, and raises the error
        run_live(recorder, pending_graph, Cause.PENDING_LIMIT, asking_line())
        return
    if far:
        run_live(recorder, pending_graph, Cause.PENDING_LIMIT, asking_line())
    else:
        pending_graph.limit = max(allowed, 2 * entries)


def _follow(recorder: Recorder, pending_graph: PendingGraph, loop: Loop) -> None:
    """Run everything live at the end of a turn; before it, look again at the next operation, until the end must have been missed."""
    entries = len(pending_graph.entries)
    if turns.ended(pending_graph, loop):
        # A turn may have become shorter: the next ones are looked at as early as this one ended.
        recorder.limit = min(recorder.limit, entries - 1)
        run_live(recorder, pending_graph, Cause.PENDING_LIMIT, asking_line())
    elif entries < 4 * loop.size:
        pending_graph.limit = entries
    else:
        turns.leave(recorder)
