"""A loader with `input_sharding`: each device gets its shard of a batch, and only that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("xla_distributed", reason="the loaders are in xla-distributed")

_PROGRAM = """
import json
import jax
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from xla_core import abi

xr.use_spmd()
mesh = xs.Mesh(range(8), (4, 2), ("data", "model"))
rows, cells = xs.ShardingSpec(mesh, ("data", None)), xs.ShardingSpec(mesh, ("data", "model"))
minibatch = xs.ShardingSpec(mesh, ("data", None), minibatch=True)
found = {}

made = jax.make_array_from_callback
sent = []

def counted(shape, sharding, callback):
    # What goes to each device, in bytes.
    def noted(index):
        shard = callback(index)
        sent.append(shard.nbytes)
        return shard
    return made(shape, sharding, noted)

jax.make_array_from_callback = counted
uploads = []
abi.events.subscribe(lambda event: uploads.append(event.nbytes), abi.events.TransferEvent)

def shard_bytes(tensor):
    return [shard.data.nbytes for shard in abi.tensors.buffer_of(tensor).addressable_shards]

def starts(tensor):
    return [shard.data[0, 0].item() for shard in abi.tensors.buffer_of(tensor).addressable_shards]

def text(tensor):
    return torch_xla._XLAC._get_xla_sharding_spec(tensor)

batches = [(torch.arange(64.0).reshape(16, 4) + 100 * number, torch.arange(16) + number) for number in range(3)]
device = torch_xla.device()
found["pairs"] = []
for (images, labels), (x, y) in zip(batches, pl.MpDeviceLoader(batches, device, input_sharding=rows), strict=True):
    found["pairs"].append([x.cpu().equal(images), y.cpu().equal(labels), shard_bytes(x), starts(x), shard_bytes(y), text(x), text(y)])
found["sent"], found["uploads"] = sorted(sent), sorted({nbytes for nbytes in uploads})

dicts = [{"x": images, "y": labels, "more": {"x": images}} for images, labels in batches]
(first, *_) = pl.MpDeviceLoader(dicts, device, input_sharding={"x": cells, "y": xs.ShardingSpec(mesh, ("data",))})
found["dict"] = [shard_bytes(first["x"]), shard_bytes(first["y"]), shard_bytes(first["more"]["x"])]
found["dict is right"] = first["x"].cpu().equal(batches[0][0]) and first["y"].cpu().equal(batches[0][1])

(shard,) = pl.MpDeviceLoader([batches[0][0]], device, input_sharding=minibatch)
found["minibatch"] = [list(shard.shape), shard_bytes(shard), shard.cpu().equal(batches[0][0])]
uneven = torch.zeros(10, 4)
try:
    list(pl.MpDeviceLoader([uneven], device, input_sharding=minibatch))
except RuntimeError as error:
    found["uneven minibatch"] = str(error)
(given,) = xm.send_cpu_data_to_device(batches[0][0].clone().requires_grad_(), device, rows)
found["grad"] = [given.requires_grad, given.is_leaf, shard_bytes(given)]
loss = (given * 2).sum()
loss.backward()
found["grad is right"] = given.grad.cpu().eq(2).all().item()
wrong = xs.ShardingSpec(xs.Mesh(range(4), (4,), ("data",)), ("data", None))
try:
    list(pl.MpDeviceLoader(batches, device, input_sharding=wrong))
except AssertionError as error:
    found["wrong mesh"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def report(eight_devices: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any]
    found, _ = eight_devices("-c", _PROGRAM)
    return found


def test_each_device_gets_its_shard(report: dict[str, Any]) -> None:
    text = "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"
    for number, found in enumerate(report["pairs"]):
        starts = [100.0 * number + row for row in (0, 0, 16, 16, 32, 32, 48, 48)]
        assert found == [True, True, [64] * 8, starts, [128] * 8, text, ""], "labels have another rank: replicated"
    # Three times 16 × 4 floats in four shards, each to two devices, and 16 labels, which JAX asks for once and copies.
    assert report["sent"] == [64] * 24 + [128] * 3
    assert report["uploads"] == [128, 256], "events tell of whole tensors"


def test_specs_by_key(report: dict[str, Any]) -> None:
    assert report["dict"] == [[32] * 8, [32] * 8, [256] * 8], "a key without a spec: replicated"
    assert report["dict is right"]


def test_minibatches(report: dict[str, Any]) -> None:
    assert report["minibatch"] == [[16, 4], [64] * 8, True], "this process's block is all, it being alone"
    assert "a minibatch of 10 cannot be split evenly over 8 local devices" in report["uneven minibatch"]


def test_autograd_goes_on(report: dict[str, Any]) -> None:
    assert report["grad"] == [True, True, [64] * 8]
    assert report["grad is right"]


def test_a_mesh_of_another_size(report: dict[str, Any]) -> None:
    assert report["wrong mesh"].startswith("(4,) is not mappable over 8 devices: the mesh is over 4 devices")
