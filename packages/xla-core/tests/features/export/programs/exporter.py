"""Saves exports on request, each in a process of its own that stops at a system call of the save, if asked to, and waits to be killed.

Reads requests from stdin, one JSON object a line: `path`, where to save; `value` of all weights, and by it which of the two `templates`,
folders of exports, is saved; `stop`, the number of the call, -1 for none, -2 to save further values on and on; `limit`, of a file's bytes,
-1 for none. Writes on stdout, one JSON object a line: `pid` of the process; `stopped`, the call before which it waits; `saved`, how many
calls a save took; `failed`, the error; `ended`, its exit code.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from torch_xla.stablehlo import StableHLOModelBundle
from xla_core.features.export.torch_export.model_bundle import load_bundle, save_bundle

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir"}


def say(**what: Any) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


class Stopper:
    """Counts system calls, and waits for ever before the given one."""

    def __init__(self, stop: int) -> None:
        self.count, self.active = 0, False
        self._stop, self._sync = stop, os.fsync

    def watch(self) -> None:
        sys.addaudithook(lambda event, _: self.before(event) if event in EVENTS else None)
        setattr(os, "fsync", self._synced)  # noqa: B010  # mypy knows a wider argument of it

    def _synced(self, descriptor: int) -> None:
        if self.count == self._stop and os.fstat(descriptor).st_size and not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.truncate(f"/proc/self/fd/{descriptor}", os.fstat(descriptor).st_size // 2)  # as a write that was cut off
        self.before("fsync")
        self._sync(descriptor)

    def before(self, name: str) -> None:
        if not self.active:
            return
        if self.count == self._stop:
            self.active = False
            say(stopped=name)
            while True:
                signal.pause()
        self.count += 1


@cache
def template(path: str) -> StableHLOModelBundle:
    return load_bundle(Path(path))


def work(templates: list[str], path: str, value: int, stop: int, limit: int) -> None:
    stopper = Stopper(stop)
    stopper.watch()
    if limit >= 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    while True:
        bundle = template(templates[value % 2])
        state: dict[str, Any] = {name: np.full_like(array, value) for name, array in bundle.state_dict.items()}
        stopper.count, stopper.active = 0, True
        try:
            save_bundle(StableHLOModelBundle(state, bundle.additional_constants, bundle.stablehlo_funcs), Path(path), True)
        except OSError as error:
            stopper.active = False
            say(failed=f"{type(error).__name__} {error}")
            return
        stopper.active = False
        say(saved=stopper.count)
        if stop != -2:
            return
        value += 1


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        for each in request["templates"]:
            template(each)  # once for all processes
        child = os.fork()
        if not child:
            say(pid=os.getpid())  # by itself: the first that is said of it
            work(**request)
            os._exit(0)
        say(ended=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
