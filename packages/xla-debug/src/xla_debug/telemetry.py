"""Report device work to tools that watch a program: spans for OpenTelemetry, scalars for TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from xla_debug import optional_libraries

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["opentelemetry_spans", "tensorboard_scalars"]


@contextmanager
def opentelemetry_spans(tracer_provider: TracerProvider | None = None) -> Iterator[None]:
    """Make OpenTelemetry spans of compilations, executions, copies, syncs and fallbacks of all threads during the block.

    Each is a child of the current span of the thread that asked for it, or of a span of its step. An execution that the device has not
    finished at the end of the block gets no span. tracer_provider: where spans go; None: to the one that the program has set.

    Raises ImportError without opentelemetry-sdk, RuntimeError if there is no provider.
    """
    optional_libraries.require(optional_libraries.OPENTELEMETRY, "opentelemetry_spans")
    from xla_debug.recording.opentelemetry_spans import Spans, user_provider

    provider = tracer_provider or user_provider()
    if provider is None:
        raise RuntimeError(
            "there is no TracerProvider: call opentelemetry.trace.set_tracer_provider first, or give tracer_provider=. "
            "XLA_DEBUG_OPENTELEMETRY=1 takes the exporters that the environment names"
        )
    spans = Spans(lambda: provider)
    spans.start()
    try:
        yield
    finally:
        spans.stop()


@contextmanager
def tensorboard_scalars(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Write scalars of each step in the block for TensorBoard, to `folder/xla`, or with several replicas to `folder/xla/replica-N`.

    Times in ms: of the step, the device, each phase of the host; compilations, reads, operators on the CPU; bytes moved; every two seconds
    bytes in use on each device. Raises ImportError without tensorboard.
    """
    from xla_debug.recording.recorder import RunRecorder
    from xla_debug.recording.tensorboard_scalars import Scalars

    recorder = RunRecorder(None, Scalars(Path(folder)))
    recorder.start()
    try:
        yield
    finally:
        recorder.finish()
