"""The server of a job's processes: rendezvous of all of them, which exchange bytes, and news of those that die or disagree.

It runs as one thread of the job's coordinator (`coordinator.py`), an event loop, however many processes there are. Each number of the
job joins once; when all have joined, nobody else is let in.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xla_distributed.job import protocol
from xla_distributed.job.exit_status import ExitStatus, exit_status
from xla_distributed.job.process_state import LocalProcess, ProcessState, host_id, local_process

# All processes that wait at different places for so long will not reach a rendezvous any more.
_SETTLED_SECONDS = 2.0
# Nor will one that waits for so long for another, which hangs in a program that the first has not come to.
_CROSSED_SECONDS = 3.0
_CHECK_SECONDS = 1.0
# A process that is stopped for so long, while others run, is lost.
_STOPPED_SECONDS = 2.0
# News of those that leave are collected for so long: when all do at once, it is one message for each and not for each pair.
_NEWS_SECONDS = 0.02
# For so long a process that comes late still finds a server, from which it learns that the others have exited.
_LINGER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Exchange:
    """An exchange that is not over. members: the processes that take part; parts: the payloads that have come from them so far."""

    members: frozenset[int]
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Peer:
    """A process that has joined.

    process: on this host, None on another; heard: when its last message came; stopped: since when it is; lost: why it was given up;
    stuck: the program in which it hangs, and how it says so; waits: exchanges that it waits in, and what it says of them;
    crossed: where it waits and what others hang in meanwhile, and since when.
    """

    rank: int
    writer: asyncio.StreamWriter
    process: LocalProcess | None
    heard: float = field(default_factory=time.monotonic)
    stopped: float | None = None
    lost: str = ""
    stuck: tuple[str, str] = ("", "")
    waits: dict[str, str] = field(default_factory=dict)
    crossed: tuple[tuple[str, ...], float] = ((), 0.0)

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        self.send_message(protocol.message(header, body))

    def send_message(self, message: bytes) -> None:
        # Of one that has ended, the reading side has the news. What is not read is kept: nobody waits here for anybody.
        if not self.writer.is_closing():
            self.writer.write(message)

    def give_up(self, reason: str) -> None:
        """End the connection of a process that is lost."""
        self.lost = reason
        self.writer.transport.abort()


class Server:
    """Serves a job of `size` processes that know `key`, on one address of this host.

    heartbeat: seconds without a heartbeat after which a process of another host is lost; runtime: where JAX's service listens.
    """

    def __init__(self, host: str, size: int, key: bytes, heartbeat: float, runtime: str) -> None:
        self._size = size
        self._key = key
        self._heartbeat = heartbeat
        self._runtime = runtime
        self._joined: set[int] = set()
        self._expected: dict[int, LocalProcess] = {}  # of this host, by number, if who started them has said so
        self._peers: dict[int, _Peer] = {}  # by number, of processes that have not ended
        self._exits: dict[int, ExitStatus] = {}
        self._untold: tuple[list[int], list[int]] = ([], [])  # who has left, and ended, since the last news
        self._exchanges: dict[str, _Exchange] = {}
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()  # somebody has joined or ended
        self._listening: asyncio.Server | None = None
        listener = protocol.listen(host)
        self.address: protocol.Address = (host, int(listener.getsockname()[1]))
        threading.Thread(target=self._run, args=(listener,), name="xla-job-server", daemon=True).start()

    def wait_until_over(self) -> None:
        """Return when all processes of the job have ended, or some have and nobody else has come for a while."""
        asyncio.run_coroutine_threadsafe(self._over(), self._loop).result()

    def expect(self, pids: Mapping[int, int]) -> None:
        """Watch processes of this host, by their numbers, until they join: one that ends before is lost."""
        expected = {rank: process for rank, pid in pids.items() if (process := local_process(pid, host_id())) is not None}
        self._loop.call_soon_threadsafe(self._expected.update, expected)

    async def _over(self) -> None:
        while len(self._exits) < self._size or self._peers:
            await self._until(lambda: not self._peers)
            if len(self._exits) == self._size or not await self._until(lambda: bool(self._peers), _LINGER_SECONDS):
                return

    async def _until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for a condition on who is there; False if that takes longer."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _run(self, listener: socket.socket) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve_all(listener))

    async def _serve_all(self, listener: socket.socket) -> None:
        self._listening = await asyncio.start_server(self._serve, sock=listener, backlog=protocol.BACKLOG)
        await self._watch_peers()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: _Peer | None = None
        reason = "its process has died"
        try:
            await protocol.authenticate(reader, writer, self._key)
            peer = await self._join(reader, writer)
            while peer is not None:
                header, body = await protocol.read(reader)
                peer.heard = time.monotonic()
                # One that has left is read on, so that its end is noticed, but takes part in nothing.
                if header["do"] == "leave":
                    self._left(peer.rank, exit_status(header["reason"], header["runs"], header["positions"]))
                elif peer.rank not in self._exits:
                    self._handle(peer, header, body)
        except asyncio.IncompleteReadError:
            pass  # it has ended; what it says of the bytes that are missing helps nobody
        except (OSError, ValueError, KeyError, TypeError, protocol.AuthenticationError) as error:
            reason = f"{reason} ({error})" if str(error) else reason
        finally:
            if peer is not None:
                # Without effect if it has left already: the first reason stays.
                self._left(peer.rank, ExitStatus(peer.lost or reason))
                self._end(peer)
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Peer | None:
        header, _ = await protocol.read(reader)
        rank, size = int(header["rank"]), int(header["size"])
        process = local_process(int(header["pid"]), str(header["host"]))
        if size != self._size or not 0 <= rank < size:
            writer.write(protocol.message({"refused": f"this job has {self._size} processes, the caller is {rank} of {size}"}))
            return None
        if rank in self._joined:
            writer.write(protocol.message({"refused": f"process {rank} has already joined this job"}))
            return None
        peer = self._peers[rank] = _Peer(rank, writer, process)
        self._joined.add(rank)
        if len(self._joined) == self._size and self._listening is not None:
            self._listening.close()  # before the last one knows that it has joined
        peer.send({"joined": rank, "heartbeat": self._heartbeat, "runtime": self._runtime})
        if self._exits:
            peer.send({**self._news(), "ended": sorted(self._exits.keys() - self._peers.keys())})
        self._changed.set()
        return peer

    def _handle(self, peer: _Peer, header: dict[str, Any], body: bytes) -> None:
        if header["do"] == "heartbeat":
            peer.send({"heartbeat": True})
            return
        name = str(header["name"])
        if header["do"] == "exchange":
            self._exchange(peer, name, str(header["what"]), self._members(header), body)
        elif header["do"] == "withdraw":
            peer.waits.pop(name, None)
            if name in self._exchanges:
                self._exchanges[name].parts.pop(peer.rank, None)
        elif header["do"] in ("stuck", "compare"):  # the others know whether they run the same
            if header["do"] == "stuck":
                peer.stuck = name, str(header["text"])
            question = {"inquiry": name, "rank": peer.rank, "digest": header["digest"], "text": header["text"]}
            for rank in self._members(header) & self._peers.keys() - {peer.rank}:
                self._peers[rank].send(question)
        elif header["do"] == "differ":
            asking = self._peers.get(int(header["rank"]))
            if asking is not None:
                asking.send({"disagree": name, "rank": peer.rank, "text": header["text"]})
        elif header["do"] == "not reached":
            self._not_reached(peer, name, int(header["rank"]))
        elif header["do"] == "message":
            receiver = self._peers.get(int(header["to"]))
            if receiver is not None:
                receiver.send({"message": name}, body)
        elif header["do"] == "status":
            arrived = sorted(self._exchanges[name].parts) if name in self._exchanges else []
            absent = [rank for rank in range(self._size) if rank not in self._joined]
            stuck = [other.rank for other in self._peers.values() if other.stuck[0] == name]
            peer.send({"status": name, "arrived": arrived, "never_joined": absent, "stuck": stuck})

    def _members(self, header: dict[str, Any]) -> frozenset[int]:
        """The processes that a message concerns."""
        return frozenset(map(int, header["members"])) or frozenset(range(self._size))

    def _exchange(self, peer: _Peer, name: str, description: str, members: frozenset[int], body: bytes) -> None:
        exchange = self._exchanges.setdefault(name, _Exchange(members))
        parts = exchange.parts
        parts[peer.rank] = body
        peer.waits[name] = description
        # Who has left comes to no exchange: none of its that begins now can be whole.
        if members & self._exits.keys():
            peer.send({"exchange": name, **self._news()})
        elif len(parts) == len(members):
            lengths, joined = protocol.pack([parts[rank] for rank in sorted(members)])
            del self._exchanges[name]
            result = protocol.message({"exchange": name, "lengths": lengths}, joined)
            for rank in members & self._peers.keys():
                self._peers[rank].waits.pop(name, None)
                self._peers[rank].send_message(result)
        elif all(other.waits for other in self._peers.values()) and len(self._peers) == self._size:
            # Not at once: a process has several threads, and another one of them may yet come.
            self._loop.call_later(_SETTLED_SECONDS, self._fail_if_all_wait, self._waits())

    def _waits(self) -> dict[int, dict[str, str]]:
        return {rank: dict(peer.waits) for rank, peer in self._peers.items()}

    def _fail_if_all_wait(self, before: dict[int, dict[str, str]]) -> None:
        """Send all processes the mismatch, if each waits for the others at another place, as a while ago: none would ever come."""
        if self._waits() != before:
            return
        for peer in self._peers.values():
            for name in peer.waits:
                for rank, waits in before.items():
                    if rank in self._exchanges[name].members and name not in waits:
                        peer.send({"disagree": name, "rank": rank, "text": "; ".join(waits.values())})

    def _not_reached(self, peer: _Peer, name: str, rank: int) -> None:
        """A process has not reached a program in which another hangs: send both the mismatch, if it waits for that one elsewhere."""
        other = self._peers.get(rank)
        if other is None or other.stuck[0] != name:
            return
        elsewhere = {
            waited: text for waited, text in peer.waits.items() if rank in self._exchanges[waited].members and waited not in other.waits
        }
        crossing = (name, *elsewhere)
        # It must stay so for a while: a process that gets on is only late.
        if not elsewhere or peer.crossed[0] != crossing:
            peer.crossed = crossing, time.monotonic()
        elif time.monotonic() - peer.crossed[1] > _CROSSED_SECONDS:
            other.send(
                {"disagree": name, "rank": peer.rank, "text": f"replica {peer.rank} waits elsewhere: {'; '.join(elsewhere.values())}"}
            )
            for waited in elsewhere:
                peer.send({"disagree": waited, "rank": rank, "text": other.stuck[1]})

    async def _watch_peers(self) -> None:
        """Give up processes that cannot go on while others can, in a loop."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            now = time.monotonic()
            late, last = now - last > 3 * _CHECK_SECONDS, now
            self._give_up_those_who_never_came()
            peers = [peer for peer in tuple(self._peers.values()) if not peer.lost]
            if late:  # this process was stopped itself: what others did meanwhile is not known
                for peer in peers:
                    peer.heard, peer.stopped = now, None
                continue
            doubtful = {peer: reason for peer in peers if (reason := self._loss(peer, now))}
            for peer, reason in doubtful.items():
                if peer.stopped is not None and (len(doubtful) == len(peers) or now - peer.stopped < _STOPPED_SECONDS):
                    continue  # if all are, it was Ctrl-Z, say
                peer.give_up(reason)

    def _give_up_those_who_never_came(self) -> None:
        """Give up processes that have ended before they joined: the others would wait for them in vain."""
        self._expected = {rank: process for rank, process in self._expected.items() if rank not in self._joined}
        for rank in [rank for rank, process in self._expected.items() if process.state() is ProcessState.ENDED]:
            del self._expected[rank]
            self._left(rank, ExitStatus("its process ended before it had joined the job"))

    def _loss(self, peer: _Peer, now: float) -> str:
        """The reason why a process does not go on; "" if it does, as far as is known."""
        state = None if peer.process is None else peer.process.state()
        peer.stopped = (peer.stopped or now) if state is ProcessState.STOPPED else None
        if state is ProcessState.ENDED:
            return "its process has died"
        if state is ProcessState.STOPPED:
            return "its process is stopped, by SIGSTOP or the like"
        if state is None and now - peer.heard > self._heartbeat:
            return f"it sent no heartbeat for {self._heartbeat:g} s (XLA_HEARTBEAT_TIMEOUT_SECONDS)"
        return ""

    def _news(self) -> dict[str, Any]:
        """The exits so far, for a message."""
        return self._exits_of(self._exits)

    def _exits_of(self, ranks: Iterable[int]) -> dict[str, Any]:
        return {"exits": {rank: [exited.reason, exited.runs, dict(exited.positions)] for rank in ranks if (exited := self._exits[rank])}}

    def _left(self, rank: int, status: ExitStatus) -> None:
        """Record that a process has left, though it may still be ending."""
        if rank in self._exits:
            return
        self._exits[rank] = status
        self._tell_soon()
        self._untold[0].append(rank)
        # End the exchanges in which others wait for it.
        for name, exchange in self._exchanges.items():
            if rank in exchange.members and exchange.parts:
                failure = protocol.message({"exchange": name, **self._news()})
                for other in exchange.parts.keys() & self._peers.keys() - {rank}:
                    self._peers[other].send_message(failure)
                exchange.parts.clear()  # whoever comes later is told at once

    def _end(self, peer: _Peer) -> None:
        """Record that a process has ended."""
        del self._peers[peer.rank]
        self._tell_soon()
        self._untold[1].append(peer.rank)
        self._changed.set()

    def _tell_soon(self) -> None:
        if not any(self._untold):
            self._loop.call_later(_NEWS_SECONDS, self._tell)

    def _tell(self) -> None:
        """Send all processes the news of who has left and who has ended since the last ones."""
        (left, ended), self._untold = self._untold, ([], [])
        news = protocol.message({**self._exits_of(left), "ended": ended})
        for peer in self._peers.values():
            peer.send_message(news)
