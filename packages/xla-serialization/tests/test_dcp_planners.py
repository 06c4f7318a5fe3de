"""`torch.distributed.checkpoint` with planners for sharded tensors: shards are saved where they are, and loaded onto any mesh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import torch_xla.experimental.distributed_checkpoint as xc
import xla_serialization

pytest.importorskip("xla_spmd")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed is.*unavailable")
Run = Callable[..., list[Any]]
NAMES = {"both", "turned", "together", "columns", "uneven", "scalar", "plain"}
BYTES = 16 * 8 * 4 + 16 * 8 * 2 + 32 * 3 * 4 + 2 * 8 * 3 * 2 + 8 * 6 * 4 + 4 + 11 * 4
"""Of the state on the devices, once, with the padding of seven rows over four devices."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, run: Run) -> tuple[Path, dict[str, Any]]:
    """Saved by one process with eight devices."""
    folder = tmp_path_factory.mktemp("eight")
    return folder, run("dcp", "save", folder, 4, 2, devices=8)[0]


def chunks(folder: Path) -> dict[str, int]:
    """How many pieces each tensor has in a checkpoint."""
    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name.rpartition(".")[2]: len(entry.chunks) for name, entry in metadata.items() if hasattr(entry, "chunks")}


def test_shards_are_saved_where_they_are_and_read_once(saved: tuple[Path, dict[str, Any]]) -> None:
    folder, report = saved
    found = chunks(folder)
    assert (found["both"], found["turned"], found["together"], found["columns"]) == (8, 8, 8, 4)
    assert (found["uneven"], found["scalar"], found["plain"], found["here"]) == (4, 1, 1, 1)
    assert report["received"] == BYTES, "copies on several devices are read once"
    assert report["kept"] == ["xla"]


@pytest.mark.parametrize(("rows", "columns"), [(8, 1), (4, 1), (1, 1)])
def test_a_load_on_another_mesh(saved: tuple[Path, dict[str, Any]], run: Run, rows: int, columns: int) -> None:
    (report,) = run("dcp", "load", saved[0], rows, columns, devices=rows * columns)
    assert report["equal"] == dict.fromkeys(NAMES, True)
    assert report["sharded"] == {name: name != "plain" for name in NAMES}, "tensors are sharded as before the load"
    assert report["here"] and report["step"] == 7


def test_two_processes_save_together_and_load(tmp_path: Path, run: Run) -> None:
    first, second = run("dcp", "save", tmp_path, 4, 2, processes=2, devices=4)
    assert first["received"] + second["received"] == BYTES and min(first["received"], second["received"]) > BYTES / 3
    assert chunks(tmp_path)["both"] == 8
    for report in run("dcp", "load", tmp_path, 2, 4, processes=2, devices=4):
        assert report["equal"] == dict.fromkeys(NAMES, True) and report["step"] == 7


@pytest.mark.parametrize(("processes", "devices"), [(1, 4), (2, 2)])
def test_torchs_safetensors_are_written_read_and_consolidated(tmp_path: Path, run: Run, processes: int, devices: int) -> None:
    for report in run("dcp", "hf", tmp_path, 2, 2, processes=processes, devices=devices):
        assert report["divided"] == report["consolidated"] == [], "by torch's reader and by ours"
        assert ("HuggingFaceStorageWriter(path, save_distributed=True)" in report.get("refused", "")) == (processes > 1)
    found = xla_serialization.load(tmp_path / "divided")
    assert torch.equal(found["both"], torch.arange(128.0).reshape(16, 8) + 4), "without devices"


def test_an_asynchronous_save_has_the_state_of_its_call(tmp_path: Path, run: Run) -> None:
    for report in run("dcp", "later", tmp_path, 2, 2, processes=2, devices=2):
        assert report["equal"] == dict.fromkeys(NAMES, True) and report["here"] and report["step"] == 7
    assert chunks(tmp_path)["both"] == 4, "copies are divided as what they are copies of"


def test_torch_reads_it_without_us(saved: tuple[Path, dict[str, Any]]) -> None:
    state = {"nested": {"on": {"both": torch.zeros(16, 8)}}, "here": torch.zeros(11)}
    dcp.load(state, storage_reader=dcp.FileSystemReader(saved[0]), no_dist=True)
    assert torch.equal(state["nested"]["on"]["both"], torch.arange(128.0).reshape(16, 8) + 4)
    assert torch.equal(state["here"], torch.arange(11.0) + 5)


def test_what_torch_saved_is_loaded_on_the_device(tmp_path: Path) -> None:
    weight = torch.randn(5, 3)
    dcp.save({"weight": weight, "empty": torch.zeros(0, 3), "step": 3}, storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    state = {"weight": torch.zeros(5, 3, device="xla"), "empty": torch.zeros(0, 3, device="xla"), "step": 0}
    dcp.load(state, storage_reader=dcp.FileSystemReader(tmp_path), planner=xc.SPMDLoadPlanner(), no_dist=True)
    assert torch.equal(state["weight"].cpu(), weight) and state["step"] == 3 and state["empty"].device.type == "xla"


def test_parameters_an_optimizer_and_plain_values(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 3).to("xla")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (seed + 1))
        xc.prime_optimizer(optimizer)
        return model, optimizer

    model, optimizer = made(0)
    model(torch.ones(2, 4, device="xla")).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "parameter": model.weight}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path), planner=xc.SPMDSavePlanner(), no_dist=True)
    other, optimizer2 = made(1)
    found = {"model": other.state_dict(), "optimizer": optimizer2.state_dict(), "parameter": torch.zeros(3, 4)}
    dcp.load(found, storage_reader=dcp.FileSystemReader(tmp_path), planner=xc.SPMDLoadPlanner(), no_dist=True)
    optimizer2.load_state_dict(found["optimizer"])
    assert torch.equal(other.weight.cpu(), model.weight.cpu()) and torch.equal(found["parameter"], model.weight.detach().cpu())
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        for name, value in optimizer.state[one].items():
            assert torch.equal(torch.as_tensor(value).cpu(), torch.as_tensor(optimizer2.state[two][name]).cpu()), name
    assert optimizer2.param_groups[0]["lr"] == 0.1


def test_other_shapes_and_missing_keys_are_refused(tmp_path: Path) -> None:
    state = {"weight": torch.ones(4, 2, device="xla")}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path), planner=xc.SPMDSavePlanner(), no_dist=True)
    for wrong, words in (({"weight": torch.ones(2, 4, device="xla")}, "Size mismatch"), ({"bias": torch.ones(1)}, "Missing key")):
        with pytest.raises(dcp.api.CheckpointException, match=words):
            dcp.load(wrong, storage_reader=dcp.FileSystemReader(tmp_path), planner=xc.SPMDLoadPlanner(), no_dist=True)
