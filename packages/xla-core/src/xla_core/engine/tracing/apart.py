"""Record on a separate pending graph of a device, where no value may be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from xla_core.engine.graph.pending_graph import PendingGraph, Recorder
from xla_core.engine.runtime.sync import forbid_reads
from xla_core.engine.tracing.tokens import StandIn, stand_in_by


@contextmanager
def recording_apart(recorder: Recorder, pending_graph: PendingGraph, no_reads: str, stand_in: StandIn | None) -> Iterator[ExitStack]:
    """Let this thread record on `pending_graph` instead of the device's own; it holds the device's lock meanwhile.

    no_reads: why no value may be read, the text of the GraphBreakError. stand_in: makes the tensor that collectives take instead of their
    token. Contexts entered in the stack that this yields are left before the device's own pending graph is restored.
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
