"""Replicas that are threads of one process, each with a device of its own: their start and their rendezvous."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

import torch_xla
import torch_xla.core.xla_model as xm
from xla_core.abi.budgets import budget
from xla_core.abi.job import topology
from xla_distributed import settings
from xla_distributed.errors import CollectiveMismatchError, JobError, ReplicaLostError, ReplicaTimeoutError

T = TypeVar("T")


class ThreadRendezvous:
    """The rendezvous of one process's replicas: each gives a payload and gets those of all, in rounds of which all are participants.

    names: of the replicas, by their ordinals.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._news = threading.Condition()
        self._round: dict[int, tuple[str, Any]] = {}
        self._exits: dict[int, str] = {}

    def exchange(self, ordinal: int, what: str, payload: Any) -> list[Any]:
        """The payloads of all replicas, in order of the ordinals; waits for all.

        what: says what this exchange is for, the same for all. Raises CollectiveMismatchError if it is not, ReplicaLostError if one
        does not come any more, ReplicaTimeoutError if one does not come in time.
        """
        with self._news:
            mine = self._round
            mine[ordinal] = (what, payload)
            if len(mine) == len(self._names):
                # The last one begins the next round, in which it may be before others have left this one: they hold it as `mine`.
                self._round = {}
                self._news.notify_all()
            timeout = settings.COLLECTIVE_TIMEOUT_SECONDS.get()
            # One that has exited may have been here before that; it is missed only if it was not.
            self._news.wait_for(lambda: len(mine) == len(self._names) or not mine.keys() >= self._exits.keys(), timeout)
            missing = [name for one, name in enumerate(self._names) if one not in mine]
            if missing and mine.keys() >= self._exits.keys():
                raise ReplicaTimeoutError(
                    f"replica {self._names[ordinal]} waited {timeout:g} s in {what} for {', '.join(missing)}, which did not arrive"
                )
            if missing:
                lost = ", ".join(f"replica {self._names[one]} {self._exits[one]}" for one in sorted(self._exits.keys() - mine.keys()))
                raise ReplicaLostError(f"{lost}, and replica {self._names[ordinal]} waits for it in {what}")
        different = next((one for one, (other, _) in mine.items() if other != what), None)
        if different is not None:
            raise CollectiveMismatchError(
                "replicas disagree on their collectives: each must issue the same ones in the same order.\n"
                f"replica {self._names[ordinal]} runs {what}\nreplica {self._names[different]} runs {mine[different][0]}"
            )
        return [mine[one][1] for one in range(len(self._names))]

    def leave(self, ordinal: int, how: str) -> None:
        """A replica comes to no further round. how: what it did instead, as in "replica xla:1 has returned"."""
        with self._news:
            self._exits[ordinal] = how
            self._news.notify_all()


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
    """Run `work(place)` in a thread for each device, with that device as default, and return the results; among several these are replicas.

    Raises what a thread raises first, when all have ended; those that wait for it raise ReplicaLostError. JobError as
    `check_single_process`.
    """
    check_single_process(devices)
    names = [str(device) for device in devices]
    rendezvous = ThreadRendezvous(names)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            torch_xla.device(devices[place].index)
            if len(devices) > 1:
                xm.set_replication(devices[place], xm.xla_real_devices(names))
                _this_thread.rendezvous, _this_thread.ordinal = rendezvous, place
            results[place] = work(place)
        except BaseException as error:  # it belongs to the caller
            # Before the others hear of it: they fail because of this one, and the first error is raised.
            errors.append(error)
            rendezvous.leave(place, f"has failed with {type(error).__name__}: {error}")
        else:
            rendezvous.leave(place, "has returned")

    # Daemons: after Ctrl-C in `join` the process can end, whatever they wait for.
    running = [threading.Thread(target=run, args=(place,), name=f"xla-replica-{name}", daemon=True) for place, name in enumerate(names)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    return [results[place] for place in range(len(devices))]


@budget(compiles=None, reads=None)
def spawn_threads(fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
    """Run `fn(ordinal, *args)` in one thread for each device of this process. Raises what a thread raises first."""
    run_on_devices(torch_xla.devices(), lambda place: fn(place, *args))
