"""Write traces in the Trace Event Format, which Perfetto and chrome://tracing open: JSON, times in microseconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from xla_debug.profiling.profile_file import Kernel
from xla_debug.run_report.schema import HOST, Replica, Span

Event = dict[str, Any]

_PRECISION_US = 1.0
"""Of seconds since the epoch as floats, and of what is computed from them."""


class TraceEvents:
    """Collects the events of a trace. base_ns: the moment that is 0 in the trace, in nanoseconds since the epoch."""

    def __init__(self, base_ns: int) -> None:
        self._base_ns = base_ns
        self._flows = count(1)
        self.events: list[Event] = []

    def microseconds(self, time_s: float) -> float:
        """Convert seconds since the epoch to the trace's microseconds, to the nanosecond."""
        return (round(time_s * 1e9) - self._base_ns) / 1000

    def process(self, pid: int, name: str) -> None:
        """Name a process; viewers show processes in the order of their numbers."""
        self._describe("process_name", pid, 0, name=name)
        self._describe("process_sort_index", pid, 0, sort_index=pid)

    def thread(self, pid: int, tid: int, name: str) -> None:
        """Name a row of a process; viewers show rows in the order of their numbers."""
        self._describe("thread_name", pid, tid, name=name)
        self._describe("thread_sort_index", pid, tid, sort_index=tid)

    def _describe(self, property_name: str, pid: int, tid: int, **args: Any) -> None:
        self.events.append({"ph": "M", "name": property_name, "pid": pid, "tid": tid, "args": args})

    def row(self, pid: int, tid: int, spans: Iterable[tuple[float, float, str, str, Event]]) -> None:
        """Add the spans of one row: start in seconds, milliseconds, name, category and further arguments of each.

        A span that is partly in another is cut: float seconds are off by up to a microsecond. Where it only begins in it, within that, it
        begins behind it, else it ends with it.
        """
        ends: list[float] = []
        latest = float("-inf")
        for start_s, ms, name, category, args in sorted(spans, key=lambda span: (span[0], -span[1])):
            start = self.microseconds(start_s)
            end, start = start + round(ms * 1000, 3), max(start, latest)
            while ends and (ends[-1] <= start or ends[-1] < min(start + _PRECISION_US, end)):
                start = max(start, ends.pop())
            latest, end = start, max(min(end, *ends[-1:], float("inf")), start)
            ends.append(end)
            self.events.append(
                {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": start, "dur": round(end - start, 3), "args": args}
            )

    def arrow(self, pid: int, of: tuple[int, float], to: tuple[int, float]) -> None:
        """Add an arrow between two rows. of, to: thread and seconds of its ends."""
        flow = next(self._flows)
        for phase, (tid, time_s), binding in (("s", of, {}), ("f", to, {"bp": "e"})):
            point = {"pid": pid, "tid": tid, "ts": self.microseconds(time_s)}
            self.events.append({"ph": phase, "name": "launch", "cat": "launch", "id": flow, **point, **binding})

    def counter(self, pid: int, name: str, time_s: float, value: float) -> None:
        """Set the value of a counter from a moment on."""
        self.events.append({"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": self.microseconds(time_s), "args": {name: value}})


def add_spans(trace: TraceEvents, pid: int, spans: Sequence[Span], first_tid: int = 0) -> None:
    """Add spans as rows of a process, and arrows from where the host launched a program to where the device ran it."""
    tracks = sorted({span.track for span in spans}, key=lambda track: (track != HOST, track))
    tids = {track: first_tid + index for index, track in enumerate(tracks)}
    for track, tid in tids.items():
        trace.thread(pid, tid, f"xla {track}")
        trace.row(pid, tid, [(span.start_s, span.ms, span.name, span.phase, _args(span)) for span in spans if span.track == track])
    for span in spans:
        if span.launched_s is not None and HOST in tids:
            trace.arrow(pid, (tids[HOST], span.launched_s), (tids[span.track], span.start_s))


def _args(span: Span) -> Event:
    args: Event = {} if span.line is None else {"line": span.line}
    if span.estimated:
        args["estimated"] = "from samples"
    return args


def trace_of_run(replicas: Sequence[Replica], kernels: Sequence[Kernel] = ()) -> Event:
    """Make the trace of a run: a process for each replica, with its last steps, compilations and memory; then a profile's kernels."""
    starts = [span.start_s for replica in replicas for span in replica.spans]
    starts += [compiled.start_s for replica in replicas for compiled in replica.compiles]
    starts += [kernel.start_ns * 1e-9 for kernel in kernels]
    trace = TraceEvents(round(min(starts, default=0.0) * 1e9))
    for pid, replica in enumerate(replicas, 1):
        trace.process(pid, f"replica {replica.ordinal} on {replica.host}")
        add_spans(trace, pid, [*_earlier_compiles(replica), *replica.spans])
        for time_s, nbytes in replica.memory.over_time:
            if trace.microseconds(time_s) >= 0:
                trace.counter(pid, "bytes in use", time_s, nbytes)
    _add_kernels(trace, len(replicas) + 1, kernels)
    return {"displayTimeUnit": "ms", "traceEvents": trace.events}


def _earlier_compiles(replica: Replica) -> Iterator[Span]:
    """Yield the compilations before the last steps as spans."""
    first_s = min((span.start_s for span in replica.spans), default=float("inf"))
    for compiled in replica.compiles:
        if compiled.start_s + compiled.ms * 1e-3 <= first_s:
            yield Span(HOST, "compile", f"compile {compiled.name or compiled.graph_hash[:8]}", compiled.start_s, compiled.ms, compiled.line)


def _add_kernels(trace: TraceEvents, first_pid: int, kernels: Sequence[Kernel]) -> None:
    rows: dict[str, dict[str, list[Kernel]]] = {}
    for kernel in kernels:
        rows.setdefault(kernel.device, {}).setdefault(kernel.line, []).append(kernel)
    for pid, (device, lines) in enumerate(sorted(rows.items()), first_pid):
        trace.process(pid, f"profile of {device}")
        rows_of = [(line, row) for line, line_kernels in sorted(lines.items()) for row in _side_by_side(line_kernels)]
        for tid, (line, row) in enumerate(rows_of):
            trace.thread(pid, tid, line)
            trace.row(pid, tid, [_of_kernel(kernel) for kernel in row])


def _side_by_side(overlapping: Iterable[Kernel]) -> list[list[Kernel]]:
    """Divide kernels among as many rows as they need: on one thread, kernels may overlap without one containing the other."""
    rows: list[list[Kernel]] = []
    open_until: list[list[float]] = []  # for each row, the ends of the kernels that still run
    for kernel in sorted(overlapping, key=lambda item: (item.start_ns, -item.duration_ns)):
        end_ns = kernel.start_ns + kernel.duration_ns
        for ends in open_until:
            while ends and ends[-1] <= kernel.start_ns:
                ends.pop()
        index = next((index for index, ends in enumerate(open_until) if not ends or end_ns <= ends[-1]), len(rows))
        if index == len(rows):
            rows.append([])
            open_until.append([])
        rows[index].append(kernel)
        open_until[index].append(end_ns)
    return rows


def _of_kernel(kernel: Kernel) -> tuple[float, float, str, str, Event]:
    origin = kernel.origin
    args: Event = {"line": origin.line, "module": origin.module, "fused": ", ".join(origin.fused)}
    shown = {name: value for name, value in args.items() if value} | {"kernel": kernel.name, "program": kernel.program}
    return kernel.start_ns * 1e-9, kernel.duration_ns * 1e-6, origin.operator, "operator", shown


def encoded(trace: Event) -> bytes:
    """Encode a trace as JSON."""
    return json.dumps(trace, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
