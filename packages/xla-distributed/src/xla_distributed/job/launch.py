"""Start the replicas of a job on this host."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from torch.multiprocessing import start_processes  # type: ignore[attr-defined]

from xla_core.abi import process as process_abi
from xla_core.abi.declarations import budget
from xla_core.abi.job import is_spmd
from xla_core.abi.process import device_kind
from xla_core.abi.settings import LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, RANK, WORLD_SIZE
from xla_core.abi.targets import as_replica, compiles_only, planned_devices
from xla_distributed import settings
from xla_distributed.errors import JobError
from xla_distributed.job import bootstrap, cluster, connection, hardware
from xla_distributed.job.coordinator import Coordinator
from xla_distributed.job.exit_status import describe_error

_HOST = "127.0.0.1"
_END_SECONDS = 5.0
Target = Callable[..., Any]


class ReplicaProcesses:
    """Replicas that were started: `processes`, and `join` as `torch.multiprocessing` has it."""

    def __init__(self, context: Any, coordinator: Coordinator | None) -> None:
        self._context = context
        self._coordinator = coordinator
        self.processes: list[multiprocessing.process.BaseProcess] = context.processes

    def pids(self) -> list[int]:
        """Process numbers, in order of the replicas."""
        return [int(pid) for pid in self._context.pids()]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for all replicas, at most `timeout` seconds; whether all have ended.

        Raises torch's ProcessRaisedException with the traceback of the replica that failed first, or ProcessExitedException; the
        others are ended then, and also if this is interrupted. grace_period: seconds that they have for it, 5 unless given.
        """
        try:
            ended = bool(self._context.join(timeout, _END_SECONDS if grace_period is None else grace_period))
        except BaseException:
            self._end()
            raise
        if ended:
            self._close()
        return ended

    def _end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        # Terminate all before waiting for one, so that they end side by side.
        deadline = time.monotonic() + _END_SECONDS
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join()
        self._close()

    def _close(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()


@budget(compiles=None, reads=None)
def spawn(
    fn: Target,
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ReplicaProcesses | None:
    """Run `fn(index, *args)` in one process for each device of this host, `index` being its ordinal there.

    On TPU slices of several hosts, a process on each calls this, and all that they start are one job.
    nprocs: how many, at most the devices; None: all devices; 1: call in this process. For a target that is not attached, too, it is called
    once, as the first of so many replicas.
    join: wait for them; without it, what was started is returned.
    Raises ValueError for an impossible `nprocs`, RuntimeError if this process already used its devices (but on the
    CPU, unless it forks) or is itself a replica, and
    torch's ProcessRaisedException or ProcessExitedException if a replica fails.
    """
    # Before all checks: this is a plain call, and allowed wherever the process stands.
    if nprocs == 1:
        fn(0, *args)
        return None
    devices = planned_devices()
    if devices and not is_spmd():
        with as_replica(devices if nprocs is None else nprocs):
            fn(0, *args)
        return None
    size = replica_count(nprocs)
    if size == 1:
        fn(0, *args)
        return None
    started = start_replicas(fn, args, size, daemon, start_method)
    if not join:
        return started
    wait_for_all(started)
    return None


def replica_count(nprocs: int | None = None) -> int:
    """How many replicas this process may start: `nprocs`, or one for each device of this host. Raises as `spawn`."""
    if is_spmd():
        raise RuntimeError("SPMD mode has one process for all devices: call the function directly instead of spawning replicas")
    if _is_replica():
        raise RuntimeError(
            "this process is already one of a job's (says WORLD_SIZE, or a cluster's manager): use torch_xla.launch, which runs there too"
        )
    count = hardware.device_count()
    size = count if nprocs is None else nprocs
    if not 1 <= size <= count:
        raise ValueError(f"nprocs is {nprocs}, must be from 1 to the number of devices, {count}, or None for all")
    return size


def start_replicas(fn: Target, args: tuple[Any, ...], size: int, daemon: bool = False, start_method: str = "spawn") -> ReplicaProcesses:
    """Start `fn(index, *args)` in `size` processes, one of them too. Raises RuntimeError if this process holds what they would need."""
    if compiles_only():
        raise RuntimeError(
            f"{size} processes would run their programs, although this one is within torch_xla.compile_only(): enter that block in the "
            "function that they call"
        )
    if process_abi.started() and (start_method == "fork" or device_kind() != "CPU"):
        raise RuntimeError(
            "this process has already used its xla devices, which replicas could not use then: touch them in the spawned function only"
            " (on the CPU, start_method='spawn' works)"
        )
    slice_hosts = cluster.hosts()
    if slice_hosts is not None:
        return ReplicaProcesses(_start(_replica_of_slice, (fn, args, size, slice_hosts), size, daemon, start_method), None)
    key = secrets.token_bytes(32)
    coordinator = bootstrap.start_coordinator([_HOST], size, key)
    try:
        context = _start(_replica, (fn, args, size, coordinator.address, key), size, daemon, start_method)
        coordinator.expect([int(pid) for pid in context.pids()])
    except BaseException:
        coordinator.close()
        raise
    return ReplicaProcesses(context, coordinator)


def _start(fn: Target, args: tuple[Any, ...], size: int, daemon: bool, start_method: str) -> Any:
    target = partial(_leave_after, fn) if start_method == "fork" else fn
    return start_processes(target, args, nprocs=size, join=False, daemon=daemon, start_method=start_method)


def _leave_after(fn: Target, index: int, *args: Any) -> None:
    """`fn(index, *args)` in a forked process, which multiprocessing ends without what is registered to run at its exit."""
    try:
        fn(index, *args)
    finally:
        connection.leave(launched=True)


def _is_replica() -> bool:
    """Whether this process is a replica already: one of a job's processes, and not the one of a host that is to start its replicas."""
    return bootstrap.is_one_of_several() and cluster.hosts() is None


def wait_for_all(started: ReplicaProcesses) -> None:
    """Wait until all replicas have ended. Raises as `ReplicaProcesses.join`."""
    # torch's `join` returns False each time that one of them has ended and others still run.
    while not started.join():
        pass


def _replica(index: int, fn: Target, args: tuple[Any, ...], size: int, address: tuple[str, int], key: bytes) -> None:
    """Run a replica in a child process."""
    RANK.set(index)
    WORLD_SIZE.set(size)
    MASTER_ADDR.set(address[0])
    bootstrap.set_job(bootstrap.Job(index, size, index, size, address, key))
    _run(index, fn, args, size)


def _replica_of_slice(index: int, fn: Target, args: tuple[Any, ...], size: int, hosts: cluster.Hosts) -> None:
    """Run a replica of one host of a slice in a child process; they meet at host 0, whose address this process has inherited."""
    RANK.set(hosts.index * size + index)
    WORLD_SIZE.set(hosts.count * size)
    _run(index, fn, args, size)


def _run(index: int, fn: Target, args: tuple[Any, ...], size: int) -> None:
    """Take this process's place among the replicas of its host, connect it, and call `fn`."""
    _end_with_parent()
    _take_place(index, size)
    connection.job_client()
    try:
        fn(index, *args)
    except (Exception, KeyboardInterrupt) as error:
        connection.leave(describe_error(error), launched=True)
        raise


def _take_place(local_rank: int, local_size: int) -> None:
    """Set the variables that say which of this host's processes this one is."""
    LOCAL_RANK.set(local_rank)
    LOCAL_WORLD_SIZE.set(local_size)
    settings.PJRT_LOCAL_PROCESS_RANK.set(local_rank)
    settings.PJRT_LOCAL_PROCESS_COUNT.set(local_size)


@budget()
def initialize_multiprocess(local_rank: int, local_world_size: int) -> None:
    """Make this process, which somebody else started, one replica of this host's, and connect it to the others.

    They find each other as under torchrun, at MASTER_ADDR and MASTER_PORT. RANK and WORLD_SIZE place it among several hosts; without
    them this host is all. Raises ValueError for a rank outside the count, RuntimeError if the process already used its devices.
    """
    _check_place(local_rank, local_world_size)
    if not WORLD_SIZE.is_set():
        RANK.set(local_rank)
        WORLD_SIZE.set(local_world_size)
    _take_place(local_rank, local_world_size)
    if WORLD_SIZE.get() != 1:
        connection.job_client()


@budget()
def initialize_singleprocess(local_rank: int, local_world_size: int) -> None:
    """Say which of this host's processes this one is, which drives all devices that it sees on its own; see `spawn_threads`.

    Raises ValueError for a rank outside the count, RuntimeError if the process already used its devices.
    """
    _check_place(local_rank, local_world_size)
    settings.PJRT_LOCAL_PROCESS_RANK.set(local_rank)
    settings.PJRT_LOCAL_PROCESS_COUNT.set(local_world_size)


def _check_place(local_rank: int, local_size: int) -> None:
    if not 0 <= local_rank < local_size:
        raise ValueError(f"local_rank is {local_rank}, must be from 0 to local_world_size - 1, {local_size - 1}")
    if process_abi.started():
        raise RuntimeError("this process has already used its xla devices, too late to give it a place among others: do so at its start")


def _end_with_parent() -> None:
    """End this process when the launching one is gone, however that went."""
    parent = multiprocessing.parent_process()
    if parent is None:
        raise JobError("replicas are started by spawn, in processes of their own")

    def watch() -> None:
        wait([parent.sentinel])
        # A signal, not an exit, so that the program's SIGTERM handler runs.
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="xla-launcher-watch", daemon=True).start()


def launch(fn: Target, args: tuple[Any, ...] = (), start_method: str = "spawn", debug_single_process: bool = False) -> None:
    """Run `fn(index, *args)` as each replica: in this process, with its local rank, if it is one of a job's already; else as `spawn` does.

    debug_single_process: call it once, in this process.
    """
    if _is_replica():
        fn(LOCAL_RANK.get() or 0, *args)
        return
    spawn(fn, args, 1 if debug_single_process else None, start_method=start_method)
