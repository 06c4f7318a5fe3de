"""Saves on request, each time in a process of its own that stops at a system call of the save, if asked to, and waits to be killed.

Reads requests from stdin, one JSON object a line: kind, path, value, and `stop`, the number of the call, -1 for none, -2 to save on and on.
Writes on stdout, one JSON object a line: `pid` of the process that saves; `stopped`, the call before which it waits (of a write, half is
done); `saved`, how many calls a save took; `ended`, the process's exit code.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

import torch_xla.core.xla_model as xm
import torch_xla.experimental.distributed_checkpoint as xc
import torch_xla.utils.serialization as xser
import xla_serialization
from xla_serialization.errors import FailedSaveError

CALLS = ("open", "write", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir")


def say(**what: Any) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")  # at once: of an unbuffered `print` the end of the line may be missing when it is killed
    sys.stdout.flush()


class Stopper:
    """Counts system calls, and waits for ever before the given one."""

    def __init__(self, stop: int) -> None:
        self.count = 0
        self._stop = stop

    def before(self, name: str, half: Callable[[], object] = lambda: None) -> None:
        if self.count == self._stop:
            half()
            say(stopped=name)
            while True:
                signal.pause()
        self.count += 1

    def watch(self) -> None:
        for name in CALLS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        torch.save = self._watched_save(torch.save)

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.before(name, lambda: real(args[0], args[1][: len(args[1]) // 2]) if name == "write" else None)
            return real(*args, **kwargs)

        return call

    def _watched_save(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(data: Any, file: BinaryIO) -> None:
            def half() -> None:
                real(data, file)
                file.truncate(file.tell() // 2)

            self.before("torch.save", half)
            real(data, file)

        return call


def content(value: int, device: str) -> dict[str, Any]:
    """Everything in it says the value."""
    tensors = {f"t{number}": torch.full((number + 1, 50), float(value)).to(device) for number in range(12)}
    return {"tensors": tensors, "step": value}


@functools.cache
def manager(path: Path) -> xc.CheckpointManager:
    return xc.CheckpointManager(path, 1, max_to_keep=1, chkpt_on_preemption=False)


def save(kind: str, path: Path, value: int) -> None:
    if kind == "manager":
        manager(path).save(value, content(value, "xla"))
    elif kind == "async":
        manager(path).save_async(value, content(value, "xla"))
        manager(path).join()
    elif kind == "checkpoint":
        xla_serialization.save(content(value, "cpu"), path, shard_bytes=1000)
    elif kind == "large":
        xla_serialization.save({"tensors": {str(n): torch.full((1 << 20,), float(value)) for n in range(6)}, "step": value}, path)
    elif kind == "xser":
        xser.save(content(value, "xla"), path)
    else:
        xm.save(content(value, "cpu"), path)


def work(kind: str, path: str, value: int, stop: int) -> None:
    stopper = Stopper(stop)
    stopper.watch()
    say(pid=os.getpid())
    while True:
        stopper.count = 0
        try:
            save(kind, Path(path), value)
        except (BlockingIOError, FailedSaveError) as error:
            # Another manager may just be removing this step; a save in the background tells of it as its cause.
            if stop != -2 or not isinstance(error.__cause__ or error, BlockingIOError):
                raise
        else:
            say(saved=stopper.count, value=value)
        value += 1
        if stop != -2:
            return


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if not child:
            work(**json.loads(line))
            os._exit(0)
        say(ended=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
