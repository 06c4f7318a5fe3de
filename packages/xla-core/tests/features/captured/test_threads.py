"""Threads that use the device beside a captured step: what they run is not taken for the step's, and nobody gets other numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from captured_programs import Unseen
from torch import Tensor, nn

import torch_xla
from xla_core.base import metrics
from xla_core.base.errors import CaptureError
from xla_core.base.metrics import Cause, SyncEvent
from xla_core.features.captured import tape


class Beside:
    """A thread that runs `work` when it is told to, and is waited for."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = False
        self.failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if self._ended:
                return
            try:
                self._work()
            except BaseException as error:
                self.failed.append(error)
            self._done.release()

    def once(self) -> None:
        """Let it work, and wait for that."""
        self._go.release()
        self._done.acquire()

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._go.release()
        self._thread.join()


@contextmanager
def looping(work: Callable[[], object]) -> Iterator[list[BaseException]]:
    """A thread that runs `work` again and again, and has done so once before the block begins; what it raised."""
    failed: list[BaseException] = []
    began, ended = threading.Event(), threading.Event()

    def run() -> None:
        try:
            while not ended.is_set():
                work()
                began.set()
        except BaseException as error:
            failed.append(error)
            began.set()

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    try:
        yield failed
    finally:
        ended.set()
        thread.join()


class Training:
    """A small training. inside: called in the middle of each call whose Python runs."""

    def __init__(self, capture: bool, inside: Callable[[], object] = lambda: None) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Linear(6, 3)).to("xla")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.data = torch.randn(5, 4).to("xla"), torch.randint(3, (5,)).to("xla")
        torch_xla.manual_seed(9)
        model, optimizer = self.model, self.optimizer

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            inside()
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.step = torch_xla.compile(step, capture=capture, verify_every=None)
        self.losses: list[Tensor] = []

    def run(self, calls: int) -> int:
        """So many steps; how many of them were captured."""
        captured: list[SyncEvent] = []
        end = metrics.subscribe(lambda event: captured.append(event) if event.cause is Cause.CAPTURED else None, SyncEvent)
        for _ in range(calls):
            self.losses.append(self.step(*self.data))
        end()
        return len(captured)

    def outcome(self) -> list[Tensor]:
        """Losses, parameters and the optimizer's state."""
        state = [value for each in self.optimizer.state.values() for value in each.values()]
        return [each.detach().cpu() for each in (*self.losses, *self.model.parameters(), *state)]


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    """Equal to the bit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


beside = torch.arange(6.0).to("xla")
counts = torch.zeros(3).to("xla")


def reads() -> None:
    assert beside.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def records_and_reads() -> None:
    assert (beside * 2 + 1).sum().item() == 36.0


def writes() -> None:
    counts.add_(1.0)


def uploads() -> None:
    assert torch.ones(3).to("xla").shape == (3,)


def evaluates() -> None:
    with torch.no_grad():
        assert F.linear(beside, beside).item() == 55.0


# What leaves the random state of the device as it is: a sync moves that on, here as everywhere.
WORK = {work.__name__: work for work in (reads, records_and_reads, writes, uploads, evaluates)}


@pytest.mark.parametrize("name", WORK)
def test_another_thread_in_the_middle_of_the_first_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "PATIENCE_S", 0.01)
    expected = Training(capture=False)
    expected.run(12)
    other, calls = Beside(WORK[name]), Unseen()
    training = Training(capture=True, inside=lambda: other.once() if next(calls) < 3 else None)
    assert training.run(12) >= 6
    other.end()
    assert not other.failed
    assert_equal(training.outcome(), expected.outcome())


def test_a_thread_that_reads_what_the_call_has_just_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which runs a part of the call by itself: its numbers are the true ones, and that call is recorded again."""
    monkeypatch.setattr(tape, "PATIENCE_S", 0.01)

    def run(capture: bool, threaded: bool) -> tuple[list[float], list[float]]:
        weight = nn.Parameter(torch.ones(3).to("xla"))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        seen: list[float] = []
        look = Beside(lambda: seen.append(weight.detach().sum().item()))
        calls = Unseen()

        def step(x: Tensor) -> None:
            optimizer.zero_grad()
            (weight * x).square().sum().backward()
            optimizer.step()
            if threaded and next(calls) < 3:
                look.once()

        called = torch_xla.compile(step, capture=capture, verify_every=None)
        for _ in range(10):
            called(torch.full((3,), 0.7).to("xla"))
        look.end()
        assert not look.failed
        return weight.tolist(), seen

    weights, seen = run(capture=True, threaded=True)
    expected, expected_seen = run(capture=False, threaded=True)
    assert weights == expected == run(capture=False, threaded=False)[0]
    assert seen == expected_seen


def test_a_thread_that_syncs_or_draws_random_numbers_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "PATIENCE_S", 0.01)
    work = iter([torch_xla.sync, lambda: torch.rand(2, device="xla").tolist(), lambda: torch_xla.manual_seed(4)])
    other, calls = Beside(lambda: next(work)()), Unseen()
    weight = torch.ones(3).to("xla")

    def step(x: Tensor) -> Tensor:
        y = x * weight
        if next(calls) < 3:
            other.once()
        return y + 1.0

    called = torch_xla.compile(step, capture=True, verify_every=None)
    for number in range(8):
        assert called(torch.full((3,), float(number)).to("xla")).tolist() == [number + 1.0] * 3
    other.end()
    assert not other.failed
    assert next(calls) == 5


@pytest.mark.parametrize("name", ["reads", "records_and_reads", "evaluates"])
def test_a_thread_that_never_rests(name: str) -> None:
    expected = Training(capture=False)
    expected.run(40)
    training = Training(capture=True)
    with looping(WORK[name]) as failed:
        captured = training.run(40)
    assert not failed
    assert captured >= 20
    assert_equal(training.outcome(), expected.outcome())


def test_a_thread_that_reads_parameters_never_sees_half_a_step() -> None:
    weight = nn.Parameter(torch.zeros(3).to("xla"))
    optimizer = torch.optim.SGD([weight], lr=0.5)

    @torch_xla.compile(capture=True, verify_every=None)
    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    seen: list[list[float]] = []
    x = torch.ones(3).to("xla")
    with looping(lambda: seen.append(weight.tolist())) as failed:
        for _ in range(60):
            step(x)
    assert not failed
    assert weight.tolist() == [-30.0] * 3
    assert all(first == second == third and first * 2 == int(first * 2) for first, second, third in seen)


def test_two_threads_that_capture_at_once() -> None:
    """Two trainings on one device, in step with each other."""
    expected = [Training(capture=False) for _ in range(2)]
    for each in expected:
        for layer in each.model:
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0  # both draw from one random state
        each.run(25)
    calls = Unseen()
    trainings = [Training(capture=True, inside=lambda: next(calls)) for _ in range(2)]
    for each in trainings:
        each.model[1].p = 0.0
    together, failed = threading.Barrier(2), []

    def run(training: Training) -> None:
        try:
            for _ in range(25):
                together.wait()
                training.run(1)
        except BaseException as error:
            failed.append(error)
            together.abort()

    threads = [threading.Thread(target=run, args=(each,)) for each in trainings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for found, other in zip(trainings, expected, strict=True):
        assert_equal(found.outcome(), other.outcome())
    assert next(calls) <= 25


def test_a_function_whose_threads_record_is_never_captured_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "PATIENCE_S", 0.01)
    made: list[Tensor] = []
    x = torch.ones(3).to("xla")
    helper = Beside(lambda: made.append(x * 2))
    called = torch_xla.compile(lambda x: (helper.once(), x + made.pop())[1], capture=True, verify_every=None)
    with pytest.warns(RuntimeWarning, match="other threads used xla:0 in each of 16 calls"):
        for _ in range(20):
            assert called(x).tolist() == [3.0] * 3
    helper.end()


def test_what_the_function_does_itself_is_still_said() -> None:
    called = torch_xla.compile(lambda x: (x * 2 + (x - 1), torch_xla.sync(), x + 1)[2], capture=True, verify_every=None)
    x = torch.ones(3).to("xla")
    with looping(records_and_reads) as failed, pytest.raises(CaptureError, match="it runs 2 programs: leave out torch_xla.sync"):
        for _ in range(200):
            called(x)
    assert not failed
