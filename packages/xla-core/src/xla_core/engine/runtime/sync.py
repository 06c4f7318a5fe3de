"""Decide what must run, and when: step syncs run all that is live, value reads only what the value needs."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import torch

from xla_core.base import config, metrics
from xla_core.base.errors import ExecutionError, GraphBreakError, LoweringError, PartFirstError, SealedError, XlaError
from xla_core.base.metrics import Cause, SyncEvent, SyncKind, Unit
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import operation_at
from xla_core.engine.graph.graph import Graph, inputs_of
from xla_core.engine.graph.pending_graph import BLANK, PendingGraph, Recorder, Value, buffers_made, no_value_error
from xla_core.engine.graph.selection import (
    ancestors,
    dead_leaves,
    extract,
    live_slots,
    live_values,
    renamed_lines,
    results_of_side_effects,
    store_results,
    wanted_outside,
)
from xla_core.engine.runtime import donation, executor, faults, turns
from xla_core.engine.runtime.interrupts import uninterrupted
from xla_core.engine.runtime.lost_values import give_up, lost_inputs
from xla_core.engine.runtime.source_location import asking_line
from xla_core.engine.runtime.transfer import download, download_number

# A pending graph this long is checked for operations that nothing alive needs, and again when it has doubled.
_COMPACT_FROM = 256


class _ReadBan(threading.local):
    """Why this thread may read no value now (`torch_xla.compile(full_graph=True)`); None if it may."""

    reason: str | None = None


_read_ban = _ReadBan()


def forbid_reads(reason: str | None) -> str | None:
    """Make value reads raise GraphBreakError with `reason` (None: allow them again). Returns the previous reason."""
    previous, _read_ban.reason = _read_ban.reason, reason
    return previous


def reads_forbidden() -> bool:
    """Whether this thread may read no value now."""
    return _read_ban.reason is not None


@dataclass(frozen=True, slots=True)
class StepProgram:
    """The work of a step sync: the graph, and the values that get its results."""

    graph: Graph
    values: list[Value] = field(compare=False)


def step_program(pending_graph: PendingGraph, donate: bool = True) -> StepProgram | None:
    """The program of everything live on `pending_graph`; None if nothing is. donate: let it take over buffers marked for donation."""
    # Referenced from here until they have their buffers.
    values = live_values(pending_graph)
    if not values:
        return None
    outs = tuple(value.slot for value in values)
    dead = dead_leaves(pending_graph)
    if donate and donation.any_marked():
        dead = tuple(sorted({*dead, *donation.marked_leaves(pending_graph, list(pending_graph.input_data))}))
    return StepProgram(Graph(tuple(pending_graph.entries), outs, dead, pending_graph.lines and dict(pending_graph.lines)), values)


def step(recorder: Recorder, wait: bool = False, cause: Cause | None = Cause.USER_SYNC) -> None:
    """Run everything live on one device as one graph and start a new step. Does not wait unless told to.

    Operations that did not run stay pending and can run again, whatever is raised (Ctrl-C, out of memory, a graph pass). If one operation
    fails, everything that does not depend on it runs, the values that do are lost, and its error is raised.
    """
    line = asking_line()
    if recorder.tape is not None:
        recorder.tape.let_others_wait()
    start, begin = time.time(), time.perf_counter_ns()
    with recorder.lock:
        metrics.metric_add("DeviceLockWait", time.perf_counter_ns() - begin, Unit.DURATION_NS)
        pending_graph = recorder.pending_graph
        # Ctrl-C may have interrupted the cleanup of a recording.
        pending_graph.mend()
        turns.leave(recorder)
        # Raises before anything of this step runs: all of it stays pending.
        faults.look(recorder, wait=False)
        ran = bool(pending_graph.entries) and run_live(recorder, pending_graph, cause, line)
        recorder.end_step()
    metrics.counter_add("MarkStep")
    launched = time.perf_counter_ns()
    if wait:
        # Without the lock: other threads go on recording.
        executor.wait(recorder)
    # On entering a region, a sync with nothing to run does not count as a step.
    if (ran or cause is not Cause.CLEAR_PENDING) and metrics.has_subscribers(SyncEvent):
        now = time.perf_counter_ns()
        _announce(recorder, line, start, now - begin, SyncKind.STEP, cause, now - launched)


# Far above what it costs to take a free lock.
_CONTENDED_NS = 200_000


def _measure_lock(begin: int) -> None:
    """Record how long a read waited for the lock of a device since `begin`, if another thread held it."""
    waited = time.perf_counter_ns() - begin
    if waited > _CONTENDED_NS:
        metrics.metric_add("DeviceLockWait", waited, Unit.DURATION_NS)


def run_live(recorder: Recorder, pending_graph: PendingGraph, cause: Cause | None, line: str | None) -> bool:
    """Run everything live, and empty the pending graph. Returns whether anything was live. Raises the first failure."""
    failed: XlaError | None = None
    while True:
        # Renumbers slots: entries, references and values must not disagree.
        with uninterrupted():
            turns.prepare(recorder, pending_graph)
        program = step_program(pending_graph, recorder.tape is None)  # a captured call repeats it, with other buffers
        if program is None:
            retire(recorder)
            break
        try:
            _run(recorder, pending_graph, program, cause, line)
            break
        except SealedError:  # nothing is wrong with the program
            raise
        except PartFirstError as error:
            _run_part(recorder, error, error.slot, cause)
        except XlaError as error:
            pending_graph.partly_run = True  # what is dead by then must not run again
            failed = failed or error
            # A graph that a pass made has other slots: they do not tell which operation here failed.
            if error.place is None or error.place[0] is not program.graph:
                if isinstance(error, (LoweringError, ExecutionError)):
                    _run_apart(recorder, program.values, cause, error)
                raise failed from error.__cause__
            give_up(pending_graph, [error.place[1]], error)
    if failed is not None:
        raise failed
    return program is not None


def _run_apart(recorder: Recorder, values: list[Value], cause: Cause | None, error: XlaError) -> None:
    """Compute those of `values` that can be computed without the others, after the program for all of them failed with `error`.

    A value that fails alone is lost, unless memory ran out: there may be more of it later.
    """
    pending_graph = recorder.pending_graph
    pending = [value for value in values if value.buffer is None and value.pending_graph is pending_graph]
    if len(pending) < 2:
        if pending and not _NO_MEMORY.search(str(error)):
            give_up(pending_graph, [operation_at(pending_graph.entries, pending[0].slot)], error)
        return
    half = len(pending) // 2
    # Running the first half may compute or lose values of the second.
    for part in (pending[:half], pending[half:]):
        try:
            _compute_on(recorder, [value for value in part if value.buffer is None and value.pending_graph is pending_graph], cause)
        except (LoweringError, ExecutionError) as failed:
            _run_apart(recorder, part, cause, failed)


_NO_MEMORY = re.compile("RESOURCE_EXHAUSTED|out of memory", re.IGNORECASE)


def _announce(
    recorder: Recorder, line: str | None, start_s: float, duration_ns: int, kind: SyncKind, cause: Cause | None, waited_ns: int = 0
) -> None:
    metrics.emit(
        SyncEvent(
            device=str(recorder.device), start_s=start_s, duration_ns=duration_ns, line=line, kind=kind, cause=cause, waited_ns=waited_ns
        )
    )


def _run(recorder: Recorder, pending_graph: PendingGraph, program: StepProgram, cause: Cause | None, line: str | None) -> None:
    begin = time.perf_counter_ns()
    inputs = inputs_of(pending_graph.entries, pending_graph.input_data)
    unwrapped = time.perf_counter_ns() - begin

    def keep(buffers: list[jax.Array]) -> None:
        begin = time.perf_counter_ns()
        for value, buffer in zip(program.values, buffers, strict=True):
            value.buffer = buffer
            value.pending_graph = None
            next(buffers_made)
        donation.settle()
        # Here, while Ctrl-C waits: operations that have run must not stay pending.
        retire(recorder)
        wrapped = time.perf_counter_ns() - begin
        metrics.metrics_add(("UnwrapXlaData", unwrapped, Unit.DURATION_NS), ("WrapXlaData", wrapped, Unit.DURATION_NS))

    try:
        executor.execute(recorder, program.graph, inputs, keep, cause, line)
    except ExecutionError as error:
        # A call that failed may have taken over donated inputs nevertheless.
        taken = [
            slot for slot, buffer in pending_graph.input_data.items() if type(pending_graph.entries[slot]) is Aval and buffer.is_deleted()
        ]
        if taken:
            raise lost_inputs(pending_graph, taken, error) from error
        raise


def retire(recorder: Recorder) -> None:
    """Empty the pending graph, so that it keeps no buffers of leaves alive, and start another one."""
    old = recorder.pending_graph
    recorder.pending_graph = PendingGraph(recorder.limit)
    # Values that were leaves still refer to the old one.
    for entries in (old.entries, old.refs, old.input_data, old.reads, old.lines, old.filled):
        entries.clear()


def compute(values: Sequence[Value], cause: Cause | None = Cause.VALUE_READ) -> None:
    """Make buffers for `values`, running only the operations that they need. All else stays pending, as do the values if this raises."""
    by_recorder: dict[Recorder, list[Value]] = {}
    for value in values:
        if value.buffer is None:
            by_recorder.setdefault(value.recorder, []).append(value)
    for recorder, group in by_recorder.items():
        begin = time.perf_counter_ns()
        with recorder.lock:
            _measure_lock(begin)
            # Asked again under the lock: another thread may have computed some.
            _compute_on(recorder, [value for value in group if value.buffer is None], cause)


def _compute_on(recorder: Recorder, values: list[Value], cause: Cause | None) -> None:
    if not values:
        return
    if _read_ban.reason is not None and cause is Cause.VALUE_READ:
        raise GraphBreakError(_read_ban.reason)
    pending_graph = recorder.pending_graph
    pending_graph.mend()
    for value in values:
        if value.slot == BLANK:
            pending_graph.adopt(value)
    lost = next((value for value in values if value.pending_graph is not pending_graph), None)
    if lost is not None:
        raise no_value_error(lost)
    if not _run_needed(recorder, [value.slot for value in values], cause):
        _compute_on(recorder, [value for value in values if value.buffer is None], cause)
        return
    if live_slots(pending_graph):
        pending_graph.partly_run = True
        compact(pending_graph)
    else:
        retire(recorder)  # dead operations would only make the next step another program


def _run_needed(recorder: Recorder, wanted: list[int], cause: Cause | None) -> bool:
    """Run what these slots need, as one program; slots stay what they are. Returns False if turns ran, which gives values other slots."""
    pending_graph = recorder.pending_graph
    needed = ancestors(pending_graph, wanted)
    entries, renamed, input_data = extract(pending_graph, needed)
    # All of it that is referenced becomes a result, so that it runs once.
    slots = [slot for slot in renamed if slot not in pending_graph.input_data and pending_graph.refs[slot]() is not None]
    # Only after an earlier read: it costs a walk over all that is pending.
    also = wanted_outside(pending_graph, needed) if pending_graph.partly_run else ()
    slots = sorted({*slots, *results_of_side_effects(pending_graph, needed), *also})
    # No leaves are dead here, since pending operations may read them: only buffers that the user has marked are donated.
    may_donate = donation.any_marked() and donation.enabled(recorder.index) and not recorder.eager and recorder.tape is None
    dead = donation.spare_leaves(pending_graph, list(renamed), slots) if may_donate else ()
    graph = Graph(tuple(entries), tuple(renamed[slot] for slot in slots), dead, renamed_lines(pending_graph, renamed))
    if len(entries) > turns.LONG and cause is Cause.VALUE_READ and turns.run_before(recorder, pending_graph, graph):
        # If there are turns, they have run most of it, and a short program is left.
        return False
    keep = partial(store_results, pending_graph, slots)
    try:
        executor.execute(recorder, graph, inputs_of(entries, input_data), keep, cause, asking_line())
    except PartFirstError as error:
        _run_part(recorder, error, next((old for old, new in renamed.items() if new == error.slot), None), cause)
        left = [slot for slot in wanted if slot not in pending_graph.input_data]
        return not left or _run_needed(recorder, left, cause)
    if dead:
        donation.settle()
    return True


def _run_part(recorder: Recorder, error: PartFirstError, slot: int | None, cause: Cause | None) -> None:
    """Run what the operation at a slot needs, with it, before the program that raised `error`. Raises `error` where that cannot be."""
    if slot is None or recorder.tape is not None:  # a captured step repeats whole programs
        raise error
    recorder.pending_graph.partly_run = True  # what later operations read of the part is a result of it, and does not run again
    _run_needed(recorder, [slot], cause)


def compact(pending_graph: PendingGraph) -> None:
    """Drop operations that nothing alive needs, if the pending graph has grown enough since the last time to be worth the walk."""
    if len(pending_graph.entries) >= max(_COMPACT_FROM, 2 * pending_graph.kept):
        turns.drop_dead(pending_graph)
        pending_graph.kept = len(pending_graph.entries)


def read_number(value: Value) -> Any:
    """The Python number of a value with one element, computed first if it is pending."""
    return _read([value], (), download_number)[0]


def read_many(values: Sequence[Value], beside: Sequence[Value] = ()) -> list[torch.Tensor]:
    """CPU copies of `values`. Pending values among them and `beside` are computed in one execution for each device."""
    return _read(values, beside, download)


def _read(values: Sequence[Value], beside: Sequence[Value], take: Callable[[Value], Any]) -> list[Any]:
    line = asking_line()
    start, begin = time.time(), time.perf_counter_ns()
    pending = [value for value in (*values, *beside) if value.buffer is None]
    if pending:
        compute(pending)
    taken = [take(value) for value in values]
    # After the copies, which waited for these programs: their error words are ready.
    for recorder in dict.fromkeys([value.recorder for value in values]):
        faults.look(recorder, wait=True)
    if pending and metrics.has_subscribers(SyncEvent):
        _announce(pending[0].recorder, line, start, time.perf_counter_ns() - begin, SyncKind.READ, Cause.VALUE_READ)
    return taken


def block(values: Iterable[Value]) -> None:
    """Compute `values` and wait for them."""
    listed = list(values)
    compute(listed)
    for value in listed:
        if value.buffer is not None:
            value.buffer.block_until_ready()


StepHook = Callable[[Recorder], None]
_before_step: list[StepHook] = []
_after_step: list[StepHook] = []


def before_step(hook: StepHook) -> Callable[[], None]:
    """Call `hook(recorder)` before each user-visible step; returns a function that removes it."""
    _before_step.append(hook)
    return lambda: _before_step.remove(hook)


def after_step(hook: StepHook) -> Callable[[], None]:
    """Call `hook(recorder)` after each user-visible step; returns a function that removes it."""
    _after_step.append(hook)
    return lambda: _after_step.remove(hook)


def user_step(recorder: Recorder, wait: bool, log: str, cause: Cause = Cause.USER_SYNC) -> None:
    """A step sync of the user's API: log line, hooks, run, hooks (metrics file, step closures)."""
    if config.EMIT_STEPLOG.get():
        print(log, file=sys.stderr, flush=True)
    for hook in tuple(_before_step):
        hook(recorder)
    forced = config.SYNC_WAIT.get()
    step(recorder, wait if forced is None else forced, cause)
    for hook in tuple(_after_step):
        hook(recorder)


def finish_step(recorder: Recorder, line: str | None, start_s: float, begin_ns: int) -> None:
    """Finish a captured step after its launch: wait if `XLA_SYNC_WAIT` says so, emit its event, call the hooks. begin_ns: when it began."""
    metrics.counter_add("MarkStep")
    launched = time.perf_counter_ns()
    if config.SYNC_WAIT.get():
        executor.wait(recorder)
    if metrics.has_subscribers(SyncEvent):
        now = time.perf_counter_ns()
        _announce(recorder, line, start_s, now - begin_ns, SyncKind.STEP, Cause.CAPTURED, now - launched)
    for hook in tuple(_after_step):
        hook(recorder)
