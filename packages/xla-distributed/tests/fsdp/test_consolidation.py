"""Shards of several replicas, cut here by hand as NumPy would, become whole state dicts."""

from __future__ import annotations

import os
import pickle
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torch_xla.distributed.fsdp import consolidate_sharded_model_checkpoints, consolidate_sharded_state_dicts

FLAT = np.arange(10.0, dtype=np.float32).reshape(2, 5)
ROWS = np.arange(15.0, dtype=np.float32).reshape(5, 3)
SIZE = 3


def metadata(rank: int) -> dict[str, Any]:
    return {
        "shard_info": {
            "flat": {"shape": [2, 5], "on_dim_0": False, "same_as": "flat"},
            "tied": {"shape": [2, 5], "on_dim_0": False, "same_as": "flat"},
            "rows": {"shape": [5, 3], "on_dim_0": True, "same_as": "rows"},
            "number": {"shape": [], "on_dim_0": True, "same_as": "number"},
            "in.flat_param_0": {"shape": [7], "on_dim_0": False, "same_as": "in.flat_param_0"},
        },
        "flatten_info": {"in.flat_param_0": {"names": ["w", "a.b"], "shapes": [[2, 2], [3]], "shared": {"tied": "w"}}},
        "buffer_info": {"mean": "torch.float64"},
        "world_size": SIZE,
        "rank": rank,
    }


def cut(array: np.ndarray, rank: int) -> torch.Tensor:
    padded = np.concatenate([array, np.zeros((-len(array) % SIZE, *array.shape[1:]), array.dtype)])
    return torch.from_numpy(np.split(padded, SIZE)[rank].copy())


def state(rank: int) -> dict[str, Any]:
    return {
        "flat": cut(FLAT.reshape(-1), rank),
        "tied": cut(FLAT.reshape(-1), rank),
        "rows": cut(ROWS, rank),
        "number": cut(np.array([4.0], np.float32), rank),
        "in.flat_param_0": cut(np.arange(7.0, dtype=np.float32), rank),
        "mean": torch.tensor([float(rank)]),
    }


def check(whole: dict[str, Any]) -> None:
    assert torch.equal(whole["flat"], torch.from_numpy(FLAT)) and torch.equal(whole["rows"], torch.from_numpy(ROWS))
    assert whole["number"].shape == () and whole["number"] == 4
    assert whole["in.w"].tolist() == whole["in.tied"].tolist() == [[0, 1], [2, 3]] and whole["in.a.b"].tolist() == [4, 5, 6]
    assert whole["mean"].dtype == torch.float64 and whole["mean"] == 0
    assert whole["tied"].data_ptr() == whole["flat"].data_ptr()
    assert whole.keys() == {"flat", "tied", "rows", "number", "in.w", "in.a.b", "in.tied", "mean"}


def save(folder: Path, ranks: range = range(SIZE)) -> str:
    for rank in ranks:
        torch.save({"model": state(rank), "shard_metadata": metadata(rank), "epoch": 3}, folder / f"ckpt_{SIZE - rank}.pth")
    return str(folder / "ckpt")


def test_state_dicts() -> None:
    check(consolidate_sharded_state_dicts([state(rank) for rank in range(SIZE)], metadata(1)))


def test_files_in_any_order_and_twice(tmp_path: Path) -> None:
    prefix = save(tmp_path)
    for _ in range(2):  # what was written is none of the shards
        whole, path = consolidate_sharded_model_checkpoints(prefix)
        check(whole)
        assert path == f"{prefix}_consolidated.pth"
        check(torch.load(path, weights_only=True)["model"])
    whole, path = consolidate_sharded_model_checkpoints(str(tmp_path) + "/", "ckpt_?.pth", save_model=False)
    check(whole)
    assert path is None


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    prefix, target = save(tmp_path), tmp_path / "whole"
    arguments = ["--ckpt_prefix", prefix, "--ckpt_suffix", "_*.pth", "--save_path", str(target)]
    monkeypatch.setattr(sys, "argv", ["consolidate_sharded_ckpts", *arguments])
    runpy.run_module("torch_xla.distributed.fsdp.consolidate_sharded_ckpts", run_name="__main__")
    assert capsys.readouterr().out == f"8 entries in {target}\n"
    check(torch.load(target, weights_only=True)["model"])


class Harm:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_no_code_of_the_files_is_run(tmp_path: Path) -> None:
    prefix = save(tmp_path)
    torch.save({"model": state(0), "shard_metadata": metadata(0), "more": Harm(tmp_path / "harm")}, f"{prefix}_1.pth")
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        consolidate_sharded_model_checkpoints(prefix)
    assert not (tmp_path / "harm").exists()


def test_what_is_missing_or_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no files match"):
        consolidate_sharded_model_checkpoints(str(tmp_path / "ckpt"))
    prefix = save(tmp_path, range(1, SIZE))
    with pytest.raises(FileNotFoundError, match=r"no shards of replicas \[0\] of 3"):
        consolidate_sharded_model_checkpoints(prefix)
    torch.save({"model": {}}, tmp_path / "ckpt_9.pth")
    with pytest.raises(ValueError, match=r"ckpt_9.pth does not have the entries 'model' and 'shard_metadata'"):
        consolidate_sharded_model_checkpoints(prefix)
    with pytest.raises(ValueError, match="2 state dicts for shards of 3 replicas"):
        consolidate_sharded_state_dicts([state(0), state(1)], metadata(0))
    with pytest.raises(ValueError, match=r"rows: shards of shapes .* do not make a parameter of \(5, 3\)"):
        consolidate_sharded_state_dicts([{"rows": torch.ones(1, 3)}] * SIZE, metadata(0))
