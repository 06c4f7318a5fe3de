"""Direct connections among the replicas of a job: each tells the others what it is about to run, before anything runs.

Through the job's coordinator, which is a third process, the same takes two to ten times as long, and a tiny program over the devices
about as long as the collective itself (docs/performance.md has figures). Collectives on CPU have such connections of their own.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from xla_distributed.errors import JobError, ReplicaLostError, ReplicaTimeoutError
from xla_distributed.job import protocol
from xla_distributed.job.client import JobClient

_MESSAGE = struct.Struct("!Q16s16s")
_RANK = struct.Struct("!Q")
_LOOK_SECONDS = 0.2  # how often what waits looks whether replicas are lost


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a replica is about to run: run `number` of a group, as 16 bytes each the group and a digest of the collectives."""

    number: int
    group: bytes
    digest: bytes


class Peers:
    """The connections of one replica, by the ranks of the others. Not to be used by two threads at once."""

    def __init__(self, connections: dict[int, socket.socket]) -> None:
        self._connections = connections
        self._received = {rank: b"" for rank in connections}
        for connection in connections.values():
            connection.settimeout(_LOOK_SECONDS)

    def close(self) -> None:
        """Close this process's copy of the connections: for a forked child, whose parent goes on with them."""
        for connection in self._connections.values():
            connection.close()

    def announce(self, announcement: Announcement, ranks: Iterable[int]) -> None:
        """Tell other replicas; one that is gone hears nothing, which `receive` shows."""
        message = _MESSAGE.pack(announcement.number, announcement.group, announcement.digest)
        for rank in ranks:
            # It is gone: the job's server tells why, and what it sent before can still be read.
            with suppress(OSError):
                self._connections[rank].sendall(message)

    def receive(self, rank: int) -> Announcement | None:
        """The next announcement of a replica; None if none comes within a fraction of a second, or it is gone."""
        connection = self._connections[rank]
        try:
            while missing := _MESSAGE.size - len(self._received[rank]):
                part = connection.recv(missing)
                if not part:
                    raise EOFError
                self._received[rank] += part
        except TimeoutError:
            return None
        except (OSError, EOFError):
            time.sleep(_LOOK_SECONDS)
            return None
        message, self._received[rank] = self._received[rank], b""
        return Announcement(*_MESSAGE.unpack(message))


def connect(joined: JobClient, key: bytes, timeout: float) -> Peers:
    """Connect this replica to each other one; all call this. Raises ReplicaLostError, ReplicaTimeoutError, JobError.

    timeout: seconds that it waits for the others.
    """
    deadline = time.monotonic() + timeout
    with protocol.listen(joined.host) as listener:
        callers = _Callers(listener, key, range(joined.rank + 1, joined.size))
        offer = json.dumps(listener.getsockname()[:2]).encode()
        addresses = [tuple(json.loads(part)) for part in joined.exchange("peers", offer, timeout, "connecting the replicas")]
        connections = {rank: _call(joined, rank, addresses[rank], key) for rank in range(joined.rank)}
        while not callers.wait(_LOOK_SECONDS):
            absent = callers.absent()
            if joined.failed() or joined.exits.keys() & absent:
                raise ReplicaLostError(f"{joined.losses()}; replica {joined.rank} waits for the connections of ordinals {sorted(absent)}")
            if time.monotonic() > deadline:
                raise ReplicaTimeoutError(f"waited {timeout:.0f} s for the connections of ordinals {sorted(absent)}, which did not arrive")
    return Peers(connections | callers.connections)


def _call(joined: JobClient, rank: int, address: protocol.Address, key: bytes) -> socket.socket:
    try:
        connection = protocol.connect(address, key)
        connection.sendall(_RANK.pack(joined.rank))
    except (OSError, protocol.AuthenticationError) as error:
        time.sleep(_LOOK_SECONDS)  # the news of its death may be slower
        if rank in joined.exits:
            raise ReplicaLostError(f"{joined.losses()}; replica {joined.rank} connects to replica {rank}") from error
        raise JobError(
            f"replica {joined.rank} cannot connect to replica {rank} at {address[0]}:{address[1]} ({error}): on CPU each replica must "
            "reach each other one, at the address by which that one reaches the job's coordinator"
        ) from error
    return connection


class _Callers:
    """The replicas that connect to this one, which may come in any order, and between strangers."""

    def __init__(self, listener: socket.socket, key: bytes, expected: Iterable[int]) -> None:
        self.connections: dict[int, socket.socket] = {}
        self._expected = frozenset(expected)
        self._key = key
        self._condition = threading.Condition()
        threading.Thread(target=self._accept, args=(listener,), name="xla-job-peers", daemon=True).start()

    def absent(self) -> frozenset[int]:
        """Those that have not come."""
        return self._expected - self.connections.keys()

    def wait(self, seconds: float) -> bool:
        """Whether all have come, within this time."""
        with self._condition:
            return self._condition.wait_for(lambda: not self.absent(), seconds)

    def _accept(self, listener: socket.socket) -> None:
        while self.absent():
            try:
                connection, _ = listener.accept()
            except OSError:  # closed: this replica has given up
                return
            # Each in a thread of its own: a stranger that says nothing holds nobody up.
            threading.Thread(target=self._greet, args=(connection,), name="xla-job-peer", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            protocol.answer_caller(connection, self._key)
            rank = _RANK.unpack(connection.recv(_RANK.size, socket.MSG_WAITALL))[0]
        except (OSError, EOFError, struct.error, protocol.AuthenticationError):
            connection.close()
            return
        with self._condition:
            if rank in self.absent():
                self.connections[rank] = connection
                self._condition.notify_all()
            else:
                connection.close()
