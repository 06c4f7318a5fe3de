"""The sharding that tensors get by themselves when they move to the devices (SPMD), where the variable `XLA_AUTO_SPMD` asks for it.

    >>> import os
    >>> os.environ.update(CPU_NUM_DEVICES="2", XLA_AUTO_SPMD="1")  # before the first use of a device
    >>> import numpy as np
    >>> import torch
    >>> import torch_xla.runtime as xr
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> from xla_core.abi.process import client
    >>> from xla_core.abi.sharding import Sharding, device_shards
    >>> from xla_core.abi.uploads import set_upload_policy
    >>> xr.use_spmd()
    >>> def halves(tensor):
    ...     return Sharding(NamedSharding(Mesh(np.array(client().devices), ("data",)), PartitionSpec("data")))
    >>> set_upload_policy(halves)
    >>> [shard.data.tolist() for shard in device_shards(torch.arange(4.0).to("xla"))]
    [[0.0, 1.0], [2.0, 3.0]]

`set_upload_policy(policy)` lets `policy` choose: it is called with the tensor that moves, a parameter or other, and gives a Sharding that
divides its shape evenly, or None for replicated.

Guarantees: a policy is asked for tensors of at least one dimension that move to `xla` or into a tensor there that has no data yet and no
sharding, and for no others. Each device gets its shard only. The policy that was set last is the one that is asked.
"""

from __future__ import annotations

from xla_core.engine.tensor.sharding import set_upload_policy

__all__ = ["set_upload_policy"]
