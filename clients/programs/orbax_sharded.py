"""A divided weight goes through orbax onto another mesh, in a process with eight devices; no device has it whole."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import torch

import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from xla_core.abi.process import client
from xla_core.abi.sharding import device_shards, tensor_from_shards
from xla_core.abi.tensors import buffer_of


def main(report: Path) -> None:
    xr.use_spmd()
    mesh = xs.Mesh(np.arange(8), (4, 2), ("data", "model"))
    weight = torch.arange(128.0).reshape(16, 8)
    divided = weight.to("xla")
    xs.mark_sharding(divided, mesh, ("data", "model"))
    saved = buffer_of(divided)
    checkpointer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    with tempfile.TemporaryDirectory() as folder:
        checkpointer.save(Path(folder, "saved"), args=ocp.args.StandardSave({"weight": saved}))
        other = jax.sharding.Mesh(np.array(client().devices).reshape(2, 4), ("data", "model"))
        sharding = jax.sharding.NamedSharding(other, jax.sharding.PartitionSpec("model", None))
        wanted = {"weight": jax.ShapeDtypeStruct(saved.shape, saved.dtype, sharding=sharding)}
        found = checkpointer.restore(Path(folder, "saved"), args=ocp.args.StandardRestore(wanted))["weight"]
    by_device = {shard.device: torch.from_numpy(np.array(shard.data)) for shard in found.addressable_shards}
    tensor = tensor_from_shards([by_device[device] for device in client().devices], found.sharding, tuple(found.shape))
    shapes = [[list(shard.data.shape) for shard in device_shards(each)] for each in (divided, tensor, tensor * 2)]
    same = [each[0] for each in shapes if each == each[:1] * 8]
    report.write_text(json.dumps({"shapes": same, "equal": torch.equal(tensor.cpu(), weight)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
