"""Write the measurements of each step as scalars for TensorBoard."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from xla_debug import optional_libraries
from xla_debug.core import job
from xla_debug.recording.steps import MeasuredStep
from xla_debug.run_report.schema import DeviceMemory, Phase


class Scalars:
    """Writes TensorBoard's file of events in `folder/xla`, or with several replicas in `folder/xla/replica-N`.

    Raises ImportError without the package tensorboard.
    """

    def __init__(self, folder: Path) -> None:
        optional_libraries.require(optional_libraries.TENSORBOARD, "writing scalars for TensorBoard")
        # Imported now, not by the thread that writes, which may run at the end of the process, where imports can fail.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from torch.utils.tensorboard import RecordWriter

        self._folder = folder
        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        self._new_writer: Any = RecordWriter
        self._writer: Any = None

    def write(self, steps: Iterable[MeasuredStep], last: int, memory: Iterable[DeviceMemory]) -> None:
        """Write the scalars of steps, and the memory now as scalars of step `last`. Raises OSError."""
        if self._writer is None:
            self._open()
        for step in steps:
            self._add(step.end_s, step.index, _scalars(step))
        in_use = {f"xla_memory_bytes/{device.device.replace(':', '_')}": float(device.in_use) for device in memory}
        self._add(time.time(), last, in_use.items())
        self._writer.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> None:
        topology = job.topology()
        folder = self._folder / "xla"
        if topology.process_count > 1:
            folder /= f"replica-{topology.process_index}"
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        # Not SummaryWriter: it starts a thread, which Python refuses at the end of a process, where a short run first writes.
        self._writer = self._new_writer((folder / f"events.out.tfevents.{now:.0f}.{platform.node()}.{os.getpid()}").open("xb"))
        self._writer.write(self._event(wall_time=now, file_version="brain.Event:2").SerializeToString())

    def _add(self, time_s: float, step: int, scalars: Iterable[tuple[str, float]]) -> None:
        summary = self._summary(value=[self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars])
        self._writer.write(self._event(wall_time=time_s, step=step, summary=summary).SerializeToString())


def _scalars(step: MeasuredStep) -> Iterator[tuple[str, float]]:
    yield "xla/step_ms", (step.end_s - step.start_s) * 1e3
    yield "xla/device_ms", step.device_ns * 1e-6
    yield "xla/compiles", step.compiles
    yield "xla/reads", step.reads
    yield "xla/fallbacks", step.fallbacks
    yield "xla/bytes_to_device", step.to_device
    yield "xla/bytes_from_device", step.from_device
    for phase in Phase:
        yield f"xla_host_ms/{phase.value}", step.ns.get(phase, 0) * 1e-6
