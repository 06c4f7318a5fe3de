"""Record the programs with collectives of one process, compare each with the other replicas, and answer their inquiries."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from xla_core.abi.collectives import note_replica_wait
from xla_distributed.errors import CollectiveMismatchError, JobError, ProgramCutError, ReplicaLostError, timed_out
from xla_distributed.job.client import JobClient, ProgramStatus
from xla_distributed.job.exit_status import Position, group_key
from xla_distributed.job.peers import Announcement, Peers
from xla_distributed.job.recorded_runs import (
    START,
    ProgramCollectives,
    RecordedRun,
    first_difference,
    group_digest,
    history_after,
    lines_shown,
    run_shown,
    runs_shown,
)
from xla_distributed.job.shutdown import exit_with_error

_CHECK_SECONDS = 1.0
_STUCK_AFTER = 1.0
_GRACE = 5.0  # seconds in which a process that cannot go on may still fail by itself
_REMEMBERED = 1024  # runs that a replica can be asked about
_COMPARED = 256  # runs in which replicas look for the first difference
_ANSWER_SECONDS = 5.0  # for the words of a replica that is known to do something else
_NOTHING = (0, START)
_DISAGREE = "replicas disagree on their collectives: each must issue the same ones in the same order."
_ENDS_BEFORE = (
    "another replica ends its program after {} of these collectives, and a captured or compiled step is one program: read values and end "
    "steps at the same places on all replicas."
)
MIXED = "replicas have run different programs with collectives together: what these gave is wrong."


@dataclass(slots=True, eq=False)
class FlightRecorder:
    """The programs that this process has run in a job, the latest last.

    peers: connections to the other replicas, where no program may be launched before they confirm it; counts: how many programs, by the
    key of the group that ran them; failed: the first there that failed before it was launched; histories: how many there were launched, and
    the digest of these.
    """

    job_client: JobClient
    timeout: Callable[[], float]
    peers: Peers | None = None
    counts: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    histories: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)  # how often the next run of a group was cut before all confirmed it
    compared: dict[str, int] = field(default_factory=dict)  # the last run of a group that others were asked to compare
    error_raised: bool = False  # the user's program has had an error of an execution
    building: RecordedRun | None = None  # the next, while its program is compiled
    known: set[tuple[bytes, tuple[int, ...]]] = field(default_factory=set)
    runs: deque[RecordedRun] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    turn: threading.Lock = field(default_factory=threading.Lock)  # threads announce their runs in the order of the numbers

    def run(self, collectives: ProgramCollectives, executable: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a program that all its replicas run now. Raises CollectiveMismatchError, ReplicaLostError, ReplicaTimeoutError."""
        key = collectives.group
        with self.turn:
            run = self._next(collectives)
            # Before anything can fail: a program that fails here takes its number as on the other replicas.
            self.counts[key] = run.number
            self.runs.append(run)
            with self._noting_failure(run):
                self._check(run)
            self.histories[key] = self.histories.get(key, _NOTHING)[0] + 1, run.history
        with self._noting_failure(run):
            results = executable(*arguments)
        # The last result of a program is donated to nobody: it can be asked at any later time.
        run.token = results[-1]
        return results

    def _next(self, collectives: ProgramCollectives) -> RecordedRun:
        """The next run of a group, with these collectives."""
        key = collectives.group
        history = history_after(self.histories.get(key, _NOTHING)[1], collectives)
        return RecordedRun(self.counts.get(key, 0) + 1, collectives, history, time.monotonic())

    @contextmanager
    def _noting_failure(self, run: RecordedRun) -> Iterator[None]:
        try:
            yield
        except ProgramCutError:
            # The part that runs first has the number.
            self.counts[run.collectives.group] = run.number - 1
            self.runs.remove(run)
            raise
        except BaseException:
            run.failed = True
            self.failed.setdefault(run.collectives.group, run.number)
            raise

    def _check(self, run: RecordedRun) -> None:
        """Raise unless a run may be launched, as far as this process is to know before."""
        # `exits` first: while all goes well, this costs a look at an empty dict.
        if self.job_client.exits:
            self._check_losses(run)
        if self.peers is not None:
            self._confirm(run, self.peers)
            return
        # The same on all replicas as long as they agree: none waits here for others that skip it. If they do not, `watch` finds out.
        collectives_key = run.collectives.digest, run.collectives.members
        if collectives_key not in self.known:
            self._agree(run)
            self.known.add(collectives_key)

    def _check_losses(self, run: RecordedRun) -> None:
        if self.job_client.cannot_run(run.number, run.collectives.members):
            raise ReplicaLostError(f"{self.job_client.losses()}; {self.shown(run)}")

    def _confirm(self, run: RecordedRun, peers: Peers) -> None:
        """Tell the other members what this replica is about to run, and raise unless all are about to run the same."""
        begin_ns = time.perf_counter_ns()
        while not self._announced_alike(run, peers):
            # Each member has one that differs from its own, and comes here. If it returns, others announce a part of theirs next.
            self._agree(run)
        self.cuts.pop(run.collectives.group, None)
        note_replica_wait(torch.device("xla:0"), begin_ns)

    def _announced_alike(self, run: RecordedRun, peers: Peers) -> bool:
        """Tell the other members what this replica is about to run; returns whether all are about to run the same."""
        own = Announcement(run.number, run.collectives.group_digest, run.collectives.digest)
        others = [rank for rank in run.collectives.members or range(self.job_client.size) if rank != self.job_client.rank]
        peers.announce(own, others)
        alike = True
        for index, rank in enumerate(others):
            theirs = peers.receive(rank)
            while theirs is None or self._is_over(theirs, run):
                if theirs is None:
                    self._check_wait(run, peers, others[index:])
                theirs = peers.receive(rank)
            if (theirs.number, theirs.group) != (own.number, own.group):
                raise self._crossing(run, own, rank, theirs)
            alike = alike and theirs.digest == own.digest
        return alike

    def _is_over(self, announcement: Announcement, run: RecordedRun) -> bool:
        """True if an announcement is of a run that this replica gave up."""
        if announcement.group == run.collectives.group_digest:
            return announcement.number < run.number
        return any(group_digest(key) == announcement.group and announcement.number <= count for key, count in self.counts.items())

    def _check_wait(self, run: RecordedRun, peers: Peers, awaited: Sequence[int]) -> None:
        """Raise if a run must not wait any longer for these."""
        shown = self.shown(run)
        self.job_client.check(run.name, shown)
        self._check_losses(run)
        limit = self.timeout()
        if time.monotonic() - run.start > limit:
            absent = [rank for rank in awaited if peers.receive(rank) is None]
            raise timed_out(limit, f"ordinals {absent}, which did not arrive.\n{shown}")

    def _crossing(self, run: RecordedRun, own: Announcement, rank: int, theirs: Announcement) -> CollectiveMismatchError:
        """The error of a run for which another replica does not come, because it waits in another one for this replica."""
        here, there = (f"{announcement.number} {announcement.group.hex()}" for announcement in (own, theirs))
        try:
            self.job_client.post(rank, f"{here} where {there} was expected", self.shown(run).encode())
            name = f"{there} where {here} was expected"
            text = self.job_client.take({name: rank}, _ANSWER_SECONDS)[1].decode()
        except JobError:
            text = f"replica {rank} runs another program: run {theirs.number} of its group"
        return CollectiveMismatchError(f"{_DISAGREE}\n{self.shown(run)}\n{text}")

    def _agree(self, run: RecordedRun) -> None:
        """Raise unless all its replicas are about to run the same collectives, and have run the same before.

        Where each launch is confirmed, those that are about to run more collectives than others get ProgramCutError, and the others wait
        for the part that is the same.
        """
        own = run.collectives
        own_parts = {"digest": own.digest.hex(), "each": own.digests, "lines": own.lines, "at": [run.number, run.history.hex()]}
        cuts = self.cuts.get(own.group, 0)
        name = f"{run.name}, cut {cuts} times" if cuts else run.name
        payloads = self.job_client.exchange_once(name, json.dumps(own_parts).encode(), self.timeout(), self.shown(run), own.members)
        parts = dict(zip(sorted(own.members) or range(self.job_client.size), map(json.loads, payloads), strict=True))
        different = [rank for rank, part in parts.items() if part["digest"] != own.digest.hex()]
        if not different:
            self.compare_positions([part["at"] for part in parts.values()], own.members)
            return
        theirs = tuple(map(str, parts[different[0]]["lines"]))
        start = next((i for i, (a, b) in enumerate(zip(own.lines, theirs, strict=False)) if a != b), 0)
        both = f"{run_shown(self.job_client.rank, run, start)}\nreplica {different[0]} runs{lines_shown(theirs, start)}"
        shared = min(len(part["each"]) for part in parts.values())
        if self.peers is None or len({tuple(part["each"][:shared]) for part in parts.values()}) > 1:
            raise CollectiveMismatchError(f"{_DISAGREE}\n{both}")
        self.cuts[own.group] = cuts + 1
        if len(own.digests) > shared:
            raise ProgramCutError(f"{_ENDS_BEFORE.format(shared)}\n{both}", shared)

    def position(self, key: str = "") -> Position:
        """How many programs a group has launched, and their history, for `compare_positions`."""
        count, history = self.histories.get(key, _NOTHING)
        return count, history.hex()

    def compare_positions(self, positions: Sequence[Sequence[int | str]], members: tuple[int, ...] = ()) -> None:
        """Raise CollectiveMismatchError, on all members, if some of them have come to one number by different programs."""
        if len({tuple(position) for position in positions}) == len({position[0] for position in positions}):
            return
        key = group_key(members)
        records = [run.record() for run in tuple(self.runs) if run.collectives.group == key and not run.failed][-_COMPARED:]
        parts = self.job_client.exchange(f"history {key}", json.dumps(records).encode(), self.timeout(), "comparing what ran", members)
        by_rank = dict(zip(sorted(members) or range(self.job_client.size), map(json.loads, parts), strict=True))
        raise CollectiveMismatchError(f"{MIXED}\n{first_difference(by_rank)}")

    @contextmanager
    def build(self, collectives: ProgramCollectives) -> Iterator[None]:
        """Record the next run while its program is compiled."""
        # Under the number that its run will have: others may hang there already, and wait for this compilation.
        run = self.building = self._next(collectives)
        try:
            yield
        finally:
            self.building = None
            run.failed = True  # another entry is made for its execution

    def oldest(self) -> RecordedRun | None:
        """The first run that is not over, be it compiled yet or not."""
        # A copy: the thread that runs programs may append meanwhile, and `over` asks JAX in between.
        return next((run for run in tuple(self.runs) if not run.over), self.building)

    def watch(self) -> None:
        """Report a run that hangs to the job, in a loop; where replicas do not confirm their runs, have the latest compared."""
        while True:
            time.sleep(_CHECK_SECONDS)
            run = self.oldest()
            if run is not None and time.monotonic() - run.start > _STUCK_AFTER:
                self.job_client.report_stuck(run.name, run.collectives.digest.hex(), self.shown(run), run.collectives.members)
            if self.peers is None:
                self.have_latest_compared()

    def have_latest_compared(self) -> None:
        """Ask the other members of groups in which this replica is first to compare their history with this one's, if it has grown."""
        latest = {run.collectives.group: run for run in tuple(self.runs) if not run.failed and run.token is not None}
        for key, run in latest.items():
            members = run.collectives.members
            if self.job_client.rank == min(members, default=0) and self.compared.get(key) != run.number:
                self.compared[key] = run.number
                self.job_client.report_run(run.name, run.history.hex(), self.shown(run), members)

    def _named(self, name: str) -> RecordedRun | None:
        building = self.building
        if building is not None and building.name == name:
            return building
        return next((run for run in tuple(self.runs) if run.name == name), None)

    def shown(self, run: RecordedRun) -> str:
        """A run in words; with those before it if it is over."""
        if not run.over or run.failed:
            return run_shown(self.job_client.rank, run)
        earlier = [past for past in tuple(self.runs) if past.collectives.group == run.collectives.group and past.number <= run.number]
        return runs_shown(self.job_client.rank, earlier)

    def status(self, name: str, digest: str) -> str | ProgramStatus:
        """The status of a run on this process; if another one ran or runs under its name here, or it was given up, that in words.

        digest: of its collectives, or its history.
        """
        run = self._named(name)
        if run is None:
            # A run older than those remembered cannot be compared any more, and counts as the same.
            number, _, key = name.removeprefix("run ").partition(" of ")
            return ProgramStatus.NOT_REACHED if int(number) > self.counts.get(key, 0) else ProgramStatus.SAME
        same = digest in (run.collectives.digest.hex(), run.history.hex())
        if not same and not run.failed and run.token is None and self.peers is not None:
            return ProgramStatus.NOT_REACHED  # it is not confirmed yet: both find out then
        # Where replicas are lost, that is the reason for all that was given up.
        gave_up = run.failed and run is not self.building and not self.job_client.exits
        return ProgramStatus.SAME if same and not gave_up else self.shown(run)

    def disagreed(self, name: str, text: str) -> None:
        """End the process if it waits in a collective that another replica does not run, or compiles one: nothing else can wake it."""
        run = self._named(name)
        if run is not None:
            # The caller is the thread that reads the job's news, with its lock held: it must not wait.
            threading.Thread(target=self._end, args=(run, text), name="xla-job-mismatch", daemon=True).start()

    def _end(self, run: RecordedRun, text: str) -> None:
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
