"""Find the job of this process: as `spawn` set it, or by the variables of torchrun or of a cluster's manager."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from xla_distributed import settings
from xla_distributed.errors import JobError, ReplicaTimeoutError
from xla_distributed.job import cluster, coordinator
from xla_distributed.job.protocol import Address

DEFAULT_PORT = 12355
_ADDRESS = "xla_distributed/address"


@dataclass(frozen=True, slots=True)
class Job:
    """The place of a process in a job, and the address of the job's server.

    local_size: processes on this host; None if it is not known.
    key: what all processes of the job know and nobody else should.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int | None
    address: Address
    key: bytes


_explicit: Job | None = None
_kept_alive: list[object] = []  # as long as the job lives


def set_job(job: Job) -> None:
    """Set the job of this process, before its devices are used."""
    global _explicit
    _explicit = job


def address_of_host() -> str:
    """The host on which the job of this process is served."""
    return _explicit.address[0] if _explicit is not None else "127.0.0.1"


def is_one_of_several() -> bool:
    """True if this process was started as one of several of a job."""
    cluster.adopt()
    return (settings.WORLD_SIZE.get() or 1) > 1


def current(timeout: float) -> Job | None:
    """The job of this process; None if it is on its own. Finds the others by a rendezvous if the environment names one.

    Raises JobError, ReplicaTimeoutError.
    """
    if _explicit is not None:
        return _explicit
    if not is_one_of_several():
        return None
    size, rank = settings.WORLD_SIZE.get() or 1, settings.RANK.get()
    if rank is None or rank >= size:
        raise JobError(f"WORLD_SIZE is {size}, but RANK is {rank}: set RANK to this process's number, from 0 to {size - 1}")
    local_rank = settings.LOCAL_RANK.get() or 0
    key = _key_of_environment()
    job = Job(rank, size, local_rank, settings.LOCAL_WORLD_SIZE.get(), _rendezvous(rank, size, key, timeout), key)
    set_job(job)
    return job


def from_store(store: Store, rank: int, size: int) -> Job:
    """The job of processes that nothing but a store of torch's connects, and a number for each. Waits for all of them.

    Raises JobError, and what the store raises for those that do not come.
    """
    host = socket.gethostname()
    store.set(f"{_ADDRESS}/host/{rank}", host)
    if rank == 0:
        secret = settings.JOB_KEY.get()
        key = hashlib.sha256(secret.encode()).digest() if secret else os.urandom(32)
        serving = start_coordinator(_addresses(settings.MASTER_ADDR.get() or "127.0.0.1"), size, key)
        _kept_alive.append(serving)
        store.set(_ADDRESS, f"{serving.address[0]} {serving.address[1]} {key.hex()}")
    address, port, told = store.get(_ADDRESS).decode().split(" ")
    hosts = [store.get(f"{_ADDRESS}/host/{other}").decode() for other in range(size)]
    return Job(rank, size, hosts[:rank].count(host), hosts.count(host), (address, int(port)), bytes.fromhex(told))


def _key_of_environment() -> bytes:
    """The job's key: of a secret if one is set, else of what tells this job from others."""
    secret = settings.JOB_KEY.get()
    source = ("secret", secret) if secret else ("public", settings.RUN_ID.get(), settings.MASTER_ADDR.get(), settings.MASTER_PORT.get())
    return hashlib.sha256(repr(source).encode()).digest()


def _rendezvous(rank: int, size: int, key: bytes, timeout: float) -> Address:
    """The address of the job's coordinator, which process 0 starts and publishes in the store at MASTER_ADDR:MASTER_PORT."""
    host, port = settings.MASTER_ADDR.get() or "127.0.0.1", settings.MASTER_PORT.get() or DEFAULT_PORT
    agent = (settings.AGENT_STORE.get() or "").lower() == "true"
    store = _store(host, port, serve=rank == 0 and not agent, timeout=timeout)
    name = f"{_ADDRESS}/{settings.RESTART_COUNT.get() or 0}"
    if rank == 0:
        serving = start_coordinator(_addresses(host), size, key)
        _kept_alive.append(serving)
        store.set(name, f"{serving.address[0]} {serving.address[1]}")
        return serving.address
    try:
        found = store.get(name).decode().split(" ")
    except RuntimeError as error:
        raise ReplicaTimeoutError(f"process {rank} waited {timeout:.0f} s for process 0 at {host}:{port}: {error}") from error
    if len(found) != 2 or not found[1].isdecimal():
        raise JobError(f"the store at {host}:{port} holds {found!r}, which is no address: another program uses it")
    return found[0], int(found[1])


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
    _kept_alive.append(store)
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


def _addresses(host: str) -> Iterator[str]:
    """The host's address, then this machine's own: the first may be another machine's, or a name of several."""
    yield host
    yield socket.gethostbyname(socket.gethostname())


def start_coordinator(hosts: Iterable[str], size: int, key: bytes) -> coordinator.Coordinator:
    """Start the job's coordinator on the first of these addresses of this host on which it can listen. Raises JobError."""
    failure: coordinator.StartError | None = None
    for host in hosts:
        try:
            return coordinator.start(host, size, key, settings.HEARTBEAT_TIMEOUT_SECONDS.get())
        except coordinator.StartError as error:
            failure = error
    raise JobError(str(failure)) from failure
