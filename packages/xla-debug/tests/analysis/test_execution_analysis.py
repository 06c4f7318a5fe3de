"""What PT_XLA_DEBUG tells of compilations and executions, in processes of their own: the environment switches it on."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_xla.debug.frame_parser_util import create_report, parse_frame_content, parse_frames, process_frames
from xla_debug.analysis import execution_analysis
from xla_debug.analysis.frame_parser import Explained, FrameGroup
from xla_debug.core import events
from xla_debug.core import graph as graph_abi

TRAINING = """
import torch, torch_xla

def train(w, x):
    w += (x * 2).sum()
    torch_xla.sync()  # step

def outer(w, x):
    train(w, x)  # call

w = torch.zeros(256, 1024).to("xla")
x = torch.ones(512).to("xla")
for _ in range(3):
    outer(w, x)  # loop
print((w[0, 0] + 1).item())  # read
"""
KINDS = ("Compilation", "Post Compilation", "Execution", "Unexpected Execution")


def blocks(text: str) -> list[tuple[str, list[str]]]:
    """Kind and lines of each explanation; there must be nothing else."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        match = re.fullmatch(rf"({'|'.join(KINDS)}) Analysis: (.*)", line)
        assert match is not None, line
        if match[2] == "=" * 80:
            found.append((match[1], []))
        elif match[2] != "-" * 80:
            assert found[-1][0] == match[1], "explanations are written one after the other"
            found[-1][1].append(match[2])
    return found


@pytest.fixture(scope="module")
def trained(script: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The program above, and the file with all that was explained."""
    path = tmp_path_factory.mktemp("explained") / "explained"
    # A new interpreter: all frames are shown.
    return script(TRAINING, subprocess.run, PT_XLA_DEBUG="1", PT_XLA_DEBUG_FILE=str(path)), path


def frames_of(ended: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of the steps and those of the read."""
    steps = tuple(f"{name} ({ended.line(marker)})" for name, marker in (("train", "# step"), ("outer", "# call"), ("<module>", "# loop")))
    return steps, (f"<module> ({ended.line('# read')})",)


def test_compilations_and_executions(trained: tuple[Any, Path]) -> None:
    ended, path = trained
    assert ended.err == "" and ended.out == "3073.0\n"
    found = blocks(path.read_text(encoding="utf-8"))
    assert sorted(kind for kind, _ in found) == sorted(
        ["Compilation", "Post Compilation"] * 2 + ["Execution"] * 3 + ["Unexpected Execution"]
    )
    steps, reads = frames_of(ended)
    compiled, sizes = found[0][1], found[1][1]
    assert [kind for kind, _ in found[:2]] == ["Compilation", "Post Compilation"]
    graph_hash = compiled[4].removeprefix("  Graph Hash: ")
    assert re.fullmatch("[0-9a-f]{64}", graph_hash)
    facts = [
        "  user torch_xla.sync",
        "Graph Info:",
        "  Graph Name: -",
        f"  Graph Hash: {graph_hash}",
        compiled[5],
        "  Number of Graph Outputs: 1",
        "Python Frames:",
        *(f"  {frame}" for frame in steps),
    ]
    assert compiled == ["Compilation Cause", *facts] and re.fullmatch(r"  Number of Graph Inputs: \d+", compiled[5])
    assert sizes == [f"Graph input size: {(2**20 + 2048) / 2**30:.6f} GB", f"Graph output size: {2**20 / 2**30:.6f} GB"]
    executions = [lines for kind, lines in found if kind == "Execution"]
    assert executions == [["Execution Cause", *facts]] * 3
    (read,) = [lines for kind, lines in found if kind == "Unexpected Execution"]
    assert read[:2] == ["Execution Cause", "  value read before sync"] and read[7:] == ["Python Frames:", f"  {reads[0]}"]


def test_frames_of_a_file_are_counted(trained: tuple[Any, Path]) -> None:
    ended, path = trained
    steps, reads = frames_of(ended)
    first, *rest = process_frames(path)
    assert first == FrameGroup(Explained.EXECUTION, steps, 3, 1)
    assert {group.explained for group in rest} == {Explained.COMPILATION, Explained.UNEXPECTED}
    assert {(group.frames, group.count, group.graphs) for group in rest} == {(steps, 1, 1), (reads, 1, 1)} and len(rest) == 3


def test_frames_in_parts(trained: tuple[Any, Path]) -> None:
    _, path = trained
    groups = process_frames(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert parse_frames(lines) == groups and parse_frames(["other text"]) == []
    text = create_report(groups)
    assert text.startswith(f"Execution Analysis: 3 times, 1 programs\n  {groups[0].frames[0]}\n") and text.count(" times, ") == len(groups)
    frames = [frame for line in lines if (frame := parse_frame_content(line)) is not None]
    assert f"{frames[0].function} ({frames[0].file}:{frames[0].line})" == groups[0].frames[0]
    assert parse_frame_content("Execution Analysis:   Graph Hash: 12") is None


def test_a_file_without_explanations(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("Compilation Analysis is far\n", encoding="utf-8")
    with pytest.raises(ValueError, match="other holds no explanations: run the program with PT_XLA_DEBUG=1"):
        process_frames(str(tmp_path / "other"))
    with pytest.raises(FileNotFoundError):
        process_frames(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("variables", "level"),
    [
        ({}, 0),
        ({"PT_XLA_DEBUG": "0"}, 0),
        ({"PT_XLA_DEBUG": "1"}, 100),
        ({"PT_XLA_DEBUG_LEVEL": "2"}, 2),
        ({"PT_XLA_DEBUG": "1", "PT_XLA_DEBUG_LEVEL": "0"}, 0),
    ],
)
def test_levels(variables: dict[str, str], level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PT_XLA_DEBUG", "PT_XLA_DEBUG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert execution_analysis.level() == level


def test_the_first_level_explains_compilations_on_stderr_with_the_innermost_frames(script: Callable[..., Any]) -> None:
    ended = script(TRAINING, PT_XLA_DEBUG_LEVEL="1", PT_XLA_DEBUG_MAX_FRAME="2")
    found = blocks(ended.err)
    assert [kind for kind, _ in found] == ["Compilation", "Post Compilation"] * 2
    assert found[0][1][8:] == [*(f"  {frame}" for frame in frames_of(ended)[0][:2]), "  .........."]


@pytest.mark.long
@pytest.mark.parametrize("variables", [{"PT_XLA_DEBUG": "0"}, {"PT_XLA_DEBUG": "1", "PT_XLA_DEBUG_LEVEL": "0"}])
def test_nothing_is_explained_where_nobody_asks(script: Callable[..., Any], variables: dict[str, str]) -> None:
    ended = script(TRAINING, **variables)
    assert ended.err == "" and ended.out == "3073.0\n"


def causes(text: str) -> list[tuple[str, str, str]]:
    """Kind, cause and name of each explanation but those of sizes."""
    return [(kind, lines[1].strip(), lines[3].removeprefix("  Graph Name: ")) for kind, lines in blocks(text) if kind != "Post Compilation"]


def test_regions_have_names_and_eager_mode_is_silent(script: Callable[..., Any]) -> None:
    ended = script(
        """
        import torch, torch_xla
        from torch_xla.experimental import eager_mode
        eager_mode(True)
        x = torch.ones(3).to("xla")
        y = x * 2 + 1
        torch_xla.sync()
        print(y.tolist())

        @torch_xla.compile
        def shift(x):
            return x + 5

        print(shift(x).tolist())
        """,
        PT_XLA_DEBUG="1",
    )
    assert ended.out == "[3.0, 3.0, 3.0]\n[6.0, 6.0, 6.0]\n"
    assert causes(ended.err) == [("Compilation", "torch_xla.compile", "shift"), ("Execution", "torch_xla.compile", "shift")]


def test_dynamo(script: Callable[..., Any]) -> None:
    ended = script(
        """
        import torch, torch_xla
        x = torch.ones(3).to("xla") + 1
        fn = torch.compile(lambda x: x * 3, backend="openxla")
        for _ in range(2):
            print(fn(x).tolist())
        """,
        PT_XLA_DEBUG="1",
    )
    assert ended.out == "[6.0, 6.0, 6.0]\n" * 2
    found = [cause for kind, cause, _ in causes(ended.err) if kind == "Compilation"]
    assert "torch_xla.sync when dynamo processing input graphs" in found and "dynamo is compiling a FX graph to HLO" in found
    assert ("Execution", "dynamo is executing a compiled program", "-") in causes(ended.err)


def test_the_loader(script: Callable[..., Any]) -> None:
    pytest.importorskip("torch_xla.distributed.parallel_loader")
    ended = script(
        """
        import torch, torch_xla
        import torch_xla.distributed.parallel_loader as pl
        total = torch.zeros(2).to("xla")
        for batch in pl.MpDeviceLoader([torch.ones(2)] * 2, torch_xla.device()):
            total += batch
        """,
        PT_XLA_DEBUG_LEVEL="1",
    )
    assert [cause for _, cause, _ in causes(ended.err)] == ["torch_xla.sync in parallel loader at step end"]


def test_an_execution_that_another_thread_announces(tmp_path: Path) -> None:
    """On a device that runs in the background the event comes when it is done; the frames are those of the thread that asked."""
    path = tmp_path / "explained"
    seen = execution_analysis.Analysis(str(path), 1)
    graph = graph_abi.graph_of([torch.ones(2).to("xla") + 1])
    line = f"{__file__}:{sys._getframe().f_lineno + 1}"
    seen.wrapper(graph, lambda: None)()
    about: dict[str, Any] = {"device": "xla:0", "start_s": 1.0, "duration_ns": 2, "line": line, "graph_hash": "0f", "num_nodes": 1}
    event = events.ExecuteEvent(**about, num_inputs=1, num_outputs=1, cause=events.Cause.USER_SYNC)
    thread = threading.Thread(target=seen.executed, args=(event,))
    thread.start()
    thread.join()
    ((kind, lines),) = blocks(path.read_text(encoding="utf-8"))
    assert kind == "Execution" and lines[4] == "  Graph Hash: 0f"
    assert lines[8:] == [f"  test_an_execution_that_another_thread_announces ({line})", "  .........."]


def test_every_cause_has_words() -> None:
    assert set(execution_analysis._CAUSES) == set(events.Cause) and len(set(execution_analysis._CAUSES.values())) == len(events.Cause)
