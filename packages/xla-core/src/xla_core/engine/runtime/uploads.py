"""Note what is uploaded: a loop that nobody syncs, and a host that runs far ahead of the device, hold the inputs of many steps."""

from __future__ import annotations

from functools import cache

from xla_core.engine.graph.pending_graph import NO_LIMIT, Recorder
from xla_core.engine.runtime import client
from xla_core.engine.runtime.memory import memory_limit
from xla_core.engine.runtime.topology import topology

_PARTS = 8
"""Parts of a device's memory: each time that uploads have filled one, a loop is looked for, and the host waits for earlier programs."""
_MUCH = 4
"""Parts: with as much uploaded, layers or turns without state will do as a loop, too."""


def note(recorder: Recorder, nbytes: int) -> None:
    """Count bytes that were uploaded to one device: past a part of its memory, the next recording looks at what is pending."""
    recorder.uploaded += nbytes
    pending_graph = recorder.pending_graph
    if not pending_graph.entries:
        return  # a model that is moved to the device: its tensors hold the data
    before, part = pending_graph.uploaded, _part(recorder)
    pending_graph.uploaded = before + nbytes
    if before // part < pending_graph.uploaded // part and pending_graph.limit != NO_LIMIT:
        pending_graph.limit = len(pending_graph.entries) - 1


def much(recorder: Recorder) -> bool:
    """Whether so much was uploaded since the pending graph began that it should run in any case."""
    return recorder.pending_graph.uploaded >= _MUCH * _part(recorder)


def run_ahead(recorder: Recorder) -> bool:
    """Whether a part of the memory was uploaded since this last was so."""
    if recorder.uploaded <= _part(recorder):
        return False
    recorder.uploaded = 0
    return True


@cache
def _part(recorder: Recorder) -> int:
    device = client.jax_device(recorder)
    sharing = topology().local_count if device.platform == "cpu" else 1  # processes
    return memory_limit(recorder) // sharing // _PARTS
