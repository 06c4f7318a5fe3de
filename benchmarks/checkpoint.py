"""How fast a state is saved and loaded, in how much memory, beside torch.save and plain safetensors; every turn in a fresh process."""

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import click
import torch
from rich.console import Console
from rich.table import Table

from harness import STEADY, Row, rerun_with, wide_console, write_results
from steps import names_of

GOAL = 0.9
OURS, OURS_NO_FSYNC, OURS_MMAP, OURS_UNVERIFIED, SAFETENSORS, SAFETENSORS_FSYNC, TORCH = (
    "xla_serialization",
    "xla_serialization, no fsync",
    "xla_serialization, mmap",
    "xla_serialization, mmap, no checksums",
    "safetensors",
    "safetensors, then fsync",
    "torch",
)
CASES = {
    "save": (OURS, OURS_NO_FSYNC, SAFETENSORS, SAFETENSORS_FSYNC, TORCH),
    "load-xla": (OURS, SAFETENSORS, TORCH),
    "load-cpu": (OURS, OURS_MMAP, OURS_UNVERIFIED, SAFETENSORS, TORCH),
}
TENSOR_BYTES = 16 << 20
INTERVAL_S = 0.002
State = dict[str, torch.Tensor]


def state(nbytes: int) -> State:
    """Tensors of 16 MB on the device."""
    import torch_xla

    size = min(TENSOR_BYTES, nbytes)
    values = torch.arange(size // 4, dtype=torch.float32)
    made = {f"layers.{number}.weight": (values + number).to("xla") for number in range(nbytes // size)}
    torch_xla.sync(wait=True)
    return made


def save(on: str, tensors: State, target: Path) -> None:
    """One contender's save."""
    import safetensors.torch

    import xla_serialization

    if on == OURS:
        xla_serialization.save(tensors, target)
    elif on == OURS_NO_FSYNC:
        with mock.patch("os.fsync"):
            xla_serialization.save(tensors, target)
    elif on == TORCH:
        torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, target)
    else:
        safetensors.torch.save_file({name: tensor.cpu() for name, tensor in tensors.items()}, target)
        if on == SAFETENSORS_FSYNC:
            with open(target, "rb") as file:
                os.fsync(file.fileno())


def load(on: str, source: Path, device: str) -> State:
    """One contender's load; on the CPU every element is read once, because a tensor may be a map of the file that nobody has read."""
    import safetensors.torch

    import torch_xla
    import xla_serialization

    if on == OURS:
        loaded: State = xla_serialization.load(source, device=device)
    elif on in (OURS_MMAP, OURS_UNVERIFIED):
        loaded = xla_serialization.load(source, device=device, mmap=True, verify=on == OURS_MMAP)
    elif on == SAFETENSORS:
        loaded = {name: tensor.to(device) for name, tensor in safetensors.torch.load_file(source).items()}
    else:
        loaded = {name: tensor.to(device) for name, tensor in torch.load(source).items()}
    if device == "cpu":
        for tensor in loaded.values():
            tensor.sum()
    else:
        torch_xla.sync(wait=True)
    return loaded


def anonymous() -> int:
    """Bytes of this process's memory that no file stands for."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("this system does not tell RssAnon: peak memory is measured on Linux only")


@contextmanager
def peak() -> Iterator[Callable[[], int]]:
    """How far anonymous memory rises above what it is now, looked at every 2 ms."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free, but still with this process, is not there to be used again
    base, seen, done = anonymous(), [0], threading.Event()

    def look() -> None:
        while not done.wait(INTERVAL_S):
            seen.append(anonymous() - base)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: max(*seen, anonymous() - base)
    finally:
        done.set()
        thread.join()


def touch(nbytes: int) -> None:
    """Use so much memory and give it back: a virtual machine's host may take seconds for a GB that was not used for some time."""
    bytearray(b"\1") * nbytes


def turn(case: str, on: str, place: Path, nbytes: int) -> dict[str, float]:
    """In a process of its own: seconds, and peak bytes."""
    import torch_xla

    warm = torch.ones(1).to("xla") + 1  # the devices and the modules, started before the clock
    torch_xla.sync(wait=True)
    del warm
    if case == "save":
        tensors = state(nbytes)
        save(on, state(1 << 10), place.with_name("warm"))
        work: Callable[[], object] = lambda: save(on, tensors, place)  # noqa: E731
    else:
        device = "xla" if case == "load-xla" else "cpu"
        load(on, place.with_name(f"small-{place.name}"), device)
        work = lambda: load(on, place, device)  # noqa: E731
    touch(2 * nbytes)
    with peak() as highest:
        begin = time.perf_counter()
        kept = work()
        seconds = time.perf_counter() - begin
        rise = highest()
    del kept
    return {"seconds": seconds, "peak_bytes": rise}


def ask(case: str, on: str, place: Path, nbytes: int) -> dict[str, float]:
    """A turn in a fresh process."""
    command = [sys.executable, __file__, "--turn", json.dumps([case, on, str(place), nbytes])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def prepare(folder: Path, nbytes: int) -> None:
    """The files to load, and small ones to begin with."""
    for size, prefix in ((nbytes, ""), (1 << 10, "small-")):
        tensors = state(size)
        for on in (OURS, SAFETENSORS, TORCH):
            save(on, tensors, folder / f"{prefix}{on}")


def measure(folder: Path, case: str, nbytes: int, rounds: int) -> list[Row]:
    """All contenders in turns. What a save wrote is removed before the next."""
    contenders = CASES[case]
    turns: dict[str, list[dict[str, float]]] = {on: [] for on in contenders}
    for number in range(rounds):
        for on in contenders if number % 2 else contenders[::-1]:
            scratch = folder / "saves"
            scratch.mkdir()
            source = folder / (OURS if on.startswith(OURS) else on)
            turns[on].append(ask(case, on, scratch / "state" if case == "save" else source, nbytes))
            shutil.rmtree(scratch)
    return [row(case, on, turns, nbytes) for on in contenders]


def row(case: str, on: str, turns: dict[str, list[dict[str, float]]], nbytes: int) -> Row:
    """What one contender took."""
    seconds = [one["seconds"] for one in turns[on]]

    def beside(other: str) -> float | None:
        if other not in turns:
            return None
        return statistics.median(theirs["seconds"] / mine for mine, theirs in zip(seconds, turns[other], strict=True))

    ratio = beside(SAFETENSORS)
    return {
        "case": case,
        "on": on,
        "mb_per_s": nbytes / 1e6 / statistics.median(seconds),
        "best_mb_per_s": nbytes / 1e6 / min(seconds),
        "peak_mb": max(one["peak_bytes"] for one in turns[on]) / 1e6,
        "vs_safetensors": ratio,
        "vs_safetensors_fsync": beside(SAFETENSORS_FSYNC),
        "goal": f"≥ {GOAL}" if on == OURS else None,
        "met": ratio is not None and ratio >= GOAL if on == OURS else None,
    }


def show(rows: list[Row], console: Console) -> None:
    """The rich table."""
    table = Table(title="Save and load a state")
    for heading in ("case", "with", "MB/s", "best", "peak, MB", "× safetensors", "× with fsync", f"≥ {GOAL}"):
        table.add_column(heading, justify="left" if heading in ("case", "with") else "right")
    for one in rows:
        numbers = [f"{one[key]:,.0f}" for key in ("mb_per_s", "best_mb_per_s", "peak_mb")]
        ratios = ["" if one[key] is None else f"{one[key]:.2f}" for key in ("vs_safetensors", "vs_safetensors_fsync")]
        verdict = "" if one["met"] is None else "[green]met[/]" if one["met"] else "[red]missed[/]"
        table.add_row(str(one["case"]), str(one["on"]), *numbers, *ratios, verdict)
    console.print(table)


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--megabytes", type=click.IntRange(1), default=1024, show_default=True, help="Of the state.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, exists=True), help="Where to write; else where temporary files go.")
@click.option("--cases", help=f"Comma-separated: {', '.join(CASES)}.")
@click.option("--quick", is_flag=True, help="A small state: does it run at all?")
@click.option("--turn", "asked", hidden=True)
def main(target: Path | None, megabytes: int, rounds: int, folder: str | None, cases: str | None, quick: bool, asked: str | None) -> None:
    if asked is not None:
        case, on, place, nbytes = json.loads(asked)
        click.echo(json.dumps(turn(case, on, Path(place), nbytes)))
        return
    chosen = names_of(tuple(CASES), cases, "--cases")
    rerun_with({**STEADY, "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"})
    nbytes, rounds = (4 << 20, 1) if quick else (megabytes << 20, rounds)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        prepare(Path(made), nbytes)
        rows = [one for case in chosen for one in measure(Path(made), case, nbytes, rounds)]
    show(rows, wide_console())
    if target is not None:
        write_results(target, "checkpoint", rows, rounds=rounds, bytes=nbytes)


if __name__ == "__main__":
    main()
