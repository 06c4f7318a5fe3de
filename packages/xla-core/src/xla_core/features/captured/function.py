"""Captured functions: recorded until two calls in a row are alike, then launched without their Python."""

from __future__ import annotations

import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.base.errors import CaptureError
from xla_core.engine.compile.passes import pass_keys
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.runtime import client, sync
from xla_core.engine.runtime.source_location import asking_line
from xla_core.features.captured.arguments import Arguments, Form, arguments_of, form_of
from xla_core.features.captured.differences import difference
from xla_core.features.captured.launch import Launch
from xla_core.features.captured.optimizers import WAYS
from xla_core.features.captured.recording import CallRecording, Recorded
from xla_core.features.captured.tape import Tape, current_tape
from xla_core.ops import precision

_ATTEMPTS = 4
"""Capturing is given up after so many recorded calls without two alike in a row, or captured programs that no call could use."""
_DISTURBANCES = 16
"""Warn after so many recorded calls in a row in which other threads used the device."""
_MOST_PROGRAMS = 16
"""Keep the programs of at most so many kinds of arguments."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How to capture. name: of the function; fallback: keep recording what cannot be captured; verify_every: record every so many calls."""

    name: str
    fallback: bool
    verify_every: int


@dataclass(slots=True, eq=False)
class _Variant:
    """The state of calls with equal arguments. objects: kept, since the key has their ids; calls: since the capture.

    attempts: recorded calls without two alike in a row; way: index in `WAYS`. form: the arguments that the captured program serves.
    unused: captured programs in a row that no call could use, while the function's count of captured calls stayed at `served`.
    """

    objects: list[Any]
    last: Recorded | None = None
    captured: Launch | None = None
    attempts: int = 0
    unused: int = 0
    served: int = 0
    calls: int = 0
    way: int = 0
    given_up: bool = False
    form: Form | None = None


def _mode(recorder: Recorder) -> tuple[Any, ...]:
    """The caller's settings that decide what is recorded."""
    return (
        recorder,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        precision.chosen(),
        *pass_keys(),
    )


class CapturedFunction:
    """A function with a captured program for each kind of arguments.

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
        self._variants: OrderedDict[Any, _Variant] = OrderedDict()
        self._refused: str | None = None
        self._calls = 0  # so far, recorded or captured
        self._served = 0  # captured calls so far
        self._disturbances = 0  # recorded calls in a row in which other threads used the device
        self._patient = True  # such threads wait for the end of a recorded call

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function. Raises CaptureError if it cannot be captured, or behaves differently from its captured program."""
        if current_tape() is not None:
            return self._function(*args, **kwargs)  # part of an outer captured function
        self._calls += 1
        try:
            arguments = arguments_of(args, kwargs)
        except CaptureError as error:
            self._refuse(str(error))
            return self._plain(args, kwargs)
        recorder = arguments.storages[0].value.recorder if arguments.storages else client.current_recorder()
        variant = self._variant(recorder, arguments)
        if variant.given_up:
            return self._plain(args, kwargs)
        if variant.captured is None:
            return self._recorded(recorder, variant, None, arguments, args, kwargs)
        seed = recorder.seed
        variant.calls += 1
        due = variant.calls % self._policy.verify_every == 0
        fits, outcome = self._launched(recorder, variant.captured, arguments, due)
        if not fits or due:
            recorder.seed = seed  # a recorded call begins with a sync of its own, which moves it on as this one did
            return self._recorded(recorder, variant, variant.captured if fits else None, arguments, args, kwargs)
        self._served += 1
        return outcome

    def programs(self) -> list[tuple[Launch, Form]]:
        """List the captured programs with the arguments that they serve. Raises CaptureError if capturing failed, or there are none yet."""
        if self._refused is not None:
            raise CaptureError(self._refused)
        programs = [
            (variant.captured, variant.form)
            for variant in self._variants.values()
            if variant.captured is not None and variant.form is not None
        ]
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

    def _launched(self, recorder: Recorder, captured: Launch, arguments: Arguments, due: bool) -> tuple[bool, Any]:
        """Launch the captured program if it fits, unless the call is due to be verified. Returns whether it fits, and the result."""
        again = False
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
                ready = captured.ready(arguments)
                if ready is None or due:
                    return ready is not None, None
                outcome = captured.launch(ready, arguments, line)
            sync.finish_step(recorder, line, start, begin)
            return True, outcome

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._record():
            return self._function(*args, **kwargs)

    def _variant(self, recorder: Recorder, arguments: Arguments) -> _Variant:
        key = (*_mode(recorder), *arguments.key)
        variant = self._variants.get(key)
        if variant is None:
            if len(self._variants) >= _MOST_PROGRAMS:
                self._variants.popitem(last=False)
            variant = self._variants[key] = _Variant(arguments.objects)
        else:
            self._variants.move_to_end(key)
        return variant

    def _recorded(
        self,
        recorder: Recorder,
        variant: _Variant,
        verified: Launch | None,
        arguments: Arguments,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call the function, record it, and compare the recording with the captured program (`verified`) or the last call."""
        last = variant.last
        if variant.captured is not None and verified is None:
            # A dependency of the program has changed: start again.
            self._unused(variant)
            last, variant.attempts = None, 0
        variant.captured = variant.last = None
        tape = Tape(recorder, WAYS[variant.way], self._patient)
        try:
            outcome, recorded = self._followed(tape, arguments, last, args, kwargs)
        finally:
            tape.leave()
        if tape.disturbed:
            variant.captured, variant.last = verified, last
            self._disturbed(tape)
            return outcome
        self._disturbances = 0
        other = verified.recorded if verified is not None else last
        mismatch = None if recorded is None or other is None else difference(other, recorded)
        variant.last = recorded
        if recorded is not None and mismatch is None:
            if other is not None:
                variant.captured, variant.attempts, variant.form = Launch(recorder, recorded), 0, form_of(args, kwargs)
            return outcome
        if verified is not None:
            problem = tape.problems[0] if mismatch is None else mismatch.text
            variant.given_up = self._refuse(f"call {self._calls} does something else than what was captured: {problem}")
            return outcome
        # The first calls may prepare what later ones use: DistributedDataParallel makes its buckets anew in the second.
        variant.attempts += 1
        if mismatch is None:
            self._give_up(variant, tape.problems[0], tape.in_optimizer, variant.attempts > (1 if tape.in_optimizer else _ATTEMPTS - 2))
        else:
            slots = [] if recorded is None else recorded.stepped_slots
            inside = mismatch.slot is not None and any(begin <= mismatch.slot < end for begin, end in slots)
            self._give_up(variant, mismatch.text, inside, variant.attempts > _ATTEMPTS - 2)
        return outcome

    def _followed(
        self, tape: Tape, arguments: Arguments, last: Recorded | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Recorded | None]:
        """Call the function. Returns its result, and the recorded call if there is one."""
        try:
            with self._record():
                if not tape.open(self._begin):
                    return self._function(*args, **kwargs), None
                roots = [(self._policy.name, self._function), *[(type(item).__name__, item) for item in arguments.objects]]
                recording = CallRecording(tape, self._calls, roots, arguments, [] if last is None else last.leaves)
                outcome = self._function(*args, **kwargs)
        finally:
            tape.close()
        # Other threads must not write while this looks at storages.
        with tape.recorder.lock:
            return outcome, None if tape.disturbed else recording.finish(outcome)

    def _disturbed(self, tape: Tape) -> None:
        """Note that another thread used the device during a recorded call, which has to be recorded again."""
        self._patient = self._patient and not tape.waited_in_vain
        self._disturbances += 1
        if self._disturbances == _DISTURBANCES:
            warnings.warn(
                f"{self._policy.name} is not captured yet: other threads used {tape.recorder.device} in each of {_DISTURBANCES} calls that "
                "were recorded for it. Let them rest during its first calls, and start none inside",
                RuntimeWarning,
                stacklevel=4,
            )

    def _give_up(self, variant: _Variant, problem: str, in_optimizer: bool, due: bool) -> None:
        """Refuse to capture, unless another way of following the optimizer is left to try."""
        if due and in_optimizer and variant.way + 1 < len(WAYS):
            variant.way, variant.attempts, variant.last = variant.way + 1, 0, None
        elif due:
            variant.given_up = self._refuse(problem)

    def _unused(self, variant: _Variant) -> None:
        if variant.served != self._served:
            # Dependencies change, but not at each call: captured calls were served in between.
            variant.unused, variant.served = 0, self._served
        variant.unused += 1
        if variant.unused == _ATTEMPTS and variant.captured is not None:
            changed = variant.captured.recorded.state.changed()
            reason = f"{changed} is another one" if changed else "tensors, gradients or settings that it depends on are others"
            variant.given_up = self._refuse(f"what was captured could never be used, because {reason} at each call")

    def _refuse(self, problem: str) -> bool:
        """Report that the function cannot be captured. Returns True with fallback, else raises CaptureError."""
        text = f"{self._policy.name} cannot be captured: {problem}"
        if not self._policy.fallback:
            raise CaptureError(f"{text}. With torch_xla.compile(capture=True, fallback=True) it is recorded at each call instead")
        if self._refused is None:
            self._refused = text
            warnings.warn(f"{text}. It is recorded at each call", RuntimeWarning, stacklevel=4)
        return True


_BEHIND = "_xla_captured_function"


def remember(wrapper: Callable[..., Any], captured: CapturedFunction) -> None:
    """Attach a captured function to the wrapper that users call."""
    setattr(wrapper, _BEHIND, captured)


def captured_function(called: Any) -> CapturedFunction | None:
    """The captured function behind a wrapper or bound method; None if there is none."""
    captured = getattr(called, _BEHIND, None)
    return captured if isinstance(captured, CapturedFunction) else None
