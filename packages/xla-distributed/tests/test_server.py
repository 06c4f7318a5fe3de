"""Whom the server of a job takes for lost: real connections, of which one says nothing more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from xla_distributed import wire
from xla_distributed.errors import ReplicaLostError
from xla_distributed.member import Member, join
from xla_distributed.pulse import Life, host, pulse_of
from xla_distributed.server import Server

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
    connection = wire.call(server.address, KEY)
    wire.send(connection, {"rank": 1, "size": 2, "pid": pid, "host": its_host})
    answer, _ = wire.receive(connection)
    assert answer == {"joined": 1, "heartbeat": HEARTBEAT, "runtime": "nowhere:1"}
    return connection


def loss(member: Member) -> tuple[str, float]:
    """What this process is told of the other one when it waits for it, and after how many seconds."""
    start = time.monotonic()
    with pytest.raises(ReplicaLostError) as caught:
        member.exchange("meeting", b"", 2 * SOON)
    return str(caught.value), time.monotonic() - start


def test_silence_from_another_host_is_a_loss(server: Server) -> None:
    member = join(server.address, KEY, 0, 2, 10.0)
    quiet = silent(server, 1, "another host")
    text, seconds = loss(member)
    assert "replica 1 was lost: it has said nothing for 2 s (XLA_HEARTBEAT_TIMEOUT_SECONDS)" in text
    assert HEARTBEAT / 2 < seconds < SOON
    member.leave("", 0)
    del quiet


def test_who_lives_on_this_host_may_be_silent(server: Server, sleeper: subprocess.Popen[bytes]) -> None:
    """It may be busy for longer; when it dies, that is known though something else holds its connection."""
    member = join(server.address, KEY, 0, 2, 10.0)
    quiet = silent(server, sleeper.pid, host())
    start = time.monotonic()
    while time.monotonic() - start < 3 * HEARTBEAT:
        assert not member.gone
        time.sleep(0.1)
    sleeper.kill()
    assert "replica 1 was lost: its process has died" in loss(member)[0]
    member.leave("", 0)
    del quiet


def test_who_is_stopped_for_a_moment_is_not_lost(server: Server, sleeper: subprocess.Popen[bytes]) -> None:
    member = join(server.address, KEY, 0, 2, 10.0)
    quiet = silent(server, sleeper.pid, host())
    pulse = pulse_of(sleeper.pid, host())
    assert pulse is not None
    sleeper.send_signal(signal.SIGSTOP)
    while pulse.life() is not Life.STOPPED:
        time.sleep(0.01)
    sleeper.send_signal(signal.SIGCONT)
    start = time.monotonic()
    while time.monotonic() - start < 2 * HEARTBEAT:
        assert not member.gone
        time.sleep(0.1)
    sleeper.send_signal(signal.SIGSTOP)
    assert "replica 1 was lost: its process is stopped" in loss(member)[0]
    member.leave("", 0)
    del quiet


def test_who_leaves_says_why_and_how_far_it_came(server: Server) -> None:
    first, second = (join(server.address, KEY, rank, 2, 10.0) for rank in range(2))
    second.leave("it failed with ValueError: so", 3)
    first.wait_for_losses()
    assert first.losses() == "replica 1 was lost: it failed with ValueError: so"
    assert not first.cannot_run(3), "the other one has run it, too"
    assert first.cannot_run(4)
    with pytest.raises(ReplicaLostError, match="this process has left the job"):
        second.exchange("meeting", b"", 10.0)
    first.leave("", 3)


def test_a_pulse_is_that_of_one_process(sleeper: subprocess.Popen[bytes]) -> None:
    pulse = pulse_of(sleeper.pid, host())
    assert pulse is not None and pulse.life() is Life.RUNS
    assert pulse_of(sleeper.pid, "another host") is None
    os.kill(sleeper.pid, signal.SIGSTOP)
    while pulse.life() is Life.RUNS:
        time.sleep(0.01)
    assert pulse.life() is Life.STOPPED
    sleeper.kill()
    while pulse.life() is not Life.ENDED:
        time.sleep(0.01)
    sleeper.wait()
    assert pulse.life() is Life.ENDED
