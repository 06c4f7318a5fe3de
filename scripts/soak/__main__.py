"""Disturb a training run for a while, and compare it with one that is left alone.

Both run `trainer.py`. One of them is killed, interrupted and stopped for seconds at random moments, its newest checkpoint is cut off and
its programs on disk are damaged; it must go on each time, and have the same parameters at each step. Prints what was done, how many steps
held, and how memory grew.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

_PAUSE_S = 2.0


class Training:
    """A process of `trainer.py` that is started again when it has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log, self.stop, self.output = folder / "log.jsonl", folder / "stop", folder / "output.txt"
        self.programs = folder / "programs"
        self.starts = 0
        folder.mkdir()
        self.start()

    def start(self) -> None:
        """A new process, which goes on where the last one was."""
        self.starts += 1
        command = [sys.executable, str(Path(__file__).with_name("trainer.py")), *map(str, (self.folder / "run", self.log, self.stop))]
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_PERSISTENT_CACHE_PATH": str(self.programs)}
        with self.output.open("a", encoding="utf-8") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def lines(self) -> list[dict[str, Any]]:
        """What it has noted; a line that was cut off is left out."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]

    def last(self) -> int:
        """The largest step that it has noted."""
        return max((line["step"] for line in self.lines()), default=0)


def kill(training: Training) -> None:
    """SIGKILL; the next process goes on."""
    training.process.kill()
    training.process.wait()
    training.start()


def interrupt(training: Training) -> None:
    """Ctrl-C, once the process has begun to train."""
    if any(line["pid"] == training.process.pid for line in training.lines()):
        training.process.send_signal(signal.SIGINT)


def pause(training: Training) -> None:
    """SIGSTOP, and SIGCONT after a while."""
    training.process.send_signal(signal.SIGSTOP)
    time.sleep(_PAUSE_S)
    training.process.send_signal(signal.SIGCONT)


def cut_checkpoint(training: Training) -> None:
    """SIGKILL, then the largest file of the newest checkpoint loses its second half."""
    training.process.kill()
    training.process.wait()
    folders = sorted((training.folder / "run").glob("*/"), key=lambda found: found.stat().st_mtime)
    files = (
        sorted((found for found in folders[-1].rglob("*") if found.is_file()), key=lambda found: found.stat().st_size) if folders else []
    )
    if files:
        os.truncate(files[-1], files[-1].stat().st_size // 2)
    training.start()


def damage_programs(training: Training) -> None:
    """SIGKILL, then a byte of every program on disk is another one."""
    training.process.kill()
    training.process.wait()
    for found in training.programs.rglob("*"):
        if found.is_file() and found.stat().st_size:
            content = bytearray(found.read_bytes())
            content[len(content) // 2] ^= 0xFF
            found.write_bytes(content)
    training.start()


FAULTS: tuple[Callable[[Training], None], ...] = (kill, interrupt, pause, cut_checkpoint, damage_programs)


def growth(lines: list[dict[str, Any]]) -> float:
    """MB of memory per 1,000 steps, in the process that noted the most, without its first quarter."""
    longest = Counter(line["pid"] for line in lines).most_common(1)[0][0]
    own = [line for line in lines if line["pid"] == longest]
    own = own[len(own) // 4 :]
    steps, sizes = [line["step"] / 1000 for line in own], [line["bytes"] / 2**20 for line in own]
    return float(np.polyfit(steps, sizes, 1)[0]) if len(own) > 1 else 0.0


@click.command(help=__doc__)
@click.option("--minutes", type=click.FloatRange(0.1), default=30.0, show_default=True)
@click.option("--pause", "between", type=click.FloatRange(1), default=15.0, show_default=True, help="Mean seconds between faults.")
@click.option("--seed", type=int, default=0, show_default=True)
def main(minutes: float, between: float, seed: int) -> None:
    """Exit status 1 if a step differs or a process ended by itself."""
    chance, done, ended = random.Random(seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        alone, disturbed = Training(Path(folder, "alone")), Training(Path(folder, "disturbed"))
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.5, 1.5) * between)
            if disturbed.process.poll() is not None:
                ended += 1
                disturbed.start()
            fault = chance.choice(FAULTS)
            fault(disturbed)
            done[fault.__name__] += 1
        for training in (alone, disturbed):
            training.stop.write_text(str(training.last()), encoding="utf-8")
        ended += sum(training.process.wait() != 0 for training in (alone, disturbed))
        right, found = alone.lines(), disturbed.lines()
        wanted = {line["step"]: line["digest"] for line in right}
        compared = [line for line in found if line["step"] in wanted]
        equal = sum(wanted[line["step"]] == line["digest"] for line in compared)
        output = disturbed.output.read_text(encoding="utf-8")
        table = Table("what", "figure", title=f"Soak of {minutes:g} minutes")
        table.add_row("steps, alone and disturbed", f"{alone.last():,} / {disturbed.last():,}")
        table.add_row("faults", ", ".join(f"{count} {name}" for name, count in sorted(done.items())))
        table.add_row("starts; ends that nobody caused", f"{disturbed.starts}; {ended}")
        table.add_row("checkpoints that were left out", str(output.count("is left out")))
        table.add_row("states compared; equal", f"{len(compared):,}; {equal:,}")
        table.add_row("memory, MB per 1,000 steps", f"{growth(right):+.2f} alone")
        Console().print(table)
        if ended or equal < len(compared) or not compared:
            Console().print(output[-4000:])
            raise SystemExit(1)


if __name__ == "__main__":
    main()
