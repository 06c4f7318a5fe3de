"""`torch_xla.utils.serialization`: the documented files, whoever wrote them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla.core.xla_model as xm
import torch_xla.utils.serialization as xser
import xla_serialization as checkpoint
from xla_serialization import DamagedCheckpointError


def saved(path: Path, value: float = 1.0) -> Path:
    weight = torch.full((2, 3), value).to("xla")
    xser.save({"w": weight, "tied": [weight, weight.detach()], "other": torch.zeros(4).to("xla"), "cpu": torch.ones(1), "step": 3}, path)
    return path


def test_the_files_are_those_of_the_documentation(tmp_path: Path) -> None:
    path = saved(tmp_path / "saved")
    assert {file.name for file in tmp_path.iterdir()} == {"saved", "saved.tensors"}
    tensors = {file.name: torch.load(file, weights_only=True) for file in (tmp_path / "saved.tensors").glob("tensor_*.pt")}
    assert tensors.keys() == {"tensor_0.pt", "tensor_1.pt"}, "one that stands in three places is stored once"
    assert torch.equal(tensors["tensor_0.pt"], torch.ones(2, 3)) and torch.equal(tensors["tensor_1.pt"], torch.zeros(4))
    found = xser.load(path)
    assert list(found) == ["w", "tied", "other", "cpu", "step"] and found["step"] == 3
    assert found["tied"][0] is found["w"] and found["w"].device.type == "cpu" and torch.equal(found["w"], torch.ones(2, 3))


def test_a_module_is_restored(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("xla")
    xser.save(model.state_dict(), str(tmp_path / "model"))
    there = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    there.load_state_dict(xser.load(str(tmp_path / "model")))
    assert all(torch.equal(one, other.cpu()) for one, other in zip(there.parameters(), model.parameters(), strict=True))


def test_one_tensor_alone_and_none_at_all(tmp_path: Path) -> None:
    xser.save(torch.ones(2).to("xla"), tmp_path / "one")
    assert torch.equal(xser.load(tmp_path / "one"), torch.ones(2))
    xser.save({"step": 1}, tmp_path / "none")
    assert xser.load(tmp_path / "none") == {"step": 1}
    with pytest.raises(FileNotFoundError):
        xser.load(tmp_path / "missing")


def test_a_save_replaces_the_one_before(tmp_path: Path) -> None:
    saved(tmp_path / "saved", 1.0)
    xser.save([torch.full((5,), 2.0).to("xla")], tmp_path / "saved")
    assert torch.equal(xser.load(tmp_path / "saved")[0], torch.full((5,), 2.0))
    assert {file.name for file in (tmp_path / "saved.tensors").iterdir()} == {"tensor_0.pt", "structure"}


def test_a_folder_of_xla_serialization_is_read_too(tmp_path: Path) -> None:
    checkpoint.save({"w": torch.ones(2)}, tmp_path / "saved")
    assert torch.equal(xser.load(tmp_path / "saved")["w"], torch.ones(2))


def test_what_other_programs_wrote_is_read(tmp_path: Path) -> None:
    """They write the structure and the tensors, and nothing that says that these belong together."""
    torch.save({"model": {"w": xser.TensorReference(0), "same": xser.TensorReference(0), "b": xser.TensorReference(1)}}, tmp_path / "s")
    assert b"torch_xla.utils.serialization" in (tmp_path / "s").read_bytes()
    (tmp_path / "s.tensors").mkdir()
    for number in range(2):
        torch.save(torch.full((3,), float(number)), tmp_path / "s.tensors" / f"tensor_{number}.pt")
    found = xser.load(tmp_path / "s")["model"]
    assert found["w"] is found["same"] and torch.equal(found["b"], torch.ones(3))


@pytest.mark.parametrize(
    ("local", "world", "options", "written"),
    [
        (0, 4, {}, True),
        (1, 1, {}, False),
        (0, 4, {"global_master": True}, False),
        (0, 0, {"global_master": True}, True),
        (1, 5, {"master_only": False}, True),
    ],
)
def test_who_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: int, world: int, options: dict[str, Any], written: bool
) -> None:
    monkeypatch.setattr(xm, "is_master_ordinal", lambda local_=True, **given: (local if given.get("local", local_) else world) == 0)
    xser.save({"w": torch.ones(3).to("xla")}, tmp_path / "saved", **options)
    assert any(tmp_path.iterdir()) == written


def test_the_tensors_of_another_save_are_refused(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "one", 1.0), saved(tmp_path / "other", 2.0)
    xser.save({"more": torch.ones(1).to("xla")}, other)
    shutil.rmtree(tmp_path / "one.tensors")
    with pytest.raises(DamagedCheckpointError, match="one.tensors: .* is missing"):
        xser.load(one)
    os.rename(tmp_path / "other.tensors", tmp_path / "one.tensors")
    with pytest.raises(DamagedCheckpointError, match="one.tensors: .* belongs to another save"):
        xser.load(one)


def test_damage_names_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "saved")
    tensor = tmp_path / "saved.tensors" / "tensor_1.pt"
    whole = tensor.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"\0" * 100):
        tensor.write_bytes(damaged)
        with pytest.raises(DamagedCheckpointError, match="tensor_1.pt: cut off, changed"):
            xser.load(path)
    torch.save(["no tensor"], tensor)
    with pytest.raises(DamagedCheckpointError, match="tensor_1.pt: holds a list"):
        xser.load(path)
    tensor.unlink()
    with pytest.raises(DamagedCheckpointError, match="tensor_1.pt: this tensor .* is missing"):
        xser.load(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedCheckpointError, match="saved: cut off, changed"):
        xser.load(path)


@pytest.mark.parametrize("number", ["../../etc/passwd", -1.5, None, True])
def test_references_are_numbers(tmp_path: Path, number: Any) -> None:
    torch.save([xser.TensorReference(number)], tmp_path / "saved")
    (tmp_path / "saved.tensors").mkdir()
    with pytest.raises(DamagedCheckpointError, match="not by its number"):
        xser.load(tmp_path / "saved")
