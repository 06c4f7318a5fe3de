"""SIGTERM: the state is saved once more, at the next step, and the program ends by itself. Real processes, real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_python
import pytest

import torch_xla.experimental.distributed_checkpoint as xc
from xla_serialization import load

Start = Callable[..., list[subprocess.Popen[str]]]
Reports = Callable[..., list[Any]]


def lead(process: subprocess.Popen[str], *at: str) -> None:
    """Let a program go on from place to place, and send it SIGTERM where it says one of `at`; until the last of them."""
    assert process.stdin is not None and process.stdout is not None
    left = list(at)
    while left:
        place = process.stdout.readline().strip()
        assert place, process.communicate()
        if place == left[0]:
            process.send_signal(signal.SIGTERM)
            left.pop(0)
        process.stdin.write("\n")
        process.stdin.flush()


def let_go(process: subprocess.Popen[str], reports: Reports) -> Any:
    """The report of a program that is waited for no more."""
    return reports([process])[0]


def ended(start: Start, reports: Reports, folder: Path, how: str, *at: str) -> Any:
    (process,) = start("preempted", folder, how)
    lead(process, *at)
    return let_go(process, reports)


def test_the_state_is_saved_at_the_step_and_the_program_ends(start: Start, reports: Reports, tmp_path: Path) -> None:
    report = ended(start, reports, tmp_path, "plain", "step 3")
    assert report["saved"] == report["wanted"] == report["all"] == [0, 3] and report["steps"] == 4
    assert report["restored"] == [3, [4.0, 4.0, 4.0]]


def test_a_signal_after_the_save_of_a_step_counts_for_the_next(start: Start, reports: Reports, tmp_path: Path) -> None:
    report = ended(start, reports, tmp_path, "plain", "saved 3")
    assert report["saved"] == report["all"] == [0, 4], "the answer for step 3 was given: no step is left without a save"
    assert report["steps"] == 5


def test_a_second_signal_changes_nothing(start: Start, reports: Reports, tmp_path: Path) -> None:
    report = ended(start, reports, tmp_path, "plain", "step 3", "reached")
    assert report["saved"] == report["all"] == [0, 3] and report["steps"] == 4


def test_the_handler_that_was_there_is_called_and_decides(start: Start, reports: Reports, tmp_path: Path) -> None:
    report = ended(start, reports, tmp_path, "handler", "step 2", "saved 2")
    assert report["called"] == [signal.SIGTERM] * 2 and report["saved"] == [0, 2] and report["steps"] == 20


def test_a_program_that_does_not_ask_ends_by_itself(start: Start, tmp_path: Path) -> None:
    (process,) = start("preempted", tmp_path, "unaware")
    lead(process, "step 3")
    out, err = process.communicate("\n" * 100, timeout=240)
    assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in err, err
    assert out.split()[-2:] == ["step", "4"], "the next step found out"
    assert xc.CheckpointManager(tmp_path, 1, chkpt_on_preemption=False).all_steps() == [0, 3]
    assert load(tmp_path / "3")["step"] == 3


def test_forked_processes_end_as_ever(start: Start, reports: Reports, tmp_path: Path) -> None:
    report = ended(start, reports, tmp_path, "fork", "step 1")
    assert report["child"] == signal.SIGTERM and report["saved"] == [0, 1]


def test_not_asked_for_the_signal_ends_the_program(start: Start, tmp_path: Path) -> None:
    (process,) = start("preempted", tmp_path, "off")
    lead(process, "step 1")
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("preempted", [0, 1])
def test_all_processes_save_at_the_same_step(start: Start, reports: Reports, tmp_path: Path, preempted: int) -> None:
    """Only one of two gets the signal."""
    job = start("together", "preempt", tmp_path, processes=2)
    for process in job:
        assert process.stdout is not None
        assert "ready\n" in process.stdout, process.communicate()
    job[preempted].send_signal(signal.SIGTERM)
    for process in job:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = reports(job)
    assert [report["signalled"] for report in found] == [preempted == 0, preempted == 1]
    for report in found:
        assert report["saved"] == report["all"] == [1, 3]


def test_a_handler_put_between_two_managers_and_the_first_one_are_called_once() -> None:
    code = """
import os, signal
from xla_serialization.training import preemption

called = []
signal.signal(signal.SIGTERM, lambda *_: called.append("first"))
preemption.watch()
earlier = signal.getsignal(signal.SIGTERM)

def between(*args):
    called.append("between")
    earlier(*args)

signal.signal(signal.SIGTERM, between)
preemption.watch()
os.kill(os.getpid(), signal.SIGTERM)
print(called, preemption.received())
"""
    done = forked_python.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split("\n")[0] == "['between', 'first'] True"
