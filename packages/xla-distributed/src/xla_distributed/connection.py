"""Connect this process to its job before its devices start: the job's store, JAX's distributed runtime, the core's topology."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from datetime import timedelta

import jax
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

import torch_xla.runtime as xr
from xla_core.abi import Topology, before_start, client, explain_failures, set_topology
from xla_distributed import hardware, job, ledger, settings, watchdog
from xla_distributed._compat import join_runtime
from xla_distributed.departures import failure
from xla_distributed.ending import end_process
from xla_distributed.errors import JobError, ReplicaLostError
from xla_distributed.member import Member, join

_TIMEOUT_FLAG = "xla_cpu_collective_timeout_seconds"
# How long a process that fails because another one did lets that one end first, and their launcher see it, so that it names that one.
_FIRST_SECONDS, _SEEN_SECONDS = 5.0, 3.0


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
        watchdog.start(joined)
        try:
            local_size = _meet(place, joined)
            _start_jax(place, joined.runtime)
        except Exception as error:
            joined.leave("" if joined.failed() else failure(error), 0)
            raise
        spmd = xr.is_spmd()
        set_topology(Topology(place.rank, place.size, place.local_rank, local_size, replicas=not spmd, spmd=spmd))
        _State.member = joined
        ledger.watch(joined, timeout)
        explain_failures(_explanation)
        atexit.register(leave)


before_start(_connect)


def _meet(place: job.Job, joined: Member) -> int:
    """Wait for all processes; how many of them are on this host."""
    name = socket.gethostname()
    names = joined.exchange("hosts", name.encode(), timeout(), "waiting for all replicas to start")
    return place.local_size or max(place.local_rank + 1, sum(other.decode() == name for other in names))


def _start_jax(place: job.Job, runtime: str) -> None:
    """Connect JAX's processes."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _TIMEOUT_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{_TIMEOUT_FLAG}={max(1, round(timeout()))}".strip()
    if not xr.is_spmd():
        settings.CPU_NUM_DEVICES.set(1)  # each replica has one
    if xr.device_type() in hardware.GPUS:
        jax.config.update("jax_cuda_visible_devices", str(place.local_rank))
        jax.config.update("jax_rocm_visible_devices", str(place.local_rank))
    join_runtime(runtime, place.size, place.rank, max(1, round(timeout())))


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


def _explanation(error: BaseException) -> str | None:
    """Explain a failed execution by what the job knows."""
    joined = _State.member
    return ledger.explanation(joined, error) if joined is not None else None


def leave(why: str = "", launched: bool = False) -> None:
    """Leave the job, at exit or when this process has failed; the others are told why first. Process 0 is the last to go if all is well.

    launched: by something that ends all processes when one fails; torchrun's variables say the same.
    """
    with _lock:
        joined, _State.member = _State.member, None
    if joined is None:
        return
    why = why or _uncaught()
    error = ledger.finish() if not why else None
    if error is not None:
        joined.leave("" if joined.failed() else failure(error), ledger.count())
        end_process(ReplicaLostError(ledger.explanation(joined, error) or str(error)))
    second = bool(why) and joined.failed()  # it fails because another one did
    joined.leave("" if second else why, ledger.count())
    jax.distributed.shutdown()
    if second and (launched or settings.RUN_ID.get() is not None):
        joined.wait_for_the_failed_to_end(_FIRST_SECONDS)
        time.sleep(_SEEN_SECONDS)
    elif joined.rank == 0 and not why:  # where its end is that of a container, the coordinator ends with it
        joined.wait_for_others_to_leave(timeout())


def _uncaught() -> str:
    """The uncaught exception with which this process ends, in words; "" if there is none."""
    error = getattr(sys, "last_value", None)
    return failure(error) if isinstance(error, BaseException) and not hasattr(sys, "ps1") else ""


def _forget() -> None:
    """In a child of `os.fork`: the job is its parent's."""
    global _lock
    _lock, _State.member = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
