"""The account of collective programs that this process runs: checked with the other replicas before the first run, watched later.

Every program with collectives has a number, counted alike on all replicas. Before one whose collectives are new runs, the
replicas exchange what they are about to do under that number. Later runs cost nothing but an entry here: a thread looks once a
second whether the oldest unfinished one still hangs, or is still compiled, and tells the job, which knows whether others run something
else or are gone.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax

from xla_core.abi import Graph, Operation, register_build_scope, register_wrapper
from xla_distributed.ending import end_process
from xla_distributed.errors import CollectiveMismatchError, ReplicaLostError
from xla_distributed.member import Member, Standing

NAMESPACE = "xla_distributed"
_LOOK_EVERY = 1.0
_STUCK_AFTER = 1.0
_GRACE = 5.0  # seconds in which a process that cannot go on may still fail by itself
_SHOWN = 6  # collectives of each side in an error
_REMEMBERED = 1024  # runs that a replica can be asked about


@dataclass(frozen=True, slots=True)
class _Collectives:
    """The collectives of a program in order: a digest of what all replicas must share, and lines for people."""

    digest: str
    lines: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Run:
    """An execution of a program with collectives. token: is ready when it is done; None while it is being launched, or compiled.

    failed: it was not launched, whatever the reason.
    """

    number: int
    collectives: _Collectives
    start: float
    token: jax.Array | None = None
    failed: bool = False

    @property
    def name(self) -> str:
        return f"run {self.number}"

    @property
    def over(self) -> bool:
        return self.failed or (self.token is not None and self.token.is_ready())  # type: ignore[attr-defined]


@dataclass(slots=True, eq=False)
class _Ledger:
    """The programs that this process has run as a member of a job, the latest last."""

    member: Member
    timeout: Callable[[], float]
    count: int = 0
    failed: int | None = None  # the first that failed before it was launched
    told: bool = False  # whether the program has had an error of an execution
    building: _Run | None = None  # the next, while its program is compiled
    known: set[str] = field(default_factory=set)
    runs: deque[_Run] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def run(self, collectives: _Collectives, executable: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a program that all replicas run now. Raises CollectiveMismatchError, ReplicaLostError, ReplicaTimeoutError."""
        self.count += 1
        run = _Run(self.count, collectives, time.monotonic())
        self.runs.append(run)
        try:
            if self.member.gone and self.member.cannot_run(run.number):
                raise ReplicaLostError(f"{self.member.losses()}; {self.shown(run)}")
            if collectives.digest not in self.known:
                self._agree(run)
                self.known.add(collectives.digest)
            results = executable(*arguments)
        except BaseException:
            run.failed = True
            self.failed = self.failed or run.number
            raise
        run.token = results[-1]
        return results

    def _agree(self, run: _Run) -> None:
        """Raise unless all replicas are about to run the same collectives."""
        mine = run.collectives
        ours = json.dumps({"digest": mine.digest, "lines": mine.lines}).encode()
        parts = [json.loads(part) for part in self.member.exchange_once(run.name, ours, self.timeout(), self.shown(run))]
        different = [rank for rank, part in enumerate(parts) if part["digest"] != mine.digest]
        if not different:
            return
        theirs = tuple(map(str, parts[different[0]]["lines"]))
        start = next((place for place, (one, other) in enumerate(zip(mine.lines, theirs, strict=False)) if one != other), 0)
        raise CollectiveMismatchError(
            "replicas disagree on their collectives: each must issue the same ones in the same order.\n"
            f"{self.shown(run, start)}\nreplica {different[0]} runs{_shown(theirs, start)}"
        )

    @contextmanager
    def build(self, collectives: _Collectives) -> Iterator[None]:
        """While the program of the next run is compiled."""
        run = self.building = _Run(self.count + 1, collectives, time.monotonic())
        try:
            yield
        finally:
            self.building = None
            run.failed = True  # another entry is made for its execution

    def oldest(self) -> _Run | None:
        """The first run that is not over, be it compiled yet or not."""
        return next((run for run in tuple(self.runs) if not run.over), self.building)

    def look(self) -> None:
        """Tell the job of a run that hangs, again and again."""
        while True:
            time.sleep(_LOOK_EVERY)
            run = self.oldest()
            if run is not None and time.monotonic() - run.start > _STUCK_AFTER:
                self.member.stuck(run.name, run.collectives.digest, self.shown(run))

    def _named(self, name: str) -> _Run | None:
        building = self.building
        if building is not None and building.name == name:
            return building
        return next((run for run in tuple(self.runs) if run.name == name), None)

    def shown(self, run: _Run, start: int = 0) -> str:
        """A run in words."""
        return f"replica {self.member.rank} runs{_shown(run.collectives.lines, start)}"

    def inquiry(self, name: str, digest: str) -> str | Standing:
        """Answer whether this process ran or runs the same program under a name; if it is another one, in words."""
        run = self._named(name)
        if run is None:
            return Standing.ABSENT if int(name.removeprefix("run ")) > self.count else Standing.SAME
        return Standing.SAME if run.collectives.digest == digest else self.shown(run)

    def disagreed(self, name: str, text: str) -> None:
        """End the process if it waits in a collective that another replica does not run, or compiles one: nothing else can wake it."""
        run = self._named(name)
        if run is not None:
            threading.Thread(target=self._end, args=(run, text), name="xla-job-mismatch", daemon=True).start()

    def _end(self, run: _Run, text: str) -> None:
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline:
            if run.failed:
                return  # whoever runs it is told
            time.sleep(0.1)
        end_process(CollectiveMismatchError(f"replicas disagree on their collectives.\n{self.shown(run)}\n{text}"))

    def doomed(self) -> str | None:
        """Describe the program in which this process waits, or would, for others that do not come any more; None if there is none."""
        run = self.oldest()
        return self.shown(run) if run is not None and self.member.cannot_run(run.number) else None


_ledger: _Ledger | None = None


def watch(member: Member, timeout: Callable[[], float]) -> None:
    """Keep the account of this process from now on."""
    global _ledger
    _ledger = _Ledger(member, timeout)
    member.on_disagreement = _ledger.disagreed
    member.on_inquiry = _ledger.inquiry
    register_wrapper(_wrapped)
    register_build_scope(_building)
    threading.Thread(target=_ledger.look, name="xla-job-watch", daemon=True).start()


def count() -> int:
    """The number of programs with collectives that this process has run, up to one that failed."""
    if _ledger is None:
        return 0
    return _ledger.count if _ledger.failed is None else _ledger.failed - 1


def finish() -> Exception | None:
    """Wait for what this process has launched; why it failed, if it did and nobody knows, because nobody has read what it gives."""
    ledger = _ledger
    if ledger is None or ledger.told:
        return None
    token = next((run.token for run in reversed(tuple(ledger.runs)) if run.token is not None), None)
    if token is None:
        return None
    while not token.is_ready():  # type: ignore[attr-defined]
        time.sleep(0.01)  # Ctrl-C may come, and the watchdog if others do not
    try:
        token.block_until_ready()
    except RuntimeError as error:
        return error
    return None


def doomed() -> str | None:
    """`_Ledger.doomed` of this process."""
    return _ledger.doomed() if _ledger is not None else None


def _building(graph: Graph) -> AbstractContextManager[None]:
    """While a program is compiled, which others wait for if it holds collectives."""
    collectives = _collectives(graph) if _ledger is not None else None
    return nullcontext() if _ledger is None or collectives is None else _ledger.build(collectives)


def _wrapped(graph: Graph, executable: Callable[..., Any]) -> Callable[..., Any]:
    """The executable, with an entry in the account if it holds collectives."""
    ledger = _ledger
    collectives = _collectives(graph)
    if ledger is None or collectives is None:
        return executable

    def run(*arguments: Any) -> Any:
        return ledger.run(collectives, executable, arguments)

    return run


def _collectives(graph: Graph) -> _Collectives | None:
    found = [operation for operation in graph.operations() if operation.name.startswith(f"{NAMESPACE}.")]
    if not found:
        return None
    digest = hashlib.sha256("\n".join(operation.text for operation in found).encode()).hexdigest()
    return _Collectives(digest, tuple(_line(operation) for operation in found))


def _line(operation: Operation) -> str:
    text = operation.text.removeprefix(f"{NAMESPACE}.").partition(";")[0]
    return f"{text}{f'  # {operation.line}' if operation.line else ''}"


def _shown(lines: tuple[str, ...], start: int = 0) -> str:
    """Some collectives, one a line, from one on."""
    chosen = lines[start : start + _SHOWN]
    more = len(lines) - start - len(chosen)
    numbered = [f"  {start + place + 1}. {line}" for place, line in enumerate(chosen)]
    return "\n".join(["", *numbered, *([f"  and {more} more"] if more > 0 else [])])


def explanation(member: Member, error: BaseException) -> str | None:
    """Explain a failed execution of this process; None if nothing is known."""
    ledger = _ledger
    if ledger is None or not ledger.runs:
        return None
    ledger.told = True
    run = ledger.oldest() or ledger.runs[-1]
    deadline = time.monotonic() + 2.0
    while not member.gone and "Timed out" not in str(error) and time.monotonic() < deadline:
        time.sleep(0.05)  # the news of a death may be slower than the broken connection
    if member.gone:
        return f"{member.losses()}; {ledger.shown(run)}"
    others = member.disagreements.get(run.name)
    if others:
        return "\n".join([ledger.shown(run), *others.values()])
    if "Timed out" in str(error):
        return f"{ledger.shown(run)}\n{member.not_in(run.name)}"
    return None
