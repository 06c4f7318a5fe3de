"""Jobs that do not come about: who is waited for, where and for how long is said, and what can be known is an error at once."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest
from torch.distributed import HashStore, TCPStore

from xla_distributed.errors import JobError, ReplicaLostError, ReplicaTimeoutError
from xla_distributed.job import store_client
from xla_distributed.job.client import JobClient, join
from xla_distributed.job.server import Server
from xla_distributed.job.waiting import Wait

Process = subprocess.Popen[str]
KEY = b"a key"

# Calls the launcher, kills one replica while it still imports, and prints what the other one ended with.
LAUNCHER = """
import os, pickle, signal
import torch_xla.distributed.xla_multiprocessing as xmp
from torch import zeros

if __name__ == "__main__":
    started = xmp.spawn(zeros, join=False)
    os.kill(started.pids()[1], signal.SIGKILL)
    started.processes[0].join()
    with open(started._context.error_files[0], "rb") as file:  # where torch keeps it for its `join`
        print(pickle.load(file))
    started._close()
"""


@contextmanager
def listener(answer: bytes | None) -> Iterator[int]:
    """The port of another program: it answers whatever comes with these bytes and hangs up, None: it says nothing."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                if answer is not None:
                    with suppress(OSError):  # the caller may have gone already
                        connection.recv(1024)
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"", None], ids=["http", "hangs up", "silent"])
def test_another_program_at_the_port_is_an_error(answer: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "_SILENT_SECONDS", 20.0 if answer is not None else 0.5)
    monkeypatch.setattr(store_client, "_RETRY_SECONDS", 1.0)
    with (
        listener(answer) as port,
        pytest.raises(JobError, match=rf"another program listens at 127.0.0.1:{port} .*Set MASTER_PORT to a port that is free"),
    ):
        store_client.connect("127.0.0.1", port, 1, Wait(1, "here", 600.0))


def test_the_store_of_process_0_is_found_and_what_it_publishes(caplog: pytest.LogCaptureFixture) -> None:
    serving = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
    store = store_client.connect("127.0.0.1", serving.port, 1, Wait(1, "here", 60.0))
    assert store.timeout == timedelta(seconds=60)
    serving.set("name", "published")
    assert store_client.get(store, "name", "process 1", Wait(1, "here", 60.0)) == b"published"
    assert not caplog.records


def test_nobody_at_the_port_is_said_and_then_an_error(free_port: int, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ReplicaTimeoutError, match=f"process 1 found nobody at 127.0.0.1:{free_port} .*see whether it runs"):
        store_client.connect("127.0.0.1", free_port, 1, Wait(1, f"127.0.0.1:{free_port}", 2.0))
    said = [record.getMessage() for record in caplog.records]
    assert said and all(f"process 1 waits at 127.0.0.1:{free_port} for process 0, which does not listen there yet" in text for text in said)
    assert "more until it gives up (XLA_COLLECTIVE_TIMEOUT_SECONDS)" in said[0]
    assert len(said) <= 6, "each after twice the time of the one before"


def test_a_process_0_that_publishes_nothing_is_said_and_then_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ReplicaTimeoutError, match="process 1, at a place, waited 1 s for process 0, which has not started its devices"):
        store_client.get(HashStore(), "name", "process 1, at a place", Wait(1, "a place", 1.0))
    assert "process 1 waits at a place for process 0, which has not started its devices yet" in caplog.text


def test_the_first_notice_comes_after_30_seconds_at_the_latest() -> None:
    assert 29.0 < Wait(0, "here", 600.0).until_notice() <= 30.0
    assert 29.0 < Wait(0, "here", 86400.0).until_notice() <= 30.0
    assert Wait(0, "here", 40.0).until_notice() <= 2.0


def test_who_has_not_joined_is_said(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("127.0.0.1", 3, KEY, 60.0, "")
    clients = [join(server.address, KEY, rank, 3, 10.0) for rank in range(2)]
    with pytest.raises(ReplicaTimeoutError, match=r"ordinals \[1, 2\], which did not arrive \(\[2\] never joined the job\)"):
        clients[0].exchange("hosts", b"", 3.0, wait=Wait(0, "the coordinator", 3.0))
    assert "process 0 waits at the coordinator for ordinals [1, 2], which did not arrive ([2] never joined the job)" in caplog.text
    leave(clients)


def leave(clients: list[JobClient]) -> None:
    for client in clients:
        client.leave("", {})


def test_one_that_ended_before_it_joined_is_lost_to_those_who_wait_and_to_those_who_come_later() -> None:
    server = Server("127.0.0.1", 3, KEY, 60.0, "")
    first = join(server.address, KEY, 0, 3, 10.0)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    server.expect({0: os.getpid(), 1: os.getpid(), 2: dead.pid})
    dead.wait()
    lost = "replica 2 was lost: its process ended before it had joined the job"
    with pytest.raises(ReplicaLostError, match=lost):
        first.exchange("hosts", b"", 60.0)
    late = join(server.address, KEY, 1, 3, 10.0)
    with pytest.raises(ReplicaLostError, match=lost):
        late.exchange("hosts", b"", 60.0)
    leave([first, late])


def test_a_replica_killed_while_it_imports_ends_the_others_of_a_launcher(
    launch: Callable[..., Process], tmp_path: os.PathLike[str]
) -> None:
    program = os.path.join(tmp_path, "launcher.py")
    with open(program, "w", encoding="utf-8") as file:
        file.write(LAUNCHER)
    out, err = launch([sys.executable, program], {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2"}).communicate(timeout=200)
    assert "ReplicaLostError: replica 1 was lost: its process ended before it had joined the job" in out, out + err


def test_notices_are_warnings_of_this_package(caplog: pytest.LogCaptureFixture) -> None:
    wait = Wait(0, "here", 0.1)
    while not caplog.records:
        wait.notice(lambda: "nobody")
    assert caplog.records[0].levelno == logging.WARNING and caplog.records[0].name.startswith("xla_distributed.")
