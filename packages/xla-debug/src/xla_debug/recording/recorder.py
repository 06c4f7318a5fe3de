"""Record this process, and write the recording to a folder and to TensorBoard every two seconds and at the end."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

from xla_debug.core import events
from xla_debug.recording import process_end
from xla_debug.recording.collector import Collector
from xla_debug.recording.environment import environment
from xla_debug.recording.tensorboard_scalars import Scalars
from xla_debug.recording_folder import file_of
from xla_debug.run_report.files import write
from xla_debug.run_report.schema import FORMAT, VERSION, Replica, RunReport
from xla_debug.secret_values import hide_in_arguments

_EVERY_S = 2.0


class RunRecorder:
    """Records this process to a file in `folder`, None for no file, and its steps as scalars."""

    def __init__(self, folder: Path | None, scalars: Scalars | None = None) -> None:
        self._path = None if folder is None else file_of(folder, os.getpid())
        self._scalars = scalars
        self._collector = Collector(keep_steps=scalars is not None)
        self._environment = environment()
        self._write_failed = False
        self._stopped = threading.Event()
        self._writer = threading.Thread(target=self._run, name="xla-debug-recorder", daemon=True)
        self._remove: Callable[[], None] = events.explain_failures(self._explain_out_of_memory)
        self._call_off: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start to collect events, and to write every two seconds."""
        self._collector.start()
        self._writer.start()
        self._call_off = process_end.register(self.finish)

    def finish(self) -> None:
        """Stop, and write the last recording; further calls do nothing."""
        self._call_off()
        if self._stopped.is_set():
            return
        self._stopped.set()
        # Wait for the thread: else it might write an unfinished recording over the last one.
        self._writer.join()
        self._collector.stop()
        self._remove()
        self._write(finished=True)
        if self._scalars is not None:
            self._scalars.close()

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            self._write(finished=False)

    def _write(self, finished: bool) -> None:
        # A recording reads the devices, and would start them in a process that uses none.
        if self._collector.idle:
            return
        replica = self._collector.replica(finished)
        steps = self._collector.take_steps()
        # A full disk must not end the run itself.
        if self._scalars is not None:
            try:
                self._scalars.write(steps, replica.steps, replica.memory.devices)
            except OSError as error:
                self._scalars = None
                print(f"xla-debug: no more scalars are written for TensorBoard: {error}", file=sys.stderr)
        if self._path is not None:
            try:
                write(self._report(replica), self._path)
            except OSError as error:
                if not self._write_failed:
                    self._write_failed = True
                    print(f"xla-debug: the recording cannot be written to {self._path}: {error.strerror}", file=sys.stderr)

    def _report(self, replica: Replica) -> RunReport:
        return RunReport(
            format=FORMAT,
            version=VERSION,
            command=hide_in_arguments(sys.orig_argv),
            started_s=replica.started_s,
            seconds=replica.seconds,
            exit_code=None,
            environment=self._environment,
            replicas=[replica],
            findings=replica.findings,
        )

    def _explain_out_of_memory(self, error: BaseException) -> str | None:
        """Explain an out-of-memory failure by the buffers that fill the device."""
        text = str(error)
        if "RESOURCE_EXHAUSTED" not in text and "out of memory" not in text.lower():
            return None
        rows = [
            f"  {live.nbytes:,} bytes: {live.count} × {live.shape} made at {live.line or 'an unknown line'}"
            for live in self._collector.live()
        ]
        return "\n".join(["The largest live buffers:", *rows]) if rows else None


@cache
def start_recording(folder: Path | None, scalars: Path | None = None) -> RunRecorder:
    """Record this process from now on to `folder`, and for TensorBoard to the folder `scalars`; only the first call starts a recorder.

    Raises ImportError if scalars are asked for and tensorboard is not installed.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    recorder = RunRecorder(folder, None if scalars is None else Scalars(scalars))
    recorder.start()
    return recorder
