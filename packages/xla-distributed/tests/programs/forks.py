"""A job whose replicas fork: `forks.py FOLDER`, started with torchrun's variables. Each reports how its children ended, and goes on.

`forks.py FOLDER orphan`: replica 1 dies and leaves a forked child behind, and nothing but its connections tells of it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

import torch
from torch.utils.data import DataLoader, TensorDataset

import harness
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from xla_distributed.job import client

LIMIT = 60.0  # seconds after which a child counts as one that hangs
FORKED = multiprocessing.get_context("fork")


class Uncaught(Exception):
    """Raised by a child."""


def raises() -> NoReturn:
    raise Uncaught("of the child")


def forks_again() -> NoReturn:
    sys.exit(exit_code(lambda: sys.exit(5)))


def exit_code(work: Callable[[], object]) -> int:
    """How a forked child that does `work` and then ends the program has ended; -9 if it had to be killed."""
    child = os.fork()
    if not child:
        work()
        sys.exit()
    deadline = time.monotonic() + LIMIT
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(ended[1])


def work(index: int, folder: str) -> None:
    x = torch.ones(3, device="xla")
    sums = [xm.all_reduce("sum", x).tolist()]
    codes = [exit_code(one) for one in (lambda: sys.exit(7), lambda: None, raises, forks_again)]
    process = FORKED.Process(target=sys.exit, args=(3,))
    process.start()
    process.join(LIMIT)
    codes.append(process.exitcode if process.exitcode is not None else -9)
    data = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2, multiprocessing_context=FORKED)
    sums.append([sum(batch.to("xla").sum().item() for (batch,) in data)])
    sums.append(xm.all_reduce("sum", x * 2).tolist())
    harness.report(folder, int(xr.global_ordinal()), {"codes": codes, "sums": sums})


def orphan(index: int, folder: str) -> None:
    """Replica 1 forks a child that outlives it."""
    x = torch.ones(3, device="xla")
    xm.all_reduce("sum", x).tolist()
    if xr.global_ordinal() == 1:
        child = os.fork()
        if not child:
            signal.pause()
        harness.note(folder, "child", str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        xm.all_reduce("sum", x).tolist()


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # jax warns of every fork
    if sys.argv[2:] == ["orphan"]:
        client.host_id = lambda: ""  # as on another host than the coordinator's
        torch_xla.launch(orphan, (sys.argv[1],))
    else:
        torch_xla.launch(work, (sys.argv[1],))
