"""The job: which of how many processes this is, and which replica this thread.

    >>> from xla_core.abi.job import is_spmd, local_ordinal, ordinal, topology, world_size
    >>> world_size(), ordinal(), local_ordinal()  # nobody said that there are others
    (1, 0, 0)
    >>> topology().process_count, topology().replicas, is_spmd()
    (1, False, False)

* `world_size` is the number of replicas, `ordinal` this one's number among them, `local_ordinal` its number among those of this host; all
  from 0. A process that drives several devices by threads has a replica in each.
* `is_spmd` tells of SPMD mode, in which one device, `xla:0`, stands for all devices of the job, and there is one replica; `use_spmd`
  switches to it. `device_count` and `device_attributes` are of the physical devices of the job, in both modes.
* `Topology` is a process's place in a job: which of how many, over the job and on this host, replica or not. A launcher says so by
  `set_topology`, before the devices start; `topology` asks. Where nobody said so, the variables of torchrun do.

Guarantees: from the start of the devices on an answer takes less than a microsecond, and changes with `set_topology` and
`torch_xla.runtime.use_spmd` only; until then the environment is read at each question. `world_size` and `ordinal` start the devices of a
process that is a replica, `device_count` and `device_attributes` those of any. Functions that somebody put into `torch_xla.runtime` are not
asked, but for the hardware, where they may stand for devices that are not there.
"""

from __future__ import annotations

from xla_core.api.hardware import job_device_attributes as device_attributes
from xla_core.api.hardware import job_device_count as device_count
from xla_core.api.job import global_ordinal as ordinal
from xla_core.api.job import is_spmd, local_ordinal, set_topology, topology, use_spmd, world_size
from xla_core.engine.runtime.topology import Topology

__all__ = [
    "Topology",
    "device_attributes",
    "device_count",
    "is_spmd",
    "local_ordinal",
    "ordinal",
    "set_topology",
    "topology",
    "use_spmd",
    "world_size",
]
