"""SPMD mode in the core: layouts of data over eight devices, manual regions. Compared with the same program on the CPU."""

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
    devices = abi.client().homes[0].mesh.devices.reshape(-1)
    names = [f"{name}" for name, _ in zip("xyz", shape)]
    return Mesh(devices[list(order or range(8))].reshape(shape), names)

def over(*spec, shape=(4, 2)):
    return NamedSharding(mesh(*shape), P(*spec))

def held(tensor):
    buffer = abi.buffer_of(tensor)
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
abi.subscribe(compiles.append, abi.CompileEvent)
torch.manual_seed(0)
on_cpu = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
net = copy.deepcopy(on_cpu).to("xla")
abi.lay_out(net[0].weight, over("x", "y"))
abi.lay_out(net[2].weight, over("y", "x"))
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
found["held"] = {"weight": held(net[0].weight), "moment": held(state["exp_avg"]), "second": held(net[2].weight)}
"""


@pytest.fixture(scope="module")
def training(module_run: Callable[..., str]) -> Report:
    return _report(module_run, _TRAINING)


def test_training_with_laid_out_weights_is_training_on_the_cpu(training: Report) -> None:
    import torch

    for mine, theirs in training["losses"]:
        assert mine == pytest.approx(theirs, rel=1e-4)
    for left, right in zip(*training["end"], strict=True):
        torch.testing.assert_close(torch.tensor(left), torch.tensor(right), rtol=1e-3, atol=1e-4)


def test_weights_and_what_the_optimizer_makes_like_them_stay_divided(training: Report) -> None:
    assert training["held"] == {
        "weight": ["P('x', 'y')", [8, 8]],
        "moment": ["P('x', 'y')", [8, 8]],
        "second": ["P('y', 'x')", [4, 8]],
    }


def test_nothing_is_compiled_after_the_second_step(training: Report) -> None:
    assert training["compiles"][1:] == [training["compiles"][1]] * 4


_DATA = """
early = torch.arange(8.0, device="xla")
pending = early + 1
found["outside"] = why(abi.lay_out, early, NamedSharding(Mesh(np.array(abi.client().devices), ("x",)), P()))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    xr.use_spmd()
found["warned"] = [str(one.message) for one in caught]
found["early"] = [early.tolist(), pending.tolist(), len(abi.buffer_of(early).addressable_shards)]

weight = torch.nn.Parameter(torch.zeros(16, 8).to("xla"))
abi.lay_out(weight, over(("x", "y")))
twin, like, other = copy.deepcopy(weight), torch.randn_like(weight), weight + 1
found["asked"] = [abi.layout(one) is not None for one in (weight, twin, like, other, weight.detach(), weight[0])]
found["held"] = [held(one) for one in (weight, twin, like)]
weight.data.add_(1)
torch_xla.sync()
found["after writing"] = [held(weight), weight.sum().item()]
abi.lay_out(weight, None)
found["cleared"] = abi.layout(weight) is None
part = weight[:8]
abi.lay_out(part, over("x"))
found["a view"] = [held(part * 2), str(abi.layout(part).sharding.spec), abi.layout(weight) is None]
uneven = torch.arange(20.0).reshape(10, 2).to("xla")
abi.lay_out(uneven, over("x", "y"))
found["uneven"] = [held(uneven), str(abi.layout(uneven).sharding.spec), (uneven * 2).sum().item()]
found["other order"] = why(abi.lay_out, uneven, NamedSharding(mesh(8, order=range(7, -1, -1)), P("x")))
found["too late"] = why(abi.order_devices, range(7, -1, -1))
"""


@pytest.fixture(scope="module")
def data(module_run: Callable[..., str]) -> Report:
    return _report(module_run, _DATA)


def test_tensors_from_before_spmd_mode_are_replicated(data: Report) -> None:
    assert data["warned"] == ["there are xla tensors from before SPMD mode: they count as replicated"]
    assert data["early"] == [list(map(float, range(8))), list(map(float, range(1, 9))), 8]


def test_a_layout_goes_to_copies_and_what_is_made_alike(data: Report) -> None:
    assert data["asked"] == [True, True, True, False, True, False]
    assert data["held"] == [["P(('x', 'y'),)", [2, 8]]] * 3


def test_a_layout_survives_writing_and_can_be_taken_away(data: Report) -> None:
    assert data["after writing"] == [["P(('x', 'y'),)", [2, 8]], 128.0]
    assert data["cleared"]


def test_what_a_view_shows_can_be_laid_out(data: Report) -> None:
    assert data["a view"] == [["P('x',)", [2, 8]], "P('x',)", True]


def test_what_is_not_evenly_divided_stays_whole(data: Report) -> None:
    assert data["uneven"] == [["P(None, 'y')", [10, 1]], "P('x', 'y')", 380.0]


def test_refusals(data: Report) -> None:
    assert data["outside"].startswith("ExecutionError: ") and "use_spmd()" in data["outside"]
    assert data["other order"].startswith("ExecutionError: ") and "[7, 6, 5, 4, 3, 2, 1, 0]" in data["other order"]
    assert data["too late"].startswith("ExecutionError: ") and "before the first sharding" in data["too late"]


_MANUAL = """
xr.use_spmd()
torch_xla.device()
abi.order_devices([3, 1, 2, 0, 7, 6, 5, 4])
found["order"] = [device.id for device in abi.client().homes[0].mesh.devices.flat]
whole = torch.arange(80.0).reshape(10, 8)
place = over("y", "x", shape=(2, 4))
part = abi.enter_manual(whole.to("xla"), place)
found["part"] = [list(part.shape), abi.is_manual(part), abi.is_manual(part.t() + 1), part.tolist()]
doubled = part * 2 + torch.ones(4, device="xla")
doubled[0] += 100
torch_xla.sync()
doubled.mul_(3)
again = abi.leave_manual(doubled, place, (10, 8))
expected = whole * 2 + 1
expected[::3] += 100
found["end"] = [abi.is_manual(again), (again.cpu() - expected * 3).abs().max().item()]
copies = abi.enter_manual(whole.to("xla"), over(None, None))
found["copies"] = [list(copies.shape), (abi.leave_manual(copies + 1, over(None, None), (10, 8)).cpu() - whole).unique().tolist()]
first, second = torch.linalg.qr(abi.enter_manual(torch.eye(8, device="xla"), over(None, None)))
found["several results"] = abi.leave_manual(first @ second, over(None, None), (8, 8)).cpu().equal(torch.eye(8))
"""


@pytest.fixture(scope="module")
def manual(module_run: Callable[..., str]) -> Report:
    return _report(module_run, _MANUAL)


def test_a_manual_region_sees_one_part(manual: Report) -> None:
    assert manual["part"] == [[3, 4], True, True, [[8.0 * row + column for column in range(4)] for row in range(3)]]


def test_what_leaves_a_manual_region_is_the_whole(manual: Report) -> None:
    assert manual["end"] == [False, 0.0]
    assert manual["copies"] == [[10, 8], [1.0]]
    assert manual["several results"]


def test_devices_can_have_another_order(manual: Report) -> None:
    assert manual["order"] == [3, 1, 2, 0, 7, 6, 5, 4]


_OWNED = """
import tracemalloc
xr.use_spmd()
whole = torch.arange(4096 * 64.0).reshape(4096, 64)
divided = whole.to("xla")
abi.lay_out(divided, over("x", None))
parts = abi.owned_parts(divided)
found["spans"] = [[[one.start, one.stop] for one in part.index] for part in parts]
found["equal"] = all(torch.equal(part.read(), whole[part.index]) for part in parts)
replicated = abi.owned_parts(whole[:3].to("xla") + 1)
found["replicated"] = [[[one.start, one.stop] for one in part.index] for part in replicated]
found["computed"] = torch.equal(replicated[0].read(), whole[:3] + 1)
tracemalloc.start()
for _ in range(2):
    found["read"] = torch.equal(divided.cpu(), whole)
found["left on the host"] = tracemalloc.get_traced_memory()[0]
"""


def test_each_part_is_owned_once_and_reading_leaves_nothing_on_the_host(run: Callable[..., str]) -> None:
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
    abi.lay_out(there, over("x"))
    found[name] = [held(there)[1], torch.equal(there.cpu(), wanted)]
"""


def test_data_that_moves_keeps_its_width(run: Callable[..., str]) -> None:
    assert _report(run, _WIDE) == dict.fromkeys(["int64", "float64", "complex128"], [[2], True])
