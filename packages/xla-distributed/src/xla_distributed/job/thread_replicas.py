"""Replicas that are threads of one process, each with a device of its own: their start and their rendezvous."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

import torch_xla
import torch_xla.core.xla_model as xm
from xla_core.abi.declarations import budget
from xla_core.abi.job import topology
from xla_distributed import settings
from xla_distributed.errors import CollectiveMismatchError, JobError, ReplicaLostError, ReplicaTimeoutError

T = TypeVar("T")


class ThreadRendezvous:
    """The rendezvous of one process's replicas: in each round, each gives a payload and gets the payloads of all.

    names: of the replicas, by their ordinals.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._condition = threading.Condition()
        self._round: dict[int, tuple[str, Any]] = {}
        self._exits: dict[int, str] = {}

    def exchange(self, ordinal: int, what: str, payload: Any) -> list[Any]:
        """The payloads of all replicas, in order of the ordinals; waits for all.

        what: says what this exchange is for, the same for all. Raises CollectiveMismatchError if it is not, ReplicaLostError if one
        does not come any more, ReplicaTimeoutError if one does not come in time.
        """
        with self._condition:
            arrived = self._round
            arrived[ordinal] = (what, payload)
            if len(arrived) == len(self._names):
                # The last one begins the next round, and may be in it before others have left this one: they hold it as `arrived`.
                self._round = {}
                self._condition.notify_all()
            timeout = settings.COLLECTIVE_TIMEOUT_SECONDS.get()
            # One that has exited may have been here before that; it is missed only if it was not.
            self._condition.wait_for(lambda: len(arrived) == len(self._names) or not arrived.keys() >= self._exits.keys(), timeout)
            missing = [name for rank, name in enumerate(self._names) if rank not in arrived]
            if missing and arrived.keys() >= self._exits.keys():
                raise ReplicaTimeoutError(
                    f"replica {self._names[ordinal]} waited {timeout:g} s in {what} for {', '.join(missing)}, which did not arrive"
                )
            if missing:
                lost = ", ".join(f"replica {self._names[rank]} {self._exits[rank]}" for rank in sorted(self._exits.keys() - arrived.keys()))
                raise ReplicaLostError(f"{lost}, and replica {self._names[ordinal]} waits for it in {what}")
        mismatched = next((rank for rank, (other, _) in arrived.items() if other != what), None)
        if mismatched is not None:
            raise CollectiveMismatchError(
                "replicas disagree on their collectives: each must issue the same ones in the same order.\n"
                f"replica {self._names[ordinal]} runs {what}\nreplica {self._names[mismatched]} runs {arrived[mismatched][0]}"
            )
        return [arrived[rank][1] for rank in range(len(self._names))]

    def leave(self, ordinal: int, how: str) -> None:
        """Take a replica out of all further rounds. how: what it did instead, as in "replica xla:1 has returned"."""
        with self._condition:
            self._exits[ordinal] = how
            self._condition.notify_all()


class _ThisThread(threading.local):
    """The rendezvous of which this thread is a participant, and its ordinal there."""

    rendezvous: ThreadRendezvous | None = None
    ordinal = 0


_this_thread = _ThisThread()


def is_thread_replica() -> bool:
    """True if this thread is one replica of several of its process."""
    return _this_thread.rendezvous is not None


def ordinal() -> int:
    """The ordinal of this thread among these replicas."""
    return _this_thread.ordinal


def exchange(what: str, payload: Any) -> list[Any]:
    """`ThreadRendezvous.exchange` for this thread."""
    if _this_thread.rendezvous is None:
        raise ReplicaLostError(f"{what}: this thread is no replica beside others")
    return _this_thread.rendezvous.exchange(_this_thread.ordinal, what, payload)


def check_single_process(devices: Sequence[torch.device]) -> None:
    """Raise JobError for several devices in a process of a job: there each process is one replica."""
    processes = topology().process_count
    if len(devices) > 1 and processes > 1:
        raise JobError(
            f"threads for {len(devices)} devices need a process on its own, this one is one of {processes}: in a job each process "
            "is a replica with one device, which xm.optimizer_step and the other collectives connect"
        )


def run_on_devices(devices: Sequence[torch.device], work: Callable[[int], T]) -> list[T]:
    """Run `work(index)` in a thread for each device, with that device as default, and return the results; several are replicas.

    Raises what a thread raises first, when all have ended; those that wait for it raise ReplicaLostError. JobError as
    `check_single_process`.
    """
    check_single_process(devices)
    names = [str(device) for device in devices]
    rendezvous = ThreadRendezvous(names)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            torch_xla.device(devices[index].index)
            if len(devices) > 1:
                xm.set_replication(devices[index], xm.xla_real_devices(names))
                _this_thread.rendezvous, _this_thread.ordinal = rendezvous, index
            results[index] = work(index)
        except BaseException as error:  # raised to the caller below
            # Before the others hear of it: they fail because of this one, and the first error is raised.
            errors.append(error)
            rendezvous.leave(index, f"has failed with {type(error).__name__}: {error}")
        else:
            rendezvous.leave(index, "has returned")

    # Daemons: after Ctrl-C in `join` the process can end, whatever they wait for.
    threads = [threading.Thread(target=run, args=(index,), name=f"xla-replica-{name}", daemon=True) for index, name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(devices))]


@budget(compiles=None, reads=None)
def spawn_threads(fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
    """Run `fn(ordinal, *args)` in one thread for each device of this process. Raises what a thread raises first."""
    run_on_devices(torch_xla.devices(), lambda index: fn(index, *args))
