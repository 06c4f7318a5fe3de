"""`xm.save`: files that stock torch loads, written by the masters, replaced when whole."""

from __future__ import annotations

import io
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_xla.core.xla_model as xm
from xla_core.abi import job
from xla_core.testing import check_checkpoint_writer
from xla_serialization.torch_formats import xm_save


def test_torch_loads_what_was_saved_without_running_code(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).to("xla"))
    data = {"w": weight, "tied": [weight], "pair": (torch.ones(2).to("xla") * 3, "text"), "step": 4, "none": None, "cpu": torch.zeros(2)}
    xm.save(data, tmp_path / "saved.pt")
    found = torch.load(tmp_path / "saved.pt", weights_only=True, map_location="cpu")
    assert list(found) == list(data) and type(found["pair"]) is tuple and found["pair"][1] == "text"
    assert (found["step"], found["none"]) == (4, None)
    assert torch.equal(found["w"], torch.arange(6.0).reshape(2, 3)) and torch.equal(found["pair"][0], torch.full((2,), 3.0))
    assert found["w"].data_ptr() == found["tied"][0].data_ptr()
    assert weight.device.type == "xla", "what was saved stays where it was"


def test_a_state_dict_loads_into_a_module_on_the_cpu(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2).to("xla")
    xm.save(model.state_dict(), str(tmp_path / "model.pt"))
    there = torch.nn.Linear(3, 2)
    there.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(there.weight, model.weight.cpu())


def test_a_file_object_is_written_to() -> None:
    file = io.BytesIO()
    xm.save({"w": torch.ones(3).to("xla")}, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True)["w"], torch.ones(3))


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with open(tmp_path / "pipe", "wb") as pipe:
        xm.save({"w": torch.ones(3).to("xla")}, pipe)
    reader.join(timeout=60)
    assert torch.equal(torch.load(io.BytesIO(got[0]), weights_only=True)["w"], torch.ones(3))


@pytest.mark.parametrize(
    ("local", "world", "options", "written"),
    [
        (0, 0, {}, True),
        (0, 4, {}, True),  # the master of another host
        (1, 1, {}, False),
        (0, 4, {"global_master": True}, False),
        (0, 0, {"global_master": True}, True),
        (1, 5, {"master_only": False}, True),
        (1, 5, {"master_only": False, "global_master": True}, True),
    ],
)
def test_who_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: int, world: int, options: dict[str, Any], written: bool
) -> None:
    monkeypatch.setattr(job, "local_ordinal", lambda: local)
    monkeypatch.setattr(job, "ordinal", lambda: world)
    xm.save({"w": torch.ones(3).to("xla")}, tmp_path / "saved", **options)
    assert [file.name for file in tmp_path.iterdir()] == (["saved"] if written else [])


def test_all_meet_if_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tags: list[str] = []
    monkeypatch.setattr(xm, "rendezvous", lambda tag, *_: tags.append(tag))
    xm.save({}, tmp_path / "saved")
    assert tags == []
    xm.save({}, tmp_path / "saved", sync=True)
    assert len(tags) == 1


class Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("not this")


def test_a_save_that_fails_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    xm.save({"step": 1}, tmp_path / "saved")
    with pytest.raises(RuntimeError, match="not this"):
        xm.save({"w": torch.ones(100), "no": Unpicklable()}, tmp_path / "saved")
    assert torch.load(tmp_path / "saved", weights_only=True) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]


def test_a_flipped_bit_is_found_by_the_archive_s_checksums(tmp_path: Path) -> None:
    """torch.load looks at none."""
    path = tmp_path / "saved"
    xm.save({"w": torch.ones(50).to("xla")}, path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    whole = bytearray(path.read_bytes())
    whole[whole.index(torch.ones(50).numpy().tobytes()) + 2] ^= 1
    path.write_bytes(whole)
    assert not torch.equal(torch.load(path, weights_only=True)["w"], torch.ones(50))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is not None


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/saved")
    xm.save({"array": np.ones(2)}, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "saved").is_file()


def test_each_hosts_master_writes(run: Callable[..., list[Any]], tmp_path: Path) -> None:
    """Two replicas on one host, and every way of saving."""
    pytest.importorskip("xla_distributed")
    reports = run("replicas", tmp_path, processes=2)
    for ordinal, report in enumerate(reports):
        assert report["there"] == ["checkpoint", "xm", "xser", "xser.tensors"]
        assert report["pending"] == {"xm": False, "xser": False, "checkpoint": False}, "those that write nothing compute, too"
        own = [ordinal, *[ordinal + 1.0] * 3]
        assert report["values"] == {name: [[0, 1.0, 1.0, 1.0], own] for name in ("xm", "xser", "checkpoint")}
        assert report["together"] == 0


def test_divided_tensors_of_several_processes_are_written_whole(run: Callable[..., list[Any]], tmp_path: Path) -> None:
    pytest.importorskip("xla_spmd")
    reports = run("together", "whole", tmp_path, processes=2, devices=2)
    weight = torch.arange(32.0).reshape(8, 4) + 3
    for name in ("whole.pt", "whole.pt.0", "whole.pt.1"):
        found = torch.load(tmp_path / name, weights_only=True)
        assert torch.equal(found["weight"], weight) and found["tied"].data_ptr() == found["weight"].data_ptr()
        assert found["low"].dtype is torch.bfloat16 and torch.equal(found["low"], torch.full((8, 4), 0.5, dtype=torch.bfloat16))
        assert found["plain"].tolist() == [0, 1, 2] and found["here"].tolist() == [1.0, 1.0] and found["step"] == 7
        assert found["empty"].shape == (0, 4) and torch.equal(found["parameter"], torch.full((8, 4), 2.0))
    for process, report in enumerate(reports):
        assert report["device"] == "xla", "what was saved stays where it was"
        assert report["different"][:2] == [
            "MismatchError",
            "processes of one SPMD program save the same tensors together: process 0 has ('torch.float32', [2]), "
            "process 1 ('torch.float32', [3])",
        ]
        assert report["parted"][0] == "UnsavableError" and "xla_serialization.save" in report["parted"][1], "of xser, which has no such way"
        assert report["nowhere"][0] == "FileNotFoundError" and f"none{process or ''}/" in report["nowhere"][1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole.pt", "whole.pt.0", "whole.pt.1"]


def test_it_keeps_the_contract_of_writers(tmp_path: Path) -> None:
    check_checkpoint_writer(xm_save, tmp_path)
