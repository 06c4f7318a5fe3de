"""A program over eight devices of one process, and over four of each of two processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked_python
import pytest
import torch

PROGRAMS = Path(__file__).parent / "programs"
Reports = list[dict[str, Any]]


def _run(folder: Path, processes: int, program: str = "several", *args: str) -> Reports:
    """What each process reported of a job with eight devices."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(8 // processes), "OMP_NUM_THREADS": "1"}
    if processes > 1:
        shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    jobs = [
        forked_python.Popen(
            [sys.executable, str(PROGRAMS / f"{program}.py"), str(folder / "report"), *args],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(processes)
    ]
    said = [job.communicate(timeout=240)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * processes, "\n".join(said)
    return [json.loads((folder / f"report.{rank}").read_text(encoding="utf-8")) for rank in range(processes)]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _run(tmp_path_factory.mktemp("one"), 1)[0]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return _run(tmp_path_factory.mktemp("two"), 2)


def test_one_mesh_is_over_the_devices_of_all_processes(one: dict[str, Any], two: Reports) -> None:
    assert one["devices"] == [8, 8]
    assert [report["devices"] for report in two] == [[8, 4]] * 2


def test_collectives_in_a_manual_region(one: dict[str, Any], two: Reports) -> None:
    for report in (one, *two):
        assert all(far < 1e-5 for far in report["manual"].values()), report["manual"]


def test_a_collective_of_whole_tensors_is_refused(one: dict[str, Any]) -> None:
    assert one["refusal"].startswith("ModeError: all_reduce of a tensor of shape (2, 3)")


def test_two_processes_train_as_one(one: dict[str, Any], two: Reports) -> None:
    expected = one["training"]
    for report in two:
        assert report["training"]["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        torch.testing.assert_close(torch.tensor(report["training"]["weight"]), torch.tensor(expected["weight"]))
        assert report["training"]["uploaded"] == 4 * 16 * 4, "each host's half of a batch of 8, counted"
    shards = {**two[0]["training"]["shards"], **two[1]["training"]["shards"]}
    assert list(shards) == [f"CPU:{number}" for number in range(8)]
    for device, shard in expected["shards"].items():
        torch.testing.assert_close(torch.tensor(shards[device]), torch.tensor(shard))


def test_training_is_that_of_the_cpu(one: dict[str, Any]) -> None:
    torch.manual_seed(1)
    net = torch.nn.Linear(16, 8)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    losses = []
    for batch in [torch.randn(8, 16) for _ in range(4)]:
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert one["training"]["losses"] == pytest.approx(losses, rel=1e-4)


def test_meshes_that_do_not_divide_evenly_or_have_another_order(one: dict[str, Any], two: Reports) -> None:
    for report in (one, *two):
        assert report["any mesh"] == {"far": [0.0, 0.0, 0.0], "inside": True, "shape": [2, 3]}


def test_compiled_ahead_one_process_compiles_and_the_other_loads(tmp_path: Path) -> None:
    """Also where the compiler chooses the shardings of results, so that each program is made before the next is recorded."""
    alone = _run(tmp_path, 1, "compile_only", str(tmp_path / "alone"))[0]
    first, second = _run(tmp_path, 2, "compile_only", str(tmp_path / "cache"))
    for report in (alone, first, second):
        assert report["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert report["all"] == report["ahead"], "nothing is compiled behind the block, nor loaded"
    compiled = alone["ahead"][0]
    assert compiled > 0 and first["ahead"] == [compiled, 0] and second["ahead"] == [0, compiled]
