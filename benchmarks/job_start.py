"""The start and end of a job far larger than this machine: its real coordinator, and connections that stand for its processes.

Worker processes hold the connections, each by the client that a process of a job has: they join, meet as processes do before their devices
start, connect JAX's runtime (not with --no-runtime), meet again, and leave. Of the coordinator: threads, memory and processor seconds.
"""

import os
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from harness import Row, wide_console, write_results

KEY = b"k" * 32
WORKERS = 8
PHASES = ("join", "meet", "runtime", "meet again", "leave")
SIZES, QUICK_SIZES = (64, 256, 512), (16,)
TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker is told: the coordinator's address, the numbers of its clients, the size of the job, whether JAX connects, too."""

    address: tuple[str, int]
    ranks: tuple[int, ...]
    size: int
    runtime: bool


class Traffic:
    """Messages and bytes that the clients of this process sent and received."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        self._lock = threading.Lock()

    def count(self, nbytes: int) -> None:
        """Count one message."""
        with self._lock:
            self.messages += 1
            self.bytes += nbytes

    def watch(self) -> None:
        """Count what the client's module sends and receives from now on."""
        from xla_distributed.job import protocol

        send, receive = protocol.send, protocol.receive

        def sent(connection: Any, header: dict[str, Any], body: bytes = b"") -> None:
            self.count(len(body))
            send(connection, header, body)

        def received(connection: Any) -> tuple[dict[str, Any], bytes]:
            found = receive(connection)
            self.count(len(found[1]))
            return found

        protocol.send, protocol.receive = sent, received


def work(place: Place, orders: Connection) -> None:
    """Run the phases for the clients of one worker, each when it is ordered."""
    traffic = Traffic()
    traffic.watch()
    from jaxlib import _jax

    from xla_distributed.job.client import JobClient, join

    clients: dict[int, JobClient] = {}
    runtimes: dict[int, Any] = {}

    def joined(rank: int) -> None:
        clients[rank] = join(place.address, KEY, rank, place.size, TIMEOUT)

    def met(rank: int) -> None:
        assert len(clients[rank].exchange("hosts", b"a-host-name", TIMEOUT)) == place.size

    def connected(rank: int) -> None:
        if place.runtime:
            runtimes[rank] = _jax.get_distributed_runtime_client(clients[rank].runtime, rank, init_timeout=int(TIMEOUT))
            runtimes[rank].connect()

    def left(rank: int) -> None:
        clients[rank].leave("", {})
        clients[rank].wait_for_others_to_leave(TIMEOUT)

    phases: tuple[Callable[[int], None], ...] = (joined, met, connected, met, left)
    orders.send("ready")  # what takes seconds is imported
    with ThreadPoolExecutor(len(place.ranks)) as pool:
        for phase in phases:
            orders.recv()
            list(pool.map(phase, place.ranks))
            orders.send((traffic.messages, traffic.bytes))
    orders.recv()
    os._exit(0)  # the clients of JAX would each wait for the others


def status(process: int) -> dict[str, int]:
    """Threads and bytes of memory of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {"threads": int(lines["Threads"]), "bytes": int(lines["VmRSS"].split()[0]) * 1024}


def seconds(process: int) -> float:
    """The processor seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def job(size: int, runtime: bool) -> list[Row]:
    """The phases of one job: seconds, messages and bytes so far of all its processes, and the coordinator's state after each."""
    from xla_distributed.job import coordinator

    serving = coordinator.start("127.0.0.1", size, KEY, TIMEOUT)
    context = get_context("spawn")
    orders, workers = [], []
    count = min(WORKERS, max(1, size // 8))
    for number in range(count):
        ours, theirs = context.Pipe()
        place = Place(serving.address, tuple(range(size))[number::count], size, runtime)
        worker = context.Process(target=work, args=(place, theirs))
        worker.start()
        orders.append(ours)
        workers.append(worker)
    for each in orders:
        each.recv()
    nothing: Row = {"seconds": 0.0, "messages": 0, "body_bytes": 0, "cpu": 0.0}
    rows: list[Row] = [{"processes": size, "after": "start", **nothing, **status(serving.process.pid)}]
    began = seconds(serving.process.pid)
    for phase in PHASES:
        start = time.perf_counter()
        for each in orders:
            each.send(phase)
        counts = [each.recv() for each in orders if wait([each], TIMEOUT)]
        rows.append(
            {
                "processes": size,
                "after": phase,
                "seconds": time.perf_counter() - start,
                "messages": sum(messages for messages, _ in counts),
                "body_bytes": sum(nbytes for _, nbytes in counts),
                **status(serving.process.pid),
                "cpu": seconds(serving.process.pid) - began,
            }
        )  # fmt: skip
    for each in orders:
        each.send("end")
    for worker in workers:
        worker.join()
    serving.close()
    return rows


def show(rows: list[Row], console: Console) -> None:
    """One table."""
    table = Table(title="A job's coordinator")
    for heading in ("processes", "after", "s", "messages so far", "bodies, bytes", "threads", "memory, MB", "processor s"):
        table.add_column(heading, justify="left" if heading == "after" else "right")
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("messages", "body_bytes", "threads")]
        memory = f"{float(row['bytes'] or 0) / 1e6:.0f}"
        table.add_row(str(row["processes"]), str(row["after"]), f"{row['seconds']:.2f}", *counts, memory, f"{row['cpu']:.2f}")
    console.print(table)


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--quick", is_flag=True, help="A small job: does it run at all?")
@click.option("--runtime/--no-runtime", default=True, help="Whether JAX's runtime connects, too.")
def main(target: Path | None, quick: bool, runtime: bool) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows = [row for size in (QUICK_SIZES if quick else SIZES) for row in job(size, runtime)]
    show(rows, wide_console())
    if target is not None:
        write_results(target, "job-start", rows)


if __name__ == "__main__":
    main()
