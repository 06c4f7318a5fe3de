"""Programs kept by their hash."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla._XLAC as xlac
from xla_core.base import metrics


@pytest.fixture(autouse=True)
def nothing_pending() -> Iterator[None]:
    torch_xla.sync()
    yield
    xlac._xla_set_enable_alias_with_buffer_donor_config(False)
    torch_xla.sync()


def test_a_kept_program_runs_with_other_inputs() -> None:
    x, w = torch.arange(4.0).to("xla"), torch.full((4,), 2.0).to("xla")
    with torch.no_grad():
        results = [x * w + 0.5, (x - w).exp()]
    graph_hash = xlac._get_graph_hash(results)
    runs = metrics.counter("ExecuteComputation")
    ids, values = xlac._get_tensors_xla_device_data_node(results)
    xlac._xla_warm_up_cache(results, [])
    xlac._clear_pending_irs("xla:0")
    assert metrics.counter("ExecuteComputation") == runs
    places = [ids.index(xlac._xla_get_tensor_id(each)) for each in (x, w)]
    other = torch.tensor([3.0, 1.0, -2.0, 0.0])
    values[places[0]] = other.to("xla")
    first, second = xlac._run_cached_graph(graph_hash, values)
    torch.testing.assert_close(first.cpu(), other * 2 + 0.5)
    torch.testing.assert_close(second.cpu(), (other - 2).exp())
    values[places[0]] = x + 1  # pending: computed first
    torch.testing.assert_close(xlac._run_cached_graph(graph_hash.hex(), values)[0].cpu(), (torch.arange(4.0) + 1) * 2 + 0.5)


def test_random_operations_take_the_given_seed() -> None:
    x = torch.zeros(8).to("xla")
    results = [x + torch.rand(8, device="xla"), x + torch.rand(8, device="xla")]
    ids, values = xlac._get_tensors_xla_device_data_node(results)
    seeds = [place for place, number in enumerate(ids) if number == xlac._get_seed_info_id()]
    assert len(seeds) == 2
    graph_hash = xlac._get_graph_hash(results)
    xlac._xla_warm_up_cache(results, [])

    def run() -> list[list[float]]:
        base = xlac._get_base_seed_as_tensor("xla:0")
        given = [base if place in seeds else value for place, value in enumerate(values)]
        return [result.tolist() for result in xlac._run_cached_graph(graph_hash, given)]

    torch_xla.manual_seed(3)
    first, again = run(), run()
    assert first[0] != first[1] and first != again and all(0 <= number < 1 for number in first[0] + first[1])
    torch_xla.manual_seed(3)
    assert run() == first


def test_marked_inputs_are_taken_over_where_the_config_says_so() -> None:
    x = torch.ones(6).to("xla")
    results = [x + 1]
    graph_hash = xlac._get_graph_hash(results)
    _, values = xlac._get_tensors_xla_device_data_node(results)
    xlac._xla_warm_up_cache(results, [])
    xlac._clear_pending_irs()
    xlac._set_buffer_donation(x, True)
    assert xlac._run_cached_graph(graph_hash, values)[0].tolist() == [2.0] * 6 and x.tolist() == [1.0] * 6
    xlac._xla_set_enable_alias_with_buffer_donor_config(True)
    assert xlac._run_cached_graph(graph_hash, values)[0].tolist() == [2.0] * 6
    with pytest.raises(RuntimeError, match="marked for donation"):
        x.cpu()


def test_wrong_use() -> None:
    x = torch.ones(2).to("xla")
    results = [x + x]
    graph_hash = xlac._get_graph_hash(results)
    xlac._xla_warm_up_cache(results, [])
    with pytest.raises(RuntimeError, match="_xla_warm_up_cache"):
        xlac._run_cached_graph(b"no such hash", [])
    with pytest.raises(ValueError, match="takes 1 inputs, got 2"):
        xlac._run_cached_graph(graph_hash, [x, x])
    with pytest.raises(ValueError, match=r"f32\[2\] in this place, got f32\[3\]"):
        xlac._run_cached_graph(graph_hash, [torch.ones(3).to("xla")])
    assert xlac._get_tensors_xla_device_data_node([x]) == ([], [])


def test_programs_in_memory_are_counted() -> None:
    before = xlac._xla_get_num_cached_compilation_graph()
    (torch.ones(7, 3).to("xla") * 3).cpu()
    assert xlac._xla_get_num_cached_compilation_graph() >= max(before, 1) and xlac._xla_computation_cache_is_initialized()
