"""Captured functions: recorded until two calls are alike, then launched without their Python, and verified now and then."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from xla_core.base.errors import CaptureError
from xla_core.base.private_torch import has_dispatch_modes, has_function_transforms, in_forward_mode
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.runtime import client, sync
from xla_core.engine.runtime.source_location import asking_line
from xla_core.engine.tracing.numbers import Integer
from xla_core.features.captured import following
from xla_core.features.captured.arguments import Arguments, Form, arguments_of, form_of
from xla_core.features.captured.checks import Checks
from xla_core.features.captured.constants import Constants
from xla_core.features.captured.differences import Difference, difference, explanation
from xla_core.features.captured.launch import Launch
from xla_core.features.captured.optimizers import WAYS
from xla_core.features.captured.outcome import NOTHING_COMPUTED, describe
from xla_core.features.captured.passed import Passed
from xla_core.features.captured.promotion import promote
from xla_core.features.captured.reads import Reads
from xla_core.features.captured.recorded import Recorded
from xla_core.features.captured.recording import CallRecording, NumberRefused, true_number, without_graph
from xla_core.features.captured.reports import Policy, Reports
from xla_core.features.captured.tape import Tape, current_tape
from xla_core.features.captured.variants import MOST_STATES, Program, Variant, Variants

_ATTEMPTS = 4
"""Capturing is given up after so many recorded calls of which none is like another, although nothing is seen to change in between."""
_SURPRISES = 2
"""Verified calls that may do something else than their program without a reason that can be seen: the first calls may prepare something."""
_DISTURBANCES = 16
"""Warn after so many recorded calls in a row in which other threads used the device."""


@dataclass(slots=True)
class _Call:
    """A call that is recorded. values: of the passed places, in order."""

    recorder: Recorder
    variant: Variant
    arguments: Arguments
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    values: list[Any]


class CapturedFunction:
    """A function with captured programs for each kind of arguments.

    record: a context in which a call is recorded, with a sync before and after. begin: a sync before a captured call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        policy: Policy,
        record: Callable[[], AbstractContextManager[object]],
        begin: Callable[[], None],
    ) -> None:
        self._function = function
        self._policy = policy
        self._record = record
        self._begin = begin
        self._passed = Passed()
        self._variants = Variants()
        self._constants = Constants()
        self._checks = Checks(policy.verify)
        self._latest: Recorded | None = None  # what the last call did, whether it was recorded or captured
        self._reports = Reports(policy)
        self._calls = 0  # so far, recorded or captured
        self._disturbances = 0  # recorded calls in a row in which other threads used the device
        self._patient = True  # such threads wait for the end of a recorded call
        _functions.add(self)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function. Raises CaptureError if it cannot be captured, or behaves differently from its captured program."""
        if current_tape() is not None:
            return self._function(*args, **kwargs)  # part of an outer captured function
        if has_dispatch_modes() or has_function_transforms() or in_forward_mode():
            return self._plain(args, kwargs)  # they see each operation
        self._calls += 1
        values = self._passed.values()
        try:
            arguments = arguments_of(args, kwargs, self._passed, values)
        except CaptureError as error:
            self._reports.refuse(str(error))
            return self._plain(args, kwargs)
        recorder = arguments.storages[0].value.recorder if arguments.storages else client.current_recorder()
        variant = self._variants.of(recorder, arguments)
        if variant is None:
            if self._passed.learn(args, kwargs):
                self._variants.start_again()
                values = self._passed.values()
                arguments = arguments_of(args, kwargs, self._passed, values)
            variant = self._variants.add(recorder, arguments)
            self._reports.kinds(self._variants, self._calls)
        if variant.given_up:
            return self._plain(args, kwargs)
        call = _Call(recorder, variant, arguments, args, kwargs, values)
        if not variant.programs:
            return self._recorded(call)
        seed = recorder.seed
        began = time.perf_counter()
        due = self._checks.due(began, variant.programs[-1].launch.busy())
        program, outcome = self._launched(call, due)
        if program is None or due:
            recorder.seed = seed  # a recorded call begins with a sync of its own, which moves it on as this one did
            return self._recorded(call) if program is None else self._verified(call, program, began)
        variant.used(program)
        self._variants.unserved = 0
        self._latest = program.launch.recorded
        self._checks.launched(time.perf_counter() - began)
        return outcome

    def programs(self) -> list[tuple[Launch, Form]]:
        """List the captured programs with the arguments that they serve. Raises CaptureError if capturing failed, or there are none yet."""
        if self._reports.refused is not None:
            raise CaptureError(self._reports.refused)
        programs = [(program.launch, program.form) for program in self._variants.programs()]
        if not programs:
            raise CaptureError(
                f"{self._policy.name} is not captured yet: call it with arguments as they will be, at least twice, and a third time if the "
                "first call makes the state of an optimizer"
            )
        return programs

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return self._policy.name

    def forget(self) -> None:
        """Forget what was captured: calls are recorded again."""
        self._variants.start_again()
        self._constants, self._latest = Constants(), None

    def _launched(self, call: _Call, due: bool) -> tuple[Program | None, Any]:
        """Launch a program that fits, unless the call is due to be verified. Returns the program that fits, and the result."""
        recorder, again = call.recorder, False
        while True:
            seed = recorder.seed
            self._begin()
            if again:
                recorder.seed = seed  # only one sync before the call may move it on, as for a recorded call
            again = True
            line, start, begin = asking_line(), time.time(), time.perf_counter_ns()
            with recorder.lock:
                if recorder.pending_graph.entries:
                    continue  # another thread has recorded meanwhile, perhaps with buffers that would be donated
                program, ready = call.variant.fitting(call.arguments)
                if program is not None and ready is not None and not due:
                    outcome = program.launch.launch(ready, call.arguments, line)
            if program is None:
                blanks = [value for each in call.variant.programs for value in each.launch.take_blanks()]
                if blanks:
                    sync.compute(blanks)
                    continue
            elif not due:
                sync.finish_step(recorder, line, start, begin)
                return program, outcome
            return program, None

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._record():
            return self._function(*args, **kwargs)

    def _recorded(self, call: _Call) -> Any:
        """Call the function, record it, and capture it if an earlier call was like it."""
        variant = call.variant
        known = () if self._latest is None else [stepped.optimizer for stepped in self._latest.stepped]
        tape = Tape(call.recorder, WAYS[variant.way], known, self._patient)
        try:
            outcome, recording, recorded = self._followed(tape, call, None)
        except NumberRefused as refusal:
            return self._without_integers(call, refusal)
        finally:
            tape.leave()
        self._checks.recorded()
        if tape.disturbed or recording is None:
            if tape.disturbed:
                self._disturbed(tape)
            return outcome
        self._disturbances = 0
        escape = None if recording.reads is None else recording.reads.objects.escape
        if escape is not None and self._passed.blind_to is None and self._passed.described:
            self._passed.forget_numbers(escape)
            self._variants.start_again()
            return outcome
        if recorded is None:
            variant.idle += tape.problems == [NOTHING_COMPUTED]
            if tape.problems != [NOTHING_COMPUTED] or variant.idle > MOST_STATES:
                variant.problems += 1
                self._give_up(variant, tape.problems[0], tape.in_optimizer, variant.problems > (1 if tape.in_optimizer else _ATTEMPTS - 2))
            return outcome
        variant.problems = 0
        if recording.has_graph:
            variant.given_up = True
            self._reports.has_graph()
            return outcome
        earlier, variant.latest, self._latest = variant.latest, recorded, recorded
        if earlier is not None and promote(earlier.objects, recorded.objects, self._passed):
            self._variants.start_again()
            return outcome
        mismatches = [difference(each, recorded) for each in variant.waiting]
        if None in mismatches:
            match = variant.waiting.pop(mismatches.index(None))
            recorded.comparisons += following.on_the_host(match, recorded)
            guards = following.guards(recorded, self._passed)
            variant.add(Program(Launch(call.recorder, recorded, guards), form_of(call.args, call.kwargs)))
            self._checks.captured()
            self._look_for_unused(variant, earlier, recorded)
            return outcome
        variant.wait(recorded)
        variant.attempts += 1
        if mismatches:
            self._look_for_mismatch(variant, mismatches[-1], earlier, recorded)
        return outcome

    def _look_for_mismatch(self, variant: Variant, mismatch: Difference | None, earlier: Recorded | None, recorded: Recorded) -> None:
        """Give up if too many recorded calls differ."""
        changed = None if earlier is None else explanation(earlier, recorded)
        if mismatch is None:
            return
        if changed is not None:
            if variant.attempts > MOST_STATES:
                blind = self._passed.blind_to
                why = f" (numbers are not followed, since it names {blind}, which takes them without asking)" if blind else ""
                variant.given_up = self._reports.refuse(
                    f"it does something else at each call, and {changed} changes as well{why}: {mismatch.text}"
                )
            return
        inside = mismatch.slot is not None and any(begin <= mismatch.slot < end for begin, end in recorded.stepped_slots)
        due = variant.attempts > _ATTEMPTS - 1
        if due and self._passed.whole and any(isinstance(number, (int, np.integer)) for number in recorded.numbers):
            self._passed.forget_integers()  # they may shape programs: each value gets its own
            self._variants.start_again()
            return
        self._give_up(variant, mismatch.text, inside, due)

    def _look_for_unused(self, variant: Variant, earlier: Recorded | None, recorded: Recorded) -> None:
        """Give up if many programs were captured, and no call could use one."""
        if variant.unused > MOST_STATES:
            changed = None if earlier is None else explanation(earlier, recorded)
            reason = f"{changed} is another one" if changed else "tensors, gradients or settings that it depends on are others"
            variant.given_up = self._reports.refuse(f"what was captured could never be used, because {reason} at each call")

    def _verified(self, call: _Call, program: Program, began: float) -> Any:
        """Call the function, record it, and compare that with what its program would have done."""
        variant, unverified = call.variant, self._checks.unverified
        tape = Tape(call.recorder, None, (), self._patient, program.launch.busy)
        try:
            outcome, _, recorded = self._followed(tape, call, program)
        except NumberRefused as refusal:
            return self._without_integers(call, refusal)
        finally:
            tape.leave()
        if tape.disturbed:
            self._disturbed(tape)
            return outcome
        self._disturbances = 0
        self._checks.verified(time.perf_counter() - began, tape.waited)
        mismatch = None if recorded is None else difference(program.launch.recorded, recorded, program.launch.numbers)
        if recorded is not None and mismatch is None:
            variant.used(program)
            return outcome
        variant.programs.remove(program)
        variant.waiting.clear()
        variant.surprises += 1
        text = mismatch.text if mismatch is not None else tape.problems[0]
        if unverified:
            calls = f"call {self._calls - 1}" if unverified == 1 else f"calls {self._calls - unverified} to {self._calls - 1}"
            variant.given_up = self._reports.changed(
                f"call {self._calls} does something else than what was captured: {text}. The results of {calls} may be wrong"
            )
        elif variant.surprises > _SURPRISES:
            variant.given_up = self._reports.refuse(
                f"call {self._calls} does something else than what was captured, although nothing changed that it is seen to read: {text}. "
                "Give what it depends on as an argument, or keep it in an attribute or in a tensor on the device"
            )
        return outcome

    def _followed(self, tape: Tape, call: _Call, program: Program | None) -> tuple[Any, CallRecording | None, Recorded | None]:
        """Call the function. Returns its result, and the recorded call if there is one. program: to compare it with."""
        recording: CallRecording | None = None
        args, kwargs, reads = call.args, call.kwargs, None
        captured = None if program is None else program.launch.recorded
        known = self._latest if captured is None else captured
        leaves = [] if known is None else known.leaves
        sync.compute([] if known is None else known.blanks())
        try:
            with self._record(), ExitStack() as stack:
                if not tape.open(self._begin):
                    return self._function(*args, **kwargs), None, None
                args, kwargs, symbols = stack.enter_context(following.numbers_followed(tape, self._passed, args, kwargs, call.values))
                recording = CallRecording(
                    tape, self._calls, call.arguments, self._passed.described, symbols, leaves, captured, self._constants
                )
                if captured is not None:
                    own = {id(stepped.optimizer) for stepped in captured.stepped}
                    tape.watch.ignores = lambda optimizer: id(optimizer) not in own
                else:
                    reads = Reads(self._passed.keys, set(map(id, call.arguments.opened)), recording.meet)
                    if not reads.start():
                        recording = None
                    else:
                        recording.reads = reads
                        tape.watch.ignores = reads.was_made
                        stack.callback(reads.stop)
                        reads.observe_roots(
                            [(self._policy.name, self._function), *[(type(each).__name__, each) for each in call.arguments.objects]]
                        )
                try:
                    outcome = self._function(*args, **kwargs)
                except TypeError as error:
                    if not any(isinstance(value, (int, np.integer)) for value in call.arguments.numbers):
                        raise
                    raise NumberRefused(error, recording, [symbol.name for symbol in symbols]) from error
                finally:
                    if recording is not None:
                        recording.end()
        finally:
            tape.close()
        # Other threads must not write while this looks at storages.
        with tape.recorder.lock:
            recorded = None if tape.disturbed or recording is None else describe(recording, outcome)
            if recording is not None:
                recording.met.clear()  # torch refuses some things to tensors that have weak references
        if reads is not None:
            reads.end()
        if recording is None:
            return outcome, None, recorded
        plain = true_number if recorded is None or recording.has_graph else partial(without_graph, tape)
        return recording.cleaned(outcome, plain), recording, recorded

    def _without_integers(self, call: _Call, refusal: NumberRefused) -> Any:
        """Call the function again without following integers. Raises CaptureError if something of the first try is left."""
        self._passed.forget_integers()
        self._variants.start_again()
        if refusal.recording is None or not refusal.recording.undone():
            if Integer.__name__ not in str(refusal.error):
                raise refusal.error from refusal.error.__cause__  # it need not be about a number
            raise CaptureError(
                f"{self._policy.name} ended in call {self._calls}, after it had changed something: {refusal.error}. That takes whole "
                f"numbers only that are the same in each call, and {', '.join(dict.fromkeys(refusal.names))} may not be: keep them the "
                "same, or leave the function uncaptured, and begin anew"
            ) from refusal.error
        return self._plain(call.args, call.kwargs)

    def _disturbed(self, tape: Tape) -> None:
        """Note that another thread used the device during a recorded call, which has to be recorded again."""
        self._patient = self._patient and not tape.waited_in_vain
        self._disturbances += 1
        if self._disturbances == _DISTURBANCES:
            self._reports.disturbed(tape.recorder.device, _DISTURBANCES)

    def _give_up(self, variant: Variant, problem: str, in_optimizer: bool, due: bool) -> None:
        """Refuse to capture, unless another way of following the optimizer is left to try."""
        if due and in_optimizer and variant.way + 1 < len(WAYS):
            variant.way, variant.attempts, variant.problems, variant.waiting = variant.way + 1, 0, 0, []
        elif due:
            variant.given_up = self._reports.refuse(problem)


_functions: weakref.WeakSet[CapturedFunction] = weakref.WeakSet()


def forget_all() -> None:
    """Forget what all functions have captured: it was recorded where nothing ran."""
    for captured in list(_functions):
        captured.forget()


_BEHIND = "_xla_captured_function"


def remember(wrapper: Callable[..., Any], captured: CapturedFunction) -> None:
    """Attach a captured function to the wrapper that users call."""
    setattr(wrapper, _BEHIND, captured)


def captured_function(called: Any) -> CapturedFunction | None:
    """The captured function behind a wrapper or bound method; None if there is none."""
    captured = getattr(called, _BEHIND, None)
    return captured if isinstance(captured, CapturedFunction) else None
