"""`torch.Generator(device="xla")`: random states beside the device's own, for random functions that are given a generator.

C++ makes no generators of a device that was added from Python. To C++ ours is a CPU generator, which it passes on unread; kernels
find it by the address of its C++ side, and feed its seeds to programs like the device's.
"""

from __future__ import annotations

import secrets
import weakref
from typing import Any

import torch

from xla_core.base import private_torch
from xla_core.engine.graph import rng
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.graph.rng import MASK, moved_on
from xla_core.engine.runtime.client import recorder_of


class XLAGenerator(private_torch.CppGenerator):  # type: ignore[misc]
    """A random state beside the device's. The same seed gives the same numbers as on the device itself after `torch.manual_seed`."""

    _device: torch.device
    _initial: int
    _seed: int

    def __new__(cls, device: Any) -> XLAGenerator:
        """A generator for `device`, seeded as torch seeds new ones."""
        generator: XLAGenerator = super().__new__(cls)
        generator._device = torch.device(device)
        _alive[generator._cdata] = generator
        generator.manual_seed(_DEFAULT_SEED)
        return generator

    def __init__(self, device: Any) -> None:
        """Do nothing: `__new__` has set it up."""

    @property
    def device(self) -> torch.device:
        """The device on which its numbers are drawn; the current device if it was made without an index."""
        return self._device if self._device.index is not None else recorder_of(self._device).device

    def manual_seed(self, seed: int) -> XLAGenerator:
        """Start from `seed`, an integer of 64 bits; negative ones wrap as in torch. Returns the generator."""
        super().manual_seed(seed)  # for what runs on the CPU, and for torch's own errors
        self._initial = self._seed = int(seed) & MASK
        return self

    def seed(self) -> int:
        """Start from a random number of the operating system, and return it."""
        self.manual_seed(secrets.randbits(63))
        return self._initial

    def initial_seed(self) -> int:
        """The seed that it started from."""
        return self._initial

    def get_state(self) -> torch.Tensor:
        """The state as 16 bytes, a CPU tensor of uint8."""
        return rng.to_bytes(self._seed)

    def set_state(self, state: torch.Tensor) -> XLAGenerator:
        """Go on from a state that `get_state` gave. Raises ValueError for anything else."""
        self._seed = rng.from_bytes(state)
        return self

    def clone_state(self) -> XLAGenerator:
        """Another generator in the same state."""
        other = XLAGenerator(self._device)
        other.manual_seed(self._initial)
        return other.set_state(self.get_state())

    def graphsafe_get_state(self) -> XLAGenerator:
        """The same as `clone_state`: states are inputs of programs here, and never part of them."""
        return self.clone_state()

    def graphsafe_set_state(self, state: XLAGenerator) -> XLAGenerator:
        """Go on from the state of another generator."""
        return self.set_state(state.get_state())

    def __reduce__(self) -> Any:
        return _restored, (str(self._device), self._initial, self.get_state())

    def draw(self) -> int:
        """Draw the seed of one random operation; the state moves on."""
        seed, self._seed = self._seed, moved_on(self._seed)
        return seed


_DEFAULT_SEED = 67280421310721  # torch's, for generators that nobody seeded
_alive: weakref.WeakValueDictionary[int, XLAGenerator] = weakref.WeakValueDictionary()


def _restored(device: str, initial: int, state: torch.Tensor) -> XLAGenerator:
    return XLAGenerator(device).manual_seed(initial).set_state(state)


def generator_for(argument: Any, recorder: Recorder) -> XLAGenerator:
    """The generator behind a kernel's argument. Raises RuntimeError for a generator of another device."""
    generator = _alive.get(argument._cdata)
    if generator is None:
        raise RuntimeError(
            f"Expected a 'xla' device type for generator but found '{argument.device.type}': make one with torch.Generator(device='xla')"
        )
    if generator.device != recorder.device:
        raise RuntimeError(f"Expected a '{recorder.device}' generator device but found '{generator.device}': make one for that device")
    return generator


def register() -> None:
    """Let `torch.Generator(device="xla")` make such a generator."""
    private_torch.replace_in_torch({(torch, "Generator"): lambda own: private_torch.class_by_device(own, XLAGenerator)})
