"""Jobs that a cluster's manager has started: real processes with the variables of Slurm or Open MPI, and none of ours."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xla_distributed.job import cluster

PROGRAM = Path(__file__).parents[1] / "programs" / "environment.py"
Starter = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_one(tmp_path: Path, launch: Starter) -> Starter:
    """`start_one(code, VARIABLE="value")`: a process with these variables; without `code` one that takes part in a job and reports."""

    def run(code: str | None = None, **variables: str) -> subprocess.Popen[str]:
        environment = {name: text for name, text in os.environ.items() if name != "CPU_NUM_DEVICES"}
        environment |= {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", "XLA_COLLECTIVE_TIMEOUT_SECONDS": "100", **variables}
        return launch([sys.executable, *(("-c", code) if code else (str(PROGRAM), str(tmp_path)))], environment)

    return run


@pytest.fixture
def high_port() -> int:
    """A free port among those from which jax takes one by a job's number."""
    for port in range(65535 - (1 << 12) + 1, 65535):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def slurm(port: int, rank: int, size: int, **others: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(port - (65535 - (1 << 12) + 1)),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": str(size),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        **others,
    }


def open_mpi(port: int, rank: int, size: int) -> dict[str, str]:
    return {
        "OMPI_MCA_orte_hnp_uri": f"{(port - (65535 - (1 << 12) + 1)) << 12}.0;tcp://127.0.0.1:1",
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
    }


@pytest.mark.parametrize("manager", [slurm, pytest.param(open_mpi, marks=pytest.mark.long)])
def test_a_manager_is_enough(start_one: Starter, manager: Callable[..., Any], high_port: int, tmp_path: Path) -> None:
    processes = [start_one(**manager(high_port, rank, 2)) for rank in range(2)]
    for process in processes:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    for rank in range(2):
        report = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert report["before"] == [2, rank, 2] and report["index"] == rank
        assert report["sum"] == 3.0 and report["all"] == [0, 1]
        assert report["local"] == [rank, 2] and report["host"] == 0, "processes of one host are counted by its name"


ALONE = """
import sys
import torch_xla
import torch_xla.runtime as xr
before = "xla_distributed" in sys.modules
import os, torch
print(before, xr.world_size(), xr.process_count(), torch.ones(2, device="xla").sum().item(), os.environ.get("WORLD_SIZE"))
"""


def test_what_is_no_job_of_several_stays_alone(start_one: Starter) -> None:
    process = start_one(ALONE, **slurm(61440, 0, 1))
    out, err = process.communicate(timeout=100)
    assert out.split() == ["False", "1", "1", "2.0", "None"], err


@pytest.mark.parametrize(
    "shell",
    [
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},  # in an allocation, outside its steps
        slurm(61440, 0, 4, SLURM_STEP_NUM_TASKS="1"),  # a shell that is a step of an allocation for four
        slurm(61440, 0, 4, WORLD_SIZE="1"),
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},  # a pod that is no part of an indexed job
    ],
    ids=["allocation", "shell", "told", "pod"],
)
def test_what_looks_like_a_job_of_several_is_not_taken_for_one(shell: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in shell.items():
        monkeypatch.setenv(name, text)
    cluster.adopt.__wrapped__()
    assert "RANK" not in os.environ and os.environ.get("WORLD_SIZE") == shell.get("WORLD_SIZE")


def test_an_address_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    for name in names:
        monkeypatch.setenv(name, "")
    for name, text in {**slurm(61447, 1, 2), "MASTER_PORT": "5000"}.items():
        monkeypatch.setenv(name, text)
    cluster.adopt.__wrapped__()
    assert [os.environ[name] for name in names] == ["1", "2", "1", "localhost", "5000"]


def test_what_a_manager_leaves_out_is_said(start_one: Starter) -> None:
    variables = open_mpi(61440, 0, 2)
    del variables["OMPI_COMM_WORLD_RANK"]
    process = start_one("import torch, torch_xla; torch.ones(2, device='xla')", **variables)
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "JobError: Open MPI has started this process, but does not say" in err
    assert "OMPI_COMM_WORLD_RANK" in err and "WORLD_SIZE=1" in err


PLACE = """
import torch_xla._XLAC as _XLAC
import torch_xla.runtime as xr
print(xr.process_count(), xr.process_index(), _XLAC._xla_runtime_is_initialized())
"""


def test_the_place_is_known_before_devices_are_used(start_one: Starter) -> None:
    process = start_one(PLACE, **slurm(61440, 3, 4))
    out, err = process.communicate(timeout=100)
    assert out.split() == ["4", "3", "False"], err
