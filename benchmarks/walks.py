"""Python calls of one use of nine features, and the files and folders of these packages that they pass through.

These counts do not depend on the machine's speed. A stay is a run of calls in one file; a return is a stay in a file that was left before.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from harness import write_results

PACKAGES = Path(__file__).resolve().parents[1] / "packages"


@dataclass(frozen=True)
class Walk:
    """What one use of a feature passes through."""

    case: str
    calls: int
    files: int
    rooms: int
    stays: int

    @property
    def returns(self) -> int:
        """Stays in files that were left before."""
        return self.stays - self.files


@contextmanager
def visited(files: list[str]) -> Iterator[None]:
    """Append the source file of each Python call of these packages in the block."""

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and "/src/" in (path := frame.f_code.co_filename) and path.startswith(str(PACKAGES)):
            files.append(path.partition("/src/")[2])

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def walk(case: str, function: Callable[[], object]) -> Walk:
    """Call `function` once, and say what it passed through."""
    files: list[str] = []
    with visited(files):
        function()
    stays = sum(before != after for before, after in zip([None, *files], files, strict=False))
    rooms = {str(Path(file).parent) for file in files}
    return Walk(case, len(files), len(set(files)), len(rooms), stays)


def record_and_run() -> Iterator[Walk]:
    """`torch.add`, `.item()` and `sync()`, each as in a steady loop; a sync that compiles; a captured call."""
    import torch

    import torch_xla

    x, y = torch.ones(4, 4, device="xla"), torch.ones(4, 4, device="xla")
    torch.add(x, y), torch.add(x, y)
    yield walk("record torch.add", lambda: torch.add(x, y))
    for _ in range(3):
        total = torch.add(x, y).sum()
        total.item()
    total = torch.add(x, y).sum()
    yield walk("read .item()", total.item)
    for _ in range(3):
        z = torch.add(x, y)
        torch_xla.sync()
    z = torch.add(x, y)
    yield walk("sync, cached", torch_xla.sync)
    z = torch.add(x, y) * 3.5 - x  # noqa: F841 - a result of the program
    yield walk("sync with compile", torch_xla.sync)

    model = torch.nn.Linear(4, 4).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    captured = torch_xla.compile(train, capture=True)
    for _ in range(5):
        captured(x)
    yield walk("captured launch", lambda: captured(x))


def torch_compile() -> Iterator[Walk]:
    """A cached call of a function compiled by `torch.compile(backend="openxla")`."""
    import torch

    import torch_xla  # noqa: F401 - makes the device known

    compiled = torch.compile(lambda x: torch.sin(x) + x, backend="openxla")
    x = torch.ones(4, 4, device="xla")
    for _ in range(3):
        compiled(x)
    yield walk("torch.compile, cached", lambda: compiled(x))


def export_step() -> Iterator[Walk]:
    """`export_step` of a captured function that ran before."""
    import torch

    import torch_xla

    weight = torch.ones(4, 4, device="xla")
    step = torch_xla.compile(lambda x: x @ weight, capture=True)
    for _ in range(3):
        step(torch.ones(4, 4, device="xla"))
    with tempfile.TemporaryDirectory() as folder:
        torch_xla.export_step(step, Path(folder) / "first.step")
        yield walk("export_step", lambda: torch_xla.export_step(step, Path(folder) / "second.step"))


def save_and_load() -> Iterator[Walk]:
    """`xla_serialization.save` and `load` of two tensors."""
    import torch

    import torch_xla  # noqa: F401 - makes the device known
    import xla_serialization

    state = {"weight": torch.ones(4, 4, device="xla"), "bias": torch.ones(4, device="xla")}
    with tempfile.TemporaryDirectory() as folder:
        xla_serialization.save(state, Path(folder) / "first")
        yield walk("save", lambda: xla_serialization.save(state, Path(folder) / "second"))
        yield walk("load", lambda: xla_serialization.load(Path(folder) / "second", device="xla"))


def mark_sharding() -> Iterator[Walk]:
    """`xs.mark_sharding` of a matrix over eight devices."""
    import torch

    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    xr.use_spmd()
    mesh = xs.Mesh(range(8), (4, 2), ("data", "model"))
    xs.mark_sharding(torch.ones(8, 8, device="xla"), mesh, ("data", "model"))
    x = torch.ones(8, 8, device="xla")
    yield walk("mark_sharding", lambda: xs.mark_sharding(x, mesh, ("data", "model")))


def all_reduce() -> Iterator[Walk]:
    """`xm.all_reduce` of one of two replicas, recorded again."""
    import torch

    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    xr.world_size()
    yield walk("xr.world_size", xr.world_size)
    x = torch.ones(4, 4, device="xla")
    for _ in range(2):
        xm.all_reduce("sum", x)
        torch_xla.sync()
    yield walk("all_reduce", lambda: xm.all_reduce("sum", x))
    torch_xla.sync()


def _replica(_index: int, file: str) -> None:
    import torch_xla.runtime as xr

    rows = [asdict(row) for row in all_reduce()]
    if xr.global_ordinal() == 0:
        Path(file).write_text(json.dumps(rows))


def all_reduce_of_two() -> Iterator[Walk]:
    """`all_reduce` in a job of two processes."""
    import torch_xla.distributed.xla_multiprocessing as xmp

    with tempfile.TemporaryDirectory() as folder:
        xmp.spawn(_replica, args=(f"{folder}/rows.json",))
        yield from (Walk(**row) for row in json.loads(Path(folder, "rows.json").read_text()))


# Each in a process of its own, with this many CPU devices.
WALKS: dict[str, tuple[Callable[[], Iterator[Walk]], int]] = {
    "record_and_run": (record_and_run, 1),
    "torch_compile": (torch_compile, 1),
    "export_step": (export_step, 1),
    "save_and_load": (save_and_load, 1),
    "mark_sharding": (mark_sharding, 8),
    "all_reduce": (all_reduce_of_two, 2),
}


def measured(name: str) -> list[Walk]:
    """The walks of that name, from another process."""
    environment: dict[str, Any] = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(WALKS[name][1])}
    done = subprocess.run([sys.executable, __file__, "--only", name], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [Walk(**row) for row in json.loads(done.stdout.splitlines()[-1])]


@click.command()
@click.option("--only", type=click.Choice(list(WALKS)), help="Walk in this process, and print JSON.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="File for the numbers.")
@click.option("--quick", is_flag=True, help="The first process only.")
def main(only: str | None, target: Path | None, quick: bool) -> None:
    """Count what nine features pass through."""
    if only is not None:
        print(json.dumps([asdict(row) for row in WALKS[only][0]()]))
        return
    rows = [row for name in list(WALKS)[: 1 if quick else None] for row in measured(name)]
    table = Table("walk", "calls", "files", "folders", "stays", "returns")
    for row in rows:
        table.add_row(row.case, *map(str, (row.calls, row.files, row.rooms, row.stays, row.returns)))
    Console().print(table)
    if target is not None:
        write_results(target, "walks", [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
