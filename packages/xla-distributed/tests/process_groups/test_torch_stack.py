"""Torch's own distributed stack over processes with the backend xla does what it does over gloo on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Report = dict[str, Any]
Reports = tuple[list[Report], list[Report]]
# docs/parallelism.md trains by FSDP2 and tensor parallelism in the tests that always run.
pytestmark = pytest.mark.long
QUICK = ("dtensors", "tensor_parallel.quick", "fully_sharded.quick", "replicated.quick", "checkpoints.save")
MORE = ("tensor_parallel", "fully_sharded", "replicated")
ON_FOUR = ("meshes_of_two", "five_ways")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the checkpoints that two processes saved, in `xla` and `cpu`."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def reports(start: Callable[..., Any], folder: Path) -> Reports:
    """Of two processes, on xla devices and on the CPU."""
    ours, theirs = (start("torch_stack", 2, 2, device, *QUICK, CHECKPOINTS=str(folder / device)).reports() for device in ("xla", "cpu"))
    return ours, theirs


@pytest.fixture(scope="module")
def more(start: Callable[..., Any]) -> Reports:
    """Of two processes that do more."""
    ours, theirs = (start("torch_stack", 2, 2, device, *MORE).reports() for device in ("xla", "cpu"))
    return ours, theirs


@pytest.fixture(scope="module")
def of_four(start: Callable[..., Any], folder: Path, reports: Reports) -> Reports:
    """Of four processes, which also load what two saved."""
    ours = start("torch_stack", 4, 4, "xla", *ON_FOUR, "checkpoints.load", CHECKPOINTS=str(folder / "xla")).reports()
    return ours, start("torch_stack", 4, 4, "cpu", *ON_FOUR).reports()


def check(ours: Any, theirs: Any, place: str, rel: float = 2e-4) -> None:
    """Compare with torch's own; numbers within float32's rounding unless `rel` says otherwise."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), place
        for name in theirs:
            check(ours[name], theirs[name], f"{place} / {name}", rel)
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), place
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            check(one, other, f"{place}[{number}]", rel)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=rel, abs=rel / 10), place
    else:
        assert ours == theirs, place


@pytest.mark.parametrize("part", ["mesh", "redistributed", "computed", "gradients", "modules", "kept", "refused"])
def test_dtensors(reports: Reports, part: str) -> None:
    for ours, theirs in zip(*reports, strict=True):
        check(ours["dtensors"][part], theirs["dtensors"][part], part)


def test_random_dtensors(reports: Reports) -> None:
    """Ranks agree on the whole, shards differ, and the state moves on alike on all ranks."""
    first, second = (ours["dtensors"]["random"] for ours in reports[0])
    assert first == second
    for name in ("sharded", "whole"):
        uniform, other, normal, filled, dropped = (torch.tensor(each) for each in first[name])
        assert len({tuple(part.flatten().tolist()) for each in (uniform, other, filled) for part in each.chunk(2)}) == 6
        assert abs(uniform.mean() - 0.5) < 0.1 and abs(normal.mean()) < 0.2 and 0.3 < (dropped == 0).float().mean() < 0.7
    assert first["again"] == first["sharded"][0]


@pytest.mark.parametrize(
    ("section", "part"),
    [("tensor_parallel", "sequences"), ("fully_sharded", "meta"), ("replicated", "unused"), ("replicated", "static")],
)
def test_training(reports: Reports, section: str, part: str) -> None:
    """What comes of it, and what is compiled after the second step: nothing."""
    for ours, theirs in zip(*reports, strict=True):
        check(ours[f"{section}.quick"][part], theirs[f"{section}.quick"][part], part)


@pytest.mark.parametrize("section", MORE)
def test_more_training(more: Reports, section: str) -> None:
    for ours, theirs in zip(*more, strict=True):
        for part, wanted in theirs[section].items():
            if part == "bfloat16":  # XLA keeps more digits between operations than torch does
                check(ours[section][part]["seen"], wanted["seen"], part, rel=0.05)
            else:
                check(ours[section][part], wanted, part, rel=2e-3 if part == "float16" else 2e-4)


def test_distributed_data_parallel_sends_bfloat16(more: Reports) -> None:
    """Torch has this hook for CUDA only."""
    for ours, theirs in zip(*more, strict=True):
        check(ours["replicated"]["bfloat16"], theirs["replicated"]["default"], "bfloat16", rel=0.02)
    one, other = (ours["replicated"]["bfloat16"]["end"] for ours in more[0])
    assert one == other


def test_fully_sharded_takes_half_the_memory(reports: Reports) -> None:
    for ours in reports[0]:
        whole, part = ours["fully_sharded.quick"]["memory"]
        parameters = 4 * (2 * (256 * 256 + 256) + 3 * 256 + 3)
        assert 4 * parameters <= whole < 4.5 * parameters, "parameters, gradients, two moments"
        assert part < 0.6 * whole


def test_join_is_refused(reports: Reports) -> None:
    for ours in reports[0]:
        kind, text = ours["replicated.quick"]["join"]
        assert kind == "NotImplementedError" and "as many batches" in text


def test_meshes_of_two_dimensions(of_four: Reports) -> None:
    """Their groups, tensors sharded over both, FSDP2 sharded over one and replicated over the other."""
    for ours, theirs in zip(*of_four, strict=True):
        check(ours["meshes_of_two"], theirs["meshes_of_two"], "two dimensions")


def test_a_gpt_trained_five_ways(of_four: Reports) -> None:
    ours, theirs = of_four
    wanted = theirs[0]["five_ways"]["plain"]
    for report in (*ours, *theirs):
        for way, found in report["five_ways"].items():
            check(found, wanted, way, rel=2e-3)


def saved(reports: Reports, kind: str) -> Any:
    return reports[1][0]["checkpoints.save"][kind]


def test_checkpoints_hold_what_torch_would_save(reports: Reports) -> None:
    for ours, theirs in zip(*reports, strict=True):
        check(ours["checkpoints.save"], theirs["checkpoints.save"], "saved")


def test_checkpoints_of_two_are_loaded_by_four(reports: Reports, of_four: Reports) -> None:
    for ours in of_four[0]:
        for pair, found in ours["checkpoints.load"].items():
            check(found, saved(reports, "FSDP2"), pair)


@pytest.mark.parametrize(("device", "source"), [("xla", "cpu"), ("cpu", "xla")])
def test_checkpoints_of_two_are_loaded_by_one(start: Callable[..., Any], folder: Path, reports: Reports, device: str, source: str) -> None:
    """Also those that torch wrote, and ours by torch."""
    (found,) = start("torch_stack", 1, 1, device, "checkpoints.load", CHECKPOINTS=str(folder / source)).reports()
    for pair, loaded in found["checkpoints.load"].items():
        check(loaded, saved(reports, "FSDP2"), pair)
