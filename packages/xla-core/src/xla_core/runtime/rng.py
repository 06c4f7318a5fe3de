"""The random state of each device: a 64-bit number on the host."""

from __future__ import annotations

import torch

from xla_core.ir import tape
from xla_core.ir.tape import MASK, Recorder
from xla_core.runtime import client


def set_seed(seed: int, recorder: Recorder) -> None:
    """Set one device's state. Raises ValueError for what is no non-negative 64-bit integer."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MASK:
        raise ValueError(f"a random state is an integer from 0 to 2**64 - 1, got {seed!r}")
    recorder.seed = seed


def set_seed_everywhere(seed: int) -> None:
    """Set the state of all devices, also of those that are not started yet. Negative seeds wrap as in torch."""
    tape.initial_seed = seed & MASK
    if client.started():
        for recorder in client.client().recorders:
            recorder.seed = seed & MASK


def to_bytes(state: int) -> torch.Tensor:
    """A random state as a CPU uint8 tensor of 8 bytes, least significant first."""
    return torch.frombuffer(bytearray(state.to_bytes(8, "little")), dtype=torch.uint8)


def from_bytes(state: torch.Tensor) -> int:
    """The state that `to_bytes` was given; raises ValueError for a tensor of another size or dtype."""
    if state.dtype != torch.uint8 or state.numel() != 8:
        raise ValueError(f"the random state of an xla device is 8 uint8 values, got {state.dtype} of {tuple(state.shape)}")
    return int.from_bytes(bytes(state.tolist()), "little")
