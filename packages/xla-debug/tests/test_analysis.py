"""What PT_XLA_DEBUG tells of compilations and executions (api.md §10.4), in processes of their own: the environment switches it on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torch_xla.debug.frame_parser_util import process_frames
from xla_debug import analysis
from xla_debug.core import abi
from xla_debug.frames import Explained, FrameGroup

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
print((w.sum() + 1).item())  # read
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


def test_compilations_and_executions(script: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "explained"
    ended = script(TRAINING, PT_XLA_DEBUG="1", PT_XLA_DEBUG_FILE=str(path))
    assert ended.err == "" and ended.out == f"{256 * 1024 * 512 * 2 * 3 + 1.0}\n"
    text = path.read_text(encoding="utf-8")
    found = blocks(text)
    assert sorted(kind for kind, _ in found) == sorted(
        ["Compilation", "Post Compilation"] * 2 + ["Execution"] * 3 + ["Unexpected Execution"]
    )
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
        f"  train ({ended.line('# step')})",
        f"  outer ({ended.line('# call')})",
        f"  <module> ({ended.line('# loop')})",
    ]
    assert compiled == ["Compilation Cause", *facts] and re.fullmatch(r"  Number of Graph Inputs: \d+", compiled[5])
    assert sizes == [f"Graph input size: {(2**20 + 2048) / 2**30:.6f} GB", f"Graph output size: {2**20 / 2**30:.6f} GB"]
    executions = [lines for kind, lines in found if kind == "Execution"]
    assert executions == [["Execution Cause", *facts]] * 3
    ((_, read),) = [block for block in found if block[0] == "Unexpected Execution"]
    assert read[:2] == ["Execution Cause", "  value read before sync"] and read[7:] == [
        "Python Frames:",
        f"  <module> ({ended.line('# read')})",
    ]


def test_frames_of_a_file_are_counted(script: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "explained"
    ended = script(TRAINING, PT_XLA_DEBUG="1", PT_XLA_DEBUG_FILE=str(path))
    step = tuple(f"{name} ({ended.line(marker)})" for name, marker in (("train", "# step"), ("outer", "# call"), ("<module>", "# loop")))
    read = (f"<module> ({ended.line('# read')})",)
    first, *rest = process_frames(path)
    assert first == FrameGroup(Explained.EXECUTION, step, 3, 1)
    assert sorted(rest, key=lambda group: group.explained.value) == [
        *(FrameGroup(Explained.COMPILATION, frames, 1, 1) for frames in (group.frames for group in rest[:-1])),
        FrameGroup(Explained.UNEXPECTED, read, 1, 1),
    ]
    assert {group.frames for group in rest if group.explained is Explained.COMPILATION} == {step, read}


def test_a_file_without_explanations(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("Compilation Analysis is far\n", encoding="utf-8")
    with pytest.raises(ValueError, match="other holds no explanations: run the program with PT_XLA_DEBUG=1"):
        process_frames(str(tmp_path / "other"))
    with pytest.raises(FileNotFoundError):
        process_frames(str(tmp_path / "absent"))


def test_stderr_is_where_it_goes_by_itself(script: Callable[..., Any]) -> None:
    assert len(blocks(script(TRAINING, PT_XLA_DEBUG="1").err)) == 8


@pytest.mark.parametrize(
    ("variables", "kinds"),
    [
        ({"PT_XLA_DEBUG_LEVEL": "1"}, {"Compilation", "Post Compilation"}),
        ({"PT_XLA_DEBUG_LEVEL": "2"}, set(KINDS)),
        ({"PT_XLA_DEBUG_LEVEL": "0", "PT_XLA_DEBUG": "1"}, set()),
        ({"PT_XLA_DEBUG": "0"}, set()),
        ({}, set()),
    ],
)
def test_levels(script: Callable[..., Any], variables: dict[str, str], kinds: set[str]) -> None:
    assert {kind for kind, _ in blocks(script(TRAINING, **variables).err)} == kinds


def test_the_innermost_frames_are_shown(script: Callable[..., Any]) -> None:
    ended = script(TRAINING, PT_XLA_DEBUG_LEVEL="1", PT_XLA_DEBUG_MAX_FRAME="2")
    lines = blocks(ended.err)[0][1]
    assert lines[8:] == [f"  train ({ended.line('# step')})", f"  outer ({ended.line('# call')})", "  .........."]


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


def test_every_cause_has_words() -> None:
    assert set(analysis._CAUSES) == set(abi.Cause) and len(set(analysis._CAUSES.values())) == len(abi.Cause)
