"""`hatch run demo-spmd`: the losses of plain torch over every mesh, parameters that are sharded as said, wrong options in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import forked_python
import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "examples" / "gpt_spmd.py"
TINY = ("--layers", "1", "--width", "32", "--heads", "2", "--tokens", "16", "--batch", "8", "--steps", "12")


def run_demo(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The demo in a process of its own, over eight virtual devices by itself."""
    settings = {name: value for name, value in os.environ.items() if name != "CPU_NUM_DEVICES"}
    settings |= {"PJRT_DEVICE": "CPU", "COLUMNS": "160", **environment}
    return forked_python.run([sys.executable, str(PROGRAM), *options], env=settings, capture_output=True, text=True, check=False)


def numbers_behind(label: str, printed: str) -> list[float]:
    """The numbers of the line that starts so."""
    (line,) = re.findall(rf"^{label} +(.*?) *(?:\(.*)?$", printed, re.M)
    return [float(number.replace(",", "")) for number in line.split()]


@pytest.mark.parametrize(("mesh", "share"), [("data=2,fsdp=2,tensor=2", 3.5), ("fsdp=8", 6.5)])
def test_a_mesh_trains_as_plain_torch(mesh: str, share: float) -> None:
    done = run_demo(*TINY, "--mesh", mesh)
    assert done.returncode == 0, done.stderr
    first, last = numbers_behind("loss, first and last", done.stdout)
    assert last < first - 1, "it learns"
    (difference,) = numbers_behind("largest difference to one device", done.stdout)
    assert difference < 1e-4
    held = numbers_behind("bytes per device", done.stdout)
    (whole,) = numbers_behind("bytes unsharded", done.stdout)
    assert len(held) == 8 and len(set(held)) == 1
    assert whole / held[0] > share
    assert "Involuntary" not in done.stderr, "the shardings fit each other"
    if mesh == "data=2,fsdp=2,tensor=2":
        picture = done.stdout.partition("layers.0.query.weight: tensor × fsdp")[2]
        assert re.search(r"CPU \[0, 4\] +│ +CPU \[2, 6\]", picture) and re.search(r"CPU \[1, 5\] +│ +CPU \[3, 7\]", picture)
        assert re.search(r"query\.weight.* tensor × fsdp .* 1/4 ", done.stdout)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--mesh", "rows=8"], "rows=8"),
        (["--mesh", "data=3"], "--batch 16 cannot be cut into 3"),
        (["--mesh", "tensor=8"], "--heads 4 cannot be cut into 8"),
        (["--mesh", "data=2,tensor=2"], "over 4 devices, 8 are there"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_option_is_one_line_and_exit_code_2(options: list[str], named: str) -> None:
    done = run_demo(*options)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ") and named in line
