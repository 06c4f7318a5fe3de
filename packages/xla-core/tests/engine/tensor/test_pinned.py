"""Pinned memory: programs that pin on the host work once the device is there, whether they use it or not."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

# torch 2.10's own loaders and storages name the device.
pytestmark = pytest.mark.filterwarnings("ignore:The argument 'device' of Tensor:DeprecationWarning")


def test_a_pinned_copy() -> None:
    plain = torch.arange(6.0).view(2, 3).t()
    pinned = plain.pin_memory()
    assert not plain.is_pinned() and pinned.is_pinned() and pinned[1:].is_pinned() and pinned.pin_memory() is pinned
    assert torch.equal(pinned, plain) and pinned.stride() == plain.stride() and pinned.data_ptr() != plain.data_ptr()
    assert not pinned.clone().is_pinned() and pack_sequence([torch.ones(2), torch.ones(1)]).pin_memory().is_pinned()
    assert torch.UntypedStorage(4).pin_memory().is_pinned() and not torch.UntypedStorage(4).is_pinned()


def test_copies_from_pinned_memory() -> None:
    source = torch.arange(4.0).pin_memory()
    assert source.to("xla", non_blocking=True).tolist() == [0, 1, 2, 3]
    target = torch.zeros(4, device="xla")
    target.copy_(source, non_blocking=True)
    assert target.tolist() == [0, 1, 2, 3] and torch.zeros(4).pin_memory().copy_(target, non_blocking=True).tolist() == [0, 1, 2, 3]


def test_tensors_on_the_device_are_not_pinned() -> None:
    x = torch.ones(2, device="xla")
    assert not x.is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        x.pin_memory()


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_pin(workers: int) -> None:
    data, start = TensorDataset(torch.arange(6.0)), "spawn" if workers else None
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers, multiprocessing_context=start)
    batches = [batch for (batch,) in loader]
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]] and all(batch.is_pinned() for batch in batches)


def test_a_program_for_the_cpu_is_not_disturbed() -> None:
    """It neither warns nor starts the client, though torch now thinks that there is an accelerator."""
    program = (
        "import torch, torch_xla\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "print([batch.tolist() for (batch,) in DataLoader(TensorDataset(torch.arange(3)), batch_size=2, pin_memory=True)])\n"
        "assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1\n"
        "torch.accelerator.synchronize(), torch.accelerator.empty_cache(), torch.accelerator.memory_allocated()\n"
        "torch.manual_seed(0), torch.random.fork_rng().__enter__()\n"
        "assert not torch.xla.is_initialized()\n"
    )
    run = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[[0, 1], [2]]\n", "")


def test_pinning_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.ones(1).pin_memory().is_pinned()
