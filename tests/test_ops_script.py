"""The script that measures operators can be trusted: it finds nothing on the CPU, everything that is damaged, and outlives its workers."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import forked_python
import pytest

ROOT = Path(__file__).resolve().parents[1]
# Some of everything: arithmetic, a factorisation, a reduction, random numbers, integers, a loss.
SOME = "=add,=linalg.eigh,=amax,=bernoulli,=argmax,=nn.functional.huber_loss,=nn_BatchNorm1d,=SGD"


def outcomes(tmp_path: Path, *options: str) -> dict[str, dict[str, Any]]:
    """The findings of a run of the script, by suite and name."""
    target = tmp_path / "ops.json"
    command = [sys.executable, str(ROOT / "scripts" / "ops"), "--json", str(target), "--samples", "4", "--workers", "1", *options]
    done = forked_python.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {f"{row['suite']}:{row['name']}": row["found"] for row in json.loads(target.read_text())["rows"]}


def flat(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Outcome by suite, name, dtype and pass."""
    return {
        f"{entry}:{key}:{kind}": result["outcome"]
        for entry, row in found.items()
        for key, passes in row.items()
        for kind, result in passes.items()
    }


def test_on_the_cpu_all_is_right(tmp_path: Path) -> None:
    found = flat(outcomes(tmp_path, "--device", "cpu", "--only", SOME))
    assert len(found) > 40 and set(found.values()) == {"native"}


@pytest.mark.long
def test_damage_is_found(tmp_path: Path) -> None:
    found = flat(outcomes(tmp_path, "--device", "cpu", "--damage", "--only", SOME))
    unseen = {name for name, outcome in found.items() if outcome != "wrong"}
    assert all("bernoulli" in name for name in unseen), "random results have no values to compare"


def test_the_device_is_compared(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "--only", "=add,=nonzero", "--suite", "ops")
    assert flat(found)["ops:add:float32:forward"] == flat(found)["ops:add:float32:gradient"] == "native"
    assert found["ops:add"]["float32"]["forward"]["samples"] == 4


WORKER = """
import json, os, signal, sys, time
for line in sys.stdin:
    name = json.loads(line)["name"]
    if name == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "hangs":
        signal.pause()
    print(json.dumps({"seconds": 0.0, "found": {"any": {"forward": {"outcome": "native", "samples": 1}}}}), flush=True)
"""


def test_workers_that_crash_or_hang_cost_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "ops"))
    import pool
    from entries import Suite, Task

    monkeypatch.setattr(pool, "START_S", 0)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    names = ["one", "crashes", "two", "hangs", "three"]
    found: dict[str, str] = {}

    def done(task: Task, answer: dict[str, Any]) -> None:
        found[task.name] = answer["found"]["any"]["forward"]["outcome"]

    pool.run([Task(Suite.OPS, number, name) for number, name in enumerate(names)], [], 2, 5.0, done, script)
    assert found == {"one": "native", "crashes": "crash", "two": "native", "hangs": "time-out", "three": "native"}


def test_what_the_cpu_refuses_is_refused() -> None:
    names = "=take,=cat,=unique,=index_add,=bitwise_and,=nn.functional.linear"
    command = [sys.executable, str(ROOT / "scripts" / "ops" / "sweep.py"), "--only", names, "--samples", "1", "--workers", "1"]
    done = forked_python.run(command, env={**os.environ, "COLUMNS": "160"}, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [int(cell) for cell in re.findall(r"\d+", done.stdout.splitlines()[-2])]
    assert counts[0] == counts[1] > 40 and not any(counts[2:]), "all of them with the CPU's type"


COMPILING = """
import json, os, signal, sys
target, samples, dtypes = sys.argv[1:]
for line in sys.stdin:
    name = json.loads(line)["name"]
    if name == "crashes" and "int64" in dtypes:
        os.kill(os.getpid(), signal.SIGSEGV)
    rows = [{"dtype": dtype, "found": "compiles", "detail": "", "samples": 1, "programs": 1} for dtype in dtypes.split(",")]
    print(json.dumps({"found": rows}), flush=True)
"""


def test_an_operator_that_ends_its_process_costs_one_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "ops"))
    import targets
    from entries import Suite, Task

    (tmp_path / "compiling.py").write_text(COMPILING)
    monkeypatch.setattr(targets, "WORKER", tmp_path / "compiling.py")
    rows: list[dict[str, Any]] = []
    plan = targets.Plan(1, 1, 60.0, ("float32", "int64", "bfloat16"))
    tasks = [Task(Suite.OPS, number, name) for number, name in enumerate(["one", "crashes", "two"])]
    targets.compile_all(tasks, "v5e", plan, rows, lambda: None)
    assert {(row["name"], row["dtype"]): row["found"] for row in rows} == {
        (name, dtype): "crash" if (name, dtype) == ("crashes", "int64") else "compiles"
        for name in ("one", "crashes", "two")
        for dtype in plan.dtypes
    }


def test_the_page_of_targets_counts_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "ops"))
    import targets_page

    def row(name: str, dtype: str, found: str = "compiles", detail: str = "", samples: int = 1) -> dict[str, Any]:
        return {"name": name, "dtype": dtype, "found": found, "detail": detail, "samples": samples}

    why = ("refused when recorded", "Error: aten.mul at /a/b.py:3: no | here")
    rows = [row("add", "float32"), row("mul", "float32", *why), row("mul", "int64", *why), row("sub", "int64", samples=0)]
    rows += [row("chalf", "int64", *why), row("nonzero", "int64", "needs data", "Error: its shape depends on data, and")]
    rows += [row("eig", "float32", "runs on the host", "aten::linalg_eig, aten::other")]
    content = {
        "date": "2026-11-27",
        "versions": {"torch": "2.13.0"},
        "samples": 2,
        "dtypes": ["float32", "int64"],
        "targets": {"v5e": rows},
    }
    page = targets_page.markdown(content)
    assert "on 2026-11-27, with torch 2.13.0." in page and "2 samples of it" in page
    assert "| v5e | float32 | 3 | 1 (33.33 %) | 0 | 1 | 1 | 0 | 0 | 0 |" in page
    assert "| v5e | all | 6 | 1 (16.67 %) | 1 | 1 | 3 | 0 | 0 | 0 |" in page, "an entry without samples does not count"
    assert "For v5e, 16.67 % of 6 compile: 25.00 % of 4 that need no data" in page
    assert "| `nonzero` | int64 | needs data | the shape of a result |" in page
    assert (
        "| `eig` | float32 | runs on the host | `aten::linalg_eig`: JAX has no eigenvalues" in page
        and "`aten::other`: no lowering |" in page
    )
    assert "| `mul` | float32 int64 | refused when recorded | Error: aten.mul: no \\| here |" in page


@pytest.mark.long
def test_operators_are_compiled_for_a_target(tmp_path: Path) -> None:
    """For this machine's processor, which needs no other compiler."""
    path = tmp_path / "targets.json"
    options = ["--target", "cpu", "--only", "=mm,=nonzero,=geqrf,=linalg.ldl_factor_ex", "--samples", "1", "--workers", "1"]
    command = [sys.executable, str(ROOT / "scripts" / "ops" / "targets.py"), *options, "--json", str(path)]
    done = forked_python.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text(encoding="utf-8"))["targets"]["cpu"]
    found = {(row["name"], row["dtype"]): row["found"] for row in rows}
    assert found["mm", "float32"] == found["mm", "int64"] == found["geqrf", "complex64"] == "compiles"
    assert found["nonzero", "float32"] == "needs data" and found["linalg.ldl_factor_ex", "float32"] == "runs on the host"
    assert all(row["programs"] for row in rows if row["found"] == "compiles" or row["found"] == "needs data")
