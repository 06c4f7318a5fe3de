"""Pending programs saved to files: each format, names that count, nothing computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torch_xla.debug.graph_saver import save_tensors_graph
from xla_core.abi import graph, job, texts
from xla_core.abi.tensors import is_pending, sync
from xla_debug.graphs import drawing, graph_text


@pytest.fixture
def pending() -> torch.Tensor:
    """A sum that is not computed yet, 3 × 4 times 2."""
    sync()
    return torch.ones(3, 4, device="xla").mul(2).sum()


def test_the_text_is_that_of_the_pending_program(tmp_path: Path, pending: torch.Tensor) -> None:
    path = save_tensors_graph(tmp_path, "loss", [pending])
    assert path == tmp_path / "loss-0.txt"
    assert path.read_text(encoding="utf-8") == texts.graph_text(graph.graph_of([pending])) + "\n"
    assert [node.name for node in graph_text.parse(path.read_text(encoding="utf-8")).nodes][-2:] == ["aten.mul.Tensor", "aten.sum"]
    assert is_pending(pending)
    assert pending.item() == 24.0


def test_dot_is_the_drawing_of_that_text(tmp_path: Path, pending: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAVE_GRAPH_FMT", "dot")
    path = save_tensors_graph(str(tmp_path), "loss", [pending])
    assert path.suffix == ".dot"
    assert path.read_text(encoding="utf-8") == drawing.dot(graph_text.parse(texts.graph_text(graph.graph_of([pending]))))


def test_hlo_is_what_xla_gets(tmp_path: Path, pending: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAVE_GRAPH_FMT", "hlo")
    text = save_tensors_graph(tmp_path, "loss", [pending]).read_text(encoding="utf-8")
    assert text.startswith("HloModule") and "f32[3,4]" in text and "reduce" in text
    assert is_pending(pending)


def test_each_name_counts_by_itself_and_folders_are_made(tmp_path: Path, pending: torch.Tensor) -> None:
    folder = tmp_path / "new/folder"
    names = [save_tensors_graph(folder, name, [pending]).name for name in ("a", "a", "b", "a")]
    assert names == ["a-0.txt", "a-1.txt", "b-0.txt", "a-2.txt"]


def test_replicas_do_not_overwrite_each_other(tmp_path: Path, pending: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "world_size", lambda: 4)
    monkeypatch.setattr(job, "ordinal", lambda: 3)
    assert save_tensors_graph(tmp_path, "loss", [pending]).name == "loss-0.txt.3"


def test_mistakes_are_named(tmp_path: Path, pending: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="at least one tensor"):
        save_tensors_graph(tmp_path, "loss", [])
    for name in ("", "a/b"):
        with pytest.raises(ValueError, match="becomes a file name"):
            save_tensors_graph(tmp_path, name, [pending])
    with pytest.raises(ValueError, match="a tensor on cpu"):
        save_tensors_graph(tmp_path, "loss", [torch.ones(2)])
    monkeypatch.setenv("SAVE_GRAPH_FMT", "png")
    with pytest.raises(ValueError, match="SAVE_GRAPH_FMT is 'png', must be text, dot or hlo"):
        save_tensors_graph(tmp_path, "loss", [pending])
    assert list(tmp_path.iterdir()) == []
