"""`torch_xla.utils.serialization`: the documented files, whoever wrote them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla.utils.serialization as xser
import xla_serialization as checkpoint
from xla_core.abi import job
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
    assert {file.name for file in (tmp_path / "saved.tensors").iterdir()} == {"tensor_0.pt", "structure", "checksums"}


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
    monkeypatch.setattr(job, "local_ordinal", lambda: local)
    monkeypatch.setattr(job, "ordinal", lambda: world)
    xser.save({"w": torch.ones(3).to("xla")}, tmp_path / "saved", **options)
    assert any(tmp_path.iterdir()) == written


def test_the_tensors_of_another_save_are_refused(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "one", 1.0), saved(tmp_path / "other", 2.0)
    xser.save({"more": torch.ones(1).to("xla")}, other)
    shutil.rmtree(tmp_path / "one.tensors")
    with pytest.raises(DamagedCheckpointError, match="one.tensors: .* is missing"):
        xser.load(one)
    os.rename(tmp_path / "other.tensors", tmp_path / "one.tensors")
    with pytest.raises(DamagedCheckpointError, match="one: is damaged, or .*one.tensors, belongs to another save"):
        xser.load(one)


Damage = Callable[[bytes, random.Random], bytes]
DAMAGES: dict[str, Damage] = {
    "flip": lambda data, chosen: _flipped(data, chosen.randrange(len(data)), chosen.randrange(8)),
    "truncate": lambda data, chosen: data[: chosen.randrange(len(data))],
    "extend": lambda data, chosen: data + chosen.randbytes(chosen.randrange(1, 100)),
}


def _flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def equal(found: dict[str, Any]) -> bool:
    """Whether it is what `saved` saved."""
    tensors = torch.cat([found["w"].flatten(), *(tensor.flatten() for tensor in found["tied"]), found["other"], found["cpu"]])
    return torch.equal(tensors, torch.tensor([1.0] * 18 + [0.0] * 4 + [1.0])) and found["step"] == 3


@pytest.mark.parametrize("times", [10, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_loads_other_numbers(tmp_path: Path, damage: str, times: int) -> None:
    """Of each file in turn: refused with a file's name."""
    path = saved(tmp_path / "saved")
    chosen = random.Random(4)
    for file in [path, *sorted((tmp_path / "saved.tensors").iterdir())]:
        whole = file.read_bytes()
        for _ in range(times):
            file.write_bytes(DAMAGES[damage](whole, chosen))
            with pytest.raises(DamagedCheckpointError, match="saved"):
                xser.load(path)
        file.write_bytes(whole)
    assert equal(xser.load(path))


def test_each_bit_of_the_numbers_counts(tmp_path: Path) -> None:
    """torch.load alone would not notice: it looks at no checksums."""
    path = saved(tmp_path / "saved")
    tensor = tmp_path / "saved.tensors" / "tensor_0.pt"
    whole = tensor.read_bytes()
    start = whole.index(torch.ones(6).numpy().tobytes())
    for place in range(start, start + 24):
        tensor.write_bytes(_flipped(whole, place, place % 8))
        assert not torch.equal(torch.load(tensor, weights_only=True), torch.ones(2, 3))
        with pytest.raises(DamagedCheckpointError, match="tensor_0.pt: is damaged"):
            xser.load(path)


def test_a_file_that_is_deleted_or_in_the_place_of_another(tmp_path: Path) -> None:
    path = saved(tmp_path / "saved")
    folder = tmp_path / "saved.tensors"
    contents = {file: file.read_bytes() for file in [path, *sorted(folder.iterdir())]}
    for file in contents:
        file.unlink()
        if file.name in ("structure", "checksums"):  # of two that say the same, one is enough
            assert equal(xser.load(path))
        else:
            with pytest.raises((DamagedCheckpointError, FileNotFoundError), match=file.name):
                xser.load(path)
        for other in set(contents) - {file}:
            file.write_bytes(contents[other])
            other.write_bytes(contents[file])
            with pytest.raises(DamagedCheckpointError, match="saved"):
                xser.load(path)
            other.write_bytes(contents[other])
        file.write_bytes(contents[file])
    shutil.rmtree(folder)
    with pytest.raises(DamagedCheckpointError, match="saved.tensors: .* is missing"):
        xser.load(path)


def test_values_beside_no_tensors_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "plain"
    xser.save({"numbers": torch.ones(50), "step": 1}, path)
    whole = path.read_bytes()
    path.write_bytes(_flipped(whole, whole.index(torch.ones(50).numpy().tobytes()) + 2, 0))
    with pytest.raises(DamagedCheckpointError, match="plain: is damaged"):
        xser.load(path)


@pytest.mark.parametrize("name", ["saved", "saved.tensors", "tensor_0.pt", "structure", "checksums"])
@pytest.mark.parametrize("made", ["pipe", "zero", "folder", "link"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, made: str) -> None:
    path = saved(tmp_path / "saved")
    place = tmp_path / name if name.startswith("saved") else tmp_path / "saved.tensors" / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    if made == "pipe":
        os.mkfifo(place)
    elif made == "folder":
        place.mkdir()  # in the place of that of the tensors an empty one
    else:
        place.symlink_to("/dev/zero" if made == "zero" else place.name)
    with pytest.raises((DamagedCheckpointError, OSError), match="saved"):
        xser.load(path)


def test_what_an_earlier_version_saved_is_read_unchecked(tmp_path: Path) -> None:
    path = saved(tmp_path / "saved")
    (tmp_path / "saved.tensors" / "checksums").unlink()
    assert equal(xser.load(path))
    torch.save(torch.full((2, 3), 5.0), tmp_path / "saved.tensors" / "tensor_0.pt")
    assert torch.equal(xser.load(path)["w"], torch.full((2, 3), 5.0))


def test_damage_of_what_has_no_checksums_names_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "saved")
    for name in ("structure", "checksums"):
        (tmp_path / "saved.tensors" / name).unlink()
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
