"""One process's connection to its job: exchanges of bytes with all others, and what is known of those that died or disagree."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from xla_distributed import wire
from xla_distributed.errors import CollectiveMismatchError, JobError, ReplicaLostError, ReplicaTimeoutError


class Member:
    """Process `rank` of `size`, joined. Thread-safe."""

    def __init__(self, connection: Connection, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.gone: dict[int, str] = {}
        self.disagreements: dict[str, dict[int, str]] = {}
        self.on_disagreement: Callable[[str, str], None] = lambda name, text: None
        self.on_inquiry: Callable[[str, str], str | None] = lambda name, digest: None
        self._connection = connection
        self._sending = threading.Lock()
        self._news = threading.Condition()
        self._results: dict[str, Any] = {}
        self._accounts: dict[str, Any] = {}
        self._wanted: set[str] = set()
        self._mail: dict[str, deque[bytes]] = {}
        self._counts: dict[str, int] = {}
        self._lost: str | None = None
        threading.Thread(target=self._read, name="xla-job-member", daemon=True).start()

    def exchange(self, kind: str, payload: bytes, timeout: float, what: str = "") -> list[bytes]:
        """The payloads of all processes, by number; returns when all have called this as often with this kind.

        timeout: seconds; what: said in errors. Raises ReplicaLostError, ReplicaTimeoutError, CollectiveMismatchError.
        """
        with self._news:
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
        return self.exchange_once(f"{kind} {count}", payload, timeout, what or kind)

    def exchange_once(self, name: str, payload: bytes, timeout: float, what: str) -> list[bytes]:
        """As `exchange`, under a name that is used once in a job."""
        deadline = time.monotonic() + timeout
        with self._news:
            self._wanted.add(name)
        try:
            self._send({"do": "exchange", "name": name, "what": what}, payload)
            with self._news:
                while name not in self._results:
                    self._check(name, what)
                    if not self._news.wait(min(deadline - time.monotonic(), 1.0)) and time.monotonic() > deadline:
                        raise ReplicaTimeoutError(f"waited {timeout:.0f} s for {self._missing(name)}.\n{what}")
                found: list[bytes] | dict[str, str] = self._results.pop(name)
                if isinstance(found, list):
                    return found
                self._check(name, what)  # those that disagreed with this process may have gone since
                raise ReplicaLostError(f"{described_losses(found)}.\n{what}")
        except JobError:
            self._send({"do": "withdraw", "name": name})  # this process waits there no longer
            raise
        finally:
            with self._news:
                self._wanted.discard(name)

    def _check(self, name: str, what: str) -> None:
        if self._lost is not None:
            raise ReplicaLostError(f"the job's store is gone ({self._lost}): the process that serves it has died.\n{what}")
        others = self.disagreements.get(name)
        if others:
            told = "\n".join(others.values())
            raise CollectiveMismatchError(f"replicas disagree on what they do.\n{what}\n{told}")

    def _missing(self, name: str) -> str:
        """Who has not arrived in an exchange, in words; called with the lock held."""
        account = self._account(name)
        if account is None:
            return "replicas that the job's store cannot name, because it does not answer"
        absent = [rank for rank in range(self.size) if rank not in account["arrived"]]
        never = account["never_joined"]
        return f"ordinals {absent}, which did not arrive" + (f" ({never} never joined the job)" if never else "")

    def not_in(self, name: str) -> str:
        """Who does not hang in the program `name`, as this process does, in words."""
        with self._news:
            account = self._account(name)
        if account is None:
            return "The job's store does not answer"
        absent = set(range(self.size)) - {self.rank, *account["stuck"]}
        return f"ordinals {sorted(absent)} did not arrive"

    def _account(self, name: str) -> dict[str, Any] | None:
        self._accounts.pop(name, None)
        self._send({"do": "account", "name": name})
        self._news.wait_for(lambda: name in self._accounts or self._lost is not None, timeout=5.0)
        found: dict[str, Any] | None = self._accounts.pop(name, None)
        return found

    def post(self, rank: int, name: str, payload: bytes) -> None:
        """Send bytes to one process, which takes them under `name`."""
        self._send({"do": "mail", "name": name, "to": rank}, payload)

    def take(self, sender: int, name: str, timeout: float) -> bytes:
        """The next bytes that a process posted to this one under `name`. Raises ReplicaLostError, ReplicaTimeoutError."""
        with self._news:
            mail = self._mail.setdefault(name, deque())
            self._news.wait_for(lambda: mail or sender in self.gone or self._lost is not None, timeout)
            if mail:
                return mail.popleft()
            self._check(name, name)
            if sender in self.gone:
                raise ReplicaLostError(f"{described_losses({sender: self.gone[sender]})}.\n{name}")
            raise ReplicaTimeoutError(f"waited {timeout:.0f} s for {name}")

    def stuck(self, name: str, digest: str, text: str) -> None:
        """Tell that this process hangs in a program; those that run another one under its name answer."""
        self._send({"do": "stuck", "name": name, "digest": digest, "text": text})

    def leave(self, why: str = "") -> None:
        """Go; without alarm unless a reason is given, which the others are told."""
        with self._news:
            self._lost = "this process has left the job"
        try:
            with self._sending:
                wire.send(self._connection, {"do": "leave", "why": why})
        except OSError:
            return  # nobody is there to tell

    def wait_for_others_to_leave(self, timeout: float) -> None:
        """Return when all others are gone, or after `timeout` seconds."""
        with self._news:
            self._news.wait_for(lambda: len(self.gone) == self.size - 1 or self._lost is not None, timeout)

    def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        try:
            with self._sending:
                wire.send(self._connection, header, body)
        except OSError as error:
            with self._news:
                self._lost = self._lost or str(error)

    def _read(self) -> None:
        try:
            while True:
                header, body = wire.receive(self._connection)
                with self._news:
                    self._take(header, body)
                    self._news.notify_all()
        except (EOFError, OSError, ValueError, KeyError, TypeError) as error:
            with self._news:
                self._lost = self._lost or str(error) or "it closed the connection"
                self._news.notify_all()

    def _take(self, header: dict[str, Any], body: bytes) -> None:
        if "gone" in header:
            self.gone.update({int(rank): str(why) for rank, why in header["gone"].items()})
        if "exchange" in header and header["exchange"] in self._wanted:
            self._results[header["exchange"]] = wire.parted(header["lengths"], body) if "lengths" in header else header["gone"]
        if "mail" in header:
            self._mail.setdefault(str(header["mail"]), deque()).append(body)
        if "account" in header:
            self._accounts[header["account"]] = header
        if "disagree" in header:
            self._disagree(header["disagree"], int(header["rank"]), str(header["text"]))
        if "inquiry" in header:
            name, rank = str(header["inquiry"]), int(header["rank"])
            mine = self.on_inquiry(name, str(header["digest"]))
            if mine is not None:
                self._send({"do": "differ", "name": name, "rank": rank, "text": mine})
                self._disagree(name, rank, str(header["text"]))

    def _disagree(self, name: str, rank: int, text: str) -> None:
        self.disagreements.setdefault(name, {})[rank] = text
        self.on_disagreement(name, text)


def _number(item: tuple[Any, str]) -> int:
    return int(item[0])


def described_losses(gone: dict[Any, str]) -> str:
    """Who has left the job and how, in words."""
    return ", ".join(
        f"replica {rank} {f'was lost: {why}' if why else 'has left the job'}" for rank, why in sorted(gone.items(), key=_number)
    )


def join(address: wire.Address, key: bytes, rank: int, size: int, timeout: float) -> Member:
    """Join the job that is served at an address. Raises JobError if it does not let this process in, ReplicaTimeoutError."""
    deadline = time.monotonic() + timeout
    pause = 0.02
    while True:
        try:
            connection = wire.call(address, key)
            break
        except wire.ProofError as error:
            raise JobError(
                f"process {rank} could not join the job at {address[0]}:{address[1]}: {error}. Give all its processes one XLA_JOB_KEY"
            ) from error
        except OSError as error:
            if time.monotonic() > deadline:
                raise ReplicaTimeoutError(
                    f"process {rank} found nobody at {address[0]}:{address[1]} for {timeout:.0f} s ({error}): is process 0 running?"
                ) from error
            time.sleep(pause)
            pause = min(1.0, pause * 2)
    try:
        wire.send(connection, {"rank": rank, "size": size})
        answer, _ = wire.receive(connection)
    except (EOFError, OSError, ValueError) as error:
        raise JobError(f"the job at {address[0]}:{address[1]} closed the connection: {error}") from error
    if "refused" in answer:
        raise JobError(f"process {rank} is not let in: {answer['refused']}")
    return Member(connection, rank, size)
