"""The demo trains, draws and reports on plain torch and on the XLA device, and refuses wrong options in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import forked_python
import matplotlib.image
import numpy as np
import pytest

DEMO = Path(__file__).resolve().parents[1] / "examples" / "digits.py"
OPTIONS = ("--epochs", "6")


def run_demo(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The demo in a process of its own."""
    settings = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "120", **environment}
    return forked_python.run([sys.executable, str(DEMO), *options], env=settings, capture_output=True, text=True, check=False)


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The lines that the demo ends with, by their first words."""
    assert done.returncode == 0, done.stderr
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in done.stdout.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def percent(lines: dict[str, str]) -> float:
    """The accuracy that was reported."""
    return float(lines["test accuracy"].removesuffix(" %"))


@dataclass(frozen=True)
class Trained:
    """What the demo reported and drew on each device. cache: where that on xla kept its graphs."""

    lines: dict[str, dict[str, str]]
    pictures: dict[str, Path]
    cache: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("demo")
    pictures = {device: folder / f"{device}.png" for device in ("cpu", "xla")}
    cache = folder / "graphs"
    options = {"cpu": OPTIONS, "xla": (*OPTIONS, "--cache", str(cache))}
    runs = {name: run_demo("--device", name, *options[name], "--output", str(file), PJRT_DEVICE="CPU") for name, file in pictures.items()}
    return Trained({name: summary(done) for name, done in runs.items()}, pictures, cache)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_it_learns_and_draws(device: str, trained: Trained) -> None:
    assert percent(trained.lines[device]) >= 97.0
    pixels = matplotlib.image.imread(trained.pictures[device])
    assert pixels.shape[0] > 500 and pixels.shape[1] > 500
    assert 0.3 < float(np.mean(pixels[..., :3])) < 0.99, "digits and curves are drawn on white"


def test_xla_and_torch_learn_the_same(trained: Trained) -> None:
    reached = [percent(lines) for lines in trained.lines.values()]
    assert abs(reached[0] - reached[1]) <= 1.5, "dropout draws other numbers on the device: a few of 360 digits may differ"


def test_the_summary_of_the_device(trained: Trained) -> None:
    lines = trained.lines["xla"]
    assert lines["device"] == "xla:0 (CPU)"
    assert lines["CPU fallbacks"] == "none"
    assert re.fullmatch(r"\d+ \(0 after training step 3\)", lines["graphs compiled"])
    assert float(lines["compile seconds"]) > 0


def test_a_second_run_finds_its_graphs_on_disk(trained: Trained, tmp_path: Path) -> None:
    cold = trained.lines["xla"]
    warm = summary(run_demo(*OPTIONS, "--cache", str(trained.cache), "--output", str(tmp_path / "digits.png"), PJRT_DEVICE="CPU"))
    assert cold["cache hits"].endswith(", 0 on disk")
    assert int(warm["cache hits"].removesuffix(" on disk").rpartition(" ")[2]) > 0
    assert percent(warm) == percent(cold)


WRONG = (
    (["--device", "gpu"], "--device"),
    (["--epochs", "0"], "--epochs"),
    (["--epochs", "many"], "--epochs"),
    (["--seed", "-1"], "--seed"),
    (["--output", "digits.jpg"], ".png"),
    (["--output", "no/such/folder/digits.png"], "no/such/folder"),
    (["--device", "cpu", "--cache", "graphs"], "--cache"),
    (["--cache", str(DEMO)], "--cache"),
    (["--colour"], "--colour"),
)
# The demo with each of some options, one after the other: what it imports takes longer than it does.
IN_TURN = """
import contextlib, io, json, runpy, sys

program, options, said = sys.argv[1], json.loads(sys.argv[2]), []
for each in options:
    sys.argv, out, error, code = [program, *each], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as end:
            code = end.code
    said.append([code, out.getvalue(), error.getvalue()])
print(json.dumps(said))
"""


def test_a_wrong_option_is_one_line_and_exit_code_2() -> None:
    command = [sys.executable, "-c", IN_TURN, str(DEMO), json.dumps([options for options, _ in WRONG])]
    done = forked_python.run(command, env={**os.environ, "COLUMNS": "120"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for (options, named), (code, out, error) in zip(WRONG, json.loads(done.stdout), strict=True):
        assert code == 2 and out == "", f"{options}: exit code {code}\n{out}{error}"
        (line,) = error.splitlines()
        assert line.startswith("Error: ") and named in line


def test_a_device_that_is_not_there_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run_demo("--device", "cuda", "--epochs", "1", "--output", str(tmp_path / "digits.png"), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith("Error: ")] == done.stderr.splitlines()[-1:]
    assert "--device cuda" in done.stderr
