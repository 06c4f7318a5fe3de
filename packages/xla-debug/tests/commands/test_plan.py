"""`xla-debug plan` on whole scripts, for this machine's processor as the target, which needs no other compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forked_python
import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "planned.py"
WEIGHTS = 2 * 256 * 512 * 4
BIASES = (256 + 512) * 4


def plan(folder: Path, *options: str, kind: str = "alone", target: str = "cpu") -> subprocess.CompletedProcess[str]:
    """`xla-debug plan` of the program; stdout is JSON if the options say so."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    line = [sys.executable, "-m", "xla_debug", "plan", "--target", target, *options, str(PROGRAM), "--", str(folder / "after"), kind]
    return forked_python.run(line, env=environment, capture_output=True, text=True, timeout=300)


def as_json(done: subprocess.CompletedProcess[str]) -> Any:
    """What it printed; the run must have ended well."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plan for one device, as JSON and as a page, that breaks a limit; an argument of the script is markup."""
    folder = tmp_path_factory.mktemp("alone")
    options = ["--json", str(folder / "plan.json"), "--html", str(folder / "plan.html"), "--steps", "3", "--memory", "1KiB", "--fits"]
    done = plan(folder, *options, kind="<b>alone</b>")
    assert done.returncode == 1 and "more than 1.0 KiB" in done.stderr and "does not fit" not in done.stderr, done.stderr
    return folder


def test_a_training_is_planned_and_ends_after_its_steps(alone: Path) -> None:
    report = json.loads((alone / "plan.json").read_text(encoding="utf-8"))
    assert report["steps"] == 3 and not (alone / "after").exists(), "nothing is done without values"
    state = report["state"]
    assert state["parameters"] == WEIGHTS + BIASES and 2 * (WEIGHTS + BIASES) <= state["optimizer"] < 2 * (WEIGHTS + BIASES) + 64
    assert sum(program["runs"] for program in report["programs"]) == 3
    # Two products forward, four backward but for the gradient of the input.
    flops = {program["flops"] for program in report["programs"]}
    assert flops == {5 * 2 * 64 * 256 * 512}
    assert report["fits"] and report["peak"] > state["parameters"] and report["error"] is None
    assert all(program["line"].startswith(str(PROGRAM)) for program in report["programs"])


@pytest.mark.long
def test_a_script_that_ends_before_is_planned_whole(tmp_path: Path) -> None:
    report = as_json(plan(tmp_path, "--json", "-", "--steps", "9"))
    assert report["steps"] == 5 and (tmp_path / "after").exists()


def test_a_mesh_shows_in_memory_and_traffic(tmp_path: Path) -> None:
    pytest.importorskip("xla_spmd")
    report = as_json(plan(tmp_path, "--json", "-", kind="mesh", target="cpu:4"))
    assert report["devices"] == 4 and report["state"]["parameters"] == WEIGHTS // 2 + BIASES
    step = report["programs"][-1]
    assert step["flops"] <= 5 * 2 * 64 * 256 * 512 / 2, "the batch is shared by two"
    axes = {row["axis"] for row in step["traffic"]}
    assert axes & {"data", "data × fsdp"} and all(row["nbytes"] > 0 for row in step["traffic"])


def test_text_fits_eighty_columns(tmp_path: Path) -> None:
    done = plan(tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("It fits: "), done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80 and "Memory of a device" in done.stdout


def test_a_page_has_no_script_and_no_markup_of_the_users(alone: Path) -> None:
    page = (alone / "plan.html").read_text(encoding="utf-8")
    assert "<script" not in page and "<b>alone" not in page and "&lt;b&gt;alone" in page and "Memory of a device" in page


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--memory", "much"], "--memory is 'much', must be a number with one of"),
        (["--step-time", "2"], "--step-time is '2'"),
        (["--target", "v9:2x2"], "there is no target 'v9:2x2'"),
    ],
)
def test_wrong_options_are_one_line(tmp_path: Path, options: list[str], text: str) -> None:
    done = plan(tmp_path, *options)
    assert done.returncode != 0 and text in done.stderr


@pytest.mark.parametrize(
    ("kind", "text"), [pytest.param("raises", "ValueError: the script's own mistake", marks=pytest.mark.long), ("crashes", "signal 11")]
)
def test_what_ends_the_script_is_said_beside_what_is_known(tmp_path: Path, kind: str, text: str) -> None:
    file = tmp_path / "plan.json"
    done = plan(tmp_path, "--json", str(file), kind=kind)
    report = json.loads(file.read_text(encoding="utf-8"))
    assert done.returncode != 0 and text in report["error"] and text in done.stderr
    assert report["steps"] == 1 and report["programs"] and not report["fits"]


@pytest.mark.parametrize(("kind", "target"), [pytest.param("alone", "cpu:1", marks=pytest.mark.long), ("mesh", "cpu:4")])
def test_programs_of_a_plan_are_there_for_who_has_the_devices(tmp_path: Path, kind: str, target: str) -> None:
    if kind == "mesh":
        pytest.importorskip("xla_spmd")
    cache = tmp_path / "cache"
    report = as_json(plan(tmp_path, "--json", "-", "--cache", str(cache), kind=kind, target=target))
    entries, count = sorted(cache.iterdir()), len(report["programs"])
    assert len(entries) == count

    def run() -> tuple[int, int, str]:
        """How many programs a process compiled that has the devices, how many it found, and what it wrote to stderr."""
        counting = f"""
import atexit, json, runpy, sys
from xla_core.abi.metrics import snapshot
atexit.register(lambda: print(json.dumps([snapshot().counters.get(name, 0) for name in ("UncachedCompile", "PersistentCacheHit")])))
sys.argv = ["planned.py", {str(tmp_path / "after")!r}, {kind!r}]
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
"""
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_PERSISTENT_CACHE_PATH": str(cache), "CPU_NUM_DEVICES": target[4:]}
        done = forked_python.run([sys.executable, "-c", counting], env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and (tmp_path / "after").exists(), done.stderr
        return *json.loads(done.stdout.splitlines()[-1]), done.stderr

    assert run()[:2] == (0, count)
    content = entries[0].read_bytes()
    entries[0].write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    for entry in entries[1:]:
        entry.write_bytes(entry.read_bytes()[:1000])
    compiled, hits, said = run()
    assert (compiled, hits) == (count, 0) and said.count("is not used and the program compiled again: it is truncated or damaged") == 1


def test_an_interrupt_leaves_what_was_planned(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    line = [
        sys.executable,
        "-m",
        "xla_debug",
        "plan",
        "--target",
        "cpu",
        "--json",
        str(file),
        str(PROGRAM),
        "--",
        str(tmp_path / "after"),
        "waits",
    ]
    with subprocess.Popen(line, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "after.waiting").exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    report = json.loads(file.read_text(encoding="utf-8"))
    assert process.returncode != 0 and report["steps"] == 1 and report["error"] == "KeyboardInterrupt", err


def test_a_search_ranks_all_meshes(tmp_path: Path) -> None:
    pytest.importorskip("xla_spmd")
    report = as_json(plan(tmp_path, "--json", "-", "--steps", "1", "--search", kind="mesh", target="cpu:2"))
    found = {tuple(row["mesh"].items()): row for row in report["searched"]}
    assert found.keys() == {(("data", 1), ("fsdp", 2)), (("data", 2), ("fsdp", 1))}
    divided, replicated = found[(("data", 1), ("fsdp", 2))], found[(("data", 2), ("fsdp", 1))]
    assert all(row["error"] is None and row["fits"] for row in found.values())
    assert divided["peak"] < replicated["peak"], "its weights are divided"
