"""The benchmark scripts run in their tiny form, write their JSON, and their numbers find the way into a page.

Some of them daily, for what all share; the others, half a minute each, in the long tests.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked_python
import pytest

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("mlp", "cnn", "resnet18", "gpt", "decode")


def run_script(name: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script of the benchmarks folder in a process of its own, which need not start itself again: it finds the variables it wants."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), *options]
    wanted = {"PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu", "OMP_WAIT_POLICY": "PASSIVE", "XLA_TIERED_COMPILATION": "0"}
    settings = {**os.environ, **wanted, **environment}
    return forked_python.run(command, env=settings, capture_output=True, text=True, check=False)


def results(name: str, target: Path, *options: str, **environment: str) -> dict[str, Any]:
    """What a tiny run of a script writes."""
    done = run_script(name, "--quick", "--json", str(target), *options, **environment)
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(target.read_text())
    assert {"command", "date", "machine", "rows"} <= content.keys()
    assert "/" not in content["command"].replace("benchmarks/", "")
    return content


def test_trace_times_every_case(tmp_path: Path) -> None:
    """From an environment that it has to change first."""
    rows = {row["case"]: row for row in results("trace.py", tmp_path / "trace.json", OMP_WAIT_POLICY="ACTIVE")["rows"]}
    wanted = {"bare wrapper", "add", "add, autograd", "matmul", "in-place add", "view", "view of a view", "reduction", "empty sync"}
    assert wanted <= rows.keys()
    assert any(case.startswith("Adam") for case in rows) and any(case.startswith("SGD") for case in rows)
    assert rows["bare wrapper"]["ratio"] == 1.0
    for case, row in rows.items():
        assert math.isfinite(row["us"]) and (row["us"] > 0 or case.startswith("sync per operation"))


def test_walks_are_counted_by_what_they_pass_through(tmp_path: Path) -> None:
    rows = {row["case"]: row for row in results("walks.py", tmp_path / "walks.json")["rows"]}
    add = rows["record torch.add"]
    assert 0 < add["rooms"] <= add["files"] <= add["stays"] <= add["calls"] <= 10
    assert all(row["stays"] >= row["files"] for row in rows.values())


@pytest.mark.parametrize("model", [pytest.param(model, marks=[] if model == "mlp" else pytest.mark.long) for model in MODELS])
def test_steps_agree_and_are_timed(model: str, tmp_path: Path) -> None:
    contenders = "xla,captured,torch,jax"  # inductor compiles for seconds
    rows = {
        row["on"]: row
        for row in results("steps.py", tmp_path / "steps.json", "--models", model, "--rounds", "2", "--contenders", contenders)["rows"]
    }
    assert list(rows) == contenders.split(",")
    assert rows["jax"]["wall_vs_jax"] == 1.0
    assert all(row["wall_ms"] > 0 and row["steps"] > 0 for row in rows.values())
    assert rows["xla"]["late_compiles"] == rows["captured"]["late_compiles"] == 0, "a steady step compiles nothing"


def test_steps_take_another_batch_and_dtype(tmp_path: Path) -> None:
    options = ("--models", "cnn", "--rounds", "1", "--contenders", "xla,torch", "--batch", "3", "--dtype", "bfloat16")
    content = results("steps.py", tmp_path / "steps.json", *options)
    assert (content["batch"], content["dtype"]) == (3, "bfloat16") and len(content["rows"]) == 2


def test_convolutions_agree_and_are_timed(tmp_path: Path) -> None:
    done = run_script("convolutions.py", "--only", "1 × 1", "--budget", "0", "--json", str(tmp_path / "results.json"))
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert len(rows) == 3 and all(row["vs_torch"] == row["xla_ms"] / row["torch_ms"] for row in rows)
    done = run_script("render.py", str(tmp_path / "results.json"))
    assert done.returncode == 0 and "| to the weight |" in done.stdout


@pytest.mark.long
def test_compiling_is_timed_and_programs_are_counted(tmp_path: Path) -> None:
    layers, *loops = results("compiles.py", tmp_path / "results.json")["rows"]
    assert layers["xla_s"] > 0 and layers["jax_s"] > 0
    assert all(count == 1 for row in loops for name, count in row.items() if name != "optimizer")
    done = run_script("render.py", str(tmp_path / "results.json"))
    assert done.returncode == 0 and "| SGD | 1 | 1 | 1 | 1 |" in done.stdout


@pytest.mark.long
def test_collectives_are_right_and_timed(tmp_path: Path) -> None:
    content = results("collectives.py", tmp_path / "collectives.json")
    rows = {row["case"]: row for row in content["rows"]}
    assert list(rows) == ["1 KB", "16 KB", "3 × 4 KB", "3 × 4 KB as one", "barrier"]
    for case, row in rows.items():
        assert row["xla_ms"] >= row["xla_best_ms"] > 0 and row["gloo_ms"] > 0 and row["vs_gloo"] > 0
        assert ("jax_ms" in row) == (case != "barrier")
    assert rows["3 × 4 KB"]["met"] == (rows["3 × 4 KB"]["vs_one"] <= 2)
    assert [(row["replicas"], row["own_batch"]) for row in content["scaling"]] == [(2, 4), (2, 8)]
    assert all(row["step_ms"] > 0 for row in content["scaling"])
    done = run_script("render.py", str(tmp_path / "collectives.json"))
    assert done.returncode == 0 and "| 2 | 3 × 4 KB as one |" in done.stdout and "| 2 | a batch for each |" in done.stdout


def test_numbers_find_their_place_in_a_page(tmp_path: Path) -> None:
    content = results("steps.py", tmp_path / "steps.json", "--models", "mlp", "--rounds", "1", "--contenders", "torch,jax")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin machine -->\nold\n<!-- end machine -->\n<!-- begin steps -->\n<!-- end steps -->\nafter\n")
    done = run_script("render.py", str(tmp_path / "steps.json"), "--into", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert content["date"] in text
    assert "| mlp | torch |" in text and "| mlp | jax |" in text


def test_the_performance_page_has_the_places() -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    assert all(
        f"<!-- {edge} {block} -->" in text
        for block in ("machine", "trace", "steps", "collectives", "recording", "checks", "loops", "checkpoint", "compile", "convolutions")
        for edge in ("begin", "end")
    )


WRONG = (
    ("steps.py", ("--models", "mlp,vgg"), "vgg"),
    ("steps.py", ("--contenders", "tensorflow"), "tensorflow"),
    ("steps.py", ("--rounds", "0"), "--rounds"),
    ("trace.py", ("--repeats", "0"), "--repeats"),
    ("spmd.py", ("--parallelism", "rows"), "rows"),
    ("collectives.py", ("--rounds", "0"), "--rounds"),
    ("extras.py", ("dreams",), "dreams"),
    ("loops.py", ("--loops", "spiral"), "spiral"),
    ("checkpoint.py", ("--cases", "restore"), "restore"),
    ("calibration.py", ("--cases", "9b"), "9b"),
    ("targets.py", ("--models", "gpt9"), "gpt9"),
    ("render.py", ("no-such-file.json",), "no-such-file.json"),
)
# The scripts one after the other, each as the program of the process: what they import takes longer than they do.
IN_TURN = """
import contextlib, io, json, os, runpy, sys

said = []
for command in json.loads(sys.argv[1]):
    sys.argv, sys.path[0], error, code = command, os.path.dirname(command[0]), io.StringIO(), 0
    with contextlib.redirect_stderr(error):
        try:
            runpy.run_path(command[0], run_name="__main__")
        except SystemExit as end:
            code = end.code
    said.append([code, error.getvalue()])
print(json.dumps(said))
"""


def test_a_wrong_option_is_named() -> None:
    commands = json.dumps([[str(ROOT / "benchmarks" / name), *options] for name, options, _ in WRONG])
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    done = forked_python.run([sys.executable, "-c", IN_TURN, commands], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for (name, options, named), (code, error) in zip(WRONG, json.loads(done.stdout), strict=True):
        assert code == 2 and named in error, f"{name} {options}: exit code {code}\n{error}"


@pytest.mark.long
def test_spmd_steps_agree_and_are_timed(tmp_path: Path) -> None:
    rows = {row["on"]: row for row in results("spmd.py", tmp_path / "spmd.json", "--parallelism", "fsdp-tensor", "--rounds", "1")["rows"]}
    assert list(rows) == ["xla", "captured", "jax"]
    assert all(row["wall_ms"] > 0 and "all-reduce" in row["collectives"] for row in rows.values())
    assert rows["xla"]["late_compiles"] == 0, "a steady step compiles nothing"


@pytest.mark.long
def test_spmd_scale_builds_shardings_and_compiles_a_block(tmp_path: Path) -> None:
    rows = results("spmd_scale.py", tmp_path / "scale.json")["rows"]
    assert [row["shardings"] for row in rows[:-1]] == [3, 9, 15, 23]
    block = rows[-1]
    assert block["devices"] == 8 and "all-reduce" in block["collectives"]
    assert 0 < block["held_bytes"] < 3 * block["weight_bytes"], "less than the weights and both moments whole"


def test_a_job_starts_and_ends_with_one_thread_of_its_server(tmp_path: Path) -> None:
    rows = results("job_start.py", tmp_path / "results.json")["rows"]
    assert [row["after"] for row in rows] == ["start", "join", "meet", "runtime", "meet again", "leave"]
    assert len({row["threads"] for row in rows}) == 1, "no more threads for 16 processes than for none"
    assert rows[-1]["messages"] < 40 * rows[-1]["processes"]
    done = run_script("render.py", str(tmp_path / "results.json"))
    assert done.returncode == 0 and "| meet again |" in done.stdout


@pytest.mark.targets
def test_steps_are_compiled_for_targets_beside_those_by_hand(tmp_path: Path) -> None:
    if importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax_cuda13_plugin") is None:
        pytest.skip("needs libtpu and jax_cuda13_plugin: hatch run targets:test")
    rows = results("targets.py", tmp_path / "results.json", "--models", "mlp,llama")["rows"]
    assert [(row["case"], row["target"], row["by"]) for row in rows[::2]] == [
        (m, t, "xla") for t in ("v5e", "h100") for m in ("mlp", "llama")
    ]
    for ours, by_hand in zip(rows[::2], rows[1::2], strict=True):
        assert by_hand["by"] == "jax" and ours["flops"] == pytest.approx(by_hand["flops"], rel=0.05), "the same step"
        assert all(row[key] > 0 for row in (ours, by_hand) for key in ("time", "nbytes", "memory", "compile_s"))
    done = run_script("render.py", str(tmp_path / "results.json"))
    assert done.returncode == 0 and "| mlp | v5e |" in done.stdout


@pytest.mark.targets
def test_a_published_step_is_compiled_and_estimated_and_kept(tmp_path: Path) -> None:
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu: hatch run targets:test")
    options = ("--cases", "8b-8", "--cache", str(tmp_path / "cache"))
    rows = results("calibration.py", tmp_path / "results.json", *options)["rows"]
    assert [row["by"] for row in rows] == ["xla", "jax"]
    for row in rows:
        assert row["kernels_s"] > 0 and row["unknown"] == 0, "attention is estimated by its code"
        assert row["flops"] > row["model_flops"] > 0, "layers are computed again"
        assert row["links_s"] >= row["exposed_s"] > 0
    again = results("calibration.py", tmp_path / "results.json", *options)["rows"]
    assert again == rows, "from the cache"
    done = run_script("render.py", str(tmp_path / "results.json"))
    assert done.returncode == 0 and "| measured, s |" in done.stdout


@pytest.mark.long
def test_steps_of_many_replicas_are_compiled(tmp_path: Path) -> None:
    rows = results("replica_scale.py", tmp_path / "results.json")["rows"]
    assert [row["replicas"] for row in rows] == [8, 8]
    for row in rows:
        assert "all-gather" in row["collectives"] and "reduce-scatter" in row["collectives"]
        assert row["held_bytes"] < row["weight_bytes"], "an eighth of weights and two moments"
    done = run_script("render.py", str(tmp_path / "results.json"))
    assert done.returncode == 0 and "| FSDP2 and tensor |" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("extra", ["recording", "checks"])
def test_what_an_extra_costs_is_timed(extra: str, tmp_path: Path) -> None:
    (row,) = results("extras.py", tmp_path / "results.json", extra, "--models", "mlp")["rows"]
    assert row["model"] == "mlp" and row["with_vs_without"] > 0 and row["goal"] == "≤ 1.02"


@pytest.mark.long
def test_loops_without_syncs_are_timed_beside_those_with(tmp_path: Path) -> None:
    rows = results("loops.py", tmp_path / "results.json", "--loops", "in-place")["rows"]
    assert [row["loop"] for row in rows] == ["in-place"]
    assert all(row["s"] > 0 and row["sync_programs"] > 0 and row["met"] == (row["vs_sync"] <= 1.5) for row in rows)
    done = run_script("render.py", str(tmp_path / "results.json"))
    assert done.returncode == 0 and "| in-place |" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("case", ["load-cpu", "save", "load-xla"])
def test_checkpoints_are_timed_beside_others(case: str, tmp_path: Path) -> None:
    rows = {row["on"]: row for row in results("checkpoint.py", tmp_path / "results.json", "--cases", case)["rows"]}
    assert {"xla_serialization", "safetensors", "torch"} <= rows.keys() and len(rows) == (3 if case == "load-xla" else 5)
    assert all(row["case"] == case and row["mb_per_s"] > 0 and row["peak_mb"] >= 0 for row in rows.values())
    assert rows["safetensors"]["vs_safetensors"] == 1.0
    assert rows["xla_serialization"]["met"] == (rows["xla_serialization"]["vs_safetensors"] >= 0.9)
    done = run_script("render.py", str(tmp_path / "results.json"))
    assert done.returncode == 0 and f"| {case} | xla_serialization |" in done.stdout


@pytest.mark.long
def test_warm_ups_compile_the_same(tmp_path: Path) -> None:
    rows = [row for row in results("warm_up.py", tmp_path / "warm_up.json")["rows"] if "by" in row]
    assert [(row["task"], row["by"]) for row in rows] == [(task, by) for task in ("prefill", "training") for by in ("compile_only", "run")]
    assert all(row["compiled_later"] == 0 and row["programs"] == rows[0]["programs"] for row in rows)


@pytest.mark.long
def test_first_uses_wait_for_no_compiler(tmp_path: Path) -> None:
    rows = results("first_uses.py", tmp_path / "first_uses.json")["rows"]
    assert [(row["task"], row["by"]) for row in rows if "by" in row] == [
        (task, by) for task in ("prefill", "training") for by in ("eager torch", "background_compile")
    ]
    assert all(row["ratio"] == 0 for row in rows if "waited for a compile" in row.get("what", ""))
    assert [row["new"] for row in rows if "new" in row] == ["once", "tiers", "evaluated"]
