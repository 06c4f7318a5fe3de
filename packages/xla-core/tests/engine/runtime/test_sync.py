"""When things run, and how much of them: step syncs, value reads, kept values, failures."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
import torch

import torch_xla
from xla_core.abi.graph import graph_of
from xla_core.abi.tensors import buffer_of
from xla_core.base import metrics
from xla_core.base.errors import ExecutionError, LoweringError
from xla_core.base.metrics import Cause, SyncEvent, SyncKind
from xla_core.engine.runtime import executor
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.sync import block, step, step_program

Tensor = torch.Tensor
Counts = Any
MakeOp = Callable[..., Any]


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, device="xla")


def pending() -> int:
    """Results that a step would compute."""
    program = step_program(current_recorder().pending_graph)
    return 0 if program is None else len(program.values)


def test_a_read_runs_only_what_it_needs(counts: Counts) -> None:
    sizes: queue.SimpleQueue[int] = queue.SimpleQueue()
    stop = metrics.subscribe(lambda event: sizes.put(event.num_nodes), metrics.ExecuteEvent)
    try:
        common = ones(3) * 2
        left, right = common + 1, common - 1
        other = ones(5).exp()
        assert left.tolist() == [3, 3, 3]
        assert sizes.get(timeout=60) == 3, "ones, mul and add: neither the other difference nor the exponential"
    finally:
        stop()
    assert counts.ExecuteComputation == 1 and counts.MarkStep == 0
    assert sizes.empty()
    assert pending() == 2
    assert right.tolist() == [1, 1, 1]
    assert counts.ExecuteComputation == 2 and pending() == 1
    torch_xla.sync()
    assert counts.ExecuteComputation == 3 and counts.MarkStep == 1
    torch.testing.assert_close(other.cpu(), torch.ones(5).exp())


READS: dict[str, Callable[[Tensor], Any]] = {
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x[0]),
    "int": lambda x: int(x[1]),
    "float": lambda x: float(x[1]),
    "repr": repr,
    "str": str,
    "format": lambda x: f"{x}",
    "copy_to_cpu": lambda x: torch.empty(3).copy_(x),
    "equal": lambda x: torch.equal(x, x.clone()),
    "allclose": lambda x: torch.allclose(x, x.clone()),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "iterate": lambda x: [float(each) for each in x],
}


@pytest.mark.parametrize("read", list(READS.values()), ids=list(READS))
def test_every_read_is_no_step(read: Callable[[Tensor], Any], counts: Counts) -> None:
    x, other = ones(3) + 1, ones(3) + 2
    read(x)
    assert counts.MarkStep == 0 and counts.ExecuteComputation >= 1
    assert pending() >= 1, "what nobody read is still pending"
    assert other.tolist() == [3, 3, 3]


def test_a_value_once_computed_is_kept(counts: Counts) -> None:
    x = ones(3) * 5
    view = x[1:]
    for _ in range(3):
        assert x.tolist() == [5, 5, 5]
    assert counts.ExecuteComputation == 1
    for _ in range(3):
        assert view.tolist() == [5, 5]
    assert counts.ExecuteComputation <= 2
    before = counts.ExecuteComputation
    assert x.detach().tolist() == x.clone().tolist() == x.cpu().tolist()
    assert counts.ExecuteComputation == before


def test_reading_elements_one_by_one_compiles_nothing(counts: Counts) -> None:
    x = torch.arange(20.0, device="xla").view(4, 5) * 2
    torch_xla.sync()
    counts.restart()
    assert [x[i, j].item() for i in range(4) for j in range(5)] == [2.0 * n for n in range(20)]
    assert x.t()[1:3, ::2].tolist() == [[2, 22], [4, 24]]
    assert (counts.UncachedCompile, counts.ExecuteComputation) == (0, 0)
    x[2, 3] += 1
    assert x[2, 3].item() == 27


def test_a_read_uses_what_another_read_computed(counts: Counts) -> None:
    base = ones(3) * 3
    assert base.sum().item() == 9
    graphs = []
    remove = executor.watch_graphs(graphs.append)
    try:
        assert (base + 1).tolist() == [4, 4, 4]
    finally:
        remove()
    # base was an ancestor of the sum, and alive: it was computed and kept then
    assert [entry[0].name for entry in graphs[0].entries if type(entry) is tuple] == ["aten.add.Tensor"]


def test_live_ancestors_of_a_read_are_kept_dead_ones_are_not(counts: Counts) -> None:
    kept = ones(3) + 1
    result = (kept * 2).exp().log() / 2
    assert result.tolist() == pytest.approx([2, 2, 2])
    assert pending() == 0
    assert kept.tolist() == [2, 2, 2]
    assert counts.ExecuteComputation == 1


def test_temporaries_are_no_outputs() -> None:
    torch_xla.sync()
    a = ones(3) + 1
    b = (a * 2).exp().log() - a
    assert pending() == 2
    del a
    assert pending() == 1
    program = step_program(current_recorder().pending_graph)
    assert program is not None and len(program.graph.outs) == 1
    torch_xla.sync()
    assert b.tolist() == pytest.approx([2, 2, 2])


def test_values_that_autograd_holds_live(counts: Counts) -> None:
    x = ones(3).requires_grad_()
    loss = (x.exp() * 2).sum()
    torch_xla.sync()
    assert pending() == 0
    counts.restart()
    loss.backward()
    torch_xla.sync()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), torch.ones(3).exp() * 2)
    assert counts.ExecuteComputation == 1


def test_an_empty_step_counts_and_runs_nothing(counts: Counts) -> None:
    for _ in range(3):
        torch_xla.sync()
    step(current_recorder(), wait=True)
    assert (counts.MarkStep, counts.ExecuteComputation, counts.UncachedCompile, counts.CachedCompile) == (4, 0, 0, 0)
    x = ones(2)
    del x
    torch_xla.sync()
    assert counts.ExecuteComputation == 0, "what died before the sync is not run"


def test_a_waiting_step_has_finished_when_it_returns() -> None:
    x = torch.ones(300, 300, device="xla")
    for _ in range(20):
        x = x @ x / 300
    step(current_recorder(), wait=True)
    value = x._storage.value  # type: ignore[attr-defined]
    assert value.buffer.is_ready()


def test_hits_and_misses_are_counted(counts: Counts) -> None:
    samples = metrics.snapshot().metrics["CompileTime"].total_samples if "CompileTime" in metrics.snapshot().metrics else 0
    for size in (3, 3, 4, 3):
        x = torch.full((size, 7), 0.125, device="xla").cos()
        torch_xla.sync()
        assert x.shape == (size, 7)
    assert (counts.UncachedCompile, counts.CachedCompile) == (2, 2)
    assert metrics.snapshot().metrics["CompileTime"].total_samples == samples + 2


def test_a_read_is_cached_too(counts: Counts) -> None:
    for number in (1.0, 1.0, 1.0):
        assert (ones(2, 9) * number).sinh().sum().item() == pytest.approx(18 * np.sinh(1.0))
    assert (counts.UncachedCompile, counts.CachedCompile) == (1, 2)
    padding = [ones(3) for _ in range(5)]
    assert (ones(2, 9) * 1.0).sinh().sum().item() == pytest.approx(18 * np.sinh(1.0))
    assert counts.UncachedCompile == 1, "what else is pending makes no other program"
    del padding


def test_steps_and_reads_say_what_they_are() -> None:
    torch_xla.sync()
    events: list[SyncEvent] = []
    stop = metrics.subscribe(events.append, SyncEvent)
    try:
        x = ones(2) + 1
        x.tolist()
        torch_xla.sync()
    finally:
        stop()
    assert [(event.kind, event.cause) for event in events] == [(SyncKind.READ, Cause.VALUE_READ), (SyncKind.STEP, Cause.USER_SYNC)]
    assert all(event.device == "xla:0" and event.duration_ns > 0 for event in events)


def test_several_values_are_read_by_one_execution(counts: Counts) -> None:
    tensors: list[Any] = [ones(2) + number for number in range(5)]
    block([tensor._storage.value for tensor in tensors])
    assert counts.ExecuteComputation == 1
    assert [tensor.tolist() for tensor in tensors] == [[1 + number] * 2 for number in range(5)]
    assert counts.ExecuteComputation == 1


def test_results_that_are_the_same_value_or_an_input_stay_apart() -> None:
    x = ones(2) * 3
    torch_xla.sync()
    same, twin = x.clone(), x.clone()
    shifted = x + 0
    copies = [shifted, shifted.clone(), shifted.view(2)]
    torch_xla.sync()
    same.add_(1)
    shifted.mul_(2)
    torch_xla.sync()
    assert [each.tolist() for each in (x, same, twin, *copies)] == [[3, 3], [4, 4], [3, 3], [6, 6], [3, 3], [6, 6]]


def test_buffers_replaced_in_place_are_reused_and_others_are_not() -> None:
    x = torch.zeros(8192, device="xla")  # less memory is not worth another program
    torch_xla.sync(wait=True)
    kept = x.clone()
    for _ in range(4):
        x.add_(1)
        torch_xla.sync()
    assert kept.sum().item() == 0 and x.sum().item() == 4 * 8192
    address = x._storage.value.buffer.unsafe_buffer_pointer()  # type: ignore[attr-defined]
    x.add_(1)
    torch_xla.sync(wait=True)
    x.add_(1)
    torch_xla.sync(wait=True)
    assert x._storage.value.buffer.unsafe_buffer_pointer() == address  # type: ignore[attr-defined]


def failing(message: str) -> Callable[..., Any]:
    """A lowering whose execution fails on the host."""

    def fail(array: Any) -> Any:
        raise ValueError(message)

    return lambda context, x: jax.pure_callback(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("how", ["sync_then_read", "wait", "read"])
def test_a_failed_execution_raises_where_the_result_is_needed(how: str, custom_op: MakeOp) -> None:
    broken = custom_op("broken(Tensor x) -> Tensor", torch.clone, failing("no such luck"))
    result = broken(ones(3))
    other = ones(3) + 1
    with pytest.raises(RuntimeError, match="no such luck") as caught:
        if how == "sync_then_read":
            torch_xla.sync()
            result.tolist()
        elif how == "wait":
            torch_xla.sync(wait=True)
        else:
            result.tolist()
    assert isinstance(caught.value, ExecutionError)
    if how == "read":
        assert other.tolist() == [2, 2, 2], "nothing else was lost"
        with pytest.raises(RuntimeError, match="no such luck"):
            torch_xla.sync(wait=True)  # it is still wanted
    with pytest.raises(RuntimeError):
        result.tolist()
    with pytest.raises(RuntimeError):
        (result + 1).tolist()
    assert (ones(2) * 2).tolist() == [2, 2]
    torch_xla.sync(wait=True)


def test_what_an_operation_that_cannot_be_compiled_makes_is_lost_and_says_so(custom_op: MakeOp) -> None:
    def lower(context: Any, x: Any) -> Any:
        raise KeyError("not lowered today")

    broken = custom_op("unlowered(Tensor x) -> Tensor", torch.clone, lower)
    state = ones(3) * 7
    torch_xla.sync()
    result = broken(state)
    other = state + 1
    with pytest.raises(LoweringError, match=r"xla_core_tests\.unlowered over \(float32\[3\]\).*test_sync\.py:\d+.*not lowered today"):
        torch_xla.sync()
    assert other.tolist() == [8, 8, 8]
    with pytest.raises(LoweringError, match="has no value.*not lowered today"):
        result.tolist()
    with pytest.raises(LoweringError, match="has no value.*not lowered today"):
        result + 1
    assert state.tolist() == [7, 7, 7]
    torch_xla.sync()
    assert (state + 1).tolist() == [8, 8, 8]


def test_a_read_that_fails_leaves_the_rest_pending(custom_op: MakeOp) -> None:
    def lower(context: Any, x: Any) -> Any:
        return x[:-1]

    broken = custom_op("misshapen(Tensor x) -> Tensor", torch.clone, lower)
    good, result = ones(3) + 1, broken(ones(3))
    with pytest.raises(LoweringError, match=r"result 0 is float32\[2\], inferred was f32\[3\]"):
        result.tolist()
    assert good.tolist() == [2, 2, 2]
    del result
    torch_xla.sync()


def test_threads_may_record_and_read_at_the_same_time() -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            total = torch.zeros(3, device="xla")
            rows = torch.zeros(4, 3, device="xla")
            for turn in range(30):
                total.add_(number)
                rows[turn % 4] += total
                if turn % 7 == number % 7:
                    torch_xla.sync()
                if turn % 10 == number:
                    assert total.tolist() == [number * (turn + 1)] * 3
            assert total.tolist() == [30 * number] * 3
            assert rows.sum().item() == 3 * number * 465
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_waiting_for_a_device_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeviceLockWait: a sample for each sync, which is long where another thread is at work on the device."""
    torch_xla.sync()
    recorder = current_recorder()
    lock, waits = recorder.lock, threading.Event()

    class Watched:
        def __enter__(self) -> None:
            waits.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    torch_xla.sync()
    before = metrics.metric("DeviceLockWait")
    monkeypatch.setattr(recorder, "lock", Watched())
    with lock:
        thread = threading.Thread(target=torch_xla.sync)
        thread.start()
        assert waits.wait(60)
        threading.Event().wait(0.01)  # a wait of some length
    thread.join()
    found = metrics.metric("DeviceLockWait")
    assert found is not None and found.total_samples == (before.total_samples if before else 0) + 1 and found.samples[-1][1] > 1e6


@pytest.mark.parametrize("once", [False, True])
def test_what_acts_on_others_runs_once(custom_op: Any, once: bool) -> None:
    """After the first read nobody holds the results, and the second read needs one of them still."""
    sent = custom_op(
        f"sent_{int(once)}(Tensor x) -> (Tensor, Tensor)",
        lambda x: (x + 1, x * 2),
        lambda context, x: (x + 1, x * 2),
        has_side_effects=once,
    )
    one, two = sent(torch.arange(3.0, device="xla"))
    first, second = one + 1, two + 1
    del one, two
    assert first.tolist() == [2.0, 3.0, 4.0]
    names = [operation.name for operation in graph_of([second]).operations()]
    assert any("sent_" in name for name in names) != once
    torch_xla.sync()
    assert second.tolist() == [1.0, 3.0, 5.0]


def test_a_buffer_that_was_given_away_stays_through_reads_and_steps() -> None:
    base = torch.arange(3.0, device="xla") + 1
    buffer = buffer_of(base)
    first, second = base + 1, base * 2
    assert first.tolist() == [2.0, 3.0, 4.0]  # second stays pending, and the step drops what it does not need
    torch_xla.sync()
    assert second.tolist() == [2.0, 4.0, 6.0]
    np.testing.assert_array_equal(np.asarray(buffer), [1.0, 2.0, 3.0])


def test_reads_that_lag_behind_need_no_longer_program_each_time(counts: Any) -> None:
    """Each turn reads what it had before it went on; nobody holds the state in between but the pending next one."""
    state = torch.zeros(2, device="xla")
    for turn in range(8):
        shown = state * 3
        state = state + 1
        assert shown.tolist() == [3.0 * turn] * 2
    assert counts.UncachedCompile <= 3
    assert state.tolist() == [8.0, 8.0]


def test_random_state_that_is_read_late_is_drawn_once(counts: Any) -> None:
    state, drawn = torch.zeros(2, device="xla"), []
    for _ in range(5):
        state = state + torch.rand(2, device="xla")
        after = state * 1
        state = state + 1
        drawn.append(after.cpu())
    assert all(0 <= float((late - early - 1).min()) and float((late - early - 1).max()) <= 1 for early, late in pairwise(drawn))
    torch.testing.assert_close(state.cpu(), drawn[-1] + 1)


def test_a_long_read_without_a_loop_computes_what_it_asked_for() -> None:
    """Looking for a loop drops what nobody needs, and renumbers the rest."""
    chosen = random.Random(0)
    functions = [chosen.choice((torch.sin, torch.cos, torch.tanh, torch.neg)) for _ in range(600)]
    expected = torch.ones(3)
    found = torch.ones(3, device="xla")
    (found * 5).exp()  # nobody needs it
    for function in functions:
        expected, found = function(expected), function(found)
    after = found + 1
    torch.testing.assert_close(after.cpu(), expected + 1)
    torch.testing.assert_close(found.cpu(), expected)
