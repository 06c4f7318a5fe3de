"""Modules whose parameters are sharded, by torch.distributed.tensor and by FSDPv2, over eight devices; trained beside the CPU's."""

from __future__ import annotations

from collections.abc import Callable
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
dims = lambda t: list(abi.tensors.buffer_of(xs.unwrap_sharded_tensor(t)).addressable_shards[0].data.shape)

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
    before = [id(p) for p in model.parameters()]
    losses = [trained(model, mine, "xla", data, mark), trained(reference, theirs, "cpu", data)]
    return {
        "losses": losses,
        "far": max(far(a, b.detach()) for a, b in zip(model.parameters(), reference.parameters())),
        "same objects": before == [id(p) for p in model.parameters()],
        "shards": [dims(p) for p in model.parameters()],
        "moments": [dims(mine.state[p]["exp_avg"]) for p in model.parameters()],
        "texts": [text(p) for p in model.parameters()],
    }

xr.use_spmd()
flat = DeviceMesh("xla", list(range(8)))
square = DeviceMesh("xla", torch.arange(8).reshape(4, 2), mesh_dim_names=("a", "b"))
mesh = xs.Mesh(range(8), (4, 2), ("data", "fsdp"))

# torch.distributed.tensor
t = torch.randn(16, 8)
sharded = distribute_tensor(t, square, [Shard(0), Replicate()])
found["tensor"] = [type(sharded).__name__, text(sharded), dims(sharded), far(sharded, t), list(sharded.mesh_shape), sharded.partition_spec]
spec = sharded._spec
found["placements"] = [str(sharded.placements), str(spec.placements), list(spec.tensor_meta.shape), sharded._spec is spec]
sharded.invalidate_spec_cache()
found["spec again"] = [sharded._spec is spec, sharded._spec == spec]
both = xs.xla_distribute_tensor(t.clone().requires_grad_(), square, [Shard(-1), Shard(1)])
(both * 2).sum().backward()
found["wanted inside"] = [both.global_tensor.requires_grad, both.requires_grad_(False).global_tensor.requires_grad]
both.requires_grad_()
found["both axes"] = [both.is_leaf, both.requires_grad, str(both.placements), dims(both), far(both.grad, torch.full((16, 8), 2.0))]
on_xla = t.to("xla")
found["in place"] = [text(distribute_tensor(on_xla, flat)), text(on_xla), text(xs.xla_distribute_tensor(t.to("xla"), flat, [Shard(0)]))]
moved = sharded.redistribute(flat, [Shard(1)])
found["redistributed"] = [str(moved.placements), text(moved), text(sharded), dims(moved), far(moved, t)]
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

def shard_columns(name, module, device_mesh):
    if isinstance(module, nn.Linear):
        weight = distribute_tensor(module.weight, device_mesh, [Shard(0), Shard(1)])
        module.register_parameter("weight", nn.Parameter(weight))

called = []
def shard_input(module, inputs, device_mesh):
    called.append("input")
    return (xs.xla_distribute_tensor(inputs[0], device_mesh, [Shard(0), Replicate()]),)

def gather_output(module, outputs, device_mesh):
    called.append("output")
    return outputs * 1

reference = net()
model = distribute_module(copy.deepcopy(reference), square, shard_columns, shard_input, gather_output)
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
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    distribute_module(net(), flat, None, lambda inputs, mesh: inputs)
found["two parameters"] = [(each.category.__name__, str(each.message)) for each in warned]

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
found["output"] = [text(output), dims(output)]
found["names"] = [list(model.state_dict()), type(model[0]).__name__, why(lambda: model.nothing)]
fresh = FSDPv2(net(), mesh, None)
found["load"] = [str(fresh.load_state_dict(model.state_dict())), far(fresh.module[0].weight, model.module[0].weight.cpu())]
prefixed = {f"_orig_module.{name}": value.cpu() + 1 for name, value in model.state_dict().items()}
loaded = str(fresh.load_state_dict(prefixed))
found["load with prefix"] = [loaded, far(fresh.module[2].bias, model.module[2].bias.cpu() + 1), text(fresh.module[0].weight)]
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
    inner = [path for path, module in model.named_modules(remove_duplicate=False) if isinstance(module, FSDPv2)]
    found["policies"][name] = [
        [path.replace("_orig_module", "").strip(".").replace("..", ".") for path in inner],
        list(model.state_dict()) == list(reference.state_dict()),
        str(model.load_state_dict(reference.state_dict())),
    ]
x = torch.randn(16, 8)
found["forward"] = far(model(x.to("xla")), reference(x).detach())
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
found["dict, explicit"] = text(FSDPv2(Several(lambda x: {"y": x + 1}), mesh, shard)(x)["y"])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def report(eight_devices: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any]
    found, _ = eight_devices("-c", _PROGRAM)
    return found


ROWS = "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"
WHOLE = "{devices=[8,1]0,1,2,3,4,5,6,7}"
FSDP_ROWS = "{devices=[2,1,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"
FSDP_COLUMNS = "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"
FSDP_VECTOR = "{devices=[2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"


def trains_as_on_the_cpu(seen: dict[str, Any]) -> bool:
    mine, theirs = seen["losses"]
    return bool(
        mine == pytest.approx(theirs, rel=1e-4) and seen["far"] < 1e-4 and seen["same objects"] and seen["moments"] == seen["shards"]
    )


def refused(why: list[str], kind: str, *words: str) -> bool:
    return bool(why) and why[0] == kind and all(word in why[1] for word in words)


def test_a_device_mesh_shards_tensors(report: dict[str, Any]) -> None:
    assert report["tensor"] == ["XLAShardedTensor", ROWS, [4, 8], 0.0, [4, 2], [0, None]]
    assert report["both axes"] == [True, True, "(Shard(dim=1), Shard(dim=1))", [16, 1], 0.0]
    assert report["wanted inside"] == [True, False]
    assert report["in place"] == ["{replicated}", "{replicated}", WHOLE]


def test_placements_are_known(report: dict[str, Any]) -> None:
    assert report["placements"] == ["(Shard(dim=0), Replicate())"] * 2 + [[16, 8], True]
    assert report["spec again"] == [False, True]
    assert report["by names"] == ["(_StridedShard(dim=0, sf=2), Shard(dim=0))"] * 2
    assert report["converted"] == [
        "{'device_ids': [0, 1, 2, 3, 4, 5, 6, 7], 'mesh_shape': (4, 2), 'axis_names': ('a', 'b')}",
        [None, [0, 1]],
    ]


def test_tensors_are_redistributed(report: dict[str, Any]) -> None:
    assert report["redistributed"] == ["(Shard(dim=1),)", "{devices=[1,8]0,1,2,3,4,5,6,7}", ROWS, [16, 1], 0.0]
    assert report["through redistribution"] == 0.0


def test_what_is_no_placement_is_refused(report: dict[str, Any]) -> None:
    partial, few, dim, unknown, unknown_spec, small = report["refused"]
    assert refused(partial, "ValueError", "P(sum)", "Shard and Replicate") and refused(few, "ValueError", "2 placements")
    assert refused(dim, "ValueError", "S(2)", "(16, 8)") and refused(unknown, "ValueError", "mark_sharding")
    assert refused(unknown_spec, "ValueError", "mark_sharding") and refused(small, "AssertionError", "(2,)", "8")


def test_distributed_modules_train(report: dict[str, Any]) -> None:
    assert trains_as_on_the_cpu(report["module"]) and trains_as_on_the_cpu(report["auto"])
    assert report["module"]["shards"] == [[8, 4], [32], [4, 16], [16]]
    assert report["auto"]["shards"] == [[4, 8], [4], [16, 4], [2]]
    assert report["called"] == ["input", "output"]
    assert report["tied"] == [True, "xla", "{replicated}"]


def test_modules_that_cannot_be_distributed(report: dict[str, Any]) -> None:
    assert refused(report["twice"], "RuntimeError", "once")
    assert refused(report["wrong input_fn"], "ValueError", "input_fn", "1 parameters")
    ((category, message),) = report["two parameters"]
    assert category == "FutureWarning" and "two parameters is deprecated" in message and "releases from 2027-06 on" in message


def test_old_places(report: dict[str, Any]) -> None:
    assert report["old places"] == [True, True]


def test_fsdp_shards_parameters_and_trains(report: dict[str, Any]) -> None:
    assert report["kept"]
    assert trains_as_on_the_cpu(report["fsdp"])
    assert report["fsdp"]["texts"] == [FSDP_ROWS, FSDP_VECTOR, FSDP_COLUMNS, FSDP_VECTOR]
    assert report["fsdp"]["shards"] == [[16, 8], [16], [16, 16], [8]]
    assert report["output"] == [FSDP_ROWS, [8, 16]]


def test_fsdp_has_the_names_of_its_module(report: dict[str, Any]) -> None:
    names, first, missing = report["names"]
    assert (names, first) == (["0.weight", "0.bias", "2.weight", "2.bias"], "Linear") and "nothing" in missing[1]
    assert report["load"] == ["<All keys matched successfully>", 0.0]
    assert report["load with prefix"] == ["<All keys matched successfully>", 0.0, FSDP_ROWS]
    assert refused(report["load less"], "RuntimeError", "Missing key(s)", "0.weight")


def test_fsdp_wraps_what_the_policy_chooses(report: dict[str, Any]) -> None:
    blocks = ["", "blocks.0", "blocks.1", "blocks.2"]
    inside = [f"{name}.inside" for name in blocks[1:]]
    wrapped = {name: seen[0] for name, seen in report["policies"].items()}
    assert wrapped == {"transformer": blocks, "size": [*blocks, "head"], "classes": blocks, "unwrapped": ["", *inside, "head"]}
    assert report["forward"] < 1e-5
    for _, same_names, loaded in report["policies"].values():
        assert same_names and loaded == "<All keys matched successfully>"
    assert report["shared"]
    assert report["calls"] == [320, 176]  # elements of two blocks (88 each) and the head; of the blocks


def test_fsdp_nested(report: dict[str, Any]) -> None:
    assert trains_as_on_the_cpu(report["nested training"])
    assert report["barriers"] == 1
    assert report["extra"] == [WHOLE, [["extra_data_axis"]] * 2]
    assert refused(report["again"], "RuntimeError", "already")


def test_fsdp_needs_its_axes(report: dict[str, Any]) -> None:
    other, none, extra = report["no axis"]
    assert refused(other, "ValueError", "fsdp") and refused(none, "ValueError", "set_global_mesh") and refused(extra, "ValueError", "'z'")


def test_fsdp_shards_outputs_of_several_kinds(report: dict[str, Any]) -> None:
    first, second, (warning,) = report["tuple"]
    assert (first, second) == (FSDP_ROWS, "") and "shard_output" in warning
    assert refused(report["dict"], "RuntimeError", "dict", "shard_output")
    assert report["dict, explicit"] == FSDP_COLUMNS
