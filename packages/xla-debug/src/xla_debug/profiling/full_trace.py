"""Rewrite the JSON beside a profile where Python frames have crowded out other events.

JAX writes the first million events by time. In a cold start, where Python runs long before anything is compiled, all of them are calls of
Python functions, and events of the compiler and the devices are missing. The profile itself, `.xplane.pb`, has them.
"""

from __future__ import annotations

import gzip
import heapq
from pathlib import Path
from typing import Any

from jax.profiler import ProfileData

from xla_debug.core import files
from xla_debug.profiling.chrome_trace import TraceEvents, encoded

MOST_EVENTS = 1_000_000
"""Events in JAX's file, at most."""
_MOST_FRAMES = 200_000
_FRAME = "$"  # begins the names of Python's frames


def complete_trace(profile: Path, most_events: int = MOST_EVENTS, most_frames: int = _MOST_FRAMES) -> bool:
    """Rewrite a profile's JSON if it has lost events: with all events but Python frames, and the longest Python frames.

    profile: an `.xplane.pb` file. Returns whether that was needed. Raises OSError.
    """
    target = profile.with_name(f"{profile.name.removesuffix('.xplane.pb')}.trace.json.gz")
    if not target.exists():
        return False
    planes = list(ProfileData.from_serialized_xspace(profile.read_bytes()).planes)
    frames, others = [], 0
    for line in (line for plane in planes for line in plane.lines):
        for event in line.events:
            if event.name.startswith(_FRAME):
                frames.append(event.duration_ns)
            else:
                others += 1
    if len(frames) + others <= most_events:
        return False
    longest = heapq.nlargest(most_frames, frames)
    shortest_ns = min(longest, default=0.0)
    ties = longest.count(shortest_ns)  # more frames may last as long, since clocks tick
    trace = TraceEvents(0)
    for pid, plane in enumerate(planes, 1):
        trace.process(pid, plane.name)
        for tid, line in enumerate(plane.lines):
            trace.thread(pid, tid, line.name)
            for event in line.events:
                if event.duration_ns <= shortest_ns and event.name.startswith(_FRAME):
                    if event.duration_ns < shortest_ns or not ties:
                        continue
                    ties -= 1
                trace.events.append(_complete(event, pid, tid))
    written = encoded({"displayTimeUnit": "ns", "traceEvents": trace.events})
    files.atomic_write_bytes(target, gzip.compress(written, compresslevel=1))
    return True


def _complete(event: Any, pid: int, tid: int) -> dict[str, Any]:
    complete = {"ph": "X", "name": event.name, "pid": pid, "tid": tid, "ts": event.start_ns / 1000, "dur": event.duration_ns / 1000}
    if not event.name.startswith(_FRAME):
        complete["args"] = {name: value for name, value in event.stats if isinstance(value, (int, float, str)) and not name.startswith("_")}
    return complete
