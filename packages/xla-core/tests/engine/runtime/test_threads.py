"""Threads that share a device compute what one thread does."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import nn

import torch_xla

THREADS = 8


def trained(seed: int, steps: int, device: str) -> torch.Tensor:
    """The weights of a network after some steps, which sync, read and compile at moments of their own."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = (torch.randn(8, 6, generator=generator).to(device) for _ in range(2))
    first, second = (torch.randn(6, 6, generator=generator).mul(0.3).to(device).requires_grad_() for _ in range(2))
    optimizer = torch.optim.Adam([first, second], lr=0.01)
    for step in range(steps):
        rows = 1 + (seed + step) % 3
        loss = nn.functional.mse_loss(torch.tanh(inputs[:rows] @ first) @ second, targets[:rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if device == "xla" and step % 3 == seed % 3:
            torch_xla.sync()
        if step % 4 == seed % 4:
            assert loss.isfinite().item()
    return torch.cat([first, second]).detach().cpu()


def together(seconds: float) -> None:
    """Train in eight threads at once, again and again for some seconds; each must find what one thread found alone."""
    steps = 6
    alone = [trained(seed, steps, "xla") for seed in range(THREADS)]
    for seed, found in enumerate(alone):
        torch.testing.assert_close(found, trained(seed, steps, "cpu"), rtol=1e-3, atol=1e-4)
    end = time.monotonic() + seconds
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            while True:
                torch.testing.assert_close(trained(seed, steps, "xla"), alone[seed], rtol=1e-4, atol=1e-5)
                if time.monotonic() > end:
                    break
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_eight_threads_with_autograd_on_one_device_equal_one() -> None:
    together(0)


@pytest.mark.long
def test_eight_threads_with_autograd_on_one_device_equal_one_for_a_minute() -> None:
    together(60)
