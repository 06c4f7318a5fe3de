"""`python -m xla_serialization`: what inspect shows, convert writes and verify finds, beside torch and safetensors."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked_python
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

import torch_xla.core.xla_model as xm
import xla_serialization as checkpoint
from torch_xla.utils import serialization as xser
from xla_serialization.cli import COMMANDS, group
from xla_serialization.format.manifest import INDEX


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def good(*arguments: object) -> str:
    """stdout of a run that must succeed."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def wrong(*arguments: object) -> str:
    """The one line that a wrong file gets."""
    result = run(*arguments)
    assert result.exit_code == 2 and result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1, result.output
    return result.stderr


def tensors() -> dict[str, torch.Tensor]:
    """A flat state: several dtypes, a scalar, an empty one."""
    return {
        "body.weight": torch.arange(12.0).reshape(3, 4),
        "body.bias": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "mask": torch.tensor([True, False, True]),
        "count": torch.tensor(7),
        "none": torch.empty(0, 3),
    }


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one.keys() != other.keys():
        return False
    return all(tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint in two shards, with plain values and tied weights."""
    state = {"model": tensors(), "tied": None, "step": 12, "rate": float("inf"), "betas": (0.9, 0.999)}
    state["tied"] = state["model"]["body.weight"]
    checkpoint.save(state, tmp_path / "saved", shard_bytes=40)
    return tmp_path / "saved"


def shard_of(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][name]


def test_inspect_lists_tensors_and_values(saved: Path) -> None:
    text = good("inspect", saved)
    (line,) = [line for line in text.splitlines() if "model.body.bias" in line]
    assert [cell.strip() for cell in line.strip("│ ").split("│")][:4] == ["model.body.bias", "bfloat16", "2", "4"]
    assert "3×4" in text and "scalar" in text and f"{shard_of(saved, 'model.count').name}\n" in text
    assert "step" in text and "12" in text and "float('inf')" not in text and "betas → 1" in text and "0.999" in text
    assert text.endswith(f"5 tensors, {48 + 4 + 3 + 8} bytes\n")


def test_inspect_as_json(saved: Path) -> None:
    found = json.loads(good("inspect", "--json", saved))
    assert found["kind"] == "checkpoint of xla_serialization" and found["bytes"] == 63
    assert found["tensors"]["model.body.weight"] == {
        "dtype": "float32",
        "shape": [3, 4],
        "bytes": 48,
        "files": [shard_of(saved, "model.body.weight").name],
        "pieces": 1,
    }
    values = {tuple(value["keys"]): value["value"] for value in found["values"]}
    assert values == {("step",): "12", ("rate",): "inf", ("betas", "0"): "0.9", ("betas", "1"): "0.999"}


def test_a_single_file_and_a_folder_of_others_are_read(tmp_path: Path) -> None:
    first, second = {"a": torch.ones(2, 2)}, {"b": torch.arange(3, dtype=torch.int16), "c": torch.zeros(5)}
    folder = tmp_path / "hub"
    folder.mkdir()
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(second, folder / "model-00002-of-00002.safetensors")
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    assert json.loads(good("inspect", "--json", folder))["tensors"]["b"]["files"] == ["model-00002-of-00002.safetensors"]
    good("convert", folder, tmp_path / "ours")
    assert equal(checkpoint.load(tmp_path / "ours"), first | second)
    assert "all as they were written" in good("verify", tmp_path / "ours")
    for path in (folder, folder / "model-00001-of-00002.safetensors"):
        assert "no checksums" in wrong("verify", path)

    alone = tmp_path / "alone"
    alone.mkdir()
    save_file(second, alone / "model.safetensors")
    good("convert", alone, tmp_path / "c.pt")
    assert equal(torch.load(tmp_path / "c.pt", weights_only=True), second)

    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../alone/model.safetensors"}}))
    assert "no plain file name" in wrong("inspect", folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"missing": "model-00001-of-00002.safetensors"}}))
    assert "'missing' is not in this file" in wrong("inspect", folder)


def test_unaligned_data_of_others_is_read(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}).encode()
    header += b" " * (-(len(header) + 8) % 8 + 1)
    data = np.array([1.5, -2.0]).tobytes()
    (tmp_path / "odd.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    good("convert", tmp_path / "odd.safetensors", tmp_path / "ours")
    assert checkpoint.load(tmp_path / "ours")["a"].tolist() == [1.5, -2.0]


def test_convert_to_a_single_file(saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "one.safetensors"
    text = wrong("convert", saved, target)
    assert "step = 12" in text and "betas.0 = 0.9" in text and "--tensors-only" in text and not target.exists()
    result = run("convert", "--tensors-only", saved, target)
    assert result.exit_code == 0 and "left out: step = 12" in result.stderr
    wanted = {f"model.{name}": tensor for name, tensor in tensors().items()} | {"tied": tensors()["body.weight"]}
    assert equal(load_file(target), wanted)
    good("convert", target, tmp_path / "again")
    assert equal(checkpoint.load(tmp_path / "again"), wanted)
    checkpoint.save({"z": torch.ones(2, dtype=torch.complex128)}, tmp_path / "wide")
    before = target.read_bytes()
    assert "complex128" in wrong("convert", tmp_path / "wide", target)
    assert target.read_bytes() == before and not [path for path in tmp_path.iterdir() if path.name.startswith(".one")]


def test_convert_to_and_from_torch(saved: Path, tmp_path: Path) -> None:
    good("convert", saved, tmp_path / "one.pt")
    found = torch.load(tmp_path / "one.pt", weights_only=True)
    assert equal(found["model"], tensors()) and found["betas"] == (0.9, 0.999) and found["step"] == 12
    assert found["tied"].data_ptr() == found["model"]["body.weight"].data_ptr()
    good("convert", tmp_path / "one.pt", tmp_path / "back")
    back = checkpoint.load(tmp_path / "back")
    assert equal(back["model"], tensors()) and back["rate"] == float("inf") and back["tied"] is back["model"]["body.weight"]
    checkpoint.save({"array": np.arange(3)}, tmp_path / "arrays")
    assert "weights_only=True" in wrong("convert", tmp_path / "arrays", tmp_path / "arrays.pt")
    good("convert", "--tensors-only", tmp_path / "arrays", tmp_path / "arrays.pt")
    assert torch.load(tmp_path / "arrays.pt", weights_only=True)["array"].tolist() == [0, 1, 2]


def test_what_several_processes_wrote_becomes_whole(tmp_path: Path) -> None:
    sharded = Path(__file__).parent / "data" / "version-1-sharded"
    for target in ("folder", "one.safetensors", "one.pt"):
        good("convert", sharded, tmp_path / target)
    wanted = {name: checkpoint.load(sharded)[name] for name in checkpoint.Checkpoint(sharded)}
    assert any(len(entry.pieces) > 1 for entry in checkpoint.Checkpoint(sharded).manifest.tensors.values())
    assert all(len(entry.pieces) == 1 for entry in checkpoint.Checkpoint(tmp_path / "folder").manifest.tensors.values())
    for found in (checkpoint.load(tmp_path / "folder"), load_file(tmp_path / "one.safetensors"), torch.load(tmp_path / "one.pt")):
        assert equal(found, wanted)


def test_a_damaged_source_replaces_nothing(saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    good("convert", saved, target)
    before = sorted(target.iterdir())
    file = shard_of(saved, "model.body.weight")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for name in ("target", "one.pt"):
        assert "model.body.weight" in wrong("convert", saved, tmp_path / name)
    assert "--tensors-only" in wrong("convert", saved, tmp_path / "one.safetensors")
    assert "model.body.weight" in run("convert", "--tensors-only", saved, tmp_path / "one.safetensors").stderr
    assert sorted(target.iterdir()) == before and {path.name for path in tmp_path.iterdir()} == {saved.name, "target"}


def test_what_xm_and_xser_wrote_is_read(tmp_path: Path) -> None:
    state = {"weight": torch.arange(6.0).reshape(2, 3).to("xla"), "step": 3}
    xm.save(state, tmp_path / "xm.pt")
    xser.save(state, tmp_path / "xser.pt")
    torch.save({"weight": torch.arange(6.0).reshape(2, 3), "step": 3}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("xm", "xser", "old"):
        good("convert", tmp_path / f"{name}.pt", tmp_path / name)
        found = checkpoint.load(tmp_path / name)
        assert found["step"] == 3 and torch.equal(found["weight"], torch.arange(6.0).reshape(2, 3))
    shutil.rmtree(tmp_path / "xser.pt.tensors")
    assert "xser.pt.tensors" in wrong("inspect", tmp_path / "xser.pt")


def test_verify_names_damaged_tensors_and_files(saved: Path) -> None:
    assert "5 tensors, 63 bytes, all as they were written" in good("verify", saved)
    file = shard_of(saved, "model.body.weight")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    result = run("verify", saved)
    assert result.exit_code == 1 and "1 damaged" in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("model.body.weight: ")]
    assert str(file) in line
    file.write_bytes(whole[:-1])
    other = shard_of(saved, "model.count")
    assert other != file
    other.unlink()
    result = run("verify", saved)
    assert result.exit_code == 1
    assert "model.body.weight: " in result.stdout and f"model.count: {other}: this file of the checkpoint is missing" in result.stdout
    index = saved / INDEX
    index.write_text(index.read_text().replace('"step"', '"stop"'))
    result = run("verify", saved)
    assert result.exit_code == 1 and INDEX in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_checkpoint_is_one_line(tmp_path: Path, name: str) -> None:
    more = [tmp_path / "target"] if name == "convert" else []
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.pt").write_text("not a checkpoint")
    (tmp_path / "text.safetensors").write_text("not a checkpoint")
    for path in ("nothing", "empty", "text.pt", "text.safetensors"):
        assert path in wrong(name, tmp_path / path, *more)
    assert not (tmp_path / "target").exists()


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"weight": torch.ones(2), "evil": Evil()}, tmp_path / "evil.pt")
    text = wrong("convert", tmp_path / "evil.pt", tmp_path / "target")
    assert "evil.pt" in text and "weights_only" not in text
    assert not (tmp_path / "ran").exists() and not (tmp_path / "target").exists()


def test_a_source_is_not_its_own_target(saved: Path) -> None:
    assert "SOURCE itself" in wrong("convert", saved, saved)


def test_a_damaged_source_leaves_the_target(saved: Path, tmp_path: Path) -> None:
    file = shard_of(saved, "model.body.weight")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    target = tmp_path / "one.safetensors"
    target.write_bytes(b"old")
    assert "model.body.weight" in wrong("convert", "--tensors-only", saved, target)
    assert target.read_bytes() == b"old"


def test_a_process_is_quiet_into_a_pipe_and_shows_a_bar_on_a_terminal(saved: Path) -> None:
    command = [sys.executable, "-m", "xla_serialization", "verify", str(saved)]
    done = forked_python.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "" and "all as they were written" in done.stdout
    ours, theirs = pty.openpty()
    shown = forked_python.run(command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"}, check=False)
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        assert b"verifying" in terminal.read(65536)
    assert shown.returncode == 0


def test_the_bar_follows_a_save_and_a_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with checkpoint.progress_bar("saving") as progress:
        checkpoint.save(tensors(), tmp_path / "saved", progress=progress)
    with checkpoint.progress_bar("loading") as progress:
        assert equal(checkpoint.load(tmp_path / "saved", progress=progress), tensors())
    assert capsys.readouterr() == ("", "")
