"""Scalars of each step, read back as TensorBoard reads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla
from xla_debug import telemetry
from xla_debug.core import events
from xla_debug.recording import tensorboard_scalars
from xla_debug.recording.steps import MeasuredStep
from xla_debug.recording.tensorboard_scalars import Scalars
from xla_debug.run_report.schema import DeviceMemory, Phase

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By tag: the steps and their values."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore:aten..linalg_ldl_factor_ex has no XLA lowering:RuntimeWarning")
def test_a_run_reads_back_step_by_step(tmp_path: Path) -> None:
    torch_xla.sync(wait=True)
    heard: list[Any] = []
    with telemetry.tensorboard_scalars(tmp_path):
        end = events.subscribe(heard.append)
        kept = torch.zeros(500, 500).to("xla")
        for step in range(6):
            kept = kept + torch.ones(500).to("xla")
            if step == 4:
                assert kept[0, 0].item() == 5
                torch.linalg.ldl_factor_ex(torch.eye(3, device="xla"))
            torch_xla.sync(wait=True)
        end()
    found = scalars_in(tmp_path / "xla")
    assert {tag for tag, values in found.items() if [step for step, _ in values] == list(range(6))} == {
        *("xla/step_ms", "xla/device_ms", "xla/compiles", "xla/reads", "xla/fallbacks", "xla/bytes_to_device", "xla/bytes_from_device"),
        *(f"xla_host_ms/{phase.value}" for phase in Phase),
    }
    values = {tag: [value for _, value in each] for tag, each in found.items()}
    expected: dict[str, list[float]] = {name: [0] for name in ("to_device", "from_device", "compiles", "fallbacks", "reads")}
    ends_s = []
    for event in heard:
        match event:
            case events.TransferEvent():
                expected[event.direction.value][-1] += event.nbytes
            case events.CompileEvent():
                expected["compiles"][-1] += 1
            case events.FallbackEvent():
                expected["fallbacks"][-1] += 1
            case events.SyncEvent(kind=events.SyncKind.READ):
                expected["reads"][-1] += 1
            case events.SyncEvent():
                ends_s.append(event.start_s + event.duration_ns * 1e-9)
                for counted in expected.values():
                    counted.append(0)
    assert values["xla/bytes_to_device"] == expected["to_device"][:-1] and values["xla/bytes_to_device"][0] >= 500 * 500 * 4
    assert values["xla/bytes_from_device"] == expected["from_device"][:-1]
    assert values["xla/compiles"] == expected["compiles"][:-1] and values["xla/compiles"][0] >= 1
    assert values["xla/reads"] == expected["reads"][:-1] == pytest.approx([0, 0, 0, 0, expected["reads"][4], 0]) and expected["reads"][4]
    assert values["xla/fallbacks"] == expected["fallbacks"][:-1] == [0, 0, 0, 0, 1, 0]
    # Step 4 begins anew when the recorder has looked at memory.
    for step in (1, 2, 3, 5):
        assert values["xla/step_ms"][step] == pytest.approx((ends_s[step] - ends_s[step - 1]) * 1e3, rel=1e-3, abs=1e-2)
    assert all(milliseconds > 0 for milliseconds in values["xla/step_ms"]) and sum(values["xla/device_ms"]) > 0
    memory = found["xla_memory_bytes/cpu_0"][-1]
    assert memory[0] == 6 and memory[1] >= 500 * 500 * 4


def step_of(index: int) -> MeasuredStep:
    ns = {Phase.TRACING: 3_000_000, Phase.WAITING: 1_000_000}
    return MeasuredStep(index, 10.0 + index, 10.5 + index, ns, 250_000, compiles=1, reads=2, fallbacks=3, to_device=40, from_device=50)


def test_each_scalar_has_its_number(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path)
    scalars.write([step_of(0), step_of(1)], 2, [DeviceMemory("cuda:1", 700, 800, 900)])
    scalars.write([step_of(2)], 3, [DeviceMemory("cuda:1", 600, 800, 900)])
    scalars.close()
    found = scalars_in(tmp_path / "xla")
    assert found.pop("xla_memory_bytes/cuda_1") == [(2, 700), (3, 600)]
    once = {tag: values[0][1] for tag, values in found.items() if values == [(step, values[0][1]) for step in range(3)]}
    assert {tag: value for tag, value in once.items() if value} == {
        "xla/step_ms": 500,
        "xla/device_ms": 0.25,
        "xla/compiles": 1,
        "xla/reads": 2,
        "xla/fallbacks": 3,
        "xla/bytes_to_device": 40,
        "xla/bytes_from_device": 50,
        "xla_host_ms/tracing": 3,
        "xla_host_ms/waiting": 1,
    }
    assert once.keys() == found.keys()


def test_each_replica_has_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = tensorboard_scalars.job.Topology(process_index=1, process_count=2)
    monkeypatch.setattr(tensorboard_scalars.job, "topology", lambda: topology)
    scalars = Scalars(tmp_path)
    scalars.write([step_of(0)], 1, [])
    scalars.close()
    assert scalars_in(tmp_path / "xla" / "replica-1")["xla/step_ms"] == [(0, 500)]


def test_a_folder_that_cannot_be_made_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with telemetry.tensorboard_scalars(tmp_path / "file"):
        torch.ones(3).to("xla")
        torch_xla.sync()
    assert capsys.readouterr().err.count("no more scalars are written for TensorBoard") == 1


def test_without_tensorboard_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r'pip install "xla-debug\[tensorboard\]"'), telemetry.tensorboard_scalars(tmp_path):
        pass
