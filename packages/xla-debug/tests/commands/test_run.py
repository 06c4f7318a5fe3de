"""`xla-debug run` on whole scripts: what the run report finds, and where it says that the time went."""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path

import forked_python
import pytest

from xla_debug.run_report import files
from xla_debug.run_report.schema import Change, Phase, Problem, RunReport

PROGRAMS = Path(__file__).parents[1] / "programs"


def report_of(folder: Path, *command: str, code: int = 0, **variables: str) -> RunReport:
    """The run report of `xla-debug run`."""
    target = folder / "report.json"
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", **variables}
    line = [sys.executable, "-m", "xla_debug", "run", "--json", str(target), *command]
    done = forked_python.run(line, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return files.read(target)


def marked(name: str, marker: str) -> str:
    """`file:line` of the line of a program that ends in a marker."""
    path = PROGRAMS / name
    (number,) = (number for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if text.endswith(f"# {marker}"))
    return f"{path}:{number}"


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return report_of(tmp_path_factory.mktemp("mistakes"), str(PROGRAMS / "slow_training.py"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return report_of(tmp_path_factory.mktemp("clean"), str(PROGRAMS / "clean.py"))


def test_six_known_mistakes_are_found_with_their_lines(mistakes: RunReport) -> None:
    found = {finding.problem: finding.line for finding in mistakes.findings}
    assert found == {
        Problem.LOADER: marked("slow_training.py", "MISTAKE loader"),
        Problem.MEMORY: marked("slow_training.py", "MISTAKE memory"),
        Problem.SHAPES: marked("slow_training.py", "MISTAKE shapes"),
        Problem.NUMBERS: marked("slow_training.py", "MISTAKE numbers"),
        Problem.READS: marked("slow_training.py", "MISTAKE reads"),
        Problem.FALLBACK: marked("slow_training.py", "MISTAKE fallback"),
    }
    assert len(mistakes.findings) == len(found) and all(finding.advice and finding.text for finding in mistakes.findings)


@pytest.mark.parametrize(
    ("program", "kind", "problem"),
    [
        ("slow_python.py", "sleep", Problem.PYTHON),
        pytest.param("slow_python.py", "words", Problem.PYTHON, marks=pytest.mark.long),
        pytest.param("slow_input.py", "torch", Problem.LOADER, marks=pytest.mark.long),
        ("slow_input.py", "device", Problem.LOADER),
        pytest.param("growing_memory.py", "list", Problem.MEMORY, marks=pytest.mark.long),
        ("growing_memory.py", "attribute", Problem.MEMORY),
        pytest.param("growing_memory.py", "records", Problem.MEMORY, marks=pytest.mark.long),
    ],
)
def test_a_mistake_is_the_only_finding_and_has_its_line(program: str, kind: str, problem: Problem, tmp_path: Path) -> None:
    pytest.importorskip("xla_distributed")
    (finding,) = report_of(tmp_path, str(PROGRAMS / program), kind).findings
    marker = f"MISTAKE {'loader' if problem is Problem.LOADER else kind}"
    assert (finding.problem, finding.line) == (problem, marked(program, marker))
    assert finding.source is not None and any(line.endswith(marker) for line in finding.source.lines)
    if problem is Problem.MEMORY:
        made = marked(program, "MADE").rpartition("/")[2]
        holder = {"list": "'outputs'", "attribute": "'history.outputs'", "records": "'records'"}[kind]
        assert finding.text == f"memory grows by 2,048 bytes a step: list {holder} (40 items) has 40 tensors made at {made}"


def test_why_each_program_was_compiled(mistakes: RunReport) -> None:
    (replica,) = mistakes.replicas
    shapes = [one.difference for one in replica.compiles if one.difference.change is Change.INPUT_SHAPE]
    assert [one.text for one in shapes[:2]] == [
        "input 0 is f32[8,5], was f32[8,4], first used by aten.mean.dim",
        "input 0 is f32[8,6], was f32[8,5], first used by aten.mean.dim",
    ]
    numbers = [one.difference.text for one in replica.compiles if one.difference.change is Change.ARGUMENT]
    assert numbers[:2] == ["0 became 1 in aten.pow.Tensor_Scalar", "1 became 2 in aten.pow.Tensor_Scalar"]


def test_what_piles_up_is_named(mistakes: RunReport) -> None:
    (finding,) = (one for one in mistakes.findings if one.problem is Problem.MEMORY)
    assert "list 'losses'" in finding.text


def test_fallbacks_and_reads_are_counted(mistakes: RunReport) -> None:
    (replica,) = mistakes.replicas
    (fallback,) = replica.fallbacks
    assert (fallback.operator, fallback.count) == ("aten::linalg_ldl_factor_ex", 24) and fallback.nbytes > 0 and fallback.ms > 0
    reads = {sync.line: sync.count for sync in replica.syncs if sync.kind == "read"}
    assert reads[marked("slow_training.py", "MISTAKE reads")] == 24


def test_a_clean_script_has_no_findings(clean: RunReport) -> None:
    assert clean.findings == []
    (replica,) = clean.replicas
    assert replica.steps == 64 and replica.finished and clean.exit_code == 0
    assert set(replica.phases_ms) <= {phase.value for phase in Phase}


def test_the_phases_add_up_to_the_time_from_step_to_step(clean: RunReport) -> None:
    """But for steps after which the recorder took its time to look around."""
    (replica,) = clean.replicas
    assert len(replica.timeline) == 64
    spans_ms = [(after.start_s - step.start_s) * 1e3 for step, after in pairwise(replica.timeline)]
    sums_ms = [sum(step.ms.values()) for step in replica.timeline]
    near = [abs(total - span) <= 0.01 * span + 0.01 for total, span in zip(sums_ms, spans_ms, strict=False)]
    assert sum(near) >= 55 and all(total <= span + 0.01 for total, span in zip(sums_ms, spans_ms, strict=False))
    assert replica.measured_steps == 61
    assert sum(replica.phases_ms.values()) == pytest.approx(sum(sums_ms[3:]), rel=1e-3)


def test_programs_say_what_is_donated(clean: RunReport) -> None:
    (replica,) = clean.replicas
    last = replica.compiles[-1]
    assert 0 < last.donated <= last.inputs and last.donated_bytes >= 4 * last.donated


def test_captured_calls_are_counted_apart(tmp_path: Path) -> None:
    script = tmp_path / "captured.py"
    script.write_text(
        "import torch, torch_xla\n"
        "weight = torch.ones(3).to('xla')\n"
        "scale = torch_xla.compile(lambda x: weight * x, capture=True, verify_every=None)\n"
        "x = torch.ones(3).to('xla')\n"
        "for _ in range(20): y = scale(x)\n"
        "assert y.tolist() == [1.0, 1.0, 1.0]\n"
    )
    (replica,) = report_of(tmp_path, str(script)).replicas
    counted = {sync.cause: sync.count for sync in replica.syncs if sync.kind == "step"}
    recorded = counted["compile_region"]
    assert counted == {"compile_region": recorded, "captured": 20 - recorded} and recorded < 5
    assert replica.steps == 20 and len(replica.compiles) == 1


@pytest.mark.parametrize("evaluated", [False, True])
def test_what_compiles_in_the_background_counts_by_itself(evaluated: bool, tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(
        "import torch, torch_xla\n"
        "from xla_core.engine.compile.tiers import wait_for_background\n"
        f"if {evaluated}: torch_xla.experimental.background_compile()\n"
        "x = torch.ones(1_250_000).to('xla')\n"  # the larger, the sooner
        "for _ in range(3):\n"
        "    y = (x * 2).sum(); torch_xla.sync()\n"
        "    wait_for_background()\n"
        "assert y.item() == 2_500_000\n"
    )
    (replica,) = report_of(tmp_path, str(script), XLA_TIERED_COMPILATION="1").replicas
    seen = replica.background
    assert seen.compiles == 1 and seen.ms > 0
    assert (seen.by_operation, len(replica.compiles)) == ((2, 0) if evaluated else (0, 1))


def test_a_replica_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    pytest.importorskip("xla_distributed")
    run_report = report_of(tmp_path, str(PROGRAMS / "straggler.py"), CPU_NUM_DEVICES="3")
    assert [(replica.ordinal, replica.steps, replica.finished) for replica in run_report.replicas] == [(n, 40, True) for n in range(3)]
    (found,) = (finding for finding in run_report.findings if finding.problem is Problem.STRAGGLER)
    assert (found.replica, found.line) == (1, marked("straggler.py", "MISTAKE straggler"))
    assert found.cost_ms > 37 * 0.5 * 60 and "loader" in found.text
    late = run_report.replicas[1]
    assert late.phases_ms["loader"] == max(late.phases_ms.values())


def test_the_exit_code_and_the_arguments_are_the_scripts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, torch_xla\ntorch.ones(2, device='xla').sum().item()\nprint(sys.argv[1:])\nsys.exit(7)\n", encoding="utf-8"
    )
    run_report = report_of(tmp_path, str(script), "--json", "-x", code=7)
    assert run_report.exit_code == 7 and run_report.command == [str(script), "--json", "-x"]


def test_a_script_without_devices_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('nothing')\n", encoding="utf-8")
    target = tmp_path / "report.json"
    done = forked_python.run([sys.executable, "-m", "xla_debug", "run", "--json", str(target), str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "nothing\n") and "no XLA device" in done.stderr and not target.exists()


def test_there_is_no_such_script(tmp_path: Path) -> None:
    done = forked_python.run([sys.executable, "-m", "xla_debug", "run", str(tmp_path / "no.py")], capture_output=True, text=True)
    assert done.returncode == 2 and "there is no script" in done.stderr


def test_each_replica_of_a_spawn_keeps_its_recording(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch_xla\nimport torch_xla.core.xla_model as xm\nimport torch_xla.distributed.xla_multiprocessing as xmp\n"
        "def run(index):\n    t = torch.ones(4, device='xla')\n    for _ in range(3):\n"
        "        t = xm.all_reduce('sum', t) / 2\n        torch_xla.sync()\n    assert t.sum().item() == 4\n"
        "if __name__ == '__main__':\n    xmp.spawn(run)\n",
        encoding="utf-8",
    )
    run_report = report_of(tmp_path, str(script), CPU_NUM_DEVICES="2")
    assert [(replica.ordinal, replica.steps >= 3, replica.finished) for replica in run_report.replicas] == [
        (0, True, True),
        (1, True, True),
    ]
    assert len({replica.pid for replica in run_report.replicas}) == 2 and json.loads(files.to_json(run_report))["exit_code"] == 0


def test_a_full_device_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch_xla\nkept = torch.ones(1000, 1000).to('xla')\n"
        "large = torch.zeros(2_000_000_000, 1, device='xla') + torch.zeros(1, 4000, device='xla')\n"
        "try:\n    torch_xla.sync(wait=True)\n    large[0, 0].item()\nexcept RuntimeError as error:\n    print(error)\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_DEBUG_ACCOUNT_DIR": str(tmp_path / "recordings")}
    done = forked_python.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert "RESOURCE_EXHAUSTED" in done.stdout, done.stderr
    assert f"4,000,000 bytes: 1 × float32[1000, 1000] made at {script}:2" in done.stdout


def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    folder = tmp_path / "recordings"
    script.write_text(
        "import shutil, sys, torch, torch_xla\nx = torch.ones(2, device='xla')\ntorch_xla.sync()\n"
        "shutil.rmtree(sys.argv[1])\nprint(x.sum().item())\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_DEBUG_ACCOUNT_DIR": str(folder)}
    line = [sys.executable, str(script), str(folder)]
    done = forked_python.run(line, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "2.0\n")
    assert done.stderr.count("the recording cannot be written") == 1, done.stderr


def test_other_tools_watch_a_run(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch_xla\nx = torch.ones(3).to('xla')\nfor _ in range(4):\n    x = x + 1\n    torch_xla.sync()\n", encoding="utf-8"
    )
    line = [sys.executable, "-m", "xla_debug", "run", "--opentelemetry", "--tensorboard", str(tmp_path / "board"), str(script)]
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "OTEL_TRACES_EXPORTER": "console"}
    done = forked_python.run(line, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.count('"name": "xla.sync"'), done.stdout.count(f'"code.file.path": "{script}"')) == (4, 4 + 4 + 1 + 1)
    found = accumulator.EventAccumulator(str(tmp_path / "board" / "xla"))
    found.Reload()
    assert [each.step for each in found.Scalars("xla/step_ms")] == [0, 1, 2, 3]
    assert [each.value for each in found.Scalars("xla/bytes_to_device")][0] == 12


def test_a_running_job_is_watched(tmp_path: Path) -> None:
    script, flag = tmp_path / "script.py", tmp_path / "flag"
    script.write_text(
        "import pathlib, sys, torch, torch_xla\nx = torch.ones(8, device='xla')\n"
        "while not pathlib.Path(sys.argv[1]).exists():\n    x = x * 1.5 / 1.5\n    torch_xla.sync(wait=True)\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "COLUMNS": "200"}
    command = [sys.executable, "-m", "xla_debug"]
    target = tmp_path / "report.json"
    with forked_python.Popen([*command, "run", "--json", str(target), str(script), str(flag)], env=environment) as job:
        for _ in range(100):
            seen = forked_python.run([*command, "watch", "--once", str(job.pid)], env=environment, capture_output=True, text=True)
            if "per step" in seen.stdout:
                break
        flag.touch()
    assert "still running" in seen.stdout and str(script) in seen.stdout, seen.stderr
    assert job.returncode == 0 and files.read(target).exit_code == 0
