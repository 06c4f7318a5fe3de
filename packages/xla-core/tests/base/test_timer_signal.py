"""The signal of libtpu's timer stays ignored where a library restores handlers."""

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from xla_core.base.timer_signal import tell_python_that_it_is_ignored


@pytest.fixture
def as_python_starts() -> Iterator[None]:
    if "libtpu" in sys.modules:
        pytest.skip("the timer of libtpu, which another test has loaded, would end this process")
    kept = signal.signal(signal.SIGPROF, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGPROF, kept)


def test_a_library_that_restores_handlers_leaves_it_ignored(as_python_starts: None) -> None:
    tell_python_that_it_is_ignored()
    kept = signal.getsignal(signal.SIGPROF)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, kept)
    signal.raise_signal(signal.SIGPROF)  # would end the process
    assert kept == signal.SIG_IGN


def test_a_handler_of_the_program_stays(as_python_starts: None) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGPROF, lambda number, frame: seen.append(number))
    tell_python_that_it_is_ignored()
    signal.raise_signal(signal.SIGPROF)
    assert seen == [signal.SIGPROF]


def test_another_thread_changes_nothing(as_python_starts: None) -> None:
    thread = threading.Thread(target=tell_python_that_it_is_ignored)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGPROF) == signal.SIG_DFL


@pytest.mark.targets
def test_targets_of_tpus_tell_python(run: Callable[..., str]) -> None:
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu: hatch run targets:test")
    code = "import signal, torch_xla\nwith torch_xla.target('v5e'): print(signal.getsignal(signal.SIGPROF) == signal.SIG_IGN)"
    assert run(code).split() == ["True"]
