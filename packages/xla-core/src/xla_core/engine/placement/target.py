"""What programs are compiled for: the devices that this process has, or devices that it has not (topologies.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax


@dataclass(frozen=True, slots=True)
class Target:
    """Devices of one kind that a program is compiled for.

    name: as users write it, such as `v5e:4x4`; of attached devices their platform and number. devices: in the order of the program; of a
    topology, they take no data. shape: how many along each axis of a TPU's torus; of others their number. memory_bytes: of each device;
    None where only the device knows. attached: this process has them.
    """

    name: str
    devices: tuple[jax.Device, ...]
    shape: tuple[int, ...]
    memory_bytes: int | None
    attached: bool

    @property
    def platform(self) -> str:
        """The platform, as `jax.Device.platform`: `cpu`, `gpu`, `tpu`, or the name of a plugin."""
        return str(self.devices[0].platform)

    @property
    def kind(self) -> str:
        """The model, as `jax.Device.device_kind`."""
        return str(self.devices[0].device_kind)


def attached(devices: Sequence[jax.Device]) -> Target:
    """The devices of this process, or of its job, as a target."""
    return Target(f"{devices[0].platform} x{len(devices)}", tuple(devices), (len(devices),), None, attached=True)
