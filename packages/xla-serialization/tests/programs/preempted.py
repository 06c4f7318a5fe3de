"""Trains until it has a signal to end. usage: preempted.py FOLDER plain|unaware|handler|off|fork

Says where it is, one line each, and waits for a line from its parent, which has sent a signal or not. Its last line is a report as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from types import FrameType
from typing import Any

import torch

import torch_xla
import torch_xla.experimental.distributed_checkpoint as xc
import torch_xla.runtime as xr

called: list[int] = []


def tell(place: str) -> None:
    print(place, flush=True)
    sys.stdin.readline()


def handler(number: int, frame: FrameType | None) -> None:
    called.append(number)


def child() -> int:
    """How a forked process ends that is sent SIGTERM: the number of the signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if not pid:
        while True:
            signal.pause()
    os.kill(pid, signal.SIGTERM)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def main() -> None:
    folder, how = sys.argv[1:]
    if how == "handler":
        signal.signal(signal.SIGTERM, handler)
    manager = xc.CheckpointManager(folder, save_interval=100, chkpt_on_preemption=how != "off")
    report: dict[str, Any] = {"saved": [], "wanted": [], "steps": 0}
    if how == "fork":
        report["child"] = child()
    weight = torch.zeros(3, device="xla")
    for step in range(20):
        weight += 1
        torch_xla.sync()
        tell(f"step {step}")
        if manager.should_save(step):
            report["wanted"].append(step)
        if manager.save_async(step, {"weight": weight, "step": step}):
            report["saved"].append(step)
        assert not manager.should_save(step) or step == 0, "once"
        tell(f"saved {step}")
        report["steps"] += 1
        if how not in ("unaware", "handler") and manager.reached_preemption(step):
            tell("reached")
            manager.join()
            break
    state: dict[str, Any] = {"weight": torch.zeros(3, device="xla"), "step": -1}
    manager.restore(manager.all_steps()[-1], state)
    report |= {"all": manager.all_steps(), "called": called, "restored": [state["step"], state["weight"].tolist()], "on": xr.device_type()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
