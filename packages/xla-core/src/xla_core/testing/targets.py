"""A target for tests: no other compiler is needed, and nothing runs."""

from __future__ import annotations

from contextlib import AbstractContextManager

from xla_core.api.targets import within
from xla_core.engine.placement.target import Target
from xla_core.engine.runtime import client


def planned_cpu() -> AbstractContextManager[Target]:
    """Within the block, `xla` stands for this process's CPU devices, for which programs are compiled and not run.

    Raises RuntimeError in a process whose devices are others.
    """
    devices = tuple(client.client().devices)
    if devices[0].platform != "cpu":
        raise RuntimeError(f"planned_cpu is for processes on the CPU, this one has {devices[0].device_kind}: set PJRT_DEVICE=CPU")
    return within(Target("planned-cpu", devices, (len(devices),), None, attached=False))
