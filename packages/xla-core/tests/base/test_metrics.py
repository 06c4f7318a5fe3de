"""Counters, metrics and events of the core."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from xla_core.base import config, metrics
from xla_core.base.errors import ExecutionError
from xla_core.base.metrics import (
    CompileEvent,
    Direction,
    Event,
    ExecuteEvent,
    FallbackEvent,
    Registry,
    SyncEvent,
    SyncKind,
    TransferEvent,
    Unit,
)


@pytest.fixture
def registry() -> Registry:
    return Registry()


FALLBACK = FallbackEvent(device="xla:0", start_s=1.0, duration_ns=2, operator="aten::nonzero")
SYNC = SyncEvent(device="xla:0", start_s=1.0, duration_ns=2, kind=SyncKind.STEP)


def test_counters_add_up_and_zero_is_inactive(registry: Registry) -> None:
    registry.counter_add("MarkStep")
    registry.counter_add("MarkStep", 4)
    registry.counter_add("Idle", 0)
    assert dict(registry.snapshot().counters) == {"MarkStep": 5}


def test_metric_totals_cover_samples_that_left_the_ring(registry: Registry) -> None:
    with config.override(config.METRICS_SAMPLES, 3):
        for value in (1.0, 2.0, 4.0, 8.0, 16.0):
            registry.metric_add("CompileTime", value, Unit.DURATION_NS)
    metric = registry.snapshot().metrics["CompileTime"]
    assert (metric.name, metric.unit, metric.total_samples, metric.accumulator) == ("CompileTime", Unit.DURATION_NS, 5, 31.0)
    assert [value for _, value in metric.samples] == [4.0, 8.0, 16.0]
    times = [time for time, _ in metric.samples]
    assert times == sorted(times)


def test_default_ring_size(registry: Registry) -> None:
    for value in range(1030):
        registry.metric_add("InboundData", value, Unit.BYTES)
    assert len(registry.snapshot().metrics["InboundData"].samples) == 1024


def test_metric_unit_cannot_change(registry: Registry) -> None:
    registry.metric_add("InboundData", 1, Unit.BYTES)
    with pytest.raises(ValueError, match="InboundData holds BYTES, got a sample of NUMBER"):
        registry.metric_add("InboundData", 1, Unit.NUMBER)


def test_snapshot_is_sorted_and_does_not_change(registry: Registry) -> None:
    for name in ("b", "a"):
        registry.counter_add(name)
        registry.metric_add(name, 1.0, Unit.NUMBER)
    before = registry.snapshot()
    registry.counter_add("a")
    registry.metric_add("a", 1.0, Unit.NUMBER)
    assert list(before.counters.items()) == [("a", 1), ("b", 1)]
    assert list(before.metrics) == ["a", "b"] and before.metrics["a"].total_samples == 1
    with pytest.raises(TypeError):
        before.counters["a"] = 3  # type: ignore[index]


def test_collected_counters_join_kept_ones_and_restart_on_clear(registry: Registry) -> None:
    counts = {"xla::add": 3, "xla::mul": 0}
    end = registry.register_collector(lambda: counts)
    registry.counter_add("xla::add", 2)
    assert dict(registry.snapshot().counters) == {"xla::add": 5}
    registry.clear_counters()
    assert dict(registry.snapshot().counters) == {}
    counts["xla::add"] += 4
    counts["xla::mul"] += 1
    assert dict(registry.snapshot().counters) == {"xla::add": 4, "xla::mul": 1}
    end()
    assert dict(registry.snapshot().counters) == {}


def test_clear_counters_and_clear_metrics_are_independent(registry: Registry) -> None:
    registry.counter_add("MarkStep")
    registry.metric_add("ExecuteTime", 5.0, Unit.DURATION_NS)
    registry.clear_counters()
    assert not registry.snapshot().counters and registry.snapshot().metrics
    registry.clear_metrics()
    assert not registry.snapshot().metrics


def test_counts_from_many_threads_are_all_kept(registry: Registry) -> None:
    def work() -> None:
        for _ in range(2000):
            registry.counter_add("n")
            registry.metric_add("m", 1.0, Unit.NUMBER)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = registry.snapshot()
    assert snapshot.counters["n"] == snapshot.metrics["m"].total_samples == snapshot.metrics["m"].accumulator == 16000


def test_events_reach_subscribers_of_their_type_only(registry: Registry) -> None:
    syncs: list[Event] = []
    everything: list[Event] = []
    assert not registry.has_subscribers(SyncEvent)
    stop = registry.subscribe(syncs.append, SyncEvent)
    assert registry.has_subscribers(SyncEvent) and not registry.has_subscribers(FallbackEvent)
    registry.subscribe(everything.append)
    registry.emit(SYNC)
    registry.emit(FALLBACK)
    stop()
    registry.emit(SYNC)
    assert syncs == [SYNC]
    assert everything == [SYNC, FALLBACK, SYNC]


def test_each_subscription_ends_alone_and_ending_twice_is_harmless(registry: Registry) -> None:
    seen: list[Event] = []
    first = registry.subscribe(seen.append, SyncEvent, SyncEvent)
    second = registry.subscribe(seen.append, SyncEvent)
    registry.emit(SYNC)
    assert len(seen) == 2
    first()
    first()
    registry.emit(SYNC)
    assert len(seen) == 3
    second()
    assert not registry.has_subscribers(SyncEvent)


def test_a_subscriber_may_stop_the_run(registry: Registry) -> None:
    def refuse(event: SyncEvent) -> None:
        raise ExecutionError(f"no {event.kind.value} here")

    registry.subscribe(refuse, SyncEvent)
    with pytest.raises(ExecutionError, match="no step here"):
        registry.emit(SYNC)


def test_a_subscriber_that_fails_is_named_and_left_out(registry: Registry) -> None:
    heard: list[Any] = []

    def broken_listener(event: SyncEvent) -> None:
        heard.append("broken")
        raise KeyError("missing")

    registry.subscribe(broken_listener)
    registry.subscribe(heard.append, SyncEvent)
    with pytest.warns(RuntimeWarning, match=r"test_metrics\..*broken_listener, raised KeyError: 'missing'\. It is told of no more"):
        registry.emit(SYNC)
    registry.emit(SYNC)
    assert heard == ["broken", SYNC, SYNC]


def test_unknown_event_types_are_refused(registry: Registry) -> None:
    with pytest.raises(ValueError, match="CompileEvent, ExecuteEvent"):
        registry.subscribe(print, Event)


def test_events_are_frozen_values() -> None:
    compiled = CompileEvent(device="xla:0", start_s=1.0, duration_ns=2, graph_hash="ab", num_nodes=1, num_inputs=1, num_outputs=1)
    executed = ExecuteEvent(device="xla:0", start_s=1.0, duration_ns=2, graph_hash="ab", num_nodes=1, num_inputs=1, num_outputs=1)
    moved = TransferEvent(device="xla:0", start_s=1.0, duration_ns=2, direction=Direction.TO_DEVICE, nbytes=4, line="train.py:3")
    assert len({compiled, executed, moved}) == 3 and compiled.line is None and moved.line == "train.py:3"
    with pytest.raises(AttributeError):
        moved.nbytes = 5  # type: ignore[misc]


@pytest.fixture
def clean_process() -> Iterator[None]:
    metrics.clear(metrics=False)
    yield
    metrics.clear(metrics=False)


@pytest.mark.usefixtures("clean_process")
def test_module_functions_share_one_registry() -> None:
    metrics.counter_add("test::counter", 2)
    assert metrics.counter("test::counter") == 2


def test_one_counter_asks_only_those_who_may_know_it() -> None:
    registry = Registry()
    asked: list[str] = []

    def collect(name: str) -> Callable[[], dict[str, int]]:
        def give() -> dict[str, int]:
            asked.append(name)
            return {name: 3}

        return give

    registry.register_collector(collect("known"), frozenset({"known"}))
    registry.register_collector(collect("open"))
    registry.counter_add("known", 2)
    assert (registry.counter("known"), registry.counter("nothing")) == (5, 0)
    assert asked == ["known", "open", "open"]
    registry.clear_counters()
    assert registry.counter("known") == 0 == registry.snapshot().counters.get("known", 0)
