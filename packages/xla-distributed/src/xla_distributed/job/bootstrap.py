"""Find the job of this process: as `spawn` set it, or by the variables of torchrun or of a cluster's manager."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from xla_core.abi.settings import LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, RANK, WORLD_SIZE
from xla_distributed import settings
from xla_distributed.errors import JobError
from xla_distributed.job import cluster, coordinator, store_client
from xla_distributed.job.protocol import Address
from xla_distributed.job.waiting import Wait

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
    return (WORLD_SIZE.get() or 1) > 1


def is_in_job() -> bool:
    """True if this process belongs to a job, set or named by the environment."""
    return _explicit is not None or is_one_of_several()


def lacks_rank() -> bool:
    """True if the environment says how many processes the job has, but not which one this is: init_process_group(rank=…) may say it."""
    return _explicit is None and is_one_of_several() and RANK.get() is None


def current(timeout: float) -> Job | None:
    """The job of this process; None if it is on its own. Finds the others by a rendezvous if the environment names one.

    Raises JobError, ReplicaTimeoutError, ReplicaLostError.
    """
    if _explicit is not None:
        return _explicit
    if not is_one_of_several():
        return None
    size, rank = WORLD_SIZE.get() or 1, RANK.get()
    if rank is None or rank >= size:
        raise JobError(f"WORLD_SIZE is {size}, but RANK is {rank}: set RANK to this process's number, from 0 to {size - 1}")
    local_rank = LOCAL_RANK.get() or 0
    key = _key_of_environment()
    job = Job(rank, size, local_rank, LOCAL_WORLD_SIZE.get(), _rendezvous(rank, size, key, timeout), key)
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
        serving = start_coordinator(_addresses(MASTER_ADDR.get() or "127.0.0.1"), size, key)
        _kept_alive.append(serving)
        store.set(_ADDRESS, f"{serving.address[0]} {serving.address[1]} {key.hex()}")
    address, port, key_text = store.get(_ADDRESS).decode().split(" ")
    hosts = [store.get(f"{_ADDRESS}/host/{other}").decode() for other in range(size)]
    return Job(rank, size, hosts[:rank].count(host), hosts.count(host), (address, int(port)), bytes.fromhex(key_text))


def _key_of_environment() -> bytes:
    """The job's key: of a secret if one is set, else of what tells this job from others."""
    secret = settings.JOB_KEY.get()
    source = ("secret", secret) if secret else ("public", settings.RUN_ID.get(), MASTER_ADDR.get(), settings.MASTER_PORT.get())
    return hashlib.sha256(repr(source).encode()).digest()


def _rendezvous(rank: int, size: int, key: bytes, timeout: float) -> Address:
    """The address of the job's coordinator, which process 0 starts and publishes in the store at MASTER_ADDR:MASTER_PORT."""
    host, port = MASTER_ADDR.get() or "127.0.0.1", settings.MASTER_PORT.get() or DEFAULT_PORT
    agent = (settings.AGENT_STORE.get() or "").lower() == "true"
    wait = Wait(rank, f"{host}:{port} (MASTER_ADDR, MASTER_PORT)", timeout)
    store = _served(host, port, timeout) if rank == 0 and not agent else store_client.connect(host, port, rank, wait)
    _kept_alive.append(store)
    name = f"{_ADDRESS}/{settings.RESTART_COUNT.get() or 0}"
    if rank == 0:
        serving = start_coordinator(_addresses(host), size, key)
        _kept_alive.append(serving)
        store.set(name, f"{serving.address[0]} {serving.address[1]}")
        return serving.address
    published = store_client.get(store, name, f"process {rank}, at {host}:{port}", wait).decode(errors="replace").split(" ")
    if len(published) != 2 or not published[1].isdecimal():
        raise JobError(f"the store at {host}:{port} holds {published!r}, which is no address: another program uses it")
    return published[0], int(published[1])


def _served(host: str, port: int, timeout: float) -> Store:
    """The store that torch's own `env://` uses, served by this process on the job's address alone."""
    try:
        listener_fd = listening(host, port)
        wait = timedelta(seconds=timeout)
        return TCPStore(host, port, is_master=True, timeout=wait, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener_fd)
    except (RuntimeError, OSError) as error:
        raise JobError(
            f"process 0 cannot listen on {host}:{port} (MASTER_ADDR, MASTER_PORT): {error}. "
            "Set MASTER_PORT to a port that is free there, the same for all processes"
        ) from error


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


def _leave_to_parent() -> None:
    """In a child of `os.fork`: never destroy stores. That would wait for their threads, which are the parent's."""
    for store in _kept_alive:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))


os.register_at_fork(after_in_child=_leave_to_parent)
