"""A process that works and serves profiles of itself, until its standard input ends: `serve.py PORT`."""

from __future__ import annotations

import sys
import threading

import torch

import torch_xla.debug.profiler as xp

ended = threading.Event()


def wait() -> None:
    """Read to the end of standard input."""
    sys.stdin.read()
    ended.set()


threading.Thread(target=wait, daemon=True).start()
server = xp.start_server(int(sys.argv[1]))
x = torch.ones(64, 64, device="xla")
step = 0
while not ended.is_set():
    with xp.StepTrace("served_step", step_num=step):
        with xp.Trace("served_product"):
            x = (x @ x).clamp(0, 1)
    step += 1
    if step == 3:
        print("works", flush=True)
