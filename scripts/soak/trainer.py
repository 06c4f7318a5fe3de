"""The run that a soak disturbs: trains on digits with changing shapes, dropout, evaluation in a thread and checkpoints, until told to stop.

Whatever happens to it, started again it goes on from the newest checkpoint that is whole. Every `EVERY` steps it writes one line of JSON:
step, a digest of all parameters and the optimizer's moments, and the memory of the process. Equal steps have equal digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.experimental.distributed_checkpoint as xc
import xla_serialization

EVERY = 25
SIZES = (8, 16, 24)
"""Numbers of examples, in turn: programs of several shapes."""
DEVICE = "xla"


class Run:
    """Model, optimizer and what a checkpoint holds of them."""

    def __init__(self, folder: Path, log: Path, stop: Path) -> None:
        self.log, self.stop = log, stop
        self.manager = xc.CheckpointManager(str(folder), save_interval=EVERY, max_to_keep=3)
        images, labels = load_digits(return_X_y=True)
        self.images, self.labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.evaluations: list[float] = []

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint of `step` holds."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "random": xm.get_rng_state(), "step": step}

    def restored(self) -> int:
        """The step of the newest checkpoint that is whole, put in place; 0 if there is none."""
        xc.prime_optimizer(self.optimizer)
        for step in sorted(self.manager.all_steps(), reverse=True):
            found = self.state(step)
            try:
                self.manager.restore(step, found)
            except xla_serialization.CheckpointError as error:
                print(f"checkpoint {step} is left out: {error}", flush=True)
                continue
            self.optimizer.load_state_dict(found["optimizer"])
            xm.set_rng_state(found["random"])
            return int(found["step"])
        return 0

    def train(self, first: int) -> None:
        """Steps from `first` + 1 on, until the file `stop` names one that is done."""
        for step in range(first + 1, sys.maxsize):
            order = torch.Generator().manual_seed(step)
            chosen = torch.randint(len(self.labels), (SIZES[step % len(SIZES)],), generator=order)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.images[chosen].to(DEVICE)), self.labels[chosen].to(DEVICE))
            loss.backward()
            self.optimizer.step()
            torch_xla.sync()
            if step % EVERY == 0:
                self.note(step)
                self.manager.save_async(step, self.state(step))
                self.evaluate()
            if step % EVERY == 0 and self.stop.exists() and step >= int(self.stop.read_text() or sys.maxsize):
                self.manager.join()
                return

    def evaluate(self) -> None:
        """Accuracy over some examples, in a thread that reads while training goes on."""
        parameters = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)).eval()

        def run() -> None:
            shown = torch.func.functional_call(model, parameters, (self.images[:100].to(DEVICE),))
            self.evaluations.append((shown.argmax(1).cpu() == self.labels[:100]).float().mean().item())

        threading.Thread(target=run, daemon=True).start()

    def note(self, step: int) -> None:
        """One line of the log."""
        digest = hashlib.sha256()
        for value in (*self.model.parameters(), *(moment for held in self.optimizer.state.values() for moment in held.values())):
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        line = {"step": step, "digest": digest.hexdigest(), "pid": os.getpid(), "bytes": pages * resource.getpagesize()}
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def main(folder: Path, log: Path, stop: Path) -> None:
    """Train; Ctrl-C throws away what was begun, and goes on from the newest checkpoint in the same process."""
    warnings.simplefilter("ignore", RuntimeWarning)  # a damaged program on disk is announced
    run = Run(folder, log, stop)
    while True:
        try:
            run.train(run.restored())
            return
        except KeyboardInterrupt:
            print("interrupted", flush=True)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
