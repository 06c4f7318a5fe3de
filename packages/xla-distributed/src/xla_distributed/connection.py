"""Connect this process to its job before its devices start: the job's store, JAX's distributed runtime, the core's topology."""

from __future__ import annotations

import atexit
import os
import socket
import threading
from datetime import timedelta

import jax
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

import torch_xla.runtime as xr
from xla_core.abi import Topology, before_start, client, explain_failures, set_topology
from xla_distributed import hardware, job, ledger, settings
from xla_distributed.errors import JobError
from xla_distributed.member import Member, join

_TIMEOUT_FLAG = "xla_cpu_collective_timeout_seconds"
# A process that vanishes without closing its connections (a lost host) is noticed after this long.
_HEARTBEAT_SECONDS = 60
_SHUTDOWN_SECONDS = 10


class _State:
    member: Member | None = None


_lock = threading.Lock()


def timeout() -> float:
    """Seconds that replicas wait for each other."""
    return settings.COLLECTIVE_TIMEOUT_SECONDS.get()


def member() -> Member:
    """This process's connection to its job. Raises JobError if it belongs to none."""
    client()  # all replicas start theirs together
    if _State.member is None:
        raise JobError("this process belongs to no job: start it with torch_xla.launch, xmp.spawn or torchrun")
    return _State.member


def _connect() -> None:
    """Join the job that this process belongs to, if there is one and it has not joined yet. Raises JobError."""
    with _lock:
        if _State.member is not None:
            return
        place = job.current(timeout())
        if place is None:
            return
        joined = join(place.address, place.key, place.rank, place.size, timeout())
        coordinator, local_size = _meet(place, joined)
        _start_jax(place, coordinator)
        spmd = xr.is_spmd()
        set_topology(Topology(place.rank, place.size, place.local_rank, local_size, replicas=not spmd, spmd=spmd))
        _State.member = joined
        ledger.watch(joined, timeout)
        explain_failures(_explanation)
        atexit.register(leave)


before_start(_connect)


def _meet(place: job.Job, joined: Member) -> tuple[str, int]:
    """Where process 0 serves JAX's processes, on a free port of the job's address; and how many of the job's processes are on this host."""
    host, name = place.address[0], socket.gethostname()
    offer = f"{host}:{_free_port(host)}" if place.rank == 0 else ""
    parts = joined.exchange("hosts", f"{offer} {name}".encode(), timeout(), "waiting for all replicas to start")
    told = [part.decode().split(" ", 1) for part in parts]
    return told[0][0], place.local_size or max(place.local_rank + 1, sum(other == name for _, other in told))


def _start_jax(place: job.Job, coordinator: str) -> None:
    """Connect JAX's processes."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _TIMEOUT_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{_TIMEOUT_FLAG}={max(1, round(timeout()))}".strip()
    if not xr.is_spmd():
        settings.CPU_NUM_DEVICES.set(1)  # each replica has one
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from the user
    jax.config.update("jax_enable_recoverability", True)  # those that are left end at once, with their own errors
    jax.distributed.initialize(
        coordinator,
        place.size,
        place.rank,
        local_device_ids=place.local_rank if xr.device_type() in hardware.GPUS else None,
        cluster_detection_method="deactivate",
        initialization_timeout=max(1, round(timeout())),
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        coordinator_bind_address=coordinator,
    )


def _free_port(host: str) -> int:
    family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(address)
        return int(probe.getsockname()[1])


def torch_store(wait: timedelta) -> Store:
    """A store of torch's between all processes of the job: process 0 serves it, on the job's address."""
    joined = member()
    host = job.address_of_host()
    offer = ""
    serving = None
    if joined.rank == 0:
        serving = TCPStore(host, 0, is_master=True, timeout=wait, wait_for_workers=False, master_listen_fd=job.listening(host, 0))
        offer = f"{host} {serving.port}"
    address, port = joined.exchange("torch store", offer.encode(), timeout(), "init_process_group")[0].decode().split(" ")
    store = serving if serving is not None else TCPStore(address, int(port), is_master=False, timeout=wait, wait_for_workers=False)
    joined.exchange("torch store found", b"", timeout(), "init_process_group")  # process 0 may drop its store as soon as this returns
    return store


def lost() -> bool:
    """Whether other replicas of this process's job have died or left."""
    return _State.member is not None and bool(_State.member.gone)


def _explanation(error: BaseException) -> str | None:
    """What the job knows about a failed execution."""
    joined = _State.member
    return ledger.explanation(joined, error) if joined is not None else None


def leave() -> None:
    """Leave the job; called at exit. Process 0, which serves JAX's processes, is the last to go."""
    with _lock:
        joined, _State.member = _State.member, None
    if joined is None:
        return
    if joined.rank == 0:
        joined.wait_for_others_to_leave(timeout())
    jax.distributed.shutdown()
    joined.leave()
