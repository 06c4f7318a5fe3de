"""accelerate's Accelerator in one process on xla: loaders, accumulation of gradients, and metrics over uneven batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType, GradientState, PartialState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_xla.distributed.parallel_loader as pl

SAMPLES = 1001


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """accelerate keeps its state in the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def loader(count: int, batch_size: int, shuffle: bool = False) -> DataLoader[tuple[torch.Tensor, ...]]:
    rows = torch.arange(float(count)).unsqueeze(1)
    return DataLoader(TensorDataset(rows, 2 * rows), batch_size=batch_size, shuffle=shuffle)


def test_the_state_is_of_one_xla_process() -> None:
    state = PartialState()
    assert state.distributed_type == DistributedType.XLA
    assert state.device.type == "xla"
    assert (state.num_processes, state.process_index, state.is_main_process) == (1, 0, True)


def test_a_prepared_loader_uploads_every_sample_once() -> None:
    prepared = Accelerator().prepare(loader(SAMPLES, 32))
    assert isinstance(prepared, pl.MpDeviceLoader)
    assert len(prepared) == 32
    for _ in range(2):
        batches = [inputs for inputs, _ in prepared]
        assert {batch.device.type for batch in batches} == {"xla"}
        assert torch.equal(torch.cat(batches).cpu().flatten(), torch.arange(float(SAMPLES)))


def test_a_shuffled_loader_gives_every_sample_once() -> None:
    prepared = Accelerator().prepare(loader(SAMPLES, 32, shuffle=True))
    seen = torch.cat([inputs for inputs, _ in prepared]).cpu().flatten()
    assert not torch.equal(seen, seen.sort().values)
    assert torch.equal(seen.sort().values, torch.arange(float(SAMPLES)))


def test_the_end_of_the_loader_is_known_at_the_last_batch() -> None:
    accelerator = Accelerator()
    prepared = accelerator.prepare(loader(10, 4))
    ends = [(accelerator.gradient_state.end_of_dataloader, accelerator.gradient_state.remainder) for _ in prepared]
    assert [end for end, _ in ends] == [False, False, True]
    assert ends[-1][1] == 2


def test_gradients_are_synced_every_other_step_and_at_the_end() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, prepared = accelerator.prepare(layer := nn.Linear(1, 1), torch.optim.SGD(layer.parameters(), lr=0.1), loader(20, 4))
    synced = []
    for _ in prepared:
        with accelerator.accumulate(model):
            synced.append(accelerator.sync_gradients)
    assert synced == [False, True, False, True, True]


def train(steps: int, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[torch.Tensor, ...]]) -> None:
    """What accumulation means, by hand: the mean over `steps` batches, the last group being what is left."""
    for start in range(0, len(batches), steps):
        optimizer.zero_grad()
        for inputs, targets in batches[start : start + steps]:
            (nn.functional.mse_loss(model(inputs), targets) / steps).backward()
        optimizer.step()


def test_accumulated_training_equals_the_cpu() -> None:
    torch.manual_seed(0)
    cpu, layer = nn.Linear(1, 1), nn.Linear(1, 1)
    layer.load_state_dict(cpu.state_dict())
    train(2, cpu, torch.optim.SGD(cpu.parameters(), lr=1e-3), list(loader(20, 4)))
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, prepared = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=1e-3), loader(20, 4))
    for inputs, targets in prepared:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
    for ours, theirs in zip(layer.parameters(), cpu.parameters(), strict=True):
        assert ours.device.type == "xla"
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-5, atol=1e-6)


def test_metrics_are_of_exactly_the_samples() -> None:
    accelerator = Accelerator()
    prepared = accelerator.prepare(loader(SAMPLES, 32))
    gathered = torch.cat([accelerator.gather_for_metrics(inputs) for inputs, _ in prepared]).cpu().flatten()
    assert torch.equal(gathered, torch.arange(float(SAMPLES)))


def test_clipped_gradients_equal_the_cpu() -> None:
    torch.manual_seed(0)
    cpu, layer = nn.Linear(3, 3), nn.Linear(3, 3)
    layer.load_state_dict(cpu.state_dict())
    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    inputs = torch.randn(4, 3)
    cpu(inputs).square().sum().backward()
    expected = nn.utils.clip_grad_norm_(cpu.parameters(), 1.0)
    accelerator.backward(model(inputs.to("xla")).square().sum())
    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(layer.weight.grad.cpu(), cpu.weight.grad, rtol=1e-5, atol=1e-6)
