"""How much memory a save or a load takes on the host: `memory.py save|load|beside FOLDER TENSORS MEGABYTES`, one JSON line on stdout.

Two measures above what the process has before it begins (on CPU devices that is with the state):

* risen (of `beside`, steps that are saved while the next ones run: with the state): RssAnon, which is memory that is there and that no
  file stands for, looked at every millisecond.
* allowed: RLIMIT_DATA, under which the system refuses private writable memory whether it is touched or not. The files, mapped
  read-only, are the page cache's, which the system takes back when it likes: neither measure counts them, as RLIMIT_AS would.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import threading
from pathlib import Path

import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.experimental.distributed_checkpoint as xc
import xla_serialization as checkpoint

STEPS = 4
SLACK = 16 << 20
"""For threads' stacks and the interpreter's own small things."""


def status(key: str) -> int:
    """Bytes, from what the system tells of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"the system does not tell {key}")


def made(tensors: int, nbytes: int) -> dict[str, torch.Tensor]:
    """A state on the device."""
    state = {f"layers.{number}": torch.full((nbytes // 4,), float(number)).to("xla") for number in range(tensors)}
    xm.unlazy(state.values())  # transfers go on after the calls that begin them
    return state


def load(folder: Path) -> dict[str, torch.Tensor]:
    """Straight to the device."""
    found: dict[str, torch.Tensor] = checkpoint.load(folder, device="xla")
    xm.unlazy(found.values())
    return found


def change(state: dict[str, torch.Tensor]) -> None:
    """One step."""
    for tensor in state.values():
        tensor.add_(1)
    torch_xla.sync()


def train(state: dict[str, torch.Tensor], folder: Path) -> None:
    """Steps that change all of the state, each saved beside the next one."""
    change(state)
    xm.wait_device_ops()
    manager = xc.CheckpointManager(folder, save_interval=1, max_to_keep=1, chkpt_on_preemption=False)
    for step in range(STEPS):
        assert manager.save_async(step, state)
        change(state)
    manager.join()
    assert manager.all_steps() == [STEPS - 1]


class Risen(threading.Thread):
    """Looks at RssAnon until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.base = self.highest = status("RssAnon")
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.001):
            self.highest = max(self.highest, status("RssAnon"))

    def stop(self) -> int:
        self._done.set()
        self.join()
        return max(self.highest, status("RssAnon")) - self.base


def main(what: str, folder: Path, tensors: int, nbytes: int) -> None:
    small = folder.with_name("small")
    checkpoint.save(made(2, 2 << 20), small)  # starts whatever is started once, threads and their heaps too
    load(small)
    empty = status("RssAnon")
    kept = {} if what == "load" else made(tensors, nbytes)
    ctypes.CDLL(None).malloc_trim(0)  # what is free, but still with this process, is not there to be used again
    allowed = nbytes * 5 // 4 + SLACK + (0 if what == "save" else tensors * nbytes)
    before = status("VmData")
    risen = Risen()
    if what == "beside":
        risen.base = empty  # what came from the host is in its memory until after the first steps
    risen.start()
    if what != "beside":  # programs that are compiled there ask for more than they touch
        resource.setrlimit(resource.RLIMIT_DATA, (before + allowed, resource.RLIM_INFINITY))
    if what == "save":
        checkpoint.save(kept, folder)
    elif what == "beside":
        train(kept, folder)
    else:
        kept = load(folder)
    highest = risen.stop()
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if what == "beside":
        kept = {name: tensor - STEPS for name, tensor in checkpoint.load(folder / str(STEPS - 1)).items()}
    right = all(bool((tensor == number).all()) for number, tensor in enumerate(kept.values())) and len(kept) == tensors
    print(json.dumps({"risen": highest, "allowed": allowed, "right": right}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) << 20)
