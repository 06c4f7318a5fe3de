"""Bound what is pending: a program that nobody syncs is run in parts, those of a loop where its turns end."""

from __future__ import annotations

from collections.abc import Sequence

from xla_core.errors import XlaError
from xla_core.ir.graph import keep_live
from xla_core.ir.loops import Loop
from xla_core.ir.tape import Recorder, Tape, Value
from xla_core.metrics import Cause
from xla_core.runtime import faults, turns
from xla_core.runtime.origin import asking_line
from xla_core.runtime.sync import compute, reads_forbidden, run_live

_FOR_A_LOOP = 4  # times the limit is how far to look for the end of a second turn


def relieve(recorder: Recorder, values: Sequence[Value]) -> None:
    """Run pending work after a recording that made `values` and left more entries than its tape may have: in eager mode, compute
    them; else run what is live, as a step would, and drop what is not.
    """
    if recorder.eager:
        compute(values, None)
        faults.look(recorder, wait=True)
        return
    faults.look(recorder, wait=False)  # as a sync does: here there is none
    with recorder.lock:
        tape = recorder.tape
        if len(tape.entries) <= tape.limit:
            return  # done by another thread
        if reads_forbidden() or not turns.may_run(recorder, tape):
            tape.limit *= 2
        elif recorder.loop is None:
            _reduce(recorder, tape)
        else:
            _follow(recorder, tape, recorder.loop)


def _reduce(recorder: Recorder, tape: Tape) -> None:
    """Drop what is dead; if that was little, run the turns of a loop, or everything if there is none."""
    entries, allowed = len(tape.entries), turns.limit()
    far = entries >= _FOR_A_LOOP * allowed
    tape.partly_run = True
    keep_live(tape)
    if 2 * len(tape.entries) <= entries:
        tape.limit = max(allowed, 2 * len(tape.entries))
        return
    try:
        if turns.run_turns(recorder, tape, layers=far):
            return
    except XlaError:  # runs all that can run, and says what cannot
        run_live(recorder, tape, Cause.PENDING_LIMIT, asking_line())
        return
    if far:
        run_live(recorder, tape, Cause.PENDING_LIMIT, asking_line())
    else:
        tape.limit = 2 * entries


def _follow(recorder: Recorder, tape: Tape, loop: Loop) -> None:
    """Run what is live at the end of a turn; look on for that end otherwise, until it has been missed."""
    entries = len(tape.entries)
    if turns.ended(tape, loop):
        recorder.limit = min(recorder.limit, entries - 1)
        run_live(recorder, tape, Cause.PENDING_LIMIT, asking_line())
    elif entries < 4 * loop.size:
        tape.limit = entries
    else:
        turns.leave(recorder)
