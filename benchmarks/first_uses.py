"""Programs that were never seen: a stream of 200 lengths with `background_compile` beside eager torch, and 50 programs in a new process."""

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import torch

from harness import STEADY, Row, print_tables, rerun_with, write_results
from models_torch import Gpt, GptSize, cross_entropy

LATENCY_GOAL, START_GOAL = 2.0, 0.5
FIRST_LENGTH, LENGTHS = 20, 200
TASKS = {"prefill": GptSize(layers=4, width=256, tokens=256), "training": GptSize(layers=2, width=256, tokens=256)}
PROGRAMS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.softmax(x, -1).mean(),
    lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]).std(),
    lambda x: (x * 2 + 1).sum(),
    lambda x: (x @ x.t()).relu().sum(),
    lambda x: torch.nn.functional.gelu(x).sort(0)[0].norm(),
]
COUNT = 50


def stream(device: str, task: str, lengths: list[int]) -> list[float]:
    """Seconds of each step of a stream of lengths, to the end of a value read."""
    torch.manual_seed(0)
    model = Gpt(TASKS[task]).to(device)
    table = model.position
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(length: int) -> float:
        tokens = torch.arange(length).reshape(1, length).to(device) % 97
        hidden = model.layers(model.embed(tokens) + table[:length])
        if task == "prefill":
            return float(model.out(model.norm(hidden[:, -1])).argmax(-1).item())
        optimizer.zero_grad()
        loss = cross_entropy(model.out(model.norm(hidden)), tokens)
        loss.backward()
        optimizer.step()
        return loss.item()

    seconds = []
    with torch.inference_mode(task == "prefill"):
        for length in (5, 6, 7, 8):  # what is loaded and started at a first step is not asked for
            step(length)
        gc.collect()
        gc.freeze()  # as a server does behind its start
        for length in lengths:
            start = time.perf_counter()
            step(length)
            seconds.append(time.perf_counter() - start)
    return seconds


def streams(task: str, quick: bool) -> dict[str, float | int]:
    """A stream on the CPU by torch itself and on xla, one after the other."""
    from torch_xla.experimental import background_compile
    from xla_core.abi.metrics import snapshot

    lengths = np.random.RandomState(0).permutation(np.arange(FIRST_LENGTH, FIRST_LENGTH + (10 if quick else LENGTHS))).tolist()
    figures: dict[str, float | int] = {}
    torch.ones(1, device="xla").cpu()
    compiled = snapshot().counters["UncachedCompile"]
    for device in ("cpu", "xla"):
        with background_compile():
            seconds = stream(device, task, lengths)
        for name, share in (("p50_ms", 50), ("p99_ms", 99), ("max_ms", 100)):
            figures[f"{device} {name}"] = float(np.percentile(seconds, share)) * 1e3
    figures["compiled"] = snapshot().counters["UncachedCompile"] - compiled
    return figures


def fifty() -> None:
    """The small programs, each with a shape of its own, and a value read of each."""
    for number in range(COUNT):
        x = torch.linspace(-1, 1, 5 * (7 + number)).reshape(7 + number, 5).to("xla")
        PROGRAMS[number % len(PROGRAMS)](x).item()


def worker(kind: str, task: str, quick: bool) -> None:
    """A process under test: prints its figures as JSON."""
    if kind == "stream":
        print(json.dumps(streams(task, quick)))
        return
    import torch_xla

    if task == "evaluated":
        torch_xla.experimental.background_compile()
    begin = time.perf_counter()
    fifty()
    print(json.dumps({"s": time.perf_counter() - begin}))


def measured(kind: str, task: str, quick: bool, **settings: str) -> dict[str, float]:
    """What a worker prints, and the seconds of the whole process."""
    command = [sys.executable, __file__, "--worker", kind, task, *(["--quick"] if quick else [])]
    begin = time.perf_counter()
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **settings}).stdout
    figures: dict[str, float] = json.loads(printed.splitlines()[-1])
    return {**figures, "process_s": time.perf_counter() - begin}


def stream_rows(rounds: int, quick: bool) -> list[Row]:
    result: list[Row] = []
    for task in TASKS:
        found = [measured("stream", task, quick) for _ in range(rounds)]
        middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
        for device, name in (("cpu", "eager torch"), ("xla", "background_compile")):
            figures = {figure: middle[f"{device} {figure}"] for figure in ("p50_ms", "p99_ms", "max_ms")}
            result.append({"task": task, "by": name, **figures})
        ratio = statistics.median(each["xla p99_ms"] / each["cpu p99_ms"] for each in found)
        result.append({"what": f"{task}: p99 to eager torch's", "ratio": ratio, "goal": LATENCY_GOAL, "met": ratio <= LATENCY_GOAL})
        result.append(
            {"what": f"{task}: steps that waited for a compile", "ratio": middle["compiled"], "goal": 0, "met": middle["compiled"] == 0}
        )
    return result


KINDS = {"once": {"XLA_TIERED_COMPILATION": "0"}, "tiers": {"XLA_TIERED_COMPILATION": "1"}, "evaluated": {"XLA_TIERED_COMPILATION": "1"}}
"""How new programs run: compiled once, quick first, or evaluated first."""


def start_rows(rounds: int, quick: bool) -> list[Row]:
    """Fresh processes in turns; a ratio is the median of those of the rounds."""
    turns = [{kind: measured("start", kind, quick, **settings) for kind, settings in KINDS.items()} for _ in range(rounds)]
    result: list[Row] = []
    for kind in KINDS:
        figures = {name: statistics.median(turn[kind][name] for turn in turns) for name in ("s", "process_s")}
        result.append({"programs": COUNT, "new": kind, **figures})
    for kind in ("tiers", "evaluated"):
        ratio = statistics.median(turn[kind]["s"] / turn["once"]["s"] for turn in turns)
        result.append({"what": f"{COUNT} programs, {kind} / once", "ratio": ratio, "goal": START_GOAL, "met": ratio <= START_GOAL})
    return result


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--quick", is_flag=True, help="Few lengths: does it run at all?")
@click.option("--worker", "worked", nargs=2, hidden=True)
def main(target: Path | None, rounds: int, quick: bool, worked: tuple[str, str] | None) -> None:
    if worked is not None:
        worker(*worked, quick)
        return
    rerun_with({**STEADY, "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"})
    found = [*stream_rows(1 if quick else rounds, quick), *start_rows(1 if quick else rounds, quick)]
    print_tables("Programs that were never seen", found, ("by", "new", "what"))
    if target is not None:
        write_results(target, "first-uses", found, rounds=rounds)


if __name__ == "__main__":
    main()
