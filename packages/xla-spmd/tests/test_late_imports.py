"""Private names of torch that are looked up late: an upgrade that takes one away fails here."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, _api
from torch.distributed.tensor.experimental import _func_map, local_map

from xla_spmd import _compat
from xla_spmd.mesh import Mesh
from xla_spmd.placements import device_mesh_of


def test_what_a_dtensor_knows() -> None:
    placements = (Shard(0), Replicate())
    spec = _compat.dtensor_spec(device_mesh_of(Mesh(range(4), (2, 2))), placements, torch.zeros(4, 2, dtype=torch.int16))
    assert spec.placements == placements and spec.mesh.device_type == "xla"
    assert (tuple(spec.shape), spec.tensor_meta.dtype) == ((4, 2), torch.int16)


def test_writes_that_do_not_count() -> None:
    t = torch.zeros(2)
    with torch.no_grad(), _compat.same_version(t):
        t.copy_(torch.ones(2))
    assert t._version == 0 and t.tolist() == [1.0, 1.0]


def test_slices_of_a_mesh() -> None:
    whole = Mesh(range(8), (2, 2, 2), ("a", "b", "c"))
    assert _compat.all_submeshes(whole["a", "c"]).tolist() == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert _compat.all_submeshes(whole.device_mesh).tolist() == [whole.get_logical_mesh().tolist()]


def test_device_meshes_are_ours_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ours(DeviceMesh):
        pass

    monkeypatch.setattr(DeviceMesh, "__new__", DeviceMesh.__new__)
    _compat.make_meshes_of(Ours, lambda device_type: device_type == "meta")
    new: Any = DeviceMesh.__new__
    first = new(DeviceMesh, "meta")
    made = [new(DeviceMesh, device_type="meta"), new(DeviceMesh, "cpu", _root_mesh=first), new(DeviceMesh, "cpu")]
    assert [type(one) for one in (first, *made)] == [Ours, Ours, Ours, DeviceMesh]


def test_fully_shard_asks_first() -> None:
    from torch.distributed.fsdp import fully_shard

    def refuse(mesh: object) -> None:
        raise LookupError("asked")

    module = sys.modules["torch.distributed.fsdp._fully_shard._fully_shard"]
    own = module._get_device_from_mesh  # type: ignore[attr-defined]
    mesh = Mesh(range(1), (1,)).device_mesh
    try:
        _compat.check_before_fully_shard(refuse)
        with pytest.raises(LookupError, match="asked"):
            fully_shard(torch.nn.Linear(2, 2), mesh=mesh)
    finally:
        module._get_device_from_mesh = own  # type: ignore[attr-defined]
        torch.distributed.destroy_process_group()


def test_strided_placements() -> None:
    placement = _compat.StridedShard(1, split_factor=4)
    assert (placement.dim, placement.split_factor) == (1, 4) and not isinstance(placement, Shard)


def test_what_torch_makes_elsewhere_stays_its_own() -> None:
    """Outside SPMD mode, and for functions of plain tensors."""
    assert local_map(lambda a: a + 1, out_placements=None)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert _func_map._local_map_wrapped.__code__.co_name == "_call_choose", "which is given to torch's function"
    assert _api._FromTorchTensor is not None and not isinstance(_api._FromTorchTensor, torch.autograd.function.FunctionMeta)
