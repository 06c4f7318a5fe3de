"""Compile for devices that this machine has not: `torch_xla.target`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from xla_core.api import job
from xla_core.base import config
from xla_core.base.arrays import to_torch
from xla_core.base.budgets import budget
from xla_core.engine.placement.planned import PlannedBuffer
from xla_core.engine.placement.target import Target
from xla_core.engine.runtime import client
from xla_core.engine.runtime.topology import Topology
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.recorded import forget_limited
from xla_core.engine.tensor.values import value_of


@budget()
@contextmanager
def target(name: str) -> Iterator[Target]:
    """Within the block, `xla` stands for devices that this machine has not: programs are compiled for them and never run.

    name: `v5e:4x4`, `v5e-16`, `h100`, `h100x8`: see docs/targets.md. Tensors there have a shape, a dtype and a sharding, and no memory;
    what is read of them is NaN, and small integers as if all else were 0. SPMD mode and the process's place in its job end with the block.
    The variable `XLA_TARGET` does the same for a whole process.
    Raises UnknownDeviceError for a name that none has, and without the compiler for it.
    """
    # Loaded when a target is asked for: `import torch_xla` needs none.
    from xla_core.engine.placement.topologies import target_named

    with within(target_named(name)) as devices:
        yield devices


@contextmanager
def within(devices: Target) -> Iterator[Target]:
    """`target`, for one that was made otherwise than by its name."""
    with ExitStack() as restored:
        for setting in (config.USE_SPMD, config.AUTO_SPMD):
            restored.enter_context(config.override(setting, setting.get() if setting.is_set() else None))
        restored.callback(job.set_topology, job.set_topology(None))
        restored.callback(client.set_current_index, client.current_index())  # after the client is back
        restored.callback(client.exchange, client.exchange(client.planned(devices)))
        forget_limited(devices.platform)
        yield devices


def planned_devices() -> int:
    """How many devices the target has for which this process plans; 0 if it runs programs. Starts no devices."""
    planning = client.started() or config.TARGET.get() is not None
    target = client.client().target if planning else None
    return 0 if target is None or target.attached else len(target.devices)


def known_elements(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements of a tensor on a target that is not attached, on the CPU, if they are integers that the host knows; else None."""
    buffer = value_of(unwrapped(tensor)).buffer
    if not isinstance(buffer, PlannedBuffer) or buffer.known is None or not buffer.exact:
        return None
    return to_torch(buffer.known, tensor.dtype)


@contextmanager
def as_replica(count: int) -> Iterator[None]:
    """Within the block, this process is the first of `count` replicas, as `become_replica` makes it."""
    with become_replica(count):
        yield


def become_replica(count: int) -> ExitStack:
    """Make this process the first of `count` replicas, one for each device of its target, from the first on; closing the result ends it.

    Raises ValueError for more than the target has devices.
    """
    target = client.client().target
    if not 1 <= count <= len(target.devices):
        raise ValueError(f"{count} replicas on {target.name}: it has devices for 1 to {len(target.devices)}")
    hosts = len({device.process_index for device in target.devices})
    with ExitStack() as restored:
        place = Topology(0, count, 0, max(1, count // hosts), replicas=True)
        restored.callback(job.set_topology, job.set_topology(place))
        restored.callback(client.set_current_index, client.current_index())
        restored.callback(client.exchange, client.exchange(client.planned(target)))
        return restored.pop_all()
