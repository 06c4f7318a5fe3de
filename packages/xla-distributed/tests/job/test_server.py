"""Processes that the server of a job takes for lost: real connections, of which one sends no heartbeat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from xla_distributed.errors import ReplicaLostError
from xla_distributed.job import protocol
from xla_distributed.job.client import JobClient, join
from xla_distributed.job.process_state import ProcessState, host_id, local_process
from xla_distributed.job.server import Server

KEY = b"k" * 32
HEARTBEAT = 2.0
SOON = 30.0


@pytest.fixture
def server() -> Server:
    return Server("127.0.0.1", 2, KEY, HEARTBEAT, "nowhere:1")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def silent(server: Server, pid: int, its_host: str) -> object:
    """A connection as process 1, which says nothing after it has joined."""
    connection = protocol.connect(server.address, KEY)
    protocol.send(connection, {"rank": 1, "size": 2, "pid": pid, "host": its_host})
    answer, _ = protocol.receive(connection)
    assert answer == {"joined": 1, "heartbeat": HEARTBEAT, "runtime": "nowhere:1"}
    return connection


def loss(client: JobClient) -> tuple[str, float]:
    """The error of this process when it waits for the other one, and the seconds until then."""
    start = time.monotonic()
    with pytest.raises(ReplicaLostError) as caught:
        client.exchange("rendezvous", b"", 2 * SOON)
    return str(caught.value), time.monotonic() - start


def test_silence_from_another_host_is_a_loss(server: Server) -> None:
    client = join(server.address, KEY, 0, 2, 10.0)
    quiet = silent(server, 1, "another host")
    text, seconds = loss(client)
    assert "replica 1 was lost: it sent no heartbeat for 2 s (XLA_HEARTBEAT_TIMEOUT_SECONDS)" in text
    assert HEARTBEAT / 2 < seconds < SOON
    client.leave("", {})
    del quiet


def test_who_lives_on_this_host_may_be_silent(server: Server, sleeper: subprocess.Popen[bytes]) -> None:
    """It may be busy for longer; when it dies, that is known though something else holds its connection."""
    client = join(server.address, KEY, 0, 2, 10.0)
    quiet = silent(server, sleeper.pid, host_id())
    start = time.monotonic()
    while time.monotonic() - start < 3 * HEARTBEAT:
        assert not client.exits
        time.sleep(0.1)
    sleeper.kill()
    assert "replica 1 was lost: its process has died" in loss(client)[0]
    client.leave("", {})
    del quiet


def test_who_is_stopped_for_a_moment_is_not_lost(server: Server, sleeper: subprocess.Popen[bytes]) -> None:
    client = join(server.address, KEY, 0, 2, 10.0)
    quiet = silent(server, sleeper.pid, host_id())
    process = local_process(sleeper.pid, host_id())
    assert process is not None
    sleeper.send_signal(signal.SIGSTOP)
    while process.state() is not ProcessState.STOPPED:
        time.sleep(0.01)
    sleeper.send_signal(signal.SIGCONT)
    start = time.monotonic()
    while time.monotonic() - start < 2 * HEARTBEAT:
        assert not client.exits
        time.sleep(0.1)
    sleeper.send_signal(signal.SIGSTOP)
    assert "replica 1 was lost: its process is stopped" in loss(client)[0]
    client.leave("", {})
    del quiet


def test_who_leaves_says_why_and_how_far_it_came(server: Server) -> None:
    first, second = (join(server.address, KEY, rank, 2, 10.0) for rank in range(2))
    second.leave("it failed with ValueError: so", {"": 3})
    first.wait_for_losses()
    assert first.losses() == "replica 1 was lost: it failed with ValueError: so"
    assert not first.cannot_run(3), "the other one has run it, too"
    assert first.cannot_run(4)
    with pytest.raises(ReplicaLostError, match="this process has left the job"):
        second.exchange("rendezvous", b"", 10.0)
    first.leave("", {"": 3})


def test_the_state_of_a_process(sleeper: subprocess.Popen[bytes]) -> None:
    process = local_process(sleeper.pid, host_id())
    assert process is not None and process.state() is ProcessState.RUNNING
    assert local_process(sleeper.pid, "another host") is None
    os.kill(sleeper.pid, signal.SIGSTOP)
    while process.state() is ProcessState.RUNNING:
        time.sleep(0.01)
    assert process.state() is ProcessState.STOPPED
    sleeper.kill()
    while process.state() is not ProcessState.ENDED:
        time.sleep(0.01)
    sleeper.wait()
    assert process.state() is ProcessState.ENDED
