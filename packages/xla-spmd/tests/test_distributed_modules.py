"""Modules whose parameters are divided, by torch.distributed.tensor and by FSDPv2, over eight devices; trained beside the CPU's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

_PROGRAM = """
import copy, functools, json, warnings
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_module, distribute_tensor
import torch_xla
import torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch_xla import _XLAC
from torch_xla.experimental import xla_sharded_tensor as old_tensor, xla_sharding as old
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel as FSDPv2
from xla_core import abi

found = {}
torch.manual_seed(0)
text = lambda t: _XLAC._get_xla_sharding_spec(t)
far = lambda t, expected: (t.detach().cpu() - expected).abs().max().item()
held = lambda t: list(abi.buffer_of(xs.unwrap_sharded_tensor(t)).addressable_shards[0].data.shape)

def why(action, *args, **kwargs):
    try:
        action(*args, **kwargs)
    except Exception as error:
        known = (RuntimeError, AssertionError, ValueError, NotImplementedError)
        return [next((kind.__name__ for kind in known if isinstance(error, kind)), repr(error)), str(error)]

def net():
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16))

def trained(model, optimizer, device, data, mark=lambda t: t):
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = (model(mark(x.to(device))) - y.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
        losses.append(loss.item())
    return losses

def compared(model, reference, mark):
    # Losses of four steps, and how far the parameters are from the reference's at the end.
    data = [(torch.randn(16, 8), torch.randn(16, 16)) for _ in range(4)]
    make = lambda m: torch.optim.AdamW(m.parameters(), lr=0.02)
    mine, theirs = make(model), make(reference)
    held_before = [id(p) for p in model.parameters()]
    losses = [trained(model, mine, "xla", data, mark), trained(reference, theirs, "cpu", data)]
    return {
        "losses": losses,
        "far": max(far(a, b.detach()) for a, b in zip(model.parameters(), reference.parameters())),
        "same objects": held_before == [id(p) for p in model.parameters()],
        "parts": [held(p) for p in model.parameters()],
        "moments": [held(mine.state[p]["exp_avg"]) for p in model.parameters()],
        "texts": [text(p) for p in model.parameters()],
    }

xr.use_spmd()
flat = DeviceMesh("xla", list(range(8)))
square = DeviceMesh("xla", torch.arange(8).reshape(4, 2), mesh_dim_names=("a", "b"))
mesh = xs.Mesh(range(8), (4, 2), ("data", "fsdp"))

# torch.distributed.tensor
t = torch.randn(16, 8)
divided = distribute_tensor(t, square, [Shard(0), Replicate()])
found["tensor"] = [type(divided).__name__, text(divided), held(divided), far(divided, t), list(divided.mesh_shape), divided.partition_spec]
found["placements"] = [str(divided.placements), str(divided._spec.placements), list(divided._spec.tensor_meta.shape), divided._spec is divided._spec]
spec = divided._spec
divided.invalidate_spec_cache()
found["spec again"] = [divided._spec is spec, divided._spec == spec]
both = xs.xla_distribute_tensor(t.clone().requires_grad_(), square, [Shard(-1), Shard(1)])
(both * 2).sum().backward()
found["both axes"] = [both.is_leaf, both.requires_grad, str(both.placements), held(both), far(both.grad, torch.full((16, 8), 2.0))]
on_xla = t.to("xla")
found["in place"] = [text(distribute_tensor(on_xla, flat)), text(on_xla), text(xs.xla_distribute_tensor(t.to("xla"), flat, [Shard(0)]))]
moved = divided.redistribute(flat, [Shard(1)])
found["redistributed"] = [str(moved.placements), text(moved), text(divided), held(moved), far(moved, t)]
source = distribute_tensor(torch.ones(8, 8, requires_grad=True), square, [Replicate(), Shard(0)])
(source.redistribute(square, [Shard(0), Replicate()]) * 5).sum().backward()
found["through redistribution"] = far(source.grad, torch.full((8, 8), 5.0))
plain = xs.wrap_as_sharded_tensor(torch.ones(2, device="xla"))
partial = why(distribute_tensor, t, flat, [Partial()])
found["refused"] = [
    partial, why(distribute_tensor, t, square, [Shard(0)]), why(distribute_tensor, t, flat, [Shard(2)]),
    why(lambda: plain.placements), why(lambda: plain._spec), why(distribute_tensor, t, DeviceMesh("xla", [0, 1]), [Shard(0)]),
]
named = xs.mark_sharding(t.to("xla"), mesh, (("fsdp", "data"), None))
found["by names"] = [str(named.placements), str(torch.nn.Parameter(named).placements)]
found["converted"] = [str(xs.api.convert_to_xla_mesh(square)), xs.api.convert_to_xla_partition_spec(t, [Shard(1), Shard(1)])]
found["old places"] = [old.mark_sharding is xs.mark_sharding, old_tensor.XLAShardedTensor is xs.XLAShardedTensor]

def divide(name, module, device_mesh):
    if isinstance(module, nn.Linear):
        weight = distribute_tensor(module.weight, device_mesh, [Shard(0), Shard(1)])
        module.register_parameter("weight", nn.Parameter(weight))

called = []
def divide_input(module, inputs, device_mesh):
    called.append("input")
    return (xs.xla_distribute_tensor(inputs[0], device_mesh, [Shard(0), Replicate()]),)

def gather_output(module, outputs, device_mesh):
    called.append("output")
    return outputs * 1

reference = net()
model = distribute_module(copy.deepcopy(reference), square, divide, divide_input, gather_output)
found["module"] = compared(model, reference, lambda x: x)
found["called"] = called[:2]
found["twice"] = why(distribute_module, model, square)
reference = net()
found["auto"] = compared(xs.xla_distribute_module(copy.deepcopy(reference), square, xs.auto_policy), reference, lambda x: x)
tied = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8))
tied[1].weight = tied[0].weight
tied = xs.xla_distribute_module(tied, flat)
found["tied"] = [tied[1].weight is tied[0].weight, tied[2].running_mean.device.type, text(tied[0].weight)]
found["wrong input_fn"] = why(distribute_module, net(), flat, None, lambda x: x)

# FSDPv2
found["no axis"] = [
    why(FSDPv2, net(), mesh=xs.Mesh(range(8), (8,), ("x",))), why(FSDPv2, net()), why(FSDPv2, net(), mesh=mesh, extra_data_axis="z")
]
reference = net()
on_xla = copy.deepcopy(reference).to("xla")
before = list(on_xla.parameters())
model = FSDPv2(on_xla, mesh)
found["kept"] = all(a is b for a, b in zip(before, model.parameters())) and model.module is on_xla
rows = lambda x: xs.mark_sharding(x, mesh, ("fsdp", None)).global_tensor
found["fsdp"] = compared(model, reference, rows)
output = model(torch.randn(16, 8).to("xla"))
found["output"] = [text(output), held(output)]
found["names"] = [list(model.state_dict()), type(model[0]).__name__, why(lambda: model.nothing)]
fresh = FSDPv2(net(), mesh, None)
found["load"] = [str(fresh.load_state_dict(model.state_dict())), far(fresh.module[0].weight, model.module[0].weight.cpu())]
prefixed = {f"_orig_module.{name}": value.cpu() + 1 for name, value in model.state_dict().items()}
found["load with prefix"] = [str(fresh.load_state_dict(prefixed)), far(fresh.module[2].bias, model.module[2].bias.cpu() + 1), text(fresh.module[0].weight)]
found["load less"] = why(fresh.load_state_dict, {})

xs.set_global_mesh(mesh)
calls = []
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
    def forward(self, x):
        return x + self.norm(self.inside(x))
class Body(nn.Module):
    def __init__(self):
        super().__init__()
        shared = Block()
        self.blocks = nn.ModuleList([Block(), shared, shared])
        self.head = nn.Linear(8, 16)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def with_unwrapped(module, recurse, unwrapped_params):
    calls.append(unwrapped_params)
    return recurse or isinstance(module, nn.Linear)

policies = {
    "transformer": functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    "size": functools.partial(size_based_auto_wrap_policy, min_num_params=80),
    "classes": ModuleWrapPolicy({Block}),
    "unwrapped": with_unwrapped,
}
found["policies"] = {}
for name, policy in policies.items():
    reference = Body()
    model = FSDPv2(copy.deepcopy(reference), auto_wrap_policy=policy)
    inner = [path for path, part in model.named_modules(remove_duplicate=False) if isinstance(part, FSDPv2)]
    x = torch.randn(16, 8)
    found["policies"][name] = [
        [path.replace("_orig_module", "").strip(".").replace("..", ".") for path in inner],
        list(model.state_dict()) == list(reference.state_dict()),
        far(model(x.to("xla")), reference(x).detach()),
        str(model.load_state_dict(reference.state_dict())),
    ]
found["shared"] = model.blocks[1] is model.blocks[2]
found["calls"] = calls[:2]
made = []
def make(module, **kwargs):
    made.append(sorted(kwargs))
    return FSDPv2(module, **kwargs)
reference = Body()
both = FSDPv2(copy.deepcopy(reference), auto_wrap_policy=policies["classes"], auto_wrapper_callable=make, extra_data_axis="data")
output = both(torch.randn(16, 8).to("xla"))
found["extra"] = [text(output), made]
reference = Body()
found["nested training"] = compared(FSDPv2(copy.deepcopy(reference), auto_wrap_policy=policies["classes"]), reference, rows)
compute = FSDPv2(nn.Sequential(nn.Linear(8, 8), FSDPv2(nn.Linear(8, 8)), nn.Tanh()))
compute(torch.randn(16, 8).to("xla")).sum().backward()
found["barriers"] = _XLAC._get_stablehlo([p.grad for p in compute.parameters()]).count("optimization_barrier")
found["again"] = why(FSDPv2, both)

class Several(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.result = result
        self.weight = nn.Parameter(torch.ones(8))
    def forward(self, x):
        return self.result(x * self.weight)
x = torch.randn(16, 8).to("xla")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    first, second = FSDPv2(Several(lambda x: (x + 1, x + 2)))(x)
found["tuple"] = [text(first), text(second), [str(one.message) for one in caught]]
found["dict"] = why(FSDPv2(Several(lambda x: {"y": x})), x)
shard = lambda output, mesh: xs.mark_sharding(output["y"], mesh, (None, "fsdp"))
found["dict, told how"] = text(FSDPv2(Several(lambda x: {"y": x + 1}), mesh, shard)(x)["y"])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
