"""Trace a block of code as a timeline, alone or together with torch.profiler."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

import torch

from xla_debug.core import files
from xla_debug.profiling.chrome_trace import TraceEvents, add_spans, encoded
from xla_debug.recording import timeline
from xla_debug.recording.sampler import Sampler

_FIRST_TID = 1 << 30  # above the thread ids of the operating system, which torch.profiler uses for its rows


class Timeline:
    """Records what host, devices and copies do while the block runs in this thread: recording, compiling, waiting, copies, programs.

    with torch.profiler.profile() as profile, Timeline() as timeline:
        train()
    timeline.export("trace.json", profile)
    """

    def __init__(self) -> None:
        self._timeline = timeline.SpanTimeline()
        self._sampler = Sampler()
        self._thread: int | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("this Timeline has been entered before: make a new one for each block")
        self._thread = self._sampler.thread = threading.get_ident()
        self._timeline.start()
        self._sampler.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._sampler.stop()
        self._timeline.stop()
        self._timeline.add_samples(self._sampler.samples)

    def export(self, path: str | os.PathLike[str], profile: torch.profiler.profile | None = None) -> None:
        """Write the timeline as a trace that Perfetto and chrome://tracing open.

        profile: a stopped profile of torch's, whose operators and `record_function` ranges join the trace. Raises OSError.
        """
        spans = self._timeline.spans(self._thread, steps=None)
        trace_json: dict[str, Any] = {"displayTimeUnit": "ms", "traceEvents": []}
        if profile is not None:
            trace_json = _exported(profile)
        first_ns = round(min((span.start_s for span in spans), default=0.0) * 1e9)
        trace = TraceEvents(first_ns if profile is None else int(trace_json.get("baseTimeNanoseconds", 0)))
        if profile is None:
            trace.process(os.getpid(), "xla")
        add_spans(trace, os.getpid(), spans, _FIRST_TID)
        trace_json["traceEvents"] += trace.events
        files.atomic_write_bytes(path, encoded(trace_json))


def _exported(profile: torch.profiler.profile) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        exported: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return exported
