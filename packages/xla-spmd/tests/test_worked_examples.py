"""The documentation's examples of meshes, run as they stand there, and the jax view on eight CPU devices."""

from __future__ import annotations

import textwrap
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import torch_xla.runtime as xr

EIGHT_DEVICES = """
    import json
    import jax
    import numpy as np
    import torch_xla.core.xla_model as xm
    from torch_xla.distributed.spmd import Mesh

    mesh_shape = (4, 2)
    num_devices = len(xm.get_xla_supported_devices())
    device_ids = np.array(range(num_devices))
    mesh = Mesh(device_ids, mesh_shape, ('x', 'y'))
    report = {"logical": mesh.get_logical_mesh().tolist(), "shape": repr(mesh.shape())}

    from xla_spmd.shards import shard_indices, shard_shape

    report["wrong"], report["checked"] = [], 0
    for ids, shape in [(range(8), (4, 2)), ([5, 3, 7, 1, 0, 2, 6, 4], (2, 4)), ([7, 6, 5, 4, 3, 2, 1, 0], (2, 2, 2))]:
        mesh = Mesh(ids, shape)
        jax_mesh = mesh.get_jax_mesh()
        assert [device.id for device in jax_mesh.devices.ravel()] == list(ids), jax_mesh.devices
        data = np.arange(8 * 16).reshape(8, 16)
        for spec in [(0, 1), (1, 0), (0, None), (None, 1), ((1, 0), None), (None, (0, 1)), (None, None)]:
            assert jax_mesh.devices.shape == shape
            entries = [() if entry is None else entry if isinstance(entry, tuple) else (entry,) for entry in spec]
            names = [tuple(f"axis{axis}" for axis in entry) for entry in entries]
            array = jax.device_put(data, jax.sharding.NamedSharding(jax_mesh, jax.sharding.PartitionSpec(*names)))
            sharding = mesh.get_op_sharding(spec)
            for shard in array.addressable_shards:
                (index,) = shard_indices(sharding, data.shape, [shard.device.id])
                wanted = data if index.indices is ... else data[tuple(index.indices)]
                if wanted.shape != shard_shape(sharding, data.shape) or not np.array_equal(wanted, shard.data):
                    report["wrong"].append([str(mesh), spec, shard.device.id])
                report["checked"] += 1
    print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def report(eight_devices: Callable[..., Any]) -> Any:
    """What a process with eight CPU devices reports."""
    return eight_devices("-c", textwrap.dedent(EIGHT_DEVICES))[0]


def test_mesh(report: Any) -> None:
    assert report["logical"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert report["shape"] == repr(OrderedDict([("x", 4), ("y", 2)]))


def test_shards_are_those_of_jax(report: Any) -> None:
    assert report["wrong"] == [] and report["checked"] == 3 * 7 * 8


def test_hybrid_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    corners = [(0, 0), (1, 0), (0, 1), (1, 1)]
    devices = [{"name": f"TPU:{n}", "coords": [*corners[n % 4], 0], "core_on_chip": 0, "slice_index": n // 4} for n in range(8)]
    monkeypatch.setattr(xr, "global_runtime_device_attributes", lambda: devices)

    from torch_xla.distributed.spmd import HybridMesh

    ici_mesh_shape = (1, 4, 1)
    dcn_mesh_shape = (2, 1, 1)
    mesh = HybridMesh(ici_mesh_shape, dcn_mesh_shape, ("data", "fsdp", "tensor"))
    assert mesh.shape() == OrderedDict([("data", 2), ("fsdp", 4), ("tensor", 1)])
    assert mesh.get_logical_mesh().ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_global_and_1d_mesh() -> None:
    import torch_xla.distributed.spmd as xs

    mesh = xs.get_1d_mesh("data")
    xs.set_global_mesh(mesh)
    try:
        assert xs.get_global_mesh() is mesh
        assert mesh.get_logical_mesh().shape == (xr.global_runtime_device_count(),)
        assert np.array_equal(mesh.device_ids, np.arange(xr.global_runtime_device_count()))
    finally:
        xs.set_global_mesh(None)
