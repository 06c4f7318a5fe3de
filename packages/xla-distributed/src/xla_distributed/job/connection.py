"""Connect this process to its job before its devices start: the job's store, JAX's distributed runtime, the core's topology."""

from __future__ import annotations

import atexit
import gc
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import cast

import jax
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from xla_core.abi.events import explain_failures
from xla_core.abi.job import Topology, is_spmd, set_topology, topology
from xla_core.abi.process import client, device_kind, started
from xla_core.abi.settings import CPU_NUM_DEVICES, XLA_FLAGS
from xla_core.abi.targets import planned_devices
from xla_distributed import settings
from xla_distributed._compat import join_runtime
from xla_distributed.errors import JobError, ReplicaLostError
from xla_distributed.job import bootstrap, flight_recorder, hardware, peers, watchdog
from xla_distributed.job.client import JobClient, join
from xla_distributed.job.exit_status import describe_error
from xla_distributed.job.planned_job import PlannedJob
from xla_distributed.job.shutdown import exit_with_error
from xla_distributed.job.waiting import Wait

_TIMEOUT_FLAG = "xla_cpu_collective_timeout_seconds"
# How long a process that fails because of another lets that one end first, and the launcher see it, so that it names that one.
_FIRST_SECONDS, _SEEN_SECONDS = 5.0, 3.0


class _State:
    """joined: the client, from when it has joined, also if it fails then or leaves; job_client: once all is ready, until it leaves."""

    joined: JobClient | None = None
    job_client: JobClient | None = None


_lock = threading.Lock()


def timeout() -> float:
    """Seconds that replicas wait for each other."""
    return settings.COLLECTIVE_TIMEOUT_SECONDS.get()


def job_client() -> JobClient:
    """The client by which this process is connected to its job. Raises JobError if it belongs to none."""
    if _State.job_client is None and planned_devices() and topology().replicas:
        return cast(JobClient, PlannedJob(topology().process_count))
    if _State.job_client is None:
        client()  # all replicas start theirs together
    if _State.job_client is None:
        raise JobError("this process belongs to no job: start it with torch_xla.launch, xmp.spawn or torchrun")
    return _State.job_client


def connect() -> None:
    """Join the job that this process belongs to, if there is one and it has not joined yet. Raises JobError."""
    with _lock:
        if _State.job_client is not None:
            return
        job = bootstrap.current(timeout())
        if job is None:
            return
        joined = _State.joined = join(job.address, job.key, job.rank, job.size, timeout())
        watchdog.start(joined)
        try:
            local_size = _exchange_hosts(job, joined)
            if not is_spmd():
                hardware.restrict(job.local_rank, local_size)
            confirming_peers = peers.connect(joined, job.key, timeout()) if device_kind() == "CPU" else None
            _start_jax(job, joined.runtime)
        except Exception as error:
            joined.leave("" if joined.failed() else describe_error(error), {})
            raise
        set_topology(Topology(job.rank, job.size, job.local_rank, local_size, replicas=not is_spmd()))
        _State.job_client = joined
        flight_recorder.start(joined, timeout, confirming_peers)
        explain_failures(_explanation)
        atexit.register(leave)


def join_by_store(store: Store, rank: int, size: int) -> None:
    """Join the job of all processes that share a store, for a process that no launcher started. Raises JobError if it used its devices."""
    if started():
        raise JobError(
            f"init_process_group(rank={rank}, world_size={size}) in a process that used its xla devices before, on its own: call it first, "
            "or start the processes with torch_xla.launch, xmp.spawn or torchrun"
        )
    bootstrap.set_job(bootstrap.from_store(store, rank, size))
    client()


def _exchange_hosts(job: bootstrap.Job, joined: JobClient) -> int:
    """Wait for all processes, and count those on this host."""
    own_host = socket.gethostname()
    wait = Wait(job.rank, f"the job's coordinator at {job.address[0]}:{job.address[1]}", timeout())
    names = joined.exchange("hosts", own_host.encode(), timeout(), "waiting for all replicas to start", wait=wait)
    return job.local_size or max(job.local_rank + 1, sum(host.decode() == own_host for host in names))


def _start_jax(job: bootstrap.Job, runtime: str) -> None:
    """Connect JAX's processes."""
    flags = XLA_FLAGS.get() or ""
    if _TIMEOUT_FLAG not in flags:
        XLA_FLAGS.set(f"{flags} --{_TIMEOUT_FLAG}={max(1, round(timeout()))}".strip())
    if not is_spmd():
        CPU_NUM_DEVICES.set(1)  # each replica has one
    if device_kind() in hardware.GPUS:
        jax.config.update("jax_cuda_visible_devices", str(job.local_rank))
        jax.config.update("jax_rocm_visible_devices", str(job.local_rank))
    join_runtime(runtime, job.size, job.rank, max(1, round(timeout())))


def torch_store(wait: timedelta) -> Store:
    """A store of torch's between all processes of the job: process 0 serves it, on the job's address."""
    joined = job_client()
    host = bootstrap.address_of_host()
    offer = ""
    serving = None
    if joined.rank == 0:
        serving = TCPStore(host, 0, is_master=True, timeout=wait, wait_for_workers=False, master_listen_fd=bootstrap.listening(host, 0))
        offer = f"{host} {serving.port}"
    address, port = joined.exchange("torch store", offer.encode(), timeout(), "init_process_group")[0].decode().split(" ")
    store = serving if serving is not None else TCPStore(address, int(port), is_master=False, timeout=wait, wait_for_workers=False)
    joined.exchange("torch store found", b"", timeout(), "init_process_group")  # process 0 may drop its store as soon as this returns
    return store


def _explanation(error: BaseException) -> str | None:
    """The reason of a failed execution, as far as the job knows it."""
    joined = _State.job_client
    return flight_recorder.explanation(joined, error) if joined is not None else None


def leave(reason: str = "", launched: bool = False) -> None:
    """Leave the job, at exit or when this process has failed; the others get the reason first. Process 0 is the last to go if all is well.

    launched: by something that ends all processes when one fails; torchrun's variables say the same.
    """
    with _lock:
        joined, _State.job_client = _State.job_client, None
    if joined is None:
        return
    reason = reason or _uncaught()
    error = flight_recorder.finish() if not reason else None
    if error is not None:
        joined.leave("" if joined.failed() else describe_error(error), flight_recorder.counts())
        exit_with_error(ReplicaLostError(flight_recorder.explanation(joined, error) or str(error)))
    _end_if_mixed_up(joined)
    if reason:
        # Python's last collections over all objects are four fifths of the time that the end takes: beside other work, ten seconds.
        gc.freeze()
    after_another = bool(reason) and joined.failed()  # it fails because another one did
    joined.leave("" if after_another else reason, flight_recorder.counts(), flight_recorder.positions())
    jax.distributed.shutdown()
    if after_another and (launched or settings.RUN_ID.get() is not None):
        joined.wait_for_the_failed_to_end(_FIRST_SECONDS)
        time.sleep(_SEEN_SECONDS)
    elif joined.rank == 0 and not reason:  # where its end is that of a container, the coordinator ends with it
        joined.wait_for_others_to_leave(timeout())
        _end_if_mixed_up(joined)


def _end_if_mixed_up(joined: JobClient) -> None:
    """End this process with an error if it ran other collectives than those that have left: nobody compares later."""
    error = flight_recorder.mixed_up()
    if error is not None:
        joined.leave(describe_error(error), flight_recorder.counts())
        exit_with_error(error)


def _uncaught() -> str:
    """The uncaught exception with which this process ends, in words; "" if there is none."""
    error = getattr(sys, "last_value", None)
    return describe_error(error) if isinstance(error, BaseException) and not hasattr(sys, "ps1") else ""


def _forget() -> None:
    """In a child of `os.fork`: the job is its parent's."""
    global _lock
    joined, _State.joined = _State.joined, None
    _lock, _State.job_client = threading.Lock(), None
    if joined is not None:
        joined.leave_to_parent()
        flight_recorder.leave_to_parent()


os.register_at_fork(after_in_child=_forget)
