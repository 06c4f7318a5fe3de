"""A warm-up over 24 lengths by `torch_xla.compile_only()` beside one that runs every program: time and peak memory."""

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import click
import torch

from harness import STEADY, Row, print_tables, rerun_with, write_results
from models_torch import Gpt, GptSize, cross_entropy

GOAL = 0.6
LENGTHS = range(32, 32 * 25, 32)
BATCH = 8


def worker(kind: str, task: str, quick: bool) -> None:
    """A process under test: prints seconds of the warm-up, MB by which its peak of memory rose, programs compiled later, and in it."""
    import torch_xla
    from xla_core.abi.metrics import snapshot

    size = GptSize(2, 64, LENGTHS[-1], 64) if quick else GptSize(layers=6, width=256, tokens=LENGTHS[-1])
    torch.manual_seed(0)
    (torch.ones(2, device="xla") + 1).cpu()  # what is loaded and started at a first program is not asked for
    model = Gpt(size).to("xla")
    table = model.position
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch_xla.sync(wait=True)

    def use(length: int) -> None:
        tokens = torch.zeros(BATCH, length, dtype=torch.int64).to("xla")
        hidden = model.layers(model.embed(tokens) + table[:length])
        if task == "prefill":
            logits = model.out(model.norm(hidden[:, -1])).argmax(-1)
            torch_xla.sync()
            del logits
            return
        optimizer.zero_grad()
        cross_entropy(model.out(model.norm(hidden)), tokens).backward()
        optimizer.step()
        torch_xla.sync()

    def sweep() -> None:
        with torch.inference_mode(task == "prefill"):
            for length in LENGTHS[:3] if quick else LENGTHS:
                for _ in range(1 if task == "prefill" else 2):  # the first step of an optimizer makes its state
                    use(length)
        torch_xla.sync(wait=True)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    if kind == "compile_only":
        with torch_xla.compile_only():
            sweep()
    else:
        sweep()
    seconds = time.perf_counter() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    compiled = snapshot().counters["UncachedCompile"]
    sweep()
    print(seconds, grown / 1024, snapshot().counters["UncachedCompile"] - compiled, compiled)


def measured(kind: str, task: str, quick: bool) -> tuple[float, ...]:
    """What a worker prints."""
    command = [sys.executable, __file__, "--worker", kind, task, *(["--quick"] if quick else [])]
    return tuple(map(float, subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-4:]))


def rows(rounds: int, quick: bool) -> list[Row]:
    """Fresh processes in turns; a ratio is the median of those of the rounds."""
    result: list[Row] = []
    for task in ("prefill", "training"):
        turns = []
        for number in range(rounds):
            kinds = ("compile_only", "run") if number % 2 == 0 else ("run", "compile_only")
            turns.append({kind: measured(kind, task, quick) for kind in kinds})
        for kind in ("compile_only", "run"):
            seconds, memory, later, programs = (statistics.median(column) for column in zip(*[turn[kind] for turn in turns], strict=True))
            result.append(
                {
                    "task": task,
                    "by": kind,
                    "programs": int(programs),
                    "seconds": seconds,
                    "memory_MB": memory,
                    "compiled_later": int(later),
                }
            )
        ratio = statistics.median(turn["compile_only"][0] / turn["run"][0] for turn in turns)
        memory = statistics.median(turn["compile_only"][1] / turn["run"][1] for turn in turns)
        result.append({"what": f"{task}: time, compile_only / run", "ratio": ratio, "goal": GOAL, "met": ratio <= GOAL})
        result.append({"what": f"{task}: memory, compile_only / run", "ratio": memory, "goal": 1.0, "met": memory < 1})
    return result


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--quick", is_flag=True, help="Few lengths, a small model: does it run at all?")
@click.option("--worker", "worked", nargs=2, hidden=True)
def main(target: Path | None, rounds: int, quick: bool, worked: tuple[str, str] | None) -> None:
    if worked is not None:
        worker(*worked, quick)
        return
    rerun_with({**STEADY, "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"})
    found = rows(1 if quick else rounds, quick)
    print_tables(f"A warm-up of {len(LENGTHS)} lengths", found, ("by", "what"))
    if target is not None:
        write_results(target, "warm-up", found, rounds=rounds)


if __name__ == "__main__":
    main()
