"""Run the turns of a loop that was recorded without a sync one by one: one small program many times, not a long one once."""

from __future__ import annotations

import warnings
from functools import partial

from xla_core import config
from xla_core.ir.graph import Graph, ancestors, extract, inputs_of, keep_live, live_slots, materialize, renamed_lines
from xla_core.ir.layout import spans_devices
from xla_core.ir.loops import Loop, find_loop
from xla_core.ir.state import promote_state
from xla_core.ir.tape import NO_LIMIT, Recorder, Tape
from xla_core.metrics import Cause
from xla_core.runtime import executor, layouts
from xla_core.runtime.client import home
from xla_core.runtime.origin import asking_line, user_line
from xla_core.runtime.topology import topology
from xla_core.runtime.transfer import filled

_PIECE = 16  # operations that are worth a program of their own
_PIECES = 50  # into which what is pending is cut at most: each costs a walk over all that is


def limit() -> int:
    """The number of entries that a tape may have."""
    return config.MAX_PENDING.get() or NO_LIMIT


def prepare(recorder: Recorder, tape: Tape) -> None:
    """Bring a tape into the form in which all of it can run."""
    if tape.partly_run:
        keep_live(tape)
    if tape.filled:
        promote_state(tape, partial(filled, recorder))
    if layouts.any_kept():
        layouts.settle(recorder)


def may_run(recorder: Recorder, tape: Tape) -> bool:
    """Whether programs may be cut elsewhere than the user's code does: not where other processes must run the same ones."""
    together = any(type(entry) is tuple and entry[0].once for entry in tape.entries)
    return not together and not (topology().process_count > 1 and spans_devices(home(recorder)))


def run_turns(recorder: Recorder, tape: Tape, layers: bool = False) -> bool:
    """If a tape ends in a loop, run its whole turns, and let the next ones run as they end; whether it does.

    What began after the last whole turn stays pending. layers: as `find_loop` has it.
    """
    tape.partly_run = True
    prepare(recorder, tape)
    loop = find_loop(tape, layers)
    if loop is None:
        return False
    together = -(-_PIECE // loop.length)
    pieces = loop.by(max(together, loop.turns // _PIECES))
    rest = loop.turns * loop.length - pieces.turns * pieces.length
    for length in (loop.head, *[pieces.length] * pieces.turns, rest):
        if length:
            _run_first(recorder, tape, length)
    recorder.loop = loop.by(together)
    recorder.allow(recorder.loop.size - 1)
    _announce(recorder, loop)
    return True


def _run_first(recorder: Recorder, tape: Tape, count: int) -> None:
    """Run the first `count` operations of a tape that has none that are not needed."""
    operations = [slot for slot, entry in enumerate(tape.entries) if type(entry) is tuple]
    end = operations[count] if count < len(operations) else len(tape.entries)
    wanted = {slot for slot in live_slots(tape) if slot < end}
    for slot in operations[count:]:
        wanted.update(operand for operand in tape.entries[slot][1:] if operand < end and operand not in tape.feeds)  # type: ignore[index]
    slots = sorted(wanted)
    entries, renamed, feeds = extract(tape, ancestors(tape, slots))
    graph = Graph(tuple(entries), tuple(renamed[slot] for slot in slots), lines=renamed_lines(tape, renamed))
    keep = partial(materialize, tape, slots)
    executor.execute(recorder, graph, inputs_of(entries, feeds), keep, Cause.PENDING_LIMIT, asking_line())
    keep_live(tape)


LONG = 500  # entries of a program for a read, from which on it is looked at
_no_loop: set[int] = set()  # hashes of long programs for reads in which none was found


def run_before(recorder: Recorder, tape: Tape, graph: Graph) -> bool:
    """Before a value is read by `graph`, which is long: run the turns of the loop that the tape ends in. Whether something ran."""
    mark = hash(graph.key)
    if mark in _no_loop or limit() == NO_LIMIT:
        return False
    if may_run(recorder, tape) and run_turns(recorder, tape):
        return True
    _no_loop.add(mark)
    return False


def ended(tape: Tape, loop: Loop) -> bool:
    """Whether the last operation of a tape ends a piece of `loop`."""
    entries = tape.entries
    slot = len(entries) - 1
    while type(last := entries[slot]) is not tuple:
        slot -= 1
    return last[0] is loop.last and sum(type(entry) is tuple and entry[0] is loop.last for entry in entries) % loop.times == 0


def leave(recorder: Recorder) -> None:
    """Expect no further turns: the user syncs, or the loop is over."""
    if recorder.loop is not None:
        recorder.loop = None
        recorder.allow(limit())


_announced = False


def _announce(recorder: Recorder, loop: Loop) -> None:
    """Say once what a loop without a sync has led to."""
    global _announced
    if not _announced:
        _announced = True
        warnings.warn(
            f"a loop without torch_xla.sync() has left {loop.head + loop.length * loop.turns:,} operations pending on {recorder.device}, "
            f"found at {user_line() or 'an unknown line'}: from now on its turns run as they end. Call torch_xla.sync() at the end of each "
            "step to say where that is; XLA_MAX_PENDING sets how much may be pending",
            RuntimeWarning,
            stacklevel=2,
        )
