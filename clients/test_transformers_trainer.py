"""transformers.Trainer with default arguments trains on xla as it does on the CPU, where torch_xla is imported but not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torch_xla  # noqa: F401


@pytest.fixture(scope="module")
def on_xla(run_program: Callable[..., Any]) -> Any:
    return run_program("gpt2_trainer")


@pytest.fixture(scope="module")
def on_cpu(run_program: Callable[..., Any]) -> Any:
    """The same program, told by the libraries' own switch to leave torch_xla alone."""
    return run_program("gpt2_trainer", USE_TORCH_XLA="0")


def test_each_ran_where_it_should_with_pinned_memory(on_xla: Any, on_cpu: Any) -> None:
    assert (on_xla["device"], on_xla["pinned"]) == ("xla", True)
    assert (on_cpu["device"], on_cpu["pinned"]) == ("cpu", True)


def test_losses_equal_the_cpu(on_xla: Any, on_cpu: Any) -> None:
    assert len(on_cpu["losses"]) == 10
    assert on_xla["losses"] == pytest.approx(on_cpu["losses"], rel=1e-5)
    assert on_xla["evaluated"] == pytest.approx(on_cpu["evaluated"], rel=1e-5)


def test_weights_equal_the_cpu(on_xla: Any, on_cpu: Any) -> None:
    assert on_xla["weights"].keys() == on_cpu["weights"].keys()
    for name, expected in on_cpu["weights"].items():
        torch.testing.assert_close(torch.tensor(on_xla["weights"][name]), torch.tensor(expected), rtol=1e-5, atol=2e-5, msg=name)


def test_predictions_are_of_all_1001_samples_in_order(on_xla: Any, on_cpu: Any) -> None:
    assert on_xla["predicted"] == on_cpu["predicted"] == [1001, 8, 64]
    torch.testing.assert_close(torch.tensor(on_xla["sums"]), torch.tensor(on_cpu["sums"]), rtol=1e-4, atol=1e-3)


def test_a_plain_cpu_loader_can_pin_memory() -> None:
    rows = torch.arange(10.0)
    batches = [batch for (batch,) in DataLoader(TensorDataset(rows), batch_size=4, pin_memory=True)]
    assert all(batch.is_pinned() and batch.device.type == "cpu" for batch in batches)
    assert torch.equal(torch.cat(batches), rows)


def test_a_loader_with_workers_can_pin_memory() -> None:
    rows = torch.arange(10.0)
    loader = DataLoader(TensorDataset(rows), batch_size=4, pin_memory=True, num_workers=1, multiprocessing_context="spawn")
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() for batch in batches)
    assert torch.equal(torch.cat([batch.to("xla") for batch in batches]).cpu(), rows)
