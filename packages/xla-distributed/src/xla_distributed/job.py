"""Which job this process belongs to: as `spawn` told it, or as the variables of torchrun say, or a cluster's manager."""

from __future__ import annotations

import errno
import hashlib
import socket
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from xla_distributed import cluster, coordinator, settings
from xla_distributed.errors import JobError, ReplicaTimeoutError
from xla_distributed.wire import Address

DEFAULT_PORT = 12355
_ADDRESS = "xla_distributed/address"


@dataclass(frozen=True, slots=True)
class Job:
    """The place of a process in a job, and where the job meets.

    local_size: processes on this host; None if nobody said.
    address: of the job's server; key: what all its processes know and nobody else should.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int | None
    address: Address
    key: bytes


_told: Job | None = None
_kept: list[object] = []  # what must live as long as the job


def tell(job: Job) -> None:
    """Say which job this process belongs to, before its devices are used."""
    global _told
    _told = job


def address_of_host() -> str:
    """The address on which this process's job meets."""
    return _told.address[0] if _told is not None else "127.0.0.1"


def is_one_of_several() -> bool:
    """Whether this process is one of a job's that others have started."""
    cluster.adopt()
    return (settings.WORLD_SIZE.get() or 1) > 1


def current(timeout: float) -> Job | None:
    """The job of this process; None if it is on its own. Meets the other processes if the environment names them.

    Raises JobError, ReplicaTimeoutError.
    """
    if _told is not None:
        return _told
    if not is_one_of_several():
        return None
    size, rank = settings.WORLD_SIZE.get() or 1, settings.RANK.get()
    if rank is None or rank >= size:
        raise JobError(f"WORLD_SIZE is {size}, but RANK is {rank}: set RANK to this process's number, from 0 to {size - 1}")
    local_rank = settings.LOCAL_RANK.get() or 0
    key = _key_of_environment()
    job = Job(rank, size, local_rank, settings.LOCAL_WORLD_SIZE.get(), _meet(rank, size, key, timeout), key)
    tell(job)
    return job


def _key_of_environment() -> bytes:
    """The job's key: of a secret if one is set, else of what tells this job from others."""
    secret = settings.JOB_KEY.get()
    told = ("secret", secret) if secret else ("public", settings.RUN_ID.get(), settings.MASTER_ADDR.get(), settings.MASTER_PORT.get())
    return hashlib.sha256(repr(told).encode()).digest()


def _meet(rank: int, size: int, key: bytes, timeout: float) -> Address:
    """The address of the job's coordinator, which process 0 starts and tells through the store at MASTER_ADDR:MASTER_PORT."""
    host, port = settings.MASTER_ADDR.get() or "127.0.0.1", settings.MASTER_PORT.get() or DEFAULT_PORT
    agent = (settings.AGENT_STORE.get() or "").lower() == "true"
    store = _store(host, port, serve=rank == 0 and not agent, timeout=timeout)
    name = f"{_ADDRESS}/{settings.RESTART_COUNT.get() or 0}"
    if rank == 0:
        serving = _coordinated(host, size, key)
        _kept.append(serving)
        store.set(name, f"{serving.address[0]} {serving.address[1]}")
        return serving.address
    try:
        told = store.get(name).decode().split(" ")
    except RuntimeError as error:
        raise ReplicaTimeoutError(f"process {rank} waited {timeout:.0f} s for process 0 at {host}:{port}: {error}") from error
    if len(told) != 2 or not told[1].isdecimal():
        raise JobError(f"the store at {host}:{port} holds {told!r}, which is no address: another program uses it")
    return told[0], int(told[1])


def _store(host: str, port: int, serve: bool, timeout: float) -> Store:
    """The store that torch's own `env://` uses: process 0 serves it, on the job's address alone, unless torchrun does."""
    wait = timedelta(seconds=timeout)
    try:
        own = listening(host, port) if serve else None
        store = TCPStore(host, port, is_master=serve, timeout=wait, wait_for_workers=False, multi_tenant=True, master_listen_fd=own)
    except (RuntimeError, OSError) as error:
        if serve:
            raise JobError(f"process 0 cannot listen on {host}:{port} (MASTER_ADDR, MASTER_PORT): {error}") from error
        raise ReplicaTimeoutError(f"found nobody at {host}:{port} (MASTER_ADDR, MASTER_PORT): {error}") from error
    _kept.append(store)
    return store


def listening(host: str, port: int) -> int | None:
    """The descriptor of a socket on one address; None if this process or another already listens there."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return None  # torch's store finds out whether it is its own, or listens on all addresses
        raise
    return listener.detach()


def _coordinated(host: str, size: int, key: bytes) -> coordinator.Coordinator:
    """The job's coordinator on the host's address, or, where that is another machine's or a name of several, on this machine's own."""
    heartbeat = settings.HEARTBEAT_TIMEOUT_SECONDS.get()
    try:
        return coordinator.start(host, size, key, heartbeat)
    except coordinator.StartError:
        own = socket.gethostbyname(socket.gethostname())
    try:
        return coordinator.start(own, size, key, heartbeat)
    except coordinator.StartError as error:
        raise JobError(str(error)) from error
