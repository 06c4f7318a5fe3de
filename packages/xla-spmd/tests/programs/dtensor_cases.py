"""torch.distributed.tensor over eight devices: meshes and their slices, sharded tensors, gradients."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor, full, ones, rand, zeros
from torch.distributed.tensor.placement_types import _StridedShard

import torch_xla._XLAC
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from harness import case, far, ramp, text, why
from torch_xla.distributed.spmd.api import with_xla
from torch_xla.distributed.spmd.xla_sharded_tensor import no_dispatch


@functools.cache
def mesh() -> DeviceMesh:
    return init_device_mesh("xla", (2, 4), mesh_dim_names=("dp", "tp"))


@functools.cache
def cube() -> DeviceMesh:
    return DeviceMesh("xla", torch.arange(8).reshape(2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))


OURS = xs.Mesh(range(8), (2, 4), ("dp", "tp"))


@case
def before() -> dict[str, Any]:
    """The first case: it begins SPMD mode."""
    outside = xr.is_spmd()
    return {"mode": [outside, with_xla(lambda: xr.is_spmd())(), with_xla(copy.copy)((1,))]}


@case
def meshes() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, both in (("torch's", mesh()), ("ours", OURS)):
        tp = both["tp"]
        found[name] = [
            [both.ndim, list(both.shape), both.size(), both.size(1), both.mesh.tolist(), list(both.mesh_dim_names or ()), both.device_type],
            [both.get_rank(), list(both.get_coordinate() or ()), both.get_local_rank("tp"), both.get_local_rank(0)],
            [tp.mesh.tolist(), list(tp.shape), both["dp"].mesh.tolist(), tp == mesh()["tp"], tp.get_local_rank()],
            [both.get_group("dp").size(), both.get_group("dp").rank(), len(both.get_all_groups())],
        ]
    found["flat"] = [
        cube()["pp", "dp"]._flatten("both").mesh.tolist(),
        mesh()._flatten("all").mesh.tolist(),
        cube()["dp", "tp"]["tp"].mesh.tolist(),
    ]
    found["copies"] = [pickle.loads(pickle.dumps(mesh())) == mesh(), copy.deepcopy(mesh()["tp"]) == mesh()["tp"]]
    found["refused"] = [
        why(mesh().get_local_rank),
        why(mesh().get_group),
        why(lambda: mesh()["none"]),
        why(lambda: xs.Mesh(range(8), (8,))["tp"]),
        why(fully_shard, torch.nn.Linear(8, 8), mesh=mesh()["dp"]),
        why(xs.mark_sharding, ramp(8), [0, 1], (0,)),
    ]
    return found


@case
def slices() -> dict[str, Any]:
    t = torch.randn(16, 8)
    both = cube()["pp", "dp"]
    flat = both._flatten("both")
    placed = {
        "one axis": (mesh()["tp"], [Shard(0)], (2, 0)),
        "ours": (OURS["tp"], [Shard(-1)], (2, 1)),
        "two of three": (cube()["dp", "tp"], [Shard(1), Shard(0)], (3, None)),
        "flat": (flat, [Shard(0)], (3, None)),
    }
    found: dict[str, Any] = {}
    for name, (device_mesh, placements, _) in placed.items():
        d = distribute_tensor(t, device_mesh, placements)
        found[name] = [text(d), d.placements == tuple(Shard(p.dim % 2) for p in placements), d.device_mesh == device_mesh, far(d, t)]
    spec = ("tp", None)
    marked = [xs.mark_sharding(ramp(16, 8), one, spec) for one in (mesh(), mesh()["tp"], OURS, OURS["tp"])]
    uploaded = xs.ShardingSpec(mesh()["tp"], spec).upload(t)
    found["marked"] = [text(one) for one in (*marked, uploaded)]
    # What is sharded over other axes stays so.
    batch = xs.mark_sharding(ramp(16, 8, 8), OURS, ("dp", None, None))
    for name, wanted in (("kept", [Replicate()]), ("added", [Shard(-1)])):
        moved = DTensor.from_local(batch, mesh()["tp"], wanted)
        found[name] = [text(moved), str(moved.placements), far(moved, batch.cpu())]
    pending = DTensor.from_local(batch.global_tensor + 1, mesh()["tp"], [Shard(1)])
    compiled = hlo(pending)
    found["pending"] = [str(pending.placements), r"[{?}, {\"axis1\"}, {?}]" in compiled, far(pending, batch.cpu() + 1)]
    return found


def hlo(t: torch.Tensor) -> str:
    found: str = torch_xla._XLAC._get_xla_tensors_hlo([xs.unwrap_sharded_tensor(t)])
    return found


@case
def tensors() -> dict[str, Any]:
    t = torch.randn(10, 7)  # not evenly divisible
    d = distribute_tensor(t, mesh(), [Shard(0), Shard(1)])
    found: dict[str, Any] = {}
    plain, whole = d.to_local(), d.full_tensor()
    found["local"] = [type(plain).__name__, far(plain, t), far(whole, t), text(whole)]
    whole.zero_()
    found["independent"] = far(d, t)
    spec = d._spec
    d = xs.mark_sharding(xs.clear_sharding(d), OURS, ("tp", None))
    found["marked again"] = [d._spec is spec, d._spec is d._spec, str(d.placements)]
    moved = d.redistribute(placements=[Replicate(), Shard(1)], async_op=True)
    found["moved"] = [str(moved.placements), far(moved, t), moved.device_mesh == mesh()]
    follows, product = (moved * 2).relu(), moved @ moved.t()
    found["results"] = [
        str(follows.placements),
        str(product.placements),
        far(follows, (t * 2).relu()),
        far(product.full_tensor(), t @ t.t()) < 1e-4,
    ]
    strided = distribute_tensor(torch.randn(16, 2), mesh(), [_StridedShard(0, split_factor=4), Shard(0)])
    found["strided"] = [text(strided), str(strided.placements), text(strided.redistribute(placements=strided.placements))]
    with mesh():
        made = [
            zeros(4, 6, placements=[Shard(0), Replicate()], requires_grad=True),
            ones((4, 6), dtype=torch.float64),
            full((4, 6), 3, placements=[Replicate(), Shard(-1)]),
        ]
    found["made"] = [
        [str(one.placements), str(one.dtype), far(one.detach(), torch.full((4, 6), v, dtype=one.dtype))]
        for one, v in zip(made, (0, 1, 3), strict=True)
    ]
    found["leaf"] = [made[0].is_leaf, made[0].requires_grad]
    torch.manual_seed(3)
    drawn = rand(8, 8, device_mesh=mesh(), placements=[Shard(0), Shard(1)])
    torch.manual_seed(3)
    found["drawn"] = far(drawn, torch.rand(8, 8, device="xla").cpu())
    found["refused"] = [
        why(distribute_tensor, t, mesh(), [Partial(), Replicate()]),
        why(DTensor.from_local, t, mesh(), [Shard(0), Replicate()], shape=torch.Size((20, 7)), stride=(7, 1)),
        why(d.redistribute),
        why(distribute_tensor, t, mesh(), [_StridedShard(0, split_factor=2), Shard(0)]),
    ]
    with no_dispatch():
        found["no dispatch"] = [type(d + 1).__name__]
    found["no dispatch"].append(type(d + 1).__name__)
    return found


@case
def gradients() -> dict[str, Any]:
    found: dict[str, Any] = {}
    x = torch.randn(10, 6, requires_grad=True)
    (x.tanh() * x).sum().backward()
    for device in ("cpu", "xla"):
        for where, (device_mesh, placements) in {"whole": (mesh(), [Shard(0), Shard(1)]), "slice": (mesh()["tp"], [Shard(-1)])}.items():
            source = x.detach().clone().to(device).requires_grad_()
            leaf = distribute_tensor(source, device_mesh, placements)
            (leaf.tanh() * leaf).sum().backward()
            local = DTensor.from_local(source, device_mesh, placements)
            (local.tanh() * local).sum().backward()
            through = leaf.detach().requires_grad_()
            moved = through.redistribute(placements=[Replicate()] * device_mesh.ndim)
            (moved.to_local().tanh() * through.full_tensor()).sum().backward()
            found[f"{device} {where}"] = [leaf.is_leaf, *(far(grad, x.grad) < 1e-5 for grad in (leaf.grad, source.grad, through.grad))]
    low = distribute_tensor(x.detach(), mesh(), [Shard(0), Replicate()]).requires_grad_()
    moved = low.redistribute(placements=[Replicate()] * 2, forward_dtype=torch.bfloat16, backward_dtype=torch.bfloat16)
    (moved.float() * 1.001).sum().backward()
    found["dtypes"] = [str(moved.dtype), str(low.grad.dtype), far(low.grad, torch.full((10, 6), 1.001).bfloat16().float())]
    return found


@case
def output_functions() -> dict[str, Any]:
    """A module on `xla` keeps its parameters, and its output is plain; what the function gets has placements all the same."""
    seen = []

    def gather(module: Any, output: Any, device_mesh: Any) -> Any:
        seen.append([str(output.placements), output.device_mesh == device_mesh])
        return output.redistribute(placements=[Replicate(), Replicate()]).to_local()

    net = torch.nn.Linear(8, 8)
    twin = distribute_module(copy.deepcopy(net).to("xla"), mesh(), None, None, gather)
    x = torch.randn(4, 8)
    return {"output": [far(twin(x.to("xla")), net(x).detach()) < 1e-6, seen]}
