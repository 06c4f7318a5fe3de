"""Counters and metrics by the extension module's names."""

from __future__ import annotations

import time

import jax.numpy as jnp
import torch

import torch_xla
import torch_xla._XLAC as xlac
from xla_core.base import metrics
from xla_core.engine.runtime import timing

DASHBOARD = {
    *("LazyTracing", "TensorToData", "TensorsGraphSize", "CompileTime", "ExecuteTime", "DeviceLockWait"),
    *("OutboundData", "InboundData", "TransferToDeviceTime", "TransferFromDeviceTime", "InputOutputAliasCount"),
}


def test_what_dashboards_read_has_samples_after_a_step() -> None:
    torch_xla.sync(wait=True)
    metrics.metric_add("test.xlac.metric", 1, metrics.Unit.NUMBER)
    metrics.counter_add("test.xlac.cleared")
    xlac._clear_xla_metrics()
    xlac._clear_xla_counters()
    # What ran before may still be measured, in a thread.
    assert "test.xlac.metric" not in xlac._xla_metric_names() and xlac._xla_counter_value("test.xlac.cleared") is None
    tensor = torch.arange(1009.0).to("xla")  # shapes that nothing else here has
    result = (tensor * 3).sin()
    torch_xla.sync(wait=True)
    result.cpu()
    deadline = time.monotonic() + 60
    while "ExecuteTime" not in xlac._xla_metric_names() and time.monotonic() < deadline:
        time.sleep(0.001)  # a thread measures it
    assert set(xlac._xla_metric_names()) >= DASHBOARD
    count, total, samples = xlac._xla_metric_data("OutboundData")
    assert (count, total, [value for _, value in samples]) == (1, 4036.0, [4036.0])
    assert xlac._xla_metric_data("no such metric") is None
    assert xlac._xla_counter_value("MarkStep") == 1 and "MarkStep" in xlac._xla_counter_names()


def test_counters_add_up_and_reads_are_counted() -> None:
    name = "test.xlac.counter"
    assert xlac._xla_counter_value(name) is None
    xlac._xla_increment_counter(name, 1)
    xlac._xla_increment_counter(name, 1)
    assert xlac._xla_counter_value(name) == 2
    before = metrics.counter("aten::_local_scalar_dense")
    torch.ones(1).to("xla").item()
    assert metrics.counter("aten::_local_scalar_dense") == before + 1
    assert "aten::_local_scalar_dense" not in xlac._get_executed_fallback_ops()
    assert "Counter: test.xlac.counter\n  Value: 2\n" in xlac._xla_metrics_report()
    assert xlac._short_xla_metrics_report([name], []).startswith("Counter: test.xlac.counter\n  Value: 2\n")


def test_execution_time_is_the_device_s_and_not_the_queue_s() -> None:
    ready = jnp.zeros(()).block_until_ready()
    hour = 3600 * 10**9
    begin = time.perf_counter_ns() - hour  # both were handed over then, and the second one waited for the first
    for _ in range(2):
        timing.measure(timing.Launched(77, ready, begin, 0.0, "test.ExecuteTime", {}), 0)
    found = metrics.metric("test.ExecuteTime")
    assert found is not None and [value >= hour for _, value in found.samples] == [True, False]
