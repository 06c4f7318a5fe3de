"""What the tests of the core share: counting what happened, and a process of its own for what belongs to a process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla
from xla_core import metrics
from xla_core.abi.operators import OpSpec, register_op
from xla_core.ops.table import TABLE, absent_operations
from xla_core.runtime.executor import wait_all

Run = Callable[..., str]
LIMIT_S = 300


class Counts:
    """How often things happened since this was made: `counts.MarkStep`, `counts["aten::nonzero"]`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        wait_all()
        self._before = dict(metrics.snapshot().counters)

    def __getitem__(self, name: str) -> int:
        return metrics.counter(name) - self._before.get(name, 0)

    def __getattr__(self, name: str) -> int:
        return self[name]


@pytest.fixture
def counts() -> Iterator[Counts]:
    """Counted from a step's start, with nothing pending."""
    torch_xla.sync()
    yield Counts()
    torch_xla.sync()


@pytest.fixture
def needs() -> Callable[[str], None]:
    """Skips a test of an operation of aten that this torch does not have."""

    def skip_without(name: str) -> None:
        if f"aten::{name}" in absent_operations():
            pytest.skip(f"torch {torch.__version__} has no {name}")

    return skip_without


@pytest.fixture
def run() -> Run:
    """`start_process`, for one test."""
    return start_process


@pytest.fixture(scope="session")
def template() -> Iterator[subprocess.Popen[str]]:
    """A process of `template.py`, which ends with the tests."""
    command = [sys.executable, str(Path(__file__).with_name("template.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="session")
def fork(template: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """As `run`, in a third of the time: in a process in which torch and jax are imported already, and their variables read."""

    def fork_process(code: str, stderr: bool = False, code_wanted: int = 0, **variables: str | None) -> str:
        streams = [tmp_path_factory.getbasetemp() / name for name in ("stdout", "stderr")]
        for stream in streams:
            stream.write_bytes(b"")
        program = {"code": textwrap.dedent(code), "variables": environment(**variables), "streams": list(map(str, streams))}
        assert template.stdin is not None and template.stdout is not None
        template.stdin.write(json.dumps(program) + "\n")
        template.stdin.flush()
        if not select.select([template.stdout], [], [], LIMIT_S)[0]:
            os.killpg(template.pid, signal.SIGKILL)
        ended = template.stdout.readline().strip()
        out, err = (stream.read_text(encoding="utf-8") for stream in streams)
        assert ended == str(code_wanted), f"exit code {ended}\n{out}\n{err}"
        return err if stderr else out

    return fork_process


def environment(**variables: str | None) -> dict[str, str]:
    """This process's with these variables, on CPU unless told otherwise; None removes one."""
    settings: dict[str, str | None] = {**os.environ, "PJRT_DEVICE": "CPU", **variables}
    return {name: text for name, text in settings.items() if text is not None}


def start_process(code: str, stderr: bool = False, code_wanted: int = 0, **variables: str | None) -> str:
    """`run(code, VARIABLE="value", …)`: stdout of a new interpreter, on CPU unless told otherwise; None removes a variable.

    The process must exit with `code_wanted`; its stderr is asked for with `stderr=True`.
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == code_wanted, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr if stderr else done.stdout


@pytest.fixture
def custom_op() -> Iterator[Callable[..., Any]]:
    """`custom_op(schema, cpu_kernel, lowering=None, **row)` gives a new operation `torch.ops.xla_core_tests.<name>`.

    A lowering makes it a row of the op table; without one it runs on the CPU.
    """
    library = torch.library.Library("xla_core_tests", "DEF")
    rows = []

    def make(schema: str, cpu_kernel: Callable[..., Any], lowering: Callable[..., Any] | None = None, **row: Any) -> Any:
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, cpu_kernel, "CPU")
        if lowering is not None:
            rows.append(register_op(OpSpec(f"xla_core_tests::{name}", lowering, **row)).name)
        return getattr(torch.ops.xla_core_tests, name)

    yield make
    for name in rows:
        del TABLE[name]
    library._destroy()
