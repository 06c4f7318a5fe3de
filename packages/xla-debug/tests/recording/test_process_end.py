"""What a recording does at the end of a process is done once, by the process that began it."""

from __future__ import annotations

import sys

import forked_python
import pytest

PROGRAM = """
import os, sys
from xla_debug.recording import process_end

call_off = process_end.register(lambda: print("the end of", os.getpid(), flush=True))
child = os.fork()
if not child:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
if sys.argv[1:] == ["call off"]:
    call_off()
print("called off" if sys.argv[1:] else os.getpid(), flush=True)
"""


@pytest.mark.parametrize("called_off", [False, True])
def test_the_end_of_a_forked_child_is_not_that_of_its_parent(called_off: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, *(["call off"] if called_off else [])]
    lines = forked_python.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == (["called off"] if called_off else [lines[0], f"the end of {lines[0]}"])
