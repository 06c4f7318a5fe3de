"""Replicas that are threads of one process, each with a device of its own: how they start, and where they meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from xla_distributed import settings
from xla_distributed.errors import CollectiveMismatchError, JobError, ReplicaLostError, ReplicaTimeoutError

T = TypeVar("T")


class Meeting:
    """The rendezvous of one process's replicas: they exchange what they bring, in rounds that all of them take part in.

    names: of the replicas, by their ordinals.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._news = threading.Condition()
        self._round: dict[int, tuple[str, Any]] = {}
        self._gone: dict[int, str] = {}

    def exchange(self, ordinal: int, what: str, brought: Any) -> list[Any]:
        """Exchange one object with all replicas: theirs, in order of the ordinals; waits for all.

        what: says what this exchange is for, the same for all. Raises CollectiveMismatchError if it is not, ReplicaLostError if one
        does not come any more, ReplicaTimeoutError if one does not come in time.
        """
        with self._news:
            mine = self._round
            mine[ordinal] = (what, brought)
            if len(mine) == len(self._names):
                self._round = {}
                self._news.notify_all()
            patience = settings.COLLECTIVE_TIMEOUT_SECONDS.get()
            self._news.wait_for(lambda: len(mine) == len(self._names) or not mine.keys() >= self._gone.keys(), patience)
            missing = [name for one, name in enumerate(self._names) if one not in mine]
            if missing and mine.keys() >= self._gone.keys():
                raise ReplicaTimeoutError(
                    f"replica {self._names[ordinal]} waited {patience:g} s in {what} for {', '.join(missing)}, which did not arrive"
                )
            if missing:
                lost = ", ".join(f"replica {self._names[one]} {self._gone[one]}" for one in sorted(self._gone.keys() - mine.keys()))
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
            self._gone[ordinal] = how
            self._news.notify_all()


class _Membership(threading.local):
    """The meeting that this thread takes part in, and as whom."""

    meeting: Meeting | None = None
    ordinal = 0


_membership = _Membership()


def joined() -> bool:
    """Whether this thread is a replica beside others of its process."""
    return _membership.meeting is not None


def ordinal() -> int:
    """Which of these replicas this thread is."""
    return _membership.ordinal


def exchange(what: str, brought: Any) -> list[Any]:
    """`Meeting.exchange` for this thread."""
    if _membership.meeting is None:
        raise ReplicaLostError(f"{what}: this thread is no replica beside others")
    return _membership.meeting.exchange(_membership.ordinal, what, brought)


def check_alone(homes: Sequence[torch.device]) -> None:
    """Raise JobError for several devices in a process of a job: there each process is one replica."""
    if len(homes) > 1 and xr.process_count() > 1:
        raise JobError(
            f"threads for {len(homes)} devices need a process on its own, this one is one of {xr.process_count()}: in a job each process "
            "is a replica with one device, which xm.optimizer_step and the other collectives connect"
        )


def run_each(homes: Sequence[torch.device], work: Callable[[int], T]) -> list[T]:
    """Run `work(place)` in a thread for each device, with that device as default, and return the results; among several these are replicas.

    Raises what a thread raises first, when all have ended; those that wait for it raise ReplicaLostError. JobError as `check_alone`.
    """
    check_alone(homes)
    names = [str(home) for home in homes]
    meeting = Meeting(names)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            torch_xla.device(homes[place].index)
            if len(homes) > 1:
                xm.set_replication(homes[place], xm.xla_real_devices(names))
                _membership.meeting, _membership.ordinal = meeting, place
            results[place] = work(place)
        except BaseException as error:  # it belongs to the caller
            errors.append(error)
            meeting.leave(place, f"has failed with {type(error).__name__}: {error}")
        else:
            meeting.leave(place, "has returned")

    running = [threading.Thread(target=run, args=(place,), name=f"xla-replica-{name}", daemon=True) for place, name in enumerate(names)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    return [results[place] for place in range(len(homes))]


def spawn_threads(fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
    """Run `fn(ordinal, *args)` in one thread for each device of this process. Raises what a thread raises first."""
    run_each(torch_xla.devices(), lambda place: fn(place, *args))
