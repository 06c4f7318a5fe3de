"""Decide what must run, and when: step syncs run all that is live, value reads only what is asked for."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import torch

from xla_core import config, metrics
from xla_core.errors import ExecutionError, GraphBreakError, LoweringError, XlaError
from xla_core.ir.aval import Aval
from xla_core.ir.graph import (
    Graph,
    ancestors,
    dead_leaves,
    dependants,
    extract,
    inputs_of,
    keep_live,
    live_slots,
    materialize,
    operation_at,
    renamed_lines,
    results_of_once,
    wanted_outside,
)
from xla_core.ir.tape import BLANK, NOBODY, Recorder, Tape, Value, buffers_made, lose, loss
from xla_core.metrics import Cause, SyncEvent, SyncKind, Unit
from xla_core.runtime import executor, faults, turns
from xla_core.runtime.interrupts import uninterrupted
from xla_core.runtime.origin import asking_line
from xla_core.runtime.transfer import download

# A tape this long is checked for operations that nothing alive needs, and again when it has doubled.
_COMPACT_FROM = 256


class _Region(threading.local):
    """A part of this thread's program in which no value may be read (`torch_xla.compile(full_graph=True)`)."""

    forbidden: str | None = None


_region = _Region()


def forbid_reads(reason: str | None) -> str | None:
    """Make value reads raise GraphBreakError with `reason` (None: allow them again); gives the previous reason."""
    previous, _region.forbidden = _region.forbidden, reason
    return previous


def reads_forbidden() -> bool:
    """Whether this thread is where no value may be read."""
    return _region.forbidden is not None


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a step sync: the graph and the values that take its results."""

    graph: Graph
    values: list[Value] = field(compare=False)


def plan_step(tape: Tape) -> Plan | None:
    """The program of everything live on `tape`; None if nothing is."""
    slots = live_slots(tape)
    if not slots:
        return None
    values = [value for slot in slots if (value := tape.refs[slot]()) is not None]
    outs = tuple(value.slot for value in values)
    return Plan(Graph(tuple(tape.entries), outs, dead_leaves(tape), tape.lines and dict(tape.lines)), values)


def step(recorder: Recorder, wait: bool = False, cause: Cause | None = Cause.USER_SYNC) -> None:
    """Run everything live on one device as one graph and start a new step. Does not wait unless told to.

    What does not run stays pending, whatever is raised (Ctrl-C, no memory, a graph pass) and can run again. If one operation is at fault,
    all that does not depend on it runs, what does is lost, and its error is raised.
    """
    line = asking_line()
    start, begin = time.time(), time.perf_counter_ns()
    with recorder.lock:
        _measure_lock(begin)
        tape = recorder.tape
        tape.mend()
        turns.leave(recorder)
        faults.look(recorder, wait=False)
        ran = bool(tape.entries) and run_live(recorder, tape, cause, line)
        recorder.end_step()
    metrics.counter_add("MarkStep")
    launched = time.perf_counter_ns()
    if wait:
        executor.wait(recorder)
    # On entering a region, a sync that finds nothing is no step of the user's.
    if (ran or cause is not Cause.CLEAR_PENDING) and metrics.has_subscribers(SyncEvent):
        now = time.perf_counter_ns()
        _announce(recorder, line, start, now - begin, SyncKind.STEP, cause, now - launched)


_CONTENDED_NS = 200_000


def _measure_lock(begin: int) -> None:
    """Note how long it took to get the lock of a device, asked for at `begin`, if that was a wait for another thread."""
    waited = time.perf_counter_ns() - begin
    if waited > _CONTENDED_NS:
        metrics.metric_add("DeviceLockWait", waited, Unit.DURATION_NS)


def run_live(recorder: Recorder, tape: Tape, cause: Cause | None, line: str | None) -> bool:
    """Run everything live, and let go of the tape; whether there was anything. Raises what the first operation at fault raised."""
    failed: XlaError | None = None
    while True:
        with uninterrupted():
            turns.prepare(recorder, tape)
        plan = plan_step(tape)
        if plan is None:
            retire(recorder)
            break
        try:
            _run(recorder, tape, plan, cause, line)
            break
        except XlaError as error:
            tape.partly_run = True  # what is dead by then need not be run again
            failed = failed or error
            if error.place is None or error.place[0] is not plan.graph:
                if isinstance(error, (LoweringError, ExecutionError)):
                    _run_apart(recorder, plan.values, cause, error)
                raise failed from error.__cause__
            _give_up(tape, [error.place[1]], error)
    if failed is not None:
        raise failed
    return plan is not None


def _run_apart(recorder: Recorder, values: list[Value], cause: Cause | None, error: XlaError) -> None:
    """Compute those of `values` that can be computed without the others, where the program of all failed with `error`.

    What fails alone is lost, unless there was too little memory, of which there may be more later.
    """
    tape = recorder.tape
    pending = [value for value in values if value.buffer is None and value.tape is tape]
    if len(pending) < 2:
        if pending and not _NO_MEMORY.search(str(error)):
            _give_up(tape, [operation_at(tape.entries, pending[0].slot)], error)
        return
    half = len(pending) // 2
    for part in (pending[:half], pending[half:]):
        try:
            _compute_on(recorder, [value for value in part if value.buffer is None and value.tape is tape], cause)
        except (LoweringError, ExecutionError) as failed:
            _run_apart(recorder, part, cause, failed)


_NO_MEMORY = re.compile("RESOURCE_EXHAUSTED|out of memory", re.IGNORECASE)


def _give_up(tape: Tape, slots: Iterable[int], reason: XlaError) -> list[Value]:
    """Lose what depends on `slots`: using it raises `reason`. Gives the values that were held."""
    bad = dependants(tape, slots)
    values = [value for slot in sorted(bad) if (value := tape.refs[slot]()) is not None and slot not in tape.feeds]
    for value in values:
        tape.refs[value.slot] = NOBODY
        lose(value, reason)
    return values


def _announce(
    recorder: Recorder, line: str | None, start_s: float, duration_ns: int, kind: SyncKind, cause: Cause | None, waited_ns: int = 0
) -> None:
    metrics.emit(
        SyncEvent(
            device=str(recorder.device), start_s=start_s, duration_ns=duration_ns, line=line, kind=kind, cause=cause, waited_ns=waited_ns
        )
    )


def _run(recorder: Recorder, tape: Tape, plan: Plan, cause: Cause | None, line: str | None) -> None:
    begin = time.perf_counter_ns()
    inputs = inputs_of(tape.entries, tape.feeds)
    metrics.metric_add("UnwrapXlaData", time.perf_counter_ns() - begin, Unit.DURATION_NS)

    def keep(buffers: list[jax.Array]) -> None:
        begin = time.perf_counter_ns()
        for value, buffer in zip(plan.values, buffers, strict=True):
            value.buffer = buffer
            value.tape = None
            next(buffers_made)
        retire(recorder)
        metrics.metric_add("WrapXlaData", time.perf_counter_ns() - begin, Unit.DURATION_NS)

    try:
        executor.execute(recorder, plan.graph, inputs, keep, cause, line)
    except ExecutionError as error:
        taken = [slot for slot, feed in tape.feeds.items() if type(tape.entries[slot]) is Aval and feed.is_deleted()]
        if taken:
            raise _lost(tape, taken, error) from error
        raise


def _lost(tape: Tape, taken: list[int], error: ExecutionError) -> ExecutionError:
    """The error of an execution that failed after it took over the buffers of leaves `taken`: names what cannot be computed any more."""
    held = {id(value): value for reference in tape.refs if (value := reference()) is not None and value.tape is tape}
    made = {key: operation_at(tape.entries, value.slot) for key, value in held.items()}
    entries = tape.entries
    gone = Counter(f"{value.aval}{_made_at(entries[made[id(value)]])}" for value in _give_up(tape, taken, error))
    named = ", ".join(f"{count} of {text}" if count > 1 else text for text, count in gone.most_common(_NAMED))
    return ExecutionError(f"{error}. It had taken over its inputs, so that these are lost: {named or 'none that is still held'}")


_NAMED = 10


def _made_at(entry: Any) -> str:
    line = entry[0].line if type(entry) is tuple else None
    return f" made at {line}" if line else ""


def retire(recorder: Recorder) -> None:
    """Empty the tape: leaves that outlive it forget it, and it lets go of their buffers."""
    old = recorder.tape
    recorder.tape = Tape(recorder.limit)
    for entries in (old.entries, old.refs, old.feeds, old.reads, old.lines, old.filled):
        entries.clear()


def compute(values: Sequence[Value], cause: Cause | None = Cause.VALUE_READ) -> None:
    """Make buffers for `values`, running only what they need; all else stays pending, and so do they if something is raised."""
    by_recorder: dict[int, list[Value]] = {}
    for value in values:
        if value.buffer is None:
            by_recorder.setdefault(value.recorder.index, []).append(value)
    for group in by_recorder.values():
        recorder = group[0].recorder
        begin = time.perf_counter_ns()
        with recorder.lock:
            _measure_lock(begin)
            _compute_on(recorder, [value for value in group if value.buffer is None], cause)


def _compute_on(recorder: Recorder, values: list[Value], cause: Cause | None) -> None:
    if not values:
        return
    if _region.forbidden is not None and cause is Cause.VALUE_READ:
        raise GraphBreakError(_region.forbidden)
    tape = recorder.tape
    tape.mend()
    for value in values:
        if value.slot == BLANK:
            tape.adopt(value)
    lost = next((value for value in values if value.tape is not tape), None)
    if lost is not None:
        raise loss(lost)
    needed = ancestors(tape, [value.slot for value in values])
    entries, renamed, feeds = extract(tape, needed)
    slots = [slot for slot in renamed if slot not in tape.feeds and tape.refs[slot]() is not None]
    also = wanted_outside(tape, needed) if tape.partly_run else ()
    slots = sorted({*slots, *results_of_once(tape, needed), *also})
    graph = Graph(tuple(entries), tuple(renamed[slot] for slot in slots), lines=renamed_lines(tape, renamed))
    if len(entries) > turns.LONG and cause is Cause.VALUE_READ and turns.run_before(recorder, tape, graph):
        _compute_on(recorder, [value for value in values if value.buffer is None], cause)
        return
    executor.execute(recorder, graph, inputs_of(entries, feeds), partial(materialize, tape, slots), cause, asking_line())
    if live_slots(tape):
        tape.partly_run = True
        compact(tape)
    else:
        retire(recorder)  # what is left would only make the next step another program


def compact(tape: Tape) -> None:
    """Drop what nothing alive needs, if the tape has grown enough since the last time to be worth the walk."""
    if len(tape.entries) >= max(_COMPACT_FROM, 2 * tape.kept):
        keep_live(tape)
        tape.kept = len(tape.entries)


def read(value: Value) -> torch.Tensor:
    """A CPU copy of `value`, computed first if it is pending."""
    return read_many([value])[0]


def read_many(values: Sequence[Value], beside: Sequence[Value] = ()) -> list[torch.Tensor]:
    """CPU copies of `values`; what is pending of them and of those `beside` is computed in one execution for each device."""
    line = asking_line()
    start, begin = time.time(), time.perf_counter_ns()
    pending = [value for value in (*values, *beside) if value.buffer is None]
    compute(pending)
    tensors = [download(value) for value in values]
    for recorder in {value.recorder.index: value.recorder for value in values}.values():
        faults.look(recorder, wait=True)
    if pending and metrics.has_subscribers(SyncEvent):
        _announce(pending[0].recorder, line, start, time.perf_counter_ns() - begin, SyncKind.READ, Cause.VALUE_READ)
    return tensors


def block(values: Iterable[Value]) -> None:
    """Compute `values` and wait for them."""
    wanted = list(values)
    compute(wanted)
    for value in wanted:
        if value.buffer is not None:
            value.buffer.block_until_ready()


StepHook = Callable[[Recorder], None]
_before_step: list[StepHook] = []
_after_step: list[StepHook] = []


def before_step(hook: StepHook) -> Callable[[], None]:
    """Call `hook(recorder)` before each user-visible step; returns a function that ends it."""
    _before_step.append(hook)
    return lambda: _before_step.remove(hook)


def after_step(hook: StepHook) -> Callable[[], None]:
    """Call `hook(recorder)` after each user-visible step; returns a function that ends it."""
    _after_step.append(hook)
    return lambda: _after_step.remove(hook)


def user_step(recorder: Recorder, wait: bool, log: str, cause: Cause = Cause.USER_SYNC) -> None:
    """A step sync as the user's API promises it: log line, run, then hooks (metrics file, step closures)."""
    if config.EMIT_STEPLOG.get():
        print(log, file=sys.stderr, flush=True)
    for hook in tuple(_before_step):
        hook(recorder)
    forced = config.SYNC_WAIT.get()
    step(recorder, wait if forced is None else forced, cause)
    for hook in tuple(_after_step):
        hook(recorder)
