"""`torch_xla.debug.metrics` after real operations."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    """Nothing is pending and nothing counted."""
    torch_xla.sync(wait=True)
    met.clear_all()
    yield
    torch_xla.sync(wait=True)


def step(size: int = 3) -> torch.Tensor:
    """A step over tensors of one size, and what it computed."""
    x = torch.arange(float(size)).to("xla")
    y = x * 3 + x
    y += 2
    torch_xla.sync(wait=True)
    return y


def test_all_six_functions_after_a_step() -> None:
    before = time.time()
    y = step(5)
    assert y.tolist() == [2.0, 6.0, 10.0, 14.0, 18.0]
    assert met.counter_names() == sorted(met.counter_names()) and met.metric_names() == sorted(met.metric_names())
    assert met.counter_value("MarkStep") == 1 and met.counter_value("UncachedCompile") == 1
    assert met.counter_value("CachedCompile") is None and "CachedCompile" not in met.counter_names()
    assert met.metric_data("NoSuchMetric") is None

    data = met.metric_data("CompileTime")
    assert data is not None
    total, accumulated, samples = data
    ((when, nanoseconds),) = samples
    assert type(samples) is list and total == 1 and accumulated == nanoseconds
    assert before <= when <= time.time() and 1e4 < nanoseconds < (time.time() - before) * 1e9, "nanoseconds, within the time of the step"

    text = met.metrics_report()
    names = [line.partition(": ")[2] for line in text.splitlines() if line.startswith(("Metric: ", "Counter: "))]
    assert names == [*met.metric_names(), *met.counter_names()]
    assert "Counter: MarkStep\n  Value: 1\n" in text
    short = met.short_metrics_report()
    assert short.startswith("Metric: CompileTime\n  TotalSamples: 1\n") and "Counter: MarkStep\n  Value: 1\n" in short
    assert "Counter: xla::add" not in short and "Counter: xla::add\n" in met.short_metrics_report(["xla::add"])


def test_durations_are_nanoseconds_and_sums_are_of_all() -> None:
    for _ in range(3):
        step()
    data = met.metric_data("ExecuteTime")
    assert data is not None
    total, accumulated, samples = data
    assert total == len(samples) == 3 and math.isclose(accumulated, sum(value for _, value in samples))
    assert [when for when, _ in samples] == sorted(when for when, _ in samples)


def test_a_ring_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_METRICS_SAMPLES", "2")
    for _ in range(4):
        step()
    data = met.metric_data("ExecuteTime")
    assert data is not None and data[0] == 4 and len(data[2]) == 2 and data[1] > sum(value for _, value in data[2])


def test_recorded_operations_by_base_name() -> None:
    step()
    names = met.counter_names()
    assert met.counter_value("xla::mul") == 1 and met.counter_value("xla::add") == 2, "`+=` counts as the add that it is"
    assert not any(name in names for name in ("xla::add_", "xla::add.Tensor", "xla::add_.Tensor"))


def test_operators_on_the_cpu_by_full_name() -> None:
    x = torch.tensor([0, 2, 0, 1]).to("xla")
    assert float(x.sum().item()) == 3.0
    assert met.counter_value("aten::_local_scalar_dense") == 1
    assert met.executed_fallback_ops() == [], "reading a scalar needs no lowering"
    library = torch.library.Library("xla_debug_tests", "FRAGMENT")
    library.define("halved(Tensor x) -> Tensor")
    library.impl("halved", lambda x: x / 2, "CPU")
    library.impl("halved", torch.empty_like, "Meta")
    with pytest.warns(RuntimeWarning, match="halved has no XLA lowering"):
        assert torch.ops.xla_debug_tests.halved(x.float()).tolist() == [0.0, 1.0, 0.0, 0.5]
    (name,) = met.executed_fallback_ops()
    assert name.startswith("xla_debug_tests::halved") and met.counter_value(name) == 1


def test_counters_and_m11_metrics_of_the_runtime() -> None:
    for _ in range(2):
        kept = step(7)
    assert kept.cpu().sum().item() == 98.0
    for name, value in (
        ("MarkStep", 2),
        ("CachedCompile", 1),
        ("UncachedCompile", 1),
        ("ExecuteComputation", 2),
        ("CreateCompileHandles", 1),
    ):
        assert met.counter_value(name) == value, name
    assert {"CreateXlaTensor", "CreateDataHandles", "DeviceDataCacheMiss"} <= set(met.counter_names())
    timed = {"CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime", "TensorToData", "UnwrapXlaData", "WrapXlaData"}
    assert timed | {"InboundData", "OutboundData", "TensorsGraphSize", "InputOutputAliasCount"} <= set(met.metric_names())
    moved = met.metric_data("InboundData")
    assert moved is not None and moved[1] == 28.0, "seven float32 came back"
    assert "Metric: InboundData\n  TotalSamples: 1\n  Accumulator: 28.00B\n" in met.metrics_report()


def test_clearing() -> None:
    step()
    met.clear_counters()
    assert met.counter_names() == [] and met.metric_data("ExecuteTime") is not None
    met.clear_metrics()
    assert met.metric_names() == [] and met.metrics_report() == ""
    step()
    met.clear_all()
    assert met.counter_names() == met.metric_names() == []
    xm.mark_step()
    assert met.counter_value("MarkStep") == 1
