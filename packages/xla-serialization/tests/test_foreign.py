"""Folders that other programs wrote: torch.distributed.checkpoint's safetensors, divided or whole, and the hub's, are read as ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import xla_serialization
from xla_serialization import Checkpoint, DamagedCheckpointError, MismatchError, MissingCheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed is.*unavailable")
WEIGHT, BIAS = torch.arange(24.0).reshape(6, 4), torch.arange(3, dtype=torch.int64)


def written(folder: Path, name: str, tensors: dict[str, torch.Tensor], offsets: object = None) -> None:
    """A file as torch.distributed.checkpoint writes one for each process."""
    places = offsets if offsets is not None else {key: {"saved_offsets": [0] * tensor.dim()} for key, tensor in tensors.items()}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / name, {"DCP_SHARDING_INFO": json.dumps(places), "DCP_VERSION": "1.0", "format": "pt"})


def divided(folder: Path) -> None:
    written(folder, "shard-00001-model-00001-of-00001.safetensors", {"w": WEIGHT[:4].contiguous(), "b": BIAS})
    written(folder, "shard-00002-model-00001-of-00001.safetensors", {"w": WEIGHT[4:].contiguous()}, {"w": {"saved_offsets": [4, 0]}})


def test_what_torch_writes_whole_is_read(tmp_path: Path) -> None:
    state = {"model": {"w": WEIGHT.clone(), "b": BIAS.clone()}}
    writer = dcp.HuggingFaceStorageWriter(str(tmp_path), {"model.w": 1, "model.b": 2})
    dcp.save(state, storage_writer=writer, no_dist=True)
    found = xla_serialization.load(tmp_path, device="xla")
    assert torch.equal(found["model.w"].cpu(), WEIGHT) and torch.equal(found["model.b"].cpu(), BIAS) and len(found) == 2
    into = {"model": {"w": torch.zeros(6, 4, device="xla"), "b": torch.zeros(3, dtype=torch.int64)}, "step": 3}
    given = xla_serialization.load_into(into, tmp_path)
    assert given["step"] == 3 and given["model"]["w"] is into["model"]["w"] and torch.equal(into["model"]["w"].cpu(), WEIGHT)
    with pytest.raises(MismatchError, match=r"model.other: not in .*, which has model.w, model.b"):
        xla_serialization.load_into({"model": {"other": torch.zeros(1)}}, tmp_path)


def test_what_is_divided_among_files_is_read_in_parts(tmp_path: Path) -> None:
    divided(tmp_path)
    held = Checkpoint(tmp_path)
    assert torch.equal(held["w"], WEIGHT) and torch.equal(held["b"], BIAS) and list(held) == ["b", "w"]
    before = held.bytes_read
    assert torch.equal(held.part("w", (slice(3, 5), slice(1, 2))), WEIGHT[3:5, 1:2]) and held.bytes_read == before + 8


def test_the_hubs_single_file_is_read(tmp_path: Path) -> None:
    save_file({"w": WEIGHT}, tmp_path / "model.safetensors")
    save_file({"w": WEIGHT + 1}, tmp_path / "adapter.safetensors")
    assert torch.equal(xla_serialization.load(tmp_path)["w"], WEIGHT)


def test_parts_that_are_missing_or_nonsense_are_refused(tmp_path: Path) -> None:
    divided(tmp_path / "lost")
    (tmp_path / "lost" / "shard-00001-model-00001-of-00001.safetensors").unlink()
    cases: dict[str, object] = {
        "many": {"w": {"saved_offsets": [0, 0, 0]}},
        "negative": {"w": {"saved_offsets": [-1, 0]}},
        "text": {"w": 3},
    }
    cases |= {"text": {"w": 3}, "other": {"v": {"saved_offsets": [0, 0]}}, "words": {"w": {"saved_offsets": ["a", "b"]}}}
    for name, offsets in cases.items():
        written(tmp_path / name, "shard-00001-model-00001-of-00001.safetensors", {"w": WEIGHT}, offsets)
    for name in ("lost", *cases):
        with pytest.raises(DamagedCheckpointError):
            xla_serialization.load(tmp_path / name)
    (tmp_path / "indexed").mkdir()
    (tmp_path / "indexed" / "model.safetensors.index.json").write_text('{"weight_map": {"w": "gone.safetensors"}}', encoding="utf-8")
    with pytest.raises(DamagedCheckpointError, match="gone.safetensors: this file of the checkpoint is missing"):
        xla_serialization.load(tmp_path / "indexed")


def test_what_reads_other_folders_is_said(tmp_path: Path) -> None:
    dcp.save({"w": WEIGHT}, storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    with pytest.raises(MissingCheckpointError, match="torch.distributed.checkpoint wrote it, and its load reads it"):
        xla_serialization.load(tmp_path)


def test_what_an_interrupted_save_of_ours_left_is_no_checkpoint(tmp_path: Path) -> None:
    save_file({"w": WEIGHT}, tmp_path / f"model-00001-of-00002-{'0' * 16}.safetensors")
    with pytest.raises(MissingCheckpointError):
        xla_serialization.load(tmp_path)
