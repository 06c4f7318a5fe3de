"""`xla-debug report`: what is shown of a run report, in which order, and what is not."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from xla_debug.cli import COMMANDS, group
from xla_debug.rendering.terminal import full_view, overview
from xla_debug.run_report import files
from xla_debug.run_report.merging import merge
from xla_debug.run_report.schema import Bottleneck, Excerpt, Fallback, Finding, HotLine, Memory, ProgramDifference, Replica, RunReport

Make = Callable[..., Replica]
MakeReport = Callable[..., RunReport]
HEADINGS = ["Where the step goes", "Compiles: 2", "In the background", "Syncs", "Operators on the CPU", "Transfers", "Memory"] + [
    "Largest live buffers",
    "Hot lines",
]


def shown(run_report: RunReport, width: int = 80) -> str:
    """The report as text."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(full_view(run_report))
    return capture.get()


def words(text: str) -> str:
    """A text without its layout."""
    return " ".join(text.split())


def run(*arguments: object) -> Result:
    """The command line with these arguments."""
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def test_all_parts_in_order(full: Make, run_report: MakeReport) -> None:
    text = shown(run_report(full()))
    places = [
        text.index(part) for part in ["tracing-bound: 39 % of the step", "train.py --epochs 3", "1 finding", *HEADINGS, "Python 3.12.1"]
    ]
    assert places == sorted(places), "verdict and findings first"
    assert max(map(len, text.splitlines())) <= 80
    said = words(text)
    for part in (
        "15.3 ms per step (median 10.0 ms), 100 steps in 1.53 s on CPU, finished",
        "lines are below /work/app/",
        "1. reads in the loop train.py:41 cost 400 ms a value was read in 100 of 100 steps → read it every 100 steps",
        "tracing 6.00 39 %",
        "device at work 3.00 20 %",
        "3 1.50 s 12",
        "user torch_xla.sync 100 100 12.0 ms",
        "aten::median model.py:12 100 400.0 KiB 80.0 ms",
        "to device train.py:25 200 19.1 MiB 30.0 ms",
        "CPU:0 50.0 MiB 64.0 MiB unknown",
        "model.py:20 tracing 3.00 ms 20 %",
        "torch 2.13.0, jax 0.10.2; Linux-6.1-x86_64; XLA_DEBUG_ACCOUNT_DIR=/run/recordings",
    ):
        assert part in said, part


def test_compiles_say_why(full: Make, run_report: MakeReport) -> None:
    said = words(shown(run_report(full()), width=200))
    assert "0 900 ms train.py:30 first train_step, 120 operations" in said
    why = "40 450 ms train.py:30 input 3 is f32[31,784], was f32[32,784] (data.py:7)"
    assert f"{why} 121 operations, 2 of 14 inputs donated (3.0 MiB) → leave out the last batch" in said


def test_live_buffers_say_who_holds_them(full: Make, run_report: MakeReport) -> None:
    assert "train.py:44 list 'losses' (40 items) f32[1000,1000] CPU:0 10 38.1 MiB" in words(shown(run_report(full()), width=200))


def test_empty_sections_are_left_out(replica: Make, run_report: MakeReport) -> None:
    text = shown(run_report(replica(per_step={"tracing": 2.0})))
    assert "No problem found." in text and "Where the step goes" in text
    assert not any(heading in text for heading in HEADINGS[1:])
    assert not any(phase in text for phase in ("look-up", "waiting", "compile"))


def test_a_run_without_steps(replica: Make, run_report: MakeReport) -> None:
    text = shown(run_report(replica(steps=0, per_step={}, device_ms=0.0), exit_code=1))
    assert (
        text.startswith("nothing measured\n")
        and "0 steps" in text
        and "ended with exit code 1" in text
        and "Where the step goes" not in text
    )
    assert "train.py --epochs 3" in shown(run_report())


def test_several_replicas_stand_side_by_side(full: Make, run_report: MakeReport) -> None:
    slow = {"tracing": 6.0, "compile": 4.5, "waiting": 0.0, "fallback": 0.8, "loader": 4.0}
    merged = merge([run_report(full(0)), run_report(full(1, per_step=slow, verdict=Bottleneck.LOADER)), run_report(full(2))])
    text = shown(merged)
    said = words(text)
    assert max(map(len, text.splitlines())) <= 80
    assert "tracing-bound: 39 % of the step replica 0, 2" in said and "loader-bound: 26 % of the step replica 1" in said
    assert "1. straggler replica 1 cost 400 ms replica 1 on" in said and "2. reads in the loop train.py:41 cost 400 ms" in said
    assert "replica 0 1 2 ─" in said and "waiting 4.00 0 4.00 fallback 0.80 0.80 0.80 loader 0 4.00 0 step 15.3 15.3 15.3" in said
    assert "aten::median model.py:12 100 400.0 KiB 80.0 ms all" in said, "what all do is one row"
    assert "15.3 ms per step (median 10.0 ms), 100 steps in 1.53 s, 3 replicas" in said


def test_rows_that_not_all_replicas_have(full: Make, run_report: MakeReport) -> None:
    lone = [Fallback("aten::sort", "/work/app/model.py:30", 7, 0, 1.0)]
    text = words(shown(run_report(full(0), full(1), full(2, fallbacks=lone), full(3))))
    assert "aten::median model.py:12 100 400.0 KiB 80.0 ms 0-1, 3" in text and "aten::sort model.py:30 7 0 B 1.00 ms 2" in text


def test_long_tables_are_cut_with_a_word(replica: Make, run_report: MakeReport) -> None:
    lines = [HotLine(f"/work/app/train.py:{number}", "tracing", 100.0 - number) for number in range(1, 31)]
    text = shown(run_report(replica(hot_lines=lines)))
    assert "train.py:20 " in text and "train.py:21 " not in text and "and 10 more: `--html FILE` shows all" in text


def test_many_replicas_are_cut_to_the_slowest(replica: Make, run_report: MakeReport) -> None:
    text = shown(run_report(*(replica(ordinal, per_step={"tracing": 1.0 + ordinal}) for ordinal in range(64))))
    assert max(map(len, text.splitlines())) <= 80 and "the 8 slowest of 64 replicas" in text
    assert "replica 56 57 58 59 60 61 62 63 median ─" in words(text) and "step 57.0 58.0 59.0 60.0 61.0 62.0 63.0 64.0 32.5" in words(text)


def test_lines_of_libraries_and_of_no_file(replica: Make, run_report: MakeReport) -> None:
    lines = ["/work/app/a/x.py:1", "/work/app/b/y.py:2", "/usr/lib/python3/site-packages/transformers/trainer.py:3", "<stdin>:4"]
    text = shown(run_report(replica(hot_lines=[HotLine(line, "tracing", 1.0) for line in lines])), width=120)
    assert all(f"\n{line} " in text for line in ("a/x.py:1", "b/y.py:2", "…/transformers/trainer.py:3", "<stdin>:4"))


def test_texts_act_neither_on_the_terminal_nor_as_markup(full: Make, run_report: MakeReport) -> None:
    hostile = "[red]not red[/red] \x1b[2J\x07 [/nothing]"
    one = full()
    compiles = [
        dataclasses.replace(row, difference=ProgramDifference(row.difference.change, hostile), name=hostile) for row in one.compiles
    ]
    finding = dataclasses.replace(one.findings[0], text=hostile, line=hostile, advice=hostile)
    fallbacks = [dataclasses.replace(one.fallbacks[0], operator=hostile)]
    text = shown(
        run_report(dataclasses.replace(one, compiles=compiles, fallbacks=fallbacks, findings=[finding]), command=[hostile]), width=200
    )
    assert text.count("[red]not red[/red] \ufffd[2J\ufffd [/nothing]") >= 6
    assert "\x1b" not in text and "\x07" not in text


def test_an_overview_of_a_running_job(full: Make, run_report: MakeReport) -> None:
    running = run_report(full(0, finished=False), full(1, finished=False), exit_code=None)
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(overview(running))
    said = words(capture.get())
    assert "now 10.0 ms per step, 2 compiles, 100.0 MiB on devices" in said and "still running" in said and "reads in the loop" in said


def test_the_command(full: Make, run_report: MakeReport, tmp_path: Path) -> None:
    one = run_report(full())
    files.write(one, tmp_path / "a.json")
    result = run("report", tmp_path / "a.json")
    assert result.exit_code == 0 and result.stdout == shown(one) and result.stderr == ""


def test_files_of_one_run_are_merged(full: Make, replica: Make, run_report: MakeReport, tmp_path: Path) -> None:
    ones = [run_report(full(1)), run_report(replica(0))]
    for name, one in zip("ab", ones, strict=True):
        files.write(one, tmp_path / f"{name}.json")
    result = run("report", tmp_path / "a.json", tmp_path / "b.json", "--json", tmp_path / "both.json")
    assert result.exit_code == 0 and result.output == f"xla-debug: written to {tmp_path / 'both.json'}\n"
    assert files.read(tmp_path / "both.json") == merge(ones)


def test_files_of_different_runs_are_not_merged(full: Make, run_report: MakeReport, tmp_path: Path) -> None:
    files.write(run_report(full(3)), tmp_path / "a.json")
    result = run("report", tmp_path / "a.json", tmp_path / "a.json")
    assert result.exit_code == 2 and "two of the files hold replica 3" in result.stderr and result.stderr.count("\n") == 1


def test_json_and_html(full: Make, run_report: MakeReport, tmp_path: Path) -> None:
    one = run_report(full())
    files.write(one, tmp_path / "a.json")
    assert run("report", tmp_path / "a.json", "--html", tmp_path / "a.html", "--json", tmp_path / "b.json").exit_code == 0
    assert files.read(tmp_path / "b.json") == one
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert json.loads(run("report", tmp_path / "a.json", "--json", "-").stdout) == json.loads(files.to_json(one))


def test_what_cannot_be_read_or_written(full: Make, run_report: MakeReport, tmp_path: Path) -> None:
    files.write(run_report(full()), tmp_path / "a.json")
    (tmp_path / "half.json").write_bytes(files.to_json(run_report(full()))[:-9])
    for arguments, said in [
        (["report", tmp_path / "half.json"], "half.json: cut off"),
        (["report", tmp_path / "a.json", tmp_path / "none.json"], "none.json: there is no such file"),
        (["diff", tmp_path / "a.json", tmp_path / "half.json"], "half.json: cut off"),
        (["compare", tmp_path / "half.json"], "half.json: cut off"),
        (["report", tmp_path / "a.json", "--html", tmp_path / "no" / "a.html"], "a.html: cannot be written (No such file or directory)"),
    ]:
        result = run(*arguments)
        assert result.exit_code == 2 and said in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""


@pytest.mark.parametrize("name", ["report", "diff", "compare", "watch"])
def test_commands_start_without_torch(name: str) -> None:
    assert name in COMMANDS
    code = (
        "import sys; from xla_debug.cli import group\n"
        f"try: group(['{name}', '--help'])\n"
        "finally: print({'torch', 'jax', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"Usage: -c {name}" in done.stdout and done.stdout.endswith("set()\n")


def test_memory_alone(replica: Make, run_report: MakeReport, full: Make) -> None:
    text = shown(run_report(replica(memory=Memory(live=full().memory.live))))
    assert "Largest live buffers" in text and "Memory" not in text


def test_findings_of_a_kind_have_one_advice_and_their_source(replica: Make, run_report: MakeReport, full: Make) -> None:
    first = dataclasses.replace(full().findings[0], source=Excerpt(40, ["for batch in data:", "    print(loss.item())"]))
    second = dataclasses.replace(first, line="/work/app/train.py:52", text="another value", cost_ms=0.0)
    said = words(shown(run_report(replica(), findings=[first, second])))
    where = "1. reads in the loop train.py:41 cost 400 ms a value was read in 100 of 100 steps print(loss.item())"
    assert f"2 findings {where} and train.py:52 another value → read it every 100 steps Where" in said


def test_compilations_of_a_kind_have_one_advice(run_report: MakeReport, full: Make) -> None:
    one = full()
    again = dataclasses.replace(one.compiles[1], step=60, graph_hash="e5f6")
    assert words(shown(run_report(dataclasses.replace(one, compiles=[*one.compiles, again])))).count("→ leave out the last batch") == 1


def test_a_finding_without_a_line(replica: Make, run_report: MakeReport, full: Make) -> None:
    finding: Finding = dataclasses.replace(full().findings[0], line=None, cost_ms=0.0, replica=2)
    text = shown(run_report(replica(), findings=[finding]))
    assert "\n1. reads in the loop  replica 2\n   a value was read" in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_bars_fit_each_width_by_one_scale(width: int, replica: Make, run_report: MakeReport) -> None:
    """Each phase is one line, its bar no longer than its share of the longest, and nothing is wider than the terminal."""
    text = shown(run_report(replica(per_step={"tracing": 88.0, "look-up": 2.0, "waiting": 8.0, "python": 2.0})), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    table = lines[lines.index("Where the step goes") + 3 :]
    names = ["tracing", "look-up", "waiting", "python"]
    bars = {name: next(line for line in table if line.startswith(name)).count("█") for name in names}
    assert 24 >= bars["tracing"] > bars["waiting"] >= bars["look-up"] == bars["python"]
    assert bars["tracing"] == 21 or width == 40
    assert all(line.strip().strip("█") for line in table if line.strip()), "no bar goes on in the next line"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("replicas", [1, 3])
def test_no_line_is_wider_than_the_terminal(width: int, replicas: int, full: Make, run_report: MakeReport) -> None:
    for view in (full_view, overview):
        console = Console(width=width, color_system=None)
        with console.capture() as capture:
            console.print(view(run_report(*map(full, range(replicas)))))
        assert max(map(len, capture.get().splitlines())) <= width
