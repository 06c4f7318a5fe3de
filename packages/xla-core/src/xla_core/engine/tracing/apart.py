"""Record apart from what is pending: on another pending graph of the device, where nothing may be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from xla_core.engine.graph.pending_graph import PendingGraph, Recorder
from xla_core.engine.runtime.sync import forbid_reads
from xla_core.engine.tracing.tokens import StandIn, stand_in_by


@contextmanager
def recording_apart(recorder: Recorder, pending_graph: PendingGraph, no_reads: str, stand_in: StandIn | None) -> Iterator[ExitStack]:
    """Let this thread record on `pending_graph` instead of what is pending on the device, whose lock it has meanwhile.

    no_reads: why a value may not be read, the text of the GraphBreakError that is raised then. stand_in: what collectives take in the place
    of their token. What is entered in the stack that this gives ends before the pending graph of before is back.
    """
    with recorder.lock:
        before, recorder.pending_graph = recorder.pending_graph, pending_graph
        try:
            with ExitStack() as entered:
                entered.callback(forbid_reads, forbid_reads(no_reads))
                entered.callback(stand_in_by, stand_in_by(stand_in))
                yield entered
        finally:
            recorder.pending_graph = before
