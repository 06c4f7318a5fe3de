"""SPMD mode in the core: shardings of data over eight devices, manual regions. Compared with the same program on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Report = dict[str, Any]

_HEAD = """
import copy, json, warnings
import numpy as np
import torch
import torch_xla
import torch_xla.runtime as xr
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from xla_core import abi

found = {}

def mesh(*shape, order=None):
    devices = abi.process.client().default_shardings[0].mesh.devices.reshape(-1)
    names = [f"{name}" for name, _ in zip("xyz", shape)]
    return Mesh(devices[list(order or range(8))].reshape(shape), names)

def over(*spec, shape=(4, 2)):
    return NamedSharding(mesh(*shape), P(*spec))

def first_shard(tensor):
    buffer = abi.tensors.buffer_of(tensor)
    return [str(buffer.sharding.spec), list(buffer.addressable_shards[0].data.shape)]

def why(action, *args):
    try:
        action(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


def _report(run: Callable[..., str], code: str) -> Report:
    out = run(_HEAD + code + "\nprint(json.dumps(found))", CPU_NUM_DEVICES="8")
    report: Report = json.loads(out.splitlines()[-1])
    return report


_TRAINING = """
xr.use_spmd()
compiles = []
abi.events.subscribe(compiles.append, abi.events.CompileEvent)
torch.manual_seed(0)
on_cpu = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
net = copy.deepcopy(on_cpu).to("xla")
abi.sharding.set_sharding(net[0].weight, over("x", "y"))
abi.sharding.set_sharding(net[2].weight, over("y", "x"))
nets = [(on_cpu, "cpu"), (net, "xla")]
optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each, _ in nets]
found["compiles"], found["losses"] = [], []
for step in range(5):
    x, y = torch.randn(8, 16), torch.randn(8, 8)
    losses = []
    for (each, device), optimizer in zip(nets, optimizers):
        optimizer.zero_grad()
        loss = (each(x.to(device)) - y.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    torch_xla.sync()
    found["compiles"].append(len(compiles))
    found["losses"].append([loss.item() for loss in losses])
found["end"] = [[p.tolist() for p in each.parameters()] for each, _ in nets]
state = optimizers[1].state[net[0].weight]
found["shards"] = {"weight": first_shard(net[0].weight), "moment": first_shard(state["exp_avg"]), "second": first_shard(net[2].weight)}
"""


@pytest.fixture(scope="module")
def training(run: Callable[..., str]) -> Report:
    return _report(run, _TRAINING)


def test_training_with_sharded_weights_is_training_on_the_cpu(training: Report) -> None:
    import torch

    for mine, theirs in training["losses"]:
        assert mine == pytest.approx(theirs, rel=1e-4)
    for left, right in zip(*training["end"], strict=True):
        torch.testing.assert_close(torch.tensor(left), torch.tensor(right), rtol=1e-3, atol=1e-4)


def test_weights_and_what_the_optimizer_makes_like_them_stay_sharded(training: Report) -> None:
    assert training["shards"] == {
        "weight": ["P('x', 'y')", [8, 8]],
        "moment": ["P('x', 'y')", [8, 8]],
        "second": ["P('y', 'x')", [4, 8]],
    }


def test_nothing_is_compiled_after_the_second_step(training: Report) -> None:
    assert training["compiles"][1:] == [training["compiles"][1]] * 4


_DATA = """
early = torch.arange(8.0, device="xla")
pending = early + 1
found["outside"] = why(abi.sharding.set_sharding, early, NamedSharding(Mesh(np.array(abi.process.client().devices), ("x",)), P()))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    xr.use_spmd()
found["warned"] = [str(one.message) for one in caught]
found["early"] = [early.tolist(), pending.tolist(), len(abi.tensors.buffer_of(early).addressable_shards)]

weight = torch.nn.Parameter(torch.zeros(16, 8).to("xla"))
abi.sharding.set_sharding(weight, over(("x", "y")))
twin, like, other = copy.deepcopy(weight), torch.randn_like(weight), weight + 1
found["asked"] = [abi.sharding.sharding_of(one) is not None for one in (weight, twin, like, other, weight.detach(), weight[0])]
found["shards"] = [first_shard(one) for one in (weight, twin, like)]
weight.data.add_(1)
torch_xla.sync()
found["after writing"] = [first_shard(weight), weight.sum().item()]
abi.sharding.set_sharding(weight, None)
found["cleared"] = abi.sharding.sharding_of(weight) is None
view = weight[:8]
abi.sharding.set_sharding(view, over("x"))
found["a view"] = [first_shard(view * 2), str(abi.sharding.sharding_of(view).named.spec), abi.sharding.sharding_of(weight) is None]
uneven = torch.arange(20.0).reshape(10, 2).to("xla")
abi.sharding.set_sharding(uneven, over("x", "y"))
uneven_storage = uneven._storage.value.buffer
shards = abi.sharding.device_shards(uneven)
found["uneven"] = [
    [list(shard.data.shape) for shard in shards],
    all(torch.equal(shard.data, torch.arange(20.0).reshape(10, 2)[shard.index]) for shard in shards),
    [list(shard.data.shape) for shard in uneven_storage.addressable_shards],
    str(abi.sharding.sharding_of(uneven).named.spec), (uneven * 2).sum().item(), first_shard(uneven),
]
found["other order"] = why(abi.sharding.enter_manual, uneven, NamedSharding(mesh(8, order=range(7, -1, -1)), P("x")))
found["too late"] = why(abi.process.order_devices, range(7, -1, -1))
"""


@pytest.fixture(scope="module")
def data(run: Callable[..., str]) -> Report:
    return _report(run, _DATA)


def test_tensors_from_before_spmd_mode_are_replicated(data: Report) -> None:
    assert data["warned"] == ["there are xla tensors from before SPMD mode: they count as replicated"]
    assert data["early"] == [list(map(float, range(8))), list(map(float, range(1, 9))), 8]


def test_copies_and_what_is_made_alike_have_the_same_sharding(data: Report) -> None:
    assert data["asked"] == [True, True, True, False, True, False]
    assert data["shards"] == [["P(('x', 'y'),)", [2, 8]]] * 3


def test_a_sharding_survives_writing_and_can_be_cleared(data: Report) -> None:
    assert data["after writing"] == [["P(('x', 'y'),)", [2, 8]], 128.0]
    assert data["cleared"]


def test_what_a_view_shows_can_be_sharded(data: Report) -> None:
    assert data["a view"] == [["P('x',)", [2, 8]], "P('x',)", True]


def test_a_dimension_that_is_not_evenly_divisible_is_padded(data: Report) -> None:
    shapes, right, stored, spec, total, whole = data["uneven"]
    assert shapes == [[3, 1]] * 6 + [[1, 1]] * 2 and right
    assert stored == [[3, 1]] * 8 and (spec, total) == ("P('x', 'y')", 380.0)
    assert whole == ["P()", [10, 2]], "what is given away has no padding"


def test_refusals(data: Report) -> None:
    assert data["outside"].startswith("ExecutionError: ") and "use_spmd()" in data["outside"]
    assert data["other order"].startswith("ExecutionError: ") and "[7, 6, 5, 4, 3, 2, 1, 0]" in data["other order"]
    assert data["too late"].startswith("ExecutionError: ") and "before the first sharding" in data["too late"]


_MANUAL = """
xr.use_spmd()
torch_xla.device()
abi.process.order_devices([3, 1, 2, 0, 7, 6, 5, 4])
found["order"] = [device.id for device in abi.process.client().default_shardings[0].mesh.devices.flat]
whole = torch.arange(80.0).reshape(10, 8)
place = over("y", "x", shape=(2, 4))
shard = abi.sharding.enter_manual(whole.to("xla"), place)
found["shard"] = [list(shard.shape), abi.sharding.is_manual(shard), abi.sharding.is_manual(shard.t() + 1), shard.tolist()]
doubled = shard * 2 + torch.ones(4, device="xla")
doubled[0] += 100
torch_xla.sync()
doubled.mul_(3)
again = abi.sharding.leave_manual(doubled, place, (10, 8))
expected = whole * 2 + 1
expected[::3] += 100
found["end"] = [abi.sharding.is_manual(again), (again.cpu() - expected * 3).abs().max().item()]
copies = abi.sharding.enter_manual(whole.to("xla"), over(None, None))
found["copies"] = [list(copies.shape), (abi.sharding.leave_manual(copies + 1, over(None, None), (10, 8)).cpu() - whole).unique().tolist()]
first, second = torch.linalg.qr(abi.sharding.enter_manual(torch.eye(8, device="xla"), over(None, None)))
found["several results"] = abi.sharding.leave_manual(first @ second, over(None, None), (8, 8)).cpu().equal(torch.eye(8))
"""


@pytest.fixture(scope="module")
def manual(run: Callable[..., str]) -> Report:
    return _report(run, _MANUAL)


def test_a_manual_region_sees_one_shard(manual: Report) -> None:
    assert manual["shard"] == [[3, 4], True, True, [[8.0 * row + column for column in range(4)] for row in range(3)]]


def test_what_leaves_a_manual_region_is_the_global_tensor(manual: Report) -> None:
    assert manual["end"] == [False, 0.0]
    assert manual["copies"] == [[10, 8], [1.0]]
    assert manual["several results"]


def test_devices_can_have_another_order(manual: Report) -> None:
    assert manual["order"] == [3, 1, 2, 0, 7, 6, 5, 4]


_OWNED = """
import tracemalloc
xr.use_spmd()
whole = torch.arange(4096 * 64.0).reshape(4096, 64)
sharded = whole.to("xla")
abi.sharding.set_sharding(sharded, over("x", None))
shards = abi.sharding.owned_shards(sharded)
found["spans"] = [[[one.start, one.stop] for one in shard.index] for shard in shards]
found["equal"] = all(torch.equal(shard.read(), whole[shard.index]) for shard in shards)
replicated = abi.sharding.owned_shards(whole[:3].to("xla") + 1)
found["replicated"] = [[[one.start, one.stop] for one in shard.index] for shard in replicated]
found["computed"] = torch.equal(replicated[0].read(), whole[:3] + 1)
tracemalloc.start()
for _ in range(2):
    found["read"] = torch.equal(sharded.cpu(), whole)
found["left on the host"] = tracemalloc.get_traced_memory()[0]
"""


def test_each_shard_is_owned_once_and_reading_leaves_nothing_on_the_host(run: Callable[..., str]) -> None:
    found = _report(run, _OWNED)
    assert sorted(found["spans"]) == [[[1024 * n, 1024 * (n + 1)], [0, 64]] for n in range(4)] and found["equal"]
    assert found["replicated"] == [[[0, 3], [0, 64]]] and found["computed"]
    assert found["read"] and found["left on the host"] < 4096 * 64 * 4 / 10


_WIDE = """
xr.use_spmd()
numbers = {"int64": torch.arange(8) + 2**40, "float64": torch.arange(8, dtype=torch.float64) + 1 / 3}
numbers["complex128"] = numbers["float64"] * (1 + 2j)
for name, wanted in numbers.items():
    there = wanted.to("xla")
    abi.sharding.set_sharding(there, over("x"))
    found[name] = [first_shard(there)[1], torch.equal(there.cpu(), wanted)]
"""


def test_data_that_moves_keeps_its_width(run: Callable[..., str]) -> None:
    assert _report(run, _WIDE) == dict.fromkeys(["int64", "float64", "complex128"], [[2], True])
