"""Record this process: started by the environment, written to a folder every two seconds and at the end."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

from xla_debug.core import events
from xla_debug.recording.collector import Collector
from xla_debug.recording.environment import environment
from xla_debug.recording_folder import file_of
from xla_debug.run_report.files import write
from xla_debug.run_report.schema import FORMAT, VERSION, Replica, RunReport

_EVERY_S = 2.0


class Recorder:
    """Records this process to a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path = file_of(folder, os.getpid())
        self._collector = Collector()
        self._environment = environment()
        self._failed = False
        self._stopped = threading.Event()
        self._writer = threading.Thread(target=self._run, name="xla-debug-recorder", daemon=True)
        self._remove: Callable[[], None] = events.explain_failures(self._explain_out_of_memory)

    def start(self) -> None:
        """Begin to collect, and to write every other second."""
        self._collector.start()
        self._writer.start()
        atexit.register(self.finish)
        if multiprocessing.parent_process() is not None:  # such a child ends without atexit
            multiprocessing.util.Finalize(None, self.finish, exitpriority=100)

    def finish(self) -> None:
        """Stop, and write the last recording. Once."""
        atexit.unregister(self.finish)
        if self._stopped.is_set():
            return
        self._stopped.set()
        # Else it might write an unfinished recording over the last one.
        self._writer.join()
        self._collector.stop()
        self._remove()
        self._write(finished=True)

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            self._write(finished=False)

    def _write(self, finished: bool) -> None:
        # A recording asks for the devices, which would start them in a process that does not use any.
        if self._collector.idle:
            return
        replica = self._collector.replica(finished)
        report = self._report(replica)
        try:
            write(report, self._path)
        except OSError as error:  # the run itself need not end for that
            if not self._failed:
                self._failed = True
                print(f"xla-debug: the recording cannot be written to {self._path}: {error.strerror}", file=sys.stderr)

    def _report(self, replica: Replica) -> RunReport:
        return RunReport(
            format=FORMAT,
            version=VERSION,
            command=list(sys.orig_argv),
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
def start_recording(folder: Path) -> Recorder:
    """Record this process to `folder` from now on; once for a process."""
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder)
    recorder.start()
    return recorder
