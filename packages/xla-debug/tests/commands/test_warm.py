"""`xla-debug warm` on whole scripts: what it compiles is on disk for the process that runs the script, and nothing has run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked_python
import pytest

SCRIPT = """
import sys, torch, torch_xla
from xla_core.base import metrics

model = torch.nn.Linear(6, 3).to("xla")

@torch_xla.compile(capture=True)
def step(x, scale):
    with torch.no_grad():
        return model(x).sum(-1) * scale

def fails(x):
    return x.view(7)

if __name__ == "__main__":
    for rows in map(int, sys.argv[1:]):
        for _ in range(3):
            y = step(torch.ones(rows, 6).to("xla"), torch.ones(rows, dtype=torch.int64).to("xla"))
            torch_xla.sync()
    print(metrics.counter("UncachedCompile"), metrics.counter("PersistentCacheHit"), bool((y == y).all()))
    print("the end")
"""


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU", "COLUMNS": "200"}
    return forked_python.run([sys.executable, *command], env=environment, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "serve.py").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


def warm(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "xla_debug", "warm", "--cache", "programs", *options)


def compiled_behind(folder: Path, *rows: str) -> int:
    """How many programs the script itself compiles then."""
    code = f"import runpy, sys; sys.argv = ['serve.py', *{list(rows)}]; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = run(folder, "-c", code, XLA_PERSISTENT_CACHE_PATH="programs")
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[0])


def test_a_script(folder: Path) -> None:
    done = warm(folder, "serve.py", "--", "4", "5")
    assert done.returncode == 0, done.stderr
    programs = int(done.stderr.splitlines()[-1].removeprefix("xla-debug: ").split()[0])
    assert done.stdout.splitlines()[-1] == "the end" and done.stdout.split()[2] == "False", "read values are NaN"
    assert programs >= 2 and len(list((folder / "programs").iterdir())) == programs
    assert compiled_behind(folder, "4", "5") == 0
    assert f"{programs} programs, {programs} of them from the folder" in warm(folder, "serve.py", "4", "5").stderr


def test_a_script_ends_after_its_steps(folder: Path) -> None:
    done = warm(folder, "--steps", "3", "serve.py", "--", "4", "5")
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert compiled_behind(folder, "4") == 0 < compiled_behind(folder, "4", "5")


def test_a_function_and_shapes(folder: Path) -> None:
    done = warm(folder, "serve.py:step", "--shapes", "4x6,4:int64", "--shapes", "5x6,5:int64")
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert compiled_behind(folder, "4", "5") == 0


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["missing.py"], 2, "there is no script 'missing.py'"),
        (["serve.py:step"], 2, "--shapes are for a function"),
        (["serve.py", "--shapes", "4"], 2, "--shapes are for a function"),
        (["serve.py:step", "--shapes", "4x6:number"], 2, "'4x6:number' is no shape"),
        (["serve.py:missing", "--shapes", "4"], 1, "serve.py has no function 'missing'"),
        (["serve.py:fails", "--shapes", "4"], 1, "serve.py"),
        (["--target", "v99", "serve.py", "4"], 1, "v99"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, options: list[str], code: int, said: str) -> None:
    done = warm(folder, *options)
    assert done.returncode == code and said in done.stderr, done.stderr


def test_without_a_folder(folder: Path) -> None:
    done = run(folder, "-m", "xla_debug", "warm", "serve.py", "4")
    assert done.returncode == 2 and "Missing option '--cache'" in done.stderr
