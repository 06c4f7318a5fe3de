"""Checkpoints of states that are sharded over devices: each piece is written once, and read by whoever needs it, on any mesh."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import forked_python
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

import xla_serialization

pytest.importorskip("xla_spmd")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed is.*unavailable")
PROGRAM = Path(__file__).parent / "programs" / "sharded.py"
Reports = list[dict[str, Any]]
Start = Callable[..., list[subprocess.Popen[str]]]


def run(action: str, path: Path, mesh: tuple[int, int], processes: int = 1) -> Reports:
    """What each process reported."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    devices = mesh[0] * mesh[1]
    shared = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices // processes), "OMP_NUM_THREADS": "1"}
    if processes > 1:
        shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    report = path.with_name(f"{action}-{mesh[0]}-{mesh[1]}-{processes}")
    command = [sys.executable, str(PROGRAM), action, str(path), str(mesh[0]), str(mesh[1]), str(report)]
    jobs = [
        forked_python.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(processes)
    ]
    said = [job.communicate(timeout=240)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * processes, "\n".join(said)
    return [json.loads(Path(f"{report}.{rank}").read_text(encoding="utf-8")) for rank in range(processes)]


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Saved by one process with eight devices."""
    path = tmp_path_factory.mktemp("eight") / "checkpoint"
    return path, run("save", path, (4, 2))[0]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reports]:
    """Saved by two processes with four devices each."""
    path = tmp_path_factory.mktemp("two") / "checkpoint"
    return path, run("save", path, (4, 2), processes=2)


def test_one_process_writes_whole_tensors_that_other_tools_read(eight: tuple[Path, dict[str, Any]]) -> None:
    path, report = eight
    assert report["files"] == 1 and report["held"] > report["once"], "copies on several devices are written once"
    (shard,) = path.glob("*.safetensors")
    found = load_file(shard)
    assert torch.equal(found["state.both"], torch.arange(64 * 32.0).reshape(64, 32) + 4)


def test_each_process_writes_what_it_holds_once(two: tuple[Path, Reports]) -> None:
    path, reports = two
    assert [report["files"] for report in reports] == [8, 8], "each file has one piece of a tensor, for each of four devices"
    pieces = xla_serialization.Checkpoint(path).manifest.tensors["state.both"].pieces
    assert len(pieces) == 8 and len({piece.file for piece in pieces}) == 8
    assert {piece.shape for piece in pieces} == {(16, 16)} and {piece.offset for piece in pieces} >= {(0, 0), (48, 16)}


def test_what_several_processes_wrote_is_read_without_devices(two: tuple[Path, Reports]) -> None:
    path, _ = two
    nesting = xla_serialization.load(path)
    assert torch.equal(nesting["state"]["both"], torch.arange(64 * 32.0).reshape(64, 32) + 4)
    assert torch.equal(nesting["pending"]["twice"], 2 * nesting["state"]["both"]) and nesting["step"] == 7
    assert nesting["here"].tolist() == [1.0, 1.0] and nesting["state"]["empty"].shape == (0, 4)


def test_torch_reads_and_consolidates_what_several_processes_wrote(two: tuple[Path, Reports], tmp_path: Path) -> None:
    path, _ = two
    whole = xla_serialization.load(path)["state"]
    state = {"state": {name: torch.zeros_like(tensor) for name, tensor in whole.items()}}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(path)), no_dist=True)
    for name, tensor in whole.items():
        assert torch.equal(state["state"][name], tensor), name
    # Its consolidation knows no others.
    floats = {f"state.{name}": 1 for name, tensor in whole.items() if tensor.is_floating_point()}
    consolidate_safetensors_files(str(path), str(tmp_path), floats)
    (file,) = tmp_path.glob("*.safetensors")
    for name, tensor in load_file(file).items():
        assert torch.equal(tensor, whole[name.removeprefix("state.")]), name
    found = xla_serialization.load(tmp_path)
    assert found.keys() == floats.keys() and torch.equal(found["state.both"], whole["both"])


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reports]:
    """Saved by four processes with one device each."""
    path = tmp_path_factory.mktemp("four") / "checkpoint"
    return path, run("save", path, (2, 2), processes=4)


LOADS: dict[str, tuple[tuple[int, int], int]] = {
    "eight devices": ((4, 2), 1),
    "another mesh": ((2, 4), 1),
    "four devices": ((2, 2), 1),
    "one device": ((1, 1), 1),
    "two processes": ((4, 2), 2),
    "two processes, another mesh": ((2, 4), 2),
    "four processes": ((2, 2), 4),
    "five devices": ((5, 1), 1),
    "six devices of three processes": ((2, 3), 3),
}
_IN_SHORT = {("eight", "four processes"), ("two", "another mesh"), ("two", "one device"), ("four", "five devices")}


@pytest.mark.parametrize(
    ("saved", "how"),
    [
        pytest.param(saved, how, marks=[] if (saved, how) in _IN_SHORT else pytest.mark.long)
        for saved in ("eight", "two", "four")
        for how in LOADS
    ],
)
def test_any_mesh_loads_equal_tensors_and_reads_what_it_needs(saved: str, how: str, request: pytest.FixtureRequest) -> None:
    path, _ = request.getfixturevalue(saved)
    mesh, processes = LOADS[how]
    reports = run("load", path, mesh, processes)
    for report in reports:
        assert (report["wrong"], report["moved"], report["step"]) == ([], [], 7)
        assert 0 < report["read"] <= report["needed"]
    whole = xla_serialization.Checkpoint(path).manifest
    total = sum(entry.nbytes for name, entry in whole.tensors.items() if name.startswith("state."))
    if processes == 3:  # the devices of the second are in both rows, and three columns divide none of the sizes
        assert [report["read"] < total for report in reports] == [True, False, True]
    elif processes > 1:
        assert all(report["read"] < total for report in reports), "a process reads its part only"
    else:
        assert reports[0]["read"] == total


def test_where_one_process_fails_all_do_and_the_earlier_checkpoint_stays(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    run("save", path, (4, 2), processes=2)
    before = sorted(path.iterdir())
    first, second = run("fail", path, (4, 2), processes=2)
    assert second["refused"][0] == "UnsavableError" and first["refused"][0] == "CheckpointError"
    assert "process 1: UnsavableError: other: a builtins.object" in first["refused"][1]
    assert second["said"][0] == "OSError" and "File too large" in second["said"][1]
    assert first["said"][0] == "CheckpointError" and "process 1: OSError" in first["said"][1]
    assert first["step"] == second["step"] == 7 and sorted(path.iterdir()) == before


def steps(lines: Iterable[str]) -> Iterator[int]:
    """Those that a process says it has saved, among what Gloo says, perhaps on the same line."""
    return (int(number) for line in lines for number in re.findall(r"saved (\d+);", line))


@pytest.mark.parametrize("moments", [1, pytest.param(20, marks=pytest.mark.long)])
def test_processes_killed_one_after_the_other_while_they_save_together(start: Start, tmp_path: Path, moments: int) -> None:
    path = tmp_path / "saved"
    random_moments = random.Random(moments)
    last = -1
    for moment in range(moments):
        job = start("together", "forever", tmp_path, processes=2, devices=2)
        assert job[0].stdout is not None
        last_step = next(steps(job[0].stdout))
        assert last_step == last + 1
        for victim in job if moment % 2 else job[::-1]:
            with suppress(subprocess.TimeoutExpired):  # else it has seen that the other is gone
                victim.wait(timeout=random_moments.uniform(0.0, 0.1))
            victim.kill()
        last_step = [last_step, *steps(job[0].communicate()[0].splitlines())][-1]
        found = xla_serialization.load(path)
        last = found["step"]
        assert last in (last_step, last_step + 1) and found["here"].tolist() == [last] * 2
        assert found["weight"].shape == (8, 4) and found["weight"].unique().tolist() == [last]
    xla_serialization.save({"step": "after"}, path)
    assert len(list(path.iterdir())) == 1, "the index, and nothing of those that were killed"
