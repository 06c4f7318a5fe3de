"""Where the processes of a job meet: exchanges of bytes among all of them, and news of those that die or disagree.

It runs as threads, in the launching process or in process 0. Each number of the job joins once; when all have joined, nobody
else is let in.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from xla_distributed import wire

# All processes that wait at different places for so long will not meet any more.
_SETTLED_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class _Seat:
    """A process that has joined. stuck: the program in which it hangs; waits: exchanges that it waits in, and what it says of them."""

    rank: int
    connection: Connection
    sending: threading.Lock = field(default_factory=threading.Lock)
    stuck: str = ""
    waits: dict[str, str] = field(default_factory=dict)

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        with self.sending:
            try:
                wire.send(self.connection, header, body)
            except OSError:
                return  # it is gone: its own thread tells the others


class Server:
    """Serves a job of `size` processes that know `key`, on one address of this host."""

    def __init__(self, host: str, size: int, key: bytes) -> None:
        self._size = size
        self._key = key
        self._lock = threading.RLock()
        self._seats: dict[int, _Seat] = {}
        self._gone: dict[int, str] = {}
        self._exchanges: dict[str, dict[int, bytes]] = {}
        self._listener: socket.socket | None = wire.listen(host)
        self.address: wire.Address = (host, int(self._listener.getsockname()[1]))
        threading.Thread(target=self._accept, args=(self._listener,), name="xla-job-server", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more. Those who have joined are served until they go."""
        with self._lock:
            self._stop_listening()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection = wire.accept(listener)
            except OSError:
                if self._listener is None:
                    return  # closed: all are here
                time.sleep(0.1)  # a connection that broke, or no descriptor left
                continue
            threading.Thread(target=self._serve, args=(connection,), name="xla-job-server", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        seat: _Seat | None = None
        why = "its process has died"
        try:
            wire.admit(connection, self._key)
            seat = self._join(connection)
            while seat is not None:
                header, body = wire.receive(connection)
                if header["do"] == "leave":
                    why = str(header["why"])
                    break
                self._handle(seat, header, body)
        except (EOFError, OSError, ValueError, KeyError, TypeError, wire.ProofError) as error:
            why = f"{why} ({error})" if str(error) else why
        finally:
            connection.close()
            if seat is not None:
                self._left(seat, why)

    def _join(self, connection: Connection) -> _Seat | None:
        header, _ = wire.receive(connection)
        rank, size = int(header["rank"]), int(header["size"])
        with self._lock:
            if size != self._size or not 0 <= rank < size:
                wire.send(connection, {"refused": f"this job has {self._size} processes, the caller is {rank} of {size}"})
            elif rank in self._seats:
                wire.send(connection, {"refused": f"process {rank} has already joined this job"})
            else:
                seat = self._seats[rank] = _Seat(rank, connection)
                if len(self._seats) == self._size:
                    self._stop_listening()  # before the last one knows that it has joined
                seat.send({"joined": rank})
                return seat
        return None

    def _handle(self, seat: _Seat, header: dict[str, Any], body: bytes) -> None:
        with self._lock:
            name = str(header["name"])
            if header["do"] == "exchange":
                self._exchange(seat, name, str(header["what"]), body)
            elif header["do"] == "withdraw":
                seat.waits.pop(name, None)
                self._exchanges.get(name, {}).pop(seat.rank, None)
            elif header["do"] == "stuck":  # the others know whether they run the same
                seat.stuck = name
                question = {"inquiry": name, "rank": seat.rank, "digest": header["digest"], "text": header["text"]}
                for other in self._seats.values():
                    if other is not seat:
                        other.send(question)
            elif header["do"] == "differ":
                asking = self._seats.get(int(header["rank"]))
                if asking is not None:
                    asking.send({"disagree": name, "rank": seat.rank, "text": header["text"]})
            elif header["do"] == "mail":
                receiver = self._seats.get(int(header["to"]))
                if receiver is not None:
                    receiver.send({"mail": name}, body)
            elif header["do"] == "account":
                arrived = sorted(self._exchanges.get(name, ()))
                absent = [rank for rank in range(self._size) if rank not in self._seats]
                stuck = [other.rank for other in self._seats.values() if other.stuck == name]
                seat.send({"account": name, "arrived": arrived, "never_joined": absent, "stuck": stuck})

    def _exchange(self, seat: _Seat, name: str, what: str, body: bytes) -> None:
        parts = self._exchanges.setdefault(name, {})
        parts[seat.rank] = body
        seat.waits[name] = what
        if self._gone:
            seat.send({"exchange": name, "gone": self._gone})
        elif len(parts) == self._size:
            lengths, joined = wire.joined([parts[rank] for rank in range(self._size)])
            del self._exchanges[name]
            for other in self._seats.values():
                del other.waits[name]
                other.send({"exchange": name, "lengths": lengths}, joined)
        elif all(other.waits for other in self._seats.values()) and len(self._seats) == self._size:
            threading.Timer(_SETTLED_SECONDS, self._fail_if_all_wait, (self._waits(),)).start()

    def _waits(self) -> dict[int, dict[str, str]]:
        return {rank: dict(seat.waits) for rank, seat in self._seats.items()}

    def _fail_if_all_wait(self, before: dict[int, dict[str, str]]) -> None:
        """Tell all processes, if each waits for the others at another place, as they did a while ago: nobody would ever come."""
        with self._lock:
            if self._waits() != before:
                return
            for seat in self._seats.values():
                for name in seat.waits:
                    for rank, waits in before.items():
                        if name not in waits:
                            seat.send({"disagree": name, "rank": rank, "text": "; ".join(waits.values())})

    def _left(self, seat: _Seat, why: str) -> None:
        with self._lock:
            self._gone[seat.rank] = why
            self._seats.pop(seat.rank, None)
            for other in self._seats.values():
                other.send({"gone": {seat.rank: why}})
                for name, parts in self._exchanges.items():
                    if other.rank in parts:
                        other.send({"exchange": name, "gone": self._gone})
