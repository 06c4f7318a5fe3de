"""A training job in which one replica is at fault: `faults.py FOLDER MOMENT FAULT RANK`, by itself or under a launcher.

Replica RANK commits FAULT at MOMENT: `start`, before any program has run; while all others `compile`; in a `collective`; at its `exit`.
Each says which process it is, and the one at fault when it struck.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import torch

import harness
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.core.xla_builder import call_jax

STEPS = 12
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}


class Returned(Exception):
    """The replica at fault returns early."""


class Culprit:
    """The fault of this replica, if it is the one: strikes once."""

    def __init__(self, folder: str, moment: str, fault: str, guilty: bool) -> None:
        self.folder = Path(folder)
        self.moment = moment
        self.fault = fault
        self.guilty = guilty
        self.sudden = fault in SIGNALS or fault == "os._exit"  # comes while the main thread does something else

    def at(self, moment: str, ready: Callable[[], bool] = lambda: True) -> bool:
        """Strike if this is the replica and the moment, as soon as `ready`. Whether it is to skip what comes now."""
        if not self.guilty or moment != self.moment:
            return False
        if self.sudden and moment != "start":
            threading.Thread(target=self._strike, args=(ready,), daemon=True).start()
        else:
            self._strike(ready)
        return self.fault == "skip"

    def _strike(self, ready: Callable[[], bool]) -> None:
        while not ready():
            time.sleep(0.005)
        harness.note(str(self.folder), "fault", str(time.time()))
        if self.fault in SIGNALS:
            os.kill(os.getpid(), SIGNALS[self.fault])
        elif self.fault == "os._exit":
            os._exit(3)
        elif self.fault == "raise":
            raise ValueError("the culprit")
        elif self.fault == "return":
            raise Returned

    def at_exit(self) -> None:
        """Strike when the process ends, if that is the moment and the fault is a sudden one."""
        if self.guilty and self.moment == "exit" and self.sudden:
            atexit.register(self._strike, lambda: True)


def slow_to_compile(x: jax.Array) -> jax.Array:
    """XLA needs far longer for this than a job may take to end."""
    for turn in range(2000):
        x = jax.numpy.sort(jax.numpy.roll(x, turn + 1) * jax.numpy.cos(x))
    return x


def compile_slowly(culprit: Culprit, folder: str, rank: int) -> None:
    """A program that takes long to compile. It strikes when all replicas compile it, or, unless it is hit while it does, all others."""
    theirs = [Path(folder) / f"compiling-{other}" for other in range(int(xr.world_size())) if other != rank or culprit.sudden]

    def all_compile() -> bool:
        return all(path.exists() and time.time() - path.stat().st_mtime > 3 for path in theirs)

    if culprit.at("compile", all_compile):
        return
    x = torch.ones(64, device="xla")
    total = xm.all_reduce("sum", call_jax(slow_to_compile, (x,)))
    harness.note(folder, f"compiling-{rank}", "")
    total.cpu()


def train(culprit: Culprit, model: torch.nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while step < STEPS or culprit.moment != "exit" and culprit.fault != "skip":
        step += 1
        if step == 5 and culprit.at("collective"):
            continue
        optimizer.zero_grad()
        loss = model(torch.ones(8, 64, device="xla")).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        loss.item()


def work(index: int, folder: str, moment: str, fault: str, rank: str) -> None:
    mine = int(xr.global_ordinal())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests themselves run under
    harness.note(folder, f"pid-{mine}", str(os.getpid()))
    model = torch.nn.Linear(64, 64).to("xla")
    culprit = Culprit(folder, moment, fault, mine == int(rank))
    try:
        if not culprit.at("start"):
            xm.broadcast_master_param(model)
        if moment == "compile":
            compile_slowly(culprit, folder, mine)
        train(culprit, model)
        if culprit.sudden or not culprit.at("exit"):
            xm.rendezvous("done")
    except Returned:
        return
    culprit.at_exit()


def note_objects_left_alone() -> None:
    """How many objects Python's collections at the end of the process leave alone; registered first, so called last."""
    if len(sys.argv) > 1:
        harness.note(sys.argv[1], f"frozen-{os.getpid()}", str(gc.get_freeze_count()))


if __name__ == "__main__":
    atexit.register(note_objects_left_alone)
    torch_xla.launch(work, tuple(sys.argv[1:]))
