"""The random state of a device: a 64-bit number on the host, a linear congruential generator."""

from __future__ import annotations

from collections.abc import Callable

import torch

MASK = (1 << 64) - 1


class _Initial:
    """The state of devices that start later; torch.manual_seed sets it."""

    seed = 101


def initial_seed() -> int:
    """The state of a device that starts now."""
    return _Initial.seed


def set_initial_seed(seed: int) -> None:
    """Set the state of devices that start later. Negative seeds wrap as in torch."""
    _Initial.seed = seed & MASK


def moved_on(seed: int) -> int:
    """The random state after one random operation."""
    return (seed * 214013 + 2531011) & MASK


def drawing_from(seed: int) -> Callable[[], int]:
    """A function that returns a sequence of random states, the same for the same seed. Negative seeds wrap as in torch."""
    state = seed & MASK

    def draw() -> int:
        nonlocal state
        drawn, state = state, moved_on(state)
        return drawn

    return draw


def past_step(seed: int) -> int:
    """The random state after a step."""
    return (seed * 7012063 + 1012031) & MASK


def checked(seed: int) -> int:
    """`seed`, checked to be a random state. Raises ValueError for anything but a non-negative 64-bit integer."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MASK:
        raise ValueError(f"a random state is an integer from 0 to 2**64 - 1, got {seed!r}")
    return seed


_STRIDE = 0x9E3779B97F4A7C15  # odd, so that no two offsets lead to one state


def to_bytes(state: int) -> torch.Tensor:
    """A random state as a CPU uint8 tensor of 16 bytes: the state, least significant first, and an offset of 0.

    Torch's DTensors add to the offset, and give every shard another one.
    """
    return torch.frombuffer(bytearray(state.to_bytes(8, "little") + bytes(8)), dtype=torch.uint8)


def from_bytes(state: torch.Tensor) -> int:
    """The state that `to_bytes` was given, moved on by the offset if there is one; raises ValueError for another size or dtype."""
    if state.dtype != torch.uint8 or state.numel() not in (8, 16):
        raise ValueError(
            f"the random state of an xla device is 16 uint8 values, or 8 in older files, got {state.dtype} of {tuple(state.shape)}"
        )
    content = bytes(state.tolist())
    return (int.from_bytes(content[:8], "little") + int.from_bytes(content[8:], "little") * _STRIDE) & MASK
