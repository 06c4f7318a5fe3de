"""Data over the devices of a mesh (SPMD): how it is sharded, the shards of each device, and regions that are not partitioned.

In SPMD mode one device, `xla:0`, stands for all devices of the job, and every program runs over all of them. A sharding is a
`jax.sharding.NamedSharding` over these devices. In another order than that in which programs run over them, programs send shards around.

    >>> import os
    >>> os.environ.update(CPU_NUM_DEVICES="2")  # before the first use of a device
    >>> import numpy as np
    >>> import torch
    >>> import torch_xla.runtime as xr
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> from xla_core.abi.process import client
    >>> from xla_core.abi.sharding import device_shards, set_sharding, sharding_of
    >>> xr.use_spmd()
    >>> mesh = Mesh(np.array(client().devices), ("data",))
    >>> x = torch.arange(4.0).to("xla")
    >>> set_sharding(x, NamedSharding(mesh, PartitionSpec("data")))
    >>> [shard.data.tolist() for shard in device_shards(x)]
    [[0.0, 1.0], [2.0, 3.0]]
    >>> tuple(sharding_of(x).named.spec)
    ('data',)

* `set_sharding` moves what is on the device at once, and tells the compiler of a pending result. What is not a view keeps its sharding
  when it is written to; clones and what is made like it take it over. `sharding_of` asks for it, as a `Sharding`.
* `device_shards` reads what each device of this process holds, each a `DeviceShard`. `owned_shards` divides a tensor among the processes
  that save it, so that each element is saved once, and copies nothing until an `OwnedShard` is read.
* `tensor_from_shards` and `upload_sharded` make a sharded tensor of data on the host, which is nowhere whole on a device.
* `enter_manual` gives each device its shard of a tensor. What is recorded over such shards runs on each device by itself, collectives over
  the axis `operators.REPLICA_AXIS` included, until `leave_manual` makes a whole of them. `is_manual` asks.

Guarantees: values never depend on how data is sharded. Dimensions that are not evenly divided are padded on the devices, which no shard
shows. All processes of a job make these calls in the same order. Outside SPMD mode, for a mesh of other devices, and for a manual region
over another order of them than that of programs, ExecutionError is raised.
"""

from __future__ import annotations

from xla_core.engine.placement.sharding import Sharding
from xla_core.engine.tensor.sharding import (
    DeviceShard,
    OwnedShard,
    device_shards,
    enter_manual,
    is_manual,
    leave_manual,
    owned_shards,
    set_sharding,
    sharding_of,
    tensor_from_shards,
    upload_sharded,
)

__all__ = [
    "DeviceShard",
    "Sharding",
    "OwnedShard",
    "device_shards",
    "enter_manual",
    "is_manual",
    "set_sharding",
    "sharding_of",
    "leave_manual",
    "owned_shards",
    "tensor_from_shards",
    "upload_sharded",
]
