"""torch.distributed.tensor over eight devices: meshes and their slices, sharded tensors, gradients."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor, full, ones, rand, zeros
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.distributed.tensor.placement_types import _StridedShard

import torch_xla
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


@case
def local_maps() -> dict[str, Any]:
    """The function sees one device's shards; what was decorated before SPMD mode began works, too."""
    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 12, requires_grad=True)
    d = distribute_tensor(x.detach(), mesh(), [Replicate(), Shard(1)]).requires_grad_()
    e = distribute_tensor(w.detach(), mesh(), [Replicate(), Shard(0)]).requires_grad_()
    product, theirs = partial_product(d, e), x @ w
    product.square().sum().backward()
    theirs.square().sum().backward()
    rows = distribute_tensor(x.detach(), mesh()["tp"], [Shard(0)])
    own = local_map(lambda a, b: (a.softmax(0) + b, 3), out_placements=([Shard(0)], None))
    softmax, number = own(rows, torch.ones(8, device="xla"))
    apart = torch.cat([part.softmax(0) for part in x.detach().chunk(4)]) + 1
    uneven = distribute_tensor(torch.ones(3, 8), mesh()["tp"], [Shard(0)])
    return {
        "product": [str(product.placements), far(product, theirs) < 1e-4, far(d.grad, x.grad) < 1e-3, far(e.grad, w.grad) < 1e-3],
        "softmax": [far(softmax, apart) < 1e-6, number, str(softmax.placements)],
        "plain": local_map(lambda a: a + 1, out_placements=None)(torch.ones(2)).tolist(),
        "refused": [why(partial_product, e, d), why(own, uneven, torch.ones(8, device="xla"))],
    }


@functools.partial(local_map, out_placements=[Replicate(), Partial()], in_placements=([Replicate(), Shard(1)], [Replicate(), Shard(0)]))
def partial_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.query, self.key, self.value, self.proj = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(hidden)
        parts = [part(normed).unflatten(2, (4, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)]
        hidden = hidden + self.proj(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        found: torch.Tensor = hidden + self.down(F.gelu(self.up(self.norm2(hidden))))
        return found


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(20, 16), nn.ModuleList([Layer()])
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 20, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(text)
        for layer in self.layers:
            hidden = layer(hidden)
        found: torch.Tensor = self.out(self.norm(hidden))
        return found


def parallel(model: nn.Module) -> nn.Module:
    """As programs for torch's own devices do it: sequences between the layers, heads and hidden features within them, over `tp`."""
    tp, rows = mesh()["tp"], Shard(1)
    parallelize_module(
        model,
        tp,
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
            "norm": SequenceParallel(),
            "out": ColwiseParallel(input_layouts=rows, output_layouts=Shard(-1), use_local_output=False),
        },
    )
    plan: dict[str, ParallelStyle] = {name: SequenceParallel() for name in ("norm1", "norm2")}
    plan |= {name: ColwiseParallel(input_layouts=rows) for name in ("query", "key", "value", "up")}
    plan |= {name: RowwiseParallel(output_layouts=rows) for name in ("proj", "down")}
    for layer in model.layers:  # type: ignore[union-attr]
        parallelize_module(layer, tp, plan)
    return model


def losses(model: nn.Module, device: str, steps: int = 2) -> list[float]:
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=device == "xla")
    found = []
    for _ in range(steps):
        text_, target = torch.randint(0, 20, (4, 8)).to(device), torch.randint(0, 20, (4, 8)).to(device)
        if device == "xla":
            text_ = distribute_tensor(text_, mesh()["dp"], [Shard(0)])
        optimizer.zero_grad()
        with loss_parallel() if device == "xla" else contextlib.nullcontext():
            loss = F.cross_entropy(model(text_).flatten(0, 1), target.flatten())
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
        found += [loss.item(), float(norm.full_tensor() if isinstance(norm, DTensor) else norm)]
    return found


@case
def gpt() -> dict[str, Any]:
    torch.manual_seed(0)
    reference = Gpt()
    model = parallel(copy.deepcopy(reference).to("xla"))
    found: dict[str, Any] = {"losses": [losses(model, "xla"), losses(reference, "cpu")]}
    weight = model.layers[0].up.weight  # type: ignore[index,union-attr]
    found["weight"] = [text(weight), str(weight.placements), weight.device_mesh == mesh()["tp"], isinstance(weight, nn.Parameter)]
    found["state"] = max(
        far(one.full_tensor() if hasattr(one, "full_tensor") else one, theirs)
        for one, theirs in zip(model.state_dict().values(), reference.state_dict().values(), strict=True)
    )
    twin = copy.deepcopy(model)
    twin.load_state_dict(Gpt().state_dict())
    twin.load_state_dict(model.state_dict())
    x = torch.randint(0, 20, (4, 8))
    found["twin"] = [str(twin.layers[0].up.weight.placements), far(whole(twin(x.to("xla"))), reference(x)) < 1e-3]  # type: ignore[index,union-attr]
    with torch.autocast("xla", dtype=torch.bfloat16):
        found["autocast"] = str(twin(x.to("xla")).dtype)
    return found


def whole(t: Any) -> torch.Tensor:
    found: torch.Tensor = t.full_tensor().detach()
    return found
