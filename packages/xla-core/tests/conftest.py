"""What the tests of the core share: counting what happened, and a process of its own for what belongs to a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import forked_python
import pytest
import torch

import torch_xla
from xla_core.abi.operators import OpSpec, register_op
from xla_core.base import metrics
from xla_core.engine.runtime.executor import wait_all
from xla_core.ops.table import TABLE, absent_operations

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


@pytest.fixture(scope="session")
def run() -> Run:
    """`start_process`: what it imports is there already, see tests/support/forked_python.py."""
    return start_process


@pytest.fixture
def interpreter() -> Run:
    """As `run`, with a new interpreter: for what is about imports, and variables that count while Python starts."""

    def run_anew(code: str, stderr: bool = False, code_wanted: int = 0, **variables: str | None) -> str:
        return _outcome(subprocess.run(_command(code), **_options(variables)), stderr, code_wanted)

    return run_anew


def environment(**variables: str | None) -> dict[str, str]:
    """This process's with these variables, on CPU unless told otherwise; None removes one."""
    settings: dict[str, str | None] = {**os.environ, "PJRT_DEVICE": "CPU", **variables}
    return {name: text for name, text in settings.items() if text is not None}


def start_process(code: str, stderr: bool = False, code_wanted: int = 0, **variables: str | None) -> str:
    """`run(code, VARIABLE="value", …)`: stdout of a process, on CPU unless told otherwise; None removes a variable.

    The process must exit with `code_wanted`; its stderr is asked for with `stderr=True`.
    """
    return _outcome(forked_python.run(_command(code), **_options(variables)), stderr, code_wanted)


def _command(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def _options(variables: dict[str, str | None]) -> dict[str, Any]:
    return {"env": environment(**variables), "capture_output": True, "text": True, "timeout": LIMIT_S}


def _outcome(done: subprocess.CompletedProcess[str], stderr: bool, code_wanted: int) -> str:
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
