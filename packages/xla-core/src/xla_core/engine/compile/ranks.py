"""The processes of a job compile ahead together: they need the same programs under the same settings, and one of them compiles each."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import jax
import torch

from xla_core._version import __version__
from xla_core.base.errors import ExecutionError
from xla_core.engine.compile import disk
from xla_core.engine.compile.environment import differences, environment
from xla_core.engine.compile.nearest import KnownProgram, explained
from xla_core.engine.placement.target import Target

_TAG = "torch_xla.compile_only"
# Processes that wait for another's compiler hear from it so often: far below the time after which they take it for lost.
_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Needed:
    """A program that a process needs. key: the same in all processes; line: of the user's, that asked for it.

    acts_on_others: all processes must run it, as it has collectives. describe: reads its parts, to compare it.
    """

    key: str
    acts_on_others: bool
    line: str | None
    describe: Callable[[], KnownProgram]


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of its job, which all have devices of one kind.

    exchange: gives the payloads of all, by number, once all have called it with the same tag.
    """

    index: int
    target: Target
    exchange: Callable[[bytes, str], list[bytes]]

    def share(self) -> bool:
        """Whether this process keeps programs where others may find them."""
        cache = disk.active()
        return cache is not None and not cache.readonly

    def owners(self, needed: Sequence[Needed]) -> list[int] | None:
        """Who compiles each program that this process needs: the first that needs it. None: each for itself, as not all keep programs.

        Raises ExecutionError, in all processes, if their settings differ, or programs that act on others.
        """
        programs = [(program.key, program.acts_on_others) for program in needed]
        parts = self._gathered((_settings(self.target), self.share(), programs))
        for rank, (settings, _, _) in enumerate(parts):
            said = differences(parts[0][0], settings, "in process 0", f"in process {rank}")
            if said:
                raise ExecutionError(f"the processes of this job compile under different settings: {'; '.join(said)}. Give all the same")
        self._compare([[key for key, acts_on_others in programs if acts_on_others] for _, _, programs in parts], needed)
        if not all(shares for _, shares, _ in parts):
            return None
        first: dict[str, int] = {}
        for rank, (_, _, programs) in enumerate(parts):
            for key, _ in programs:
                first.setdefault(key, rank)
        return [first[program.key] for program in needed]

    def wait(self, compiling: Sequence[Future[None]]) -> None:
        """Wait until all processes have called this, and have compiled what is theirs."""
        done = [b""]
        while not all(done):
            finished = not wait(compiling, timeout=_SECONDS).not_done
            done = self.exchange(b"done" if finished else b"", _TAG)

    def _gathered(self, part: object) -> list[Any]:
        """What all processes give. Only those of this job can have sent what is unpickled here."""
        return [pickle.loads(theirs) for theirs in self.exchange(pickle.dumps(part), _TAG)]  # noqa: S301

    def _compare(self, keys: Sequence[Sequence[str]], needed: Sequence[Needed]) -> None:
        """Raise ExecutionError if programs that act on others, of all processes, are not the same in the same order."""
        for rank, theirs in enumerate(keys):
            index = next((index for index, (mine, other) in enumerate(zip_longest(keys[0], theirs)) if mine != other), None)
            if index is None:
                continue
            acting = [program for program in needed if program.acts_on_others][index : index + 1]
            parts = self._gathered([program.describe() for program in acting])
            raise ExecutionError(_difference(rank, parts[0], parts[rank]))


def _difference(rank: int, first: Sequence[KnownProgram], other: Sequence[KnownProgram]) -> str:
    """What is said of a program of process 0 and of another process, each of which has one or none."""
    advice = "All processes must run the same programs with collectives, in the same order: let nothing in them depend on the ordinal"
    if not other:
        return f"process {rank} needs no program like that with collectives which process 0 needs at {first[0].line}. {advice}"
    if not first:
        return f"process 0 needs no program like that with collectives which process {rank} needs at {other[0].line}. {advice}"
    difference = explained(other[0], first)
    recorded = f" (recorded at {difference.line})" if difference.line not in (None, other[0].line) else ""
    return (
        f"process {rank} needs another program with collectives at {other[0].line} than process 0 at {first[0].line}: "
        f"{difference.text}{recorded}. {advice}"
    )


def _settings(target: Target) -> dict[str, str]:
    """What must be the same in all processes, by name."""
    versions = {"xla-core": __version__, "torch": torch.__version__, "jax": jax.__version__}
    # Of hosts with different processors, each has code of its own.
    return {**versions, **{name: text for name, text in environment(target).items() if name != "processor"}}
