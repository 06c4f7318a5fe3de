"""Jobs that nobody spawned: torchrun's variables alone, groups of processes on two addresses, torchrun itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import pytest
import torch

from xla_distributed.job import launch
from xla_distributed.job.launch import start_replicas

Process = subprocess.Popen[str]
Starter = Callable[..., Process]
PROGRAM = Path(__file__).parents[1] / "programs" / "environment.py"


@pytest.fixture
def start_one(tmp_path: Path, launch: Callable[..., Process]) -> Starter:
    """`start_one(VARIABLE="value", command=[…])`: one process of a job."""

    def run(command: tuple[str, ...] = (sys.executable,), **variables: str) -> Process:
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", **variables}
        environment.pop("CPU_NUM_DEVICES", None)
        return launch([*command, str(PROGRAM), str(tmp_path)], environment)

    return run


def end(processes: list[Process]) -> list[tuple[int, str]]:
    """Exit code and stderr of each."""
    ended = []
    for process in processes:
        _, err = process.communicate(timeout=200)
        ended.append((process.returncode, err))
    return ended


def reports(folder: Path, size: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]


def test_two_groups_of_processes_with_variables_alone(start_one: Starter, free_port: int, tmp_path: Path) -> None:
    """Two hosts as two addresses of loopback, two processes on each."""
    variables = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    processes = [start_one(RANK=str(rank), LOCAL_RANK=str(rank % 2), XLA_JOB_KEY="a secret", **variables) for rank in range(4)]
    assert [code for code, _ in end(processes)] == [0] * 4
    for rank, report in enumerate(reports(tmp_path, 4)):
        assert report["before"] == [4, rank, 4], "known before the processes are connected"
        assert report["index"] == rank % 2, "torch_xla.launch passes the local rank"
        assert report["sum"] == 10.0 and report["all"] == [0, 1, 2, 3]
        assert report["local"] == [rank % 2, 2] and report["host"] == rank // 2
        assert report["master"] == [rank % 2 == 0, rank == 0]


def test_torchrun(start_one: Starter, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    (ended,) = end([start_one(command)])
    assert ended[0] == 0, ended[1]
    assert [report["sum"] for report in reports(tmp_path, 2)] == [3.0, 3.0]


def test_processes_that_were_told_their_places(start_one: Starter, free_port: int, tmp_path: Path) -> None:
    assert [code for code, _ in end([start_one(PLACE=f"{rank} of 2", MASTER_PORT=str(free_port)) for rank in range(2)])] == [0, 0]
    for rank, report in enumerate(reports(tmp_path, 2)):
        assert report["sum"] == 3.0 and report["local"] == [rank, 2] and report["all"] == [0, 1]


@pytest.mark.parametrize("initialize", ["initialize_multiprocess", "initialize_singleprocess"])
def test_a_place_must_be_one_of_them_and_in_time(initialize: str) -> None:
    from torch_xla._internal import pjrt

    with pytest.raises(ValueError, match="local_rank is 2"):
        getattr(pjrt, initialize)(2, 2)
    torch.ones(1, device="xla")
    with pytest.raises(RuntimeError, match="already used"):
        getattr(pjrt, initialize)(0, 2)


def test_an_accelerator_is_of_the_process_that_used_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.ones(1, device="xla")
    monkeypatch.setattr(launch, "device_kind", lambda: "CUDA")
    with pytest.raises(RuntimeError, match="already used its xla devices"):
        start_replicas(print, (), 2)


def test_a_process_that_never_comes_is_named(start_one: Starter, free_port: int) -> None:
    variables = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    begin = time.monotonic()
    ended = end([start_one(RANK=str(rank), LOCAL_RANK=str(rank), XLA_COLLECTIVE_TIMEOUT_SECONDS="6", **variables) for rank in (0, 2)])
    assert time.monotonic() - begin < 60
    for code, _ in ended:
        assert code != 0
    assert any("ordinals [1], which did not arrive ([1] never joined the job)" in err for _, err in ended)


def test_another_key_is_not_let_in(start_one: Starter, free_port: int) -> None:
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    first = start_one(RANK="0", LOCAL_RANK="0", XLA_JOB_KEY="right", XLA_COLLECTIVE_TIMEOUT_SECONDS="8", **variables)
    second = start_one(RANK="1", LOCAL_RANK="1", XLA_JOB_KEY="wrong", XLA_COLLECTIVE_TIMEOUT_SECONDS="8", **variables)
    (code_0, _), (code_1, err) = end([first, second])
    assert code_0 != 0 and code_1 != 0
    assert "JobError" in err and "XLA_JOB_KEY" in err


def test_what_is_missing_in_the_environment_is_said(start_one: Starter) -> None:
    ((code, err),) = end([start_one(WORLD_SIZE="2", RANK="", LOCAL_RANK="1")])
    assert code != 0 and "set RANK to this process's number" in err


def test_a_port_that_another_program_uses_is_said(start_one: Starter) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ((code, err),) = end([start_one(WORLD_SIZE="2", RANK="0", MASTER_PORT=port, XLA_COLLECTIVE_TIMEOUT_SECONDS="5")])
    assert code != 0 and f"127.0.0.1:{port}" in err and "MASTER_PORT" in err


def test_strangers_get_nothing() -> None:
    """A connection that does not know the key is closed without an answer to anything; the job goes on."""
    from xla_distributed.job import protocol
    from xla_distributed.job.client import join
    from xla_distributed.job.server import Server

    server = Server("127.0.0.1", 2, b"k" * 32, 60.0, "")
    with socket.create_connection(server.address, 10.0) as stranger, stranger.makefile("rb") as answers:
        assert len(answers.read(8 + 32)) == 40  # a number to prove the key on, with its length
        stranger.sendall((64).to_bytes(8, "big") + b'{"rank": 0, "size": 2}\n' + bytes(41))
        assert answers.read() == b"", "nothing else, up to the end of the connection"
    with socket.create_connection(server.address, 10.0) as greedy, greedy.makefile("rb") as answers:
        answers.read(40)
        greedy.sendall((1 << 40).to_bytes(8, "big"))  # no memory for what is announced
        assert answers.read() == b""
    with pytest.raises(protocol.AuthenticationError):
        protocol.connect(server.address, b"x" * 32)
    clients = [join(server.address, b"k" * 32, rank, 2, 10.0) for rank in range(2)]
    with pytest.raises(OSError):  # all are here: nobody listens any more
        socket.create_connection(server.address, 10.0)
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(client.exchange, "kind", str(client.rank).encode(), 10.0) for client in clients]
        assert [future.result() for future in found] == [[b"0", b"1"]] * 2
    for client in clients:
        client.leave("", {})


def test_who_gave_up_waiting_does_not_count_as_waiting() -> None:
    """One process runs out of time at a rendezvous; the other then waits at a later one for as long as it likes."""
    from xla_distributed.errors import ReplicaTimeoutError
    from xla_distributed.job.client import join
    from xla_distributed.job.server import Server

    server = Server("127.0.0.1", 2, b"k" * 32, 60.0, "")
    first, second = (join(server.address, b"k" * 32, rank, 2, 10.0) for rank in range(2))
    with pytest.raises(ReplicaTimeoutError, match=r"ordinals \[1\]"):
        first.exchange("early", b"", 0.2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(second.exchange, "late", b"1", 30.0)
        with pytest.raises(FutureTimeout):
            waiting.result(timeout=4.0)  # longer than processes that all wait at different places are left alone
        assert first.exchange("late", b"0", 10.0) == waiting.result() == [b"0", b"1"]
    for client in (first, second):
        client.leave("", {})
