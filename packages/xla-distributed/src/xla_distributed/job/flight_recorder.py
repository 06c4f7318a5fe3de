"""The flight recorder: collective programs that this process runs, compared with the other replicas before a first run, watched later.

Every program with collectives has a number, counted alike on all replicas that run it: on all, or on the members of a group. Before one
whose collectives are new runs, these exchange what they are about to do under that number. Later runs cost nothing but an entry in the
recorder: a thread looks once a second whether the oldest unfinished one still hangs, or is still compiled, and reports it to the job,
which knows whether others run something else or are lost.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax

from xla_core.abi.graph import Graph, Operation, register_build_scope, register_wrapper
from xla_distributed.errors import CollectiveMismatchError, JobError, ReplicaLostError
from xla_distributed.job.client import JobClient, ProgramStatus
from xla_distributed.job.exit_status import Runs, group_key
from xla_distributed.job.shutdown import exit_with_error

_CHECK_SECONDS = 1.0
_STUCK_AFTER = 1.0
_GRACE = 5.0  # seconds in which a process that cannot go on may still fail by itself
_SHOWN = 6  # collectives of each side in an error
_REMEMBERED = 1024  # runs that a replica can be asked about


@dataclass(frozen=True, slots=True)
class _Collectives:
    """The collectives of a program in order: a digest of what all replicas must share, and lines for people.

    members: the ordinals of the replicas that run it; none for all.
    """

    digest: str
    lines: tuple[str, ...]
    members: tuple[int, ...] = ()

    def run_name(self, number: int) -> str:
        """The name of a run of such a program, the same on all that run it, and no other's."""
        return f"run {number} of {group_key(self.members)}" if self.members else f"run {number}"


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
        return self.collectives.run_name(self.number)

    @property
    def over(self) -> bool:
        return self.failed or (self.token is not None and self.token.is_ready())  # type: ignore[attr-defined]


@dataclass(slots=True, eq=False)
class _FlightRecorder:
    """The programs that this process has run in a job, the latest last.

    counts: how many, by the key of the group that ran them; failed: the first there that failed before it was launched.
    """

    job_client: JobClient
    timeout: Callable[[], float]
    counts: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    error_raised: bool = False  # the user's program has had an error of an execution
    building: _Run | None = None  # the next, while its program is compiled
    known: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    runs: deque[_Run] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def run(self, collectives: _Collectives, executable: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a program that all its replicas run now. Raises CollectiveMismatchError, ReplicaLostError, ReplicaTimeoutError."""
        key = group_key(collectives.members)
        # Before anything can fail: a program that fails here takes its number as on the other replicas.
        self.counts[key] = self.counts.get(key, 0) + 1
        run = _Run(self.counts[key], collectives, time.monotonic())
        self.runs.append(run)
        try:
            # `exits` first: while all goes well, a run costs a look at an empty dict.
            if self.job_client.exits and self.job_client.cannot_run(run.number, collectives.members):
                raise ReplicaLostError(f"{self.job_client.losses()}; {self.shown(run)}")
            # The same on all replicas as long as they agree: none waits here for others that skip it. If they do not, `watch` finds out.
            if (collectives.digest, collectives.members) not in self.known:
                self._agree(run)
                self.known.add((collectives.digest, collectives.members))
            results = executable(*arguments)
        except BaseException:
            run.failed = True
            self.failed.setdefault(key, run.number)
            raise
        # The last result of a program is donated to nobody: it can be asked at any later time.
        run.token = results[-1]
        return results

    def _agree(self, run: _Run) -> None:
        """Raise unless all its replicas are about to run the same collectives."""
        mine = run.collectives
        ours = json.dumps({"digest": mine.digest, "lines": mine.lines}).encode()
        found = self.job_client.exchange_once(run.name, ours, self.timeout(), self.shown(run), mine.members)
        parts = dict(zip(sorted(mine.members) or range(self.job_client.size), map(json.loads, found), strict=True))
        different = [rank for rank, part in parts.items() if part["digest"] != mine.digest]
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
        # Under the number that its run will have: others may hang there already, and wait for this compilation.
        run = self.building = _Run(self.counts.get("", 0) + 1, collectives, time.monotonic())
        try:
            yield
        finally:
            self.building = None
            run.failed = True  # another entry is made for its execution

    def oldest(self) -> _Run | None:
        """The first run that is not over, be it compiled yet or not."""
        # A copy: the thread that runs programs may append meanwhile, and `over` asks JAX in between.
        return next((run for run in tuple(self.runs) if not run.over), self.building)

    def watch(self) -> None:
        """Report a run that hangs to the job, in a loop."""
        while True:
            time.sleep(_CHECK_SECONDS)
            run = self.oldest()
            if run is not None and time.monotonic() - run.start > _STUCK_AFTER:
                self.job_client.report_stuck(run.name, run.collectives.digest, self.shown(run), run.collectives.members)

    def _named(self, name: str) -> _Run | None:
        building = self.building
        if building is not None and building.name == name:
            return building
        return next((run for run in tuple(self.runs) if run.name == name), None)

    def shown(self, run: _Run, start: int = 0) -> str:
        """A run in words."""
        among = f" among {list(run.collectives.members)}" if run.collectives.members else ""
        return f"replica {self.job_client.rank} runs{among}{_shown(run.collectives.lines, start)}"

    def status(self, name: str, digest: str) -> str | ProgramStatus:
        """The status of a program on this process; if another one ran or runs under its name here, that one in words."""
        run = self._named(name)
        if run is None:
            # A run older than those remembered cannot be compared any more, and counts as the same.
            number, _, key = name.removeprefix("run ").partition(" of ")
            return ProgramStatus.NOT_REACHED if int(number) > self.counts.get(key, 0) else ProgramStatus.SAME
        return ProgramStatus.SAME if run.collectives.digest == digest else self.shown(run)

    def disagreed(self, name: str, text: str) -> None:
        """End the process if it waits in a collective that another replica does not run, or compiles one: nothing else can wake it."""
        run = self._named(name)
        if run is not None:
            # The caller is the thread that reads the job's news, with its lock held: it must not wait.
            threading.Thread(target=self._end, args=(run, text), name="xla-job-mismatch", daemon=True).start()

    def _end(self, run: _Run, text: str) -> None:
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline:
            if run.failed:
                return  # whoever runs it gets the error
            time.sleep(0.1)
        exit_with_error(CollectiveMismatchError(f"replicas disagree on their collectives.\n{self.shown(run)}\n{text}"))

    def blocked(self) -> str | None:
        """The program in which this process waits, or would, for replicas that are lost, in words; None if there is none."""
        run = self.oldest()
        waits = run is not None and self.job_client.cannot_run(run.number, run.collectives.members)
        return self.shown(run) if run is not None and waits else None


_recorder: _FlightRecorder | None = None
_operations: dict[str, str] = {}  # name of an operation in graphs → that of its collective


def record_operation(name: str, collective: str) -> None:
    """Take the operation `name` of graphs for a collective, which all replicas must run alike."""
    _operations[name] = collective


def start(job_client: JobClient, timeout: Callable[[], float]) -> None:
    """Record the collective programs of this process from now on."""
    global _recorder
    _recorder = _FlightRecorder(job_client, timeout)
    job_client.on_disagreement = _recorder.disagreed
    job_client.on_inquiry = _recorder.status
    register_wrapper(_wrapped)
    register_build_scope(_building)
    threading.Thread(target=_recorder.watch, name="xla-job-watch", daemon=True).start()


def counts() -> Runs:
    """How many programs with collectives this process has run, by group, up to one that failed."""
    if _recorder is None:
        return {}
    return {key: _recorder.failed.get(key, count + 1) - 1 for key, count in _recorder.counts.items()}


def run_among(members: Sequence[int], line: str, executable: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a program of one collective, `line` in words, that these replicas run, this one among them, and no others.

    Its last result is the token by which its end is known. Raises as `_FlightRecorder.run`, and ReplicaLostError if it fails.
    """
    if _recorder is None:
        return executable(*arguments)
    digest = hashlib.sha256(line.encode()).hexdigest()
    try:
        return _recorder.run(_Collectives(digest, (line,), tuple(members)), executable, arguments)
    except JobError:
        raise
    except (RuntimeError, ValueError) as error:  # the latter is how JAX tells of a broken connection
        raise ReplicaLostError(explanation(_recorder.job_client, error) or f"{line} failed: {error}") from error


def finish() -> Exception | None:
    """Wait for what this process has launched; why it failed, if it did and nobody knows, because nobody has read what it gives."""
    recorder = _recorder
    if recorder is None or recorder.error_raised:
        return None
    token = next((run.token for run in reversed(tuple(recorder.runs)) if run.token is not None), None)
    if token is None:
        return None
    while not token.is_ready():  # type: ignore[attr-defined]
        time.sleep(0.01)  # Ctrl-C may come, and the watchdog if others do not
    try:
        token.block_until_ready()
    except RuntimeError as error:
        return error
    return None


def blocked() -> str | None:
    """`_FlightRecorder.blocked` of this process."""
    return _recorder.blocked() if _recorder is not None else None


def _building(graph: Graph) -> AbstractContextManager[None]:
    """While a program is compiled, which others wait for if it holds collectives."""
    collectives = _collectives(graph) if _recorder is not None else None
    return nullcontext() if _recorder is None or collectives is None else _recorder.build(collectives)


def _wrapped(graph: Graph, executable: Callable[..., Any]) -> Callable[..., Any]:
    """The executable, with an entry in the recorder if it holds collectives."""
    recorder = _recorder
    collectives = _collectives(graph)
    if recorder is None or collectives is None:
        return executable

    def run(*arguments: Any) -> Any:
        return recorder.run(collectives, executable, arguments)

    return run


def _collectives(graph: Graph) -> _Collectives | None:
    found = [operation for operation in graph.operations() if operation.name in _operations]
    if not found:
        return None
    # Not of the users' lines: replicas may issue the same collective at different ones.
    digest = hashlib.sha256("\n".join(operation.text for operation in found).encode()).hexdigest()
    return _Collectives(digest, tuple(_line(operation) for operation in found))


def _line(operation: Operation) -> str:
    text = f"{_operations[operation.name]}{operation.text.removeprefix(operation.name)}".partition(";")[0]
    return f"{text}{f'  # {operation.line}' if operation.line else ''}"


def _shown(lines: tuple[str, ...], start: int = 0) -> str:
    """Some collectives, one a line, from one on."""
    chosen = lines[start : start + _SHOWN]
    more = len(lines) - start - len(chosen)
    numbered = [f"  {start + place + 1}. {line}" for place, line in enumerate(chosen)]
    return "\n".join(["", *numbered, *([f"  and {more} more"] if more > 0 else [])])


def explanation(job_client: JobClient, error: BaseException) -> str | None:
    """Explain a failed execution of this process; None if nothing is known."""
    recorder = _recorder
    if recorder is None or not recorder.runs:
        return None
    recorder.error_raised = True
    run = recorder.oldest() or recorder.runs[-1]
    deadline = time.monotonic() + 2.0
    while not job_client.exits and "Timed out" not in str(error) and time.monotonic() < deadline:
        time.sleep(0.05)  # the news of a death may be slower than the broken connection
    if job_client.exits:
        return f"{job_client.losses()}; {recorder.shown(run)}"
    others = job_client.disagreements.get(run.name)
    if others:
        return "\n".join([recorder.shown(run), *others.values()])
    if "Timed out" in str(error):
        return f"{recorder.shown(run)}\n{job_client.not_in(run.name, run.collectives.members)}"
    return None
