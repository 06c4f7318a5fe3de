"""The client of a job's server, one for each process: rendezvous with all others, and what is known of those that died or disagree."""

from __future__ import annotations

import enum
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from xla_distributed.errors import CollectiveMismatchError, JobError, ReplicaLostError, ReplicaTimeoutError, timed_out
from xla_distributed.job import protocol
from xla_distributed.job.exit_status import ExitStatus, Position, Runs, describe_exits, exit_status, group_key
from xla_distributed.job.process_state import host_id
from xla_distributed.job.waiting import Wait

# How long a process looks for the job's server at its address: it listens before anybody learns of it.
_JOIN_SECONDS = 10.0
_HEARTBEATS = 4  # in the time after which silence means a loss


class ProgramStatus(enum.Enum):
    """The state on this process of a program in which another process hangs."""

    SAME = enum.auto()  # it runs or ran here, too
    NOT_REACHED = enum.auto()  # this process has not come to it


class JobClient:
    """The connection of process `rank` of `size` to its job's server. Thread-safe.

    runtime: where JAX's service listens; heartbeat: seconds of silence after which the other side is lost; exits: of processes that have
    left, the first first; on_inquiry: the status of a program on this process, or what it runs in its place.
    """

    def __init__(self, connection: socket.socket, rank: int, size: int, runtime: str, heartbeat: float) -> None:
        self.rank = rank
        self.size = size
        self.runtime = runtime
        self.exits: dict[int, ExitStatus] = {}
        self.disagreements: dict[str, dict[int, str]] = {}
        self.on_disagreement: Callable[[str, str], None] = lambda name, text: None
        self.on_inquiry: Callable[[str, str], str | ProgramStatus] = lambda name, digest: ProgramStatus.NOT_REACHED
        self._connection = connection
        self._sending = threading.Lock()
        # Over a lock that is re-entrant: `_send` may lose the connection, and say so, under a caller that holds it.
        self._condition = threading.Condition()
        self._results: dict[str, Any] = {}
        self._statuses: dict[str, Any] = {}
        self._awaited: set[str] = set()
        self._messages: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}
        self._ended: set[int] = set()
        self._left = False
        self._lost: str | None = None
        self._heartbeat = heartbeat
        self._heard = time.monotonic()
        threading.Thread(target=self._read, name="xla-job-client", daemon=True).start()
        threading.Thread(target=self._send_heartbeats, name="xla-job-heartbeat", daemon=True).start()

    @property
    def host(self) -> str:
        """The address of this process's host, by which it reaches the job's server."""
        return str(self._connection.getsockname()[0])

    def exchange(
        self, kind: str, payload: bytes, timeout: float, what: str = "", members: Sequence[int] = (), wait: Wait | None = None
    ) -> list[bytes]:
        """Exchange payloads: all of them, by process number, once all processes have called this as often with this kind.

        timeout: seconds; what: said in errors; members: the numbers of those that take part, none for all, the same for one kind;
        wait: says now and then for whom this process waits. Raises ReplicaLostError, ReplicaTimeoutError, CollectiveMismatchError.
        """
        with self._condition:
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
        return self.exchange_once(f"{kind} {count}", payload, timeout, what or kind, members, wait)

    def exchange_once(
        self, name: str, payload: bytes, timeout: float, what: str, members: Sequence[int] = (), wait: Wait | None = None
    ) -> list[bytes]:
        """As `exchange`, under a name that is used once in a job."""
        deadline = time.monotonic() + timeout
        with self._condition:
            # Before it is sent: the answer may come at once, and results that nobody awaits are dropped.
            self._awaited.add(name)
        try:
            self._send({"do": "exchange", "name": name, "what": what, "members": list(members)}, payload)
            with self._condition:
                while name not in self._results:
                    self.check(name, what)
                    # Woken each second: that another thread has left the job is not notified of.
                    if not self._condition.wait(min(deadline - time.monotonic(), 1.0)) and time.monotonic() > deadline:
                        raise timed_out(timeout, f"{self._missing(name, members)}.\n{what}")
                    if wait is not None:
                        wait.notice(lambda: self._missing(name, members))
                payloads: list[bytes] | None = self._results.pop(name)
                if payloads is not None:
                    return payloads
                self.check(name, what)  # those that disagreed with this process may have gone since
                gone = {rank: status for rank, status in self.exits.items() if not members or rank in members}
                raise ReplicaLostError(f"{describe_exits(gone)}.\n{what}")
        except JobError:
            self._send({"do": "withdraw", "name": name})  # this process waits there no longer
            raise
        finally:
            with self._condition:
                self._awaited.discard(name)

    def check(self, name: str, what: str) -> None:
        """Raise if a wait under `name`, said in errors as `what`, is for nothing: the job is over for this process, or others differ."""
        if self._left:
            raise ReplicaLostError(f"this process has left the job.\n{what}")
        if self._lost is not None:
            raise ReplicaLostError(f"{self.losses()}.\n{what}")
        others = self.disagreements.get(name)
        if others:
            texts = "\n".join(others.values())
            raise CollectiveMismatchError(f"replicas disagree on what they do.\n{what}\n{texts}")

    def _missing(self, name: str, members: Sequence[int]) -> str:
        """The replicas that have not arrived in an exchange, in words; called with the lock held."""
        status = self._status(name)
        if status is None:
            return "replicas that the job's coordinator cannot name, because it does not answer"
        absent = [rank for rank in sorted(members) or range(self.size) if rank not in status["arrived"]]
        never = status["never_joined"]
        return f"ordinals {absent}, which did not arrive" + (f" ({never} never joined the job)" if never else "")

    def not_in(self, name: str, members: Sequence[int] = ()) -> str:
        """The replicas, of these members or of all, that do not hang in the program `name`, as this process does, in words."""
        with self._condition:
            status = self._status(name)
        if status is None:
            return "The job's coordinator does not answer"
        absent = set(members or range(self.size)) - {self.rank, *status["stuck"]}
        return f"ordinals {sorted(absent)} did not arrive"

    def _status(self, name: str) -> dict[str, Any] | None:
        # Drop the answer to an earlier question, which came too late.
        self._statuses.pop(name, None)
        self._send({"do": "status", "name": name})
        self._condition.wait_for(lambda: name in self._statuses or self._lost is not None, timeout=5.0)
        status: dict[str, Any] | None = self._statuses.pop(name, None)
        return status

    def post(self, rank: int, name: str, payload: bytes) -> None:
        """Send bytes to one process, which takes them under `name`, used once. Raises ReplicaLostError if it is gone."""
        if rank in self.exits:
            raise ReplicaLostError(f"{describe_exits({rank: self.exits[rank]})}.\n{name}")
        self._send({"do": "message", "name": name, "to": rank}, payload)

    def take(self, senders: Mapping[str, int], timeout: float) -> tuple[str, bytes]:
        """The first bytes that were posted to this process under one of some names, and that name.

        senders: by name, the process that posts under it. Raises ReplicaLostError if none of them can any more, ReplicaTimeoutError.
        """
        names = " or ".join(senders)

        def arrived() -> str | None:
            return next((name for name in senders if name in self._messages), None)

        with self._condition:
            self._condition.wait_for(lambda: arrived() or self.exits.keys() >= set(senders.values()) or self._lost is not None, timeout)
            name = arrived()
            if name is not None:
                return name, self._messages.pop(name)
            self.check(names, names)
            gone = {rank: self.exits[rank] for rank in senders.values() if rank in self.exits}
            if len(gone) == len(senders):
                raise ReplicaLostError(f"{describe_exits(gone)}.\n{names}")
            raise timed_out(timeout, names)

    def has_arrived(self, names: Iterable[str]) -> bool:
        """Whether `take` would give one of these at once."""
        with self._condition:
            return any(name in self._messages for name in names)

    def report_stuck(self, name: str, digest: str, text: str, members: Sequence[int] = ()) -> None:
        """Report that this process hangs in a program of these members (none: of all); those that run another one under its name answer."""
        self._send({"do": "stuck", "name": name, "digest": digest, "text": text, "members": list(members)})

    def report_run(self, name: str, digest: str, text: str, members: Sequence[int] = ()) -> None:
        """As `report_stuck`, of a program that this process has launched, whether it hangs or not."""
        self._send({"do": "compare", "name": name, "digest": digest, "text": text, "members": list(members)})

    def losses(self) -> str:
        """The losses of this process's job, in words; "" if there are none."""
        if self._lost is not None and not self.exits:
            return f"the job's coordinator is gone ({self._lost})"
        return describe_exits(self.exits)

    def cannot_run(self, number: int, members: Sequence[int] = ()) -> bool:
        """True if the program with collectives of this number, of these members or of all, waits for a replica that is lost."""
        key = group_key(members)
        # A copy: this does not take the lock, and the thread that reads adds to it meanwhile.
        exits = [status for rank, status in tuple(self.exits.items()) if not members or rank in members]
        return self._lost is not None or any(status.runs is None or status.runs.get(key, 0) < number for status in exits)

    def failed(self) -> bool:
        """True if something went wrong: a process has failed, or the coordinator is lost."""
        return self._lost is not None or any(status.reason for status in tuple(self.exits.values()))

    def all_exited_have_ended(self) -> bool:
        """True if the processes of all replicas that have left have ended, too."""
        return self.exits.keys() <= self._ended

    def wait_for_losses(self) -> None:
        """Return when another process has left, or the coordinator is lost."""
        with self._condition:
            self._condition.wait_for(lambda: bool(self.exits) or self._lost is not None)

    def leave(self, reason: str, runs: Runs, positions: Mapping[str, Position] | None = None) -> None:
        """Leave the job. Arguments as `ExitStatus` has them."""
        with self._condition:
            if self._left:
                return
            self._left = True
        self._send({"do": "leave", "reason": reason, "runs": dict(runs), "positions": dict(positions or {})})

    def leave_to_parent(self) -> None:
        """In a forked child: close its copy of the connection, which then ends with the parent. Nothing is sent."""
        self._left, self._lost = True, "it is the job of the process that this one was forked from"
        # A thread of the parent may have held them.
        self._sending, self._condition = threading.Lock(), threading.Condition()
        self._connection.close()

    def wait_for_others_to_leave(self, timeout: float) -> None:
        """Return when all others are gone, or after `timeout` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: len(self.exits) == self.size - 1 or self._lost is not None, timeout)

    def wait_for_the_failed_to_end(self, timeout: float) -> None:
        """Return when the processes of all who have failed have ended, or after `timeout` seconds."""
        with self._condition:
            failed = {rank for rank, status in self.exits.items() if status.reason}
            self._condition.wait_for(lambda: failed <= self._ended or self._lost is not None, timeout)

    def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        try:
            with self._sending:
                protocol.send(self._connection, header, body)
        except OSError as error:
            # Outside of `_sending`: this takes `_condition`, which others hold while they send.
            self._lose(str(error))

    def _send_heartbeats(self) -> None:
        """Say that this process lives, and find out whether the other side does, as long as both do."""
        while self._lost is None:
            self._send({"do": "heartbeat"})
            time.sleep(self._heartbeat / _HEARTBEATS)
            if time.monotonic() - self._heard > self._heartbeat:
                self._lose(f"it sent no heartbeat for {self._heartbeat:g} s (XLA_HEARTBEAT_TIMEOUT_SECONDS)")

    def _read(self) -> None:
        try:
            while True:
                header, body = protocol.receive(self._connection)
                self._heard = time.monotonic()
                with self._condition:
                    self._take(header, body)
                    self._condition.notify_all()
        except (EOFError, OSError, ValueError, KeyError, TypeError) as error:
            self._lose(str(error) or "it closed the connection")
        finally:
            self._connection.close()

    def _lose(self, reason: str) -> None:
        with self._condition:
            self._lost = self._lost or reason
            self._condition.notify_all()

    def _take(self, header: dict[str, Any], body: bytes) -> None:
        if "exits" in header:
            exits = {int(rank): exit_status(*status) for rank, status in header["exits"].items()}
            # The first news of a process stay: what comes later is how it ended after that.
            self.exits.update({rank: status for rank, status in exits.items() if rank not in {self.rank, *self.exits}})
        if "ended" in header:
            self._ended.update(map(int, header["ended"]))
        # A result that comes after its exchange was given up would stay for good.
        if "exchange" in header and header["exchange"] in self._awaited:
            self._results[header["exchange"]] = protocol.unpack(header["lengths"], body) if "lengths" in header else None
        if "message" in header:
            self._messages[str(header["message"])] = body
        if "status" in header:
            self._statuses[header["status"]] = header
        if "disagree" in header:
            self._disagree(header["disagree"], int(header["rank"]), str(header["text"]))
        if "inquiry" in header:
            self._answer(str(header["inquiry"]), int(header["rank"]), str(header["digest"]), str(header["text"]))

    def _answer(self, name: str, rank: int, digest: str, text: str) -> None:
        own_status = self.on_inquiry(name, digest)
        if own_status is ProgramStatus.NOT_REACHED:
            self._send({"do": "not reached", "name": name, "rank": rank})
        elif isinstance(own_status, str):
            self._send({"do": "differ", "name": name, "rank": rank, "text": own_status})
            # This side may wait in its own program of that name, and the other one never comes there either.
            self._disagree(name, rank, text)

    def _disagree(self, name: str, rank: int, text: str) -> None:
        self.disagreements.setdefault(name, {})[rank] = text
        self.on_disagreement(name, text)


def join(address: protocol.Address, key: bytes, rank: int, size: int, timeout: float) -> JobClient:
    """Join the job that is served at an address. Raises JobError if it does not let this process in, ReplicaLostError, ReplicaTimeoutError.

    timeout: seconds.
    """
    deadline = time.monotonic() + min(timeout, _JOIN_SECONDS)
    pause = 0.02
    while True:
        try:
            connection = protocol.connect(address, key)
            break
        except protocol.AuthenticationError as error:
            raise JobError(
                f"process {rank} could not join the job at {address[0]}:{address[1]}: {error}. Give all its processes one XLA_JOB_KEY"
            ) from error
        except OSError as error:
            if time.monotonic() > deadline:
                raise ReplicaTimeoutError(
                    f"process {rank} found nobody at {address[0]}:{address[1]}, where the job was ({error}): its other processes have ended"
                ) from error
            time.sleep(pause)
            pause = min(1.0, pause * 2)
    try:
        protocol.send(connection, {"rank": rank, "size": size, "pid": os.getpid(), "host": host_id()})
        answer, _ = protocol.receive(connection)
    except (EOFError, OSError, ValueError) as error:
        connection.close()
        raise JobError(f"the job at {address[0]}:{address[1]} closed the connection: {error}") from error
    if "refused" in answer:
        connection.close()
        raise JobError(f"process {rank} is not let in: {answer['refused']}")
    return JobClient(connection, rank, size, str(answer["runtime"]), float(answer["heartbeat"]))
