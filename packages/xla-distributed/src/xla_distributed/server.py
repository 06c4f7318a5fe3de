"""The server of a job's processes: exchanges of bytes among all of them, and news of those that die or disagree.

It runs as threads of the job's coordinator (`coordinator.py`). Each number of the job joins once; when all have joined, nobody
else is let in.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from xla_distributed import wire
from xla_distributed.departures import Departure
from xla_distributed.pulse import Life, Pulse, pulse_of

# All processes that wait at different places for so long will not meet any more.
_SETTLED_SECONDS = 2.0
# Nor will one that waits for so long for another, which hangs in a program that the first has not come to.
_CROSSED_SECONDS = 3.0
_LOOK_EVERY = 1.0
# A process that is stopped for so long, while others run, is lost.
_STOPPED_SECONDS = 2.0
# How long who comes late finds somebody to tell it that the others have gone.
_LINGER_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _Seat:
    """A process that has joined.

    pulse: of its process, if it is of this host; heard: when it said something last; stopped: since when it is; lost: why it was given up;
    stuck: the program in which it hangs, and how it says so; waits: exchanges that it waits in, and what it says of them;
    crossed: where it waits and what others hang in meanwhile, and since when.
    """

    rank: int
    connection: Connection
    pulse: Pulse | None
    sending: threading.Lock = field(default_factory=threading.Lock)
    heard: float = field(default_factory=time.monotonic)
    stopped: float | None = None
    lost: str = ""
    stuck: tuple[str, str] = ("", "")
    waits: dict[str, str] = field(default_factory=dict)
    crossed: tuple[tuple[str, ...], float] = ((), 0.0)

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        with self.sending:
            try:
                wire.send(self.connection, header, body)
            except OSError:
                return  # it is gone: its own thread tells the others

    def give_up(self, why: str) -> None:
        """End the connection of a process that is lost, from any thread, also while another one sends to it."""
        self.lost = why
        try:
            with socket.socket(fileno=os.dup(self.connection.fileno())) as shared:
                shared.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended by itself


class Server:
    """Serves a job of `size` processes that know `key`, on one address of this host.

    heartbeat: seconds after which a process of another host that says nothing is lost; runtime: where JAX's service listens.
    """

    def __init__(self, host: str, size: int, key: bytes, heartbeat: float, runtime: str) -> None:
        self._size = size
        self._key = key
        self._heartbeat = heartbeat
        self._runtime = runtime
        self._lock = threading.RLock()
        self._joined: set[int] = set()
        self._seats: dict[int, _Seat] = {}  # by number, of processes that have not ended
        self._gone: dict[int, Departure] = {}
        self._ended = threading.Condition(self._lock)
        self._exchanges: dict[str, dict[int, bytes]] = {}
        self._listener: socket.socket | None = wire.listen(host)
        self.address: wire.Address = (host, int(self._listener.getsockname()[1]))
        threading.Thread(target=self._accept, args=(self._listener,), name="xla-job-server", daemon=True).start()
        threading.Thread(target=self._look, name="xla-job-pulse", daemon=True).start()

    def wait_until_over(self) -> None:
        """Return when all processes of the job have ended, or some have and nobody else has come for a while."""
        with self._ended:
            while len(self._gone) < self._size or self._seats:
                self._ended.wait_for(lambda: not self._seats)
                if len(self._gone) == self._size or not self._ended.wait_for(lambda: bool(self._seats), _LINGER_SECONDS):
                    return

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
                seat.heard = time.monotonic()
                if header["do"] == "leave":
                    self._left(seat, Departure(str(header["why"]), int(header["runs"])))
                elif seat.rank not in self._gone:
                    self._handle(seat, header, body)
        except (EOFError, OSError, ValueError, KeyError, TypeError, wire.ProofError) as error:
            why = f"{why} ({error})" if str(error) else why
        finally:
            if seat is not None:
                self._left(seat, Departure(seat.lost or why))
                self._end(seat)
            connection.close()

    def _join(self, connection: Connection) -> _Seat | None:
        header, _ = wire.receive(connection)
        rank, size = int(header["rank"]), int(header["size"])
        pulse = pulse_of(int(header["pid"]), str(header["host"]))
        with self._lock:
            if size != self._size or not 0 <= rank < size:
                wire.send(connection, {"refused": f"this job has {self._size} processes, the caller is {rank} of {size}"})
            elif rank in self._joined:
                wire.send(connection, {"refused": f"process {rank} has already joined this job"})
            else:
                seat = self._seats[rank] = _Seat(rank, connection, pulse)
                self._joined.add(rank)
                if len(self._joined) == self._size:
                    self._stop_listening()  # before the last one knows that it has joined
                seat.send({"joined": rank, "heartbeat": self._heartbeat, "runtime": self._runtime})
                self._ended.notify_all()
                return seat
        return None

    def _handle(self, seat: _Seat, header: dict[str, Any], body: bytes) -> None:
        with self._lock:
            if header["do"] == "beat":
                seat.send({"beat": True})
                return
            name = str(header["name"])
            if header["do"] == "exchange":
                self._exchange(seat, name, str(header["what"]), body)
            elif header["do"] == "withdraw":
                seat.waits.pop(name, None)
                self._exchanges.get(name, {}).pop(seat.rank, None)
            elif header["do"] == "stuck":  # the others know whether they run the same
                seat.stuck = name, str(header["text"])
                question = {"inquiry": name, "rank": seat.rank, "digest": header["digest"], "text": header["text"]}
                for other in self._seats.values():
                    if other is not seat:
                        other.send(question)
            elif header["do"] == "differ":
                asking = self._seats.get(int(header["rank"]))
                if asking is not None:
                    asking.send({"disagree": name, "rank": seat.rank, "text": header["text"]})
            elif header["do"] == "absent":
                self._absent(seat, name, int(header["rank"]))
            elif header["do"] == "mail":
                receiver = self._seats.get(int(header["to"]))
                if receiver is not None:
                    receiver.send({"mail": name}, body)
            elif header["do"] == "account":
                arrived = sorted(self._exchanges.get(name, ()))
                absent = [rank for rank in range(self._size) if rank not in self._joined]
                stuck = [other.rank for other in self._seats.values() if other.stuck[0] == name]
                seat.send({"account": name, "arrived": arrived, "never_joined": absent, "stuck": stuck})

    def _exchange(self, seat: _Seat, name: str, what: str, body: bytes) -> None:
        parts = self._exchanges.setdefault(name, {})
        parts[seat.rank] = body
        seat.waits[name] = what
        if self._gone:
            seat.send({"exchange": name, **self._news()})
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

    def _absent(self, seat: _Seat, name: str, rank: int) -> None:
        """A process has not come to a program in which another hangs: tell both, if it waits for that one elsewhere meanwhile."""
        other = self._seats.get(rank)
        if other is None or other.stuck[0] != name:
            return
        elsewhere = {place: what for place, what in seat.waits.items() if place not in other.waits}
        crossing = (name, *elsewhere)
        if not elsewhere or seat.crossed[0] != crossing:
            seat.crossed = crossing, time.monotonic()
        elif time.monotonic() - seat.crossed[1] > _CROSSED_SECONDS:
            other.send(
                {"disagree": name, "rank": seat.rank, "text": f"replica {seat.rank} waits elsewhere: {'; '.join(elsewhere.values())}"}
            )
            for place in elsewhere:
                seat.send({"disagree": place, "rank": rank, "text": other.stuck[1]})

    def _look(self) -> None:
        """Give up processes that cannot go on while others can, again and again."""
        last = time.monotonic()
        while True:
            time.sleep(_LOOK_EVERY)
            now = time.monotonic()
            late, last = now - last > 3 * _LOOK_EVERY, now
            seats = [seat for seat in tuple(self._seats.values()) if not seat.lost]
            if late:  # this process was stopped itself: what others did meanwhile is not known
                for seat in seats:
                    seat.heard, seat.stopped = now, None
                continue
            doubtful = {seat: why for seat in seats if (why := self._fate(seat, now))}
            for seat, why in doubtful.items():
                if seat.stopped is not None and (len(doubtful) == len(seats) or now - seat.stopped < _STOPPED_SECONDS):
                    continue  # if all are, it was Ctrl-Z, say
                seat.give_up(why)

    def _fate(self, seat: _Seat, now: float) -> str:
        """The reason why a process does not go on; "" if it does, as far as is known."""
        life = None if seat.pulse is None else seat.pulse.life()
        seat.stopped = (seat.stopped or now) if life is Life.STOPPED else None
        if life is Life.ENDED:
            return "its process has died"
        if life is Life.STOPPED:
            return "its process is stopped, by SIGSTOP or the like"
        if life is None and now - seat.heard > self._heartbeat:
            return f"it has said nothing for {self._heartbeat:g} s (XLA_HEARTBEAT_TIMEOUT_SECONDS)"
        return ""

    def _news(self) -> dict[str, Any]:
        """The departures so far, for a message."""
        return {"gone": {rank: [departure.why, departure.runs] for rank, departure in self._gone.items()}}

    def _left(self, seat: _Seat, departure: Departure) -> None:
        """A process takes part no more, though it may still be ending."""
        with self._lock:
            if seat.rank in self._gone:
                return
            self._gone[seat.rank] = departure
            for other in self._seats.values():
                other.send(self._news())
                for name, parts in self._exchanges.items():
                    if other.rank in parts and other is not seat:
                        other.send({"exchange": name, **self._news()})

    def _end(self, seat: _Seat) -> None:
        """A process has ended."""
        with self._lock:
            del self._seats[seat.rank]
            for other in self._seats.values():
                other.send({"ended": seat.rank})
            self._ended.notify_all()
