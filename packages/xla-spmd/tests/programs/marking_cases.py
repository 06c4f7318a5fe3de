"""Sharding tensors and clearing the sharding."""

from __future__ import annotations

import copy
import io
import threading
from typing import Any

import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from harness import MESH, case, far, ramp, stored, text, why
from xla_core.abi.metrics import snapshot
from xla_core.abi.sharding import device_shards
from xla_core.abi.tensors import buffer_of, is_pending


@case
def outside_spmd_mode() -> dict[str, Any]:
    t = torch.ones(8, 8, device="xla")
    spec = xs.ShardingSpec(MESH, (0, 1))
    calls = {
        "mark": lambda: xs.mark_sharding(t, MESH, (0, 1)),
        "manual": lambda: xs.enable_manual_sharding(t, (0, 1), mesh=MESH),
        "_mark_manual": lambda: xs.xla_sharding._mark_manual_sharding(t),
        "apply": lambda: spec.apply(t),
        "upload": lambda: spec.upload(torch.ones(8, 8)),
    }
    found = {name: why(call) for name, call in calls.items()}
    xr.use_spmd()
    return found


@case
def counted() -> dict[str, Any]:
    before = snapshot().counters
    t = ramp(8, 8)
    xs.mark_sharding(t, MESH, (0, 1))
    total = (t + 1).sum()
    torch_xla.sync(wait=True)
    counters = snapshot().counters
    names = ("XlaMarkSharding", "ExecuteReplicated", "ExecuteComputation")
    found: dict[str, Any] = {name: counters.get(name, 0) - before.get(name, 0) for name in names}
    later = threading.Event()
    for _ in range(1000):  # the time comes from the thread that waits for devices
        if "ExecuteReplicatedTime" in snapshot().metrics:
            break
        later.wait(0.01)
    return found | {"VirtualDeviceUsage": counters["VirtualDeviceUsage"], "sum": total.item(), "timed": list(snapshot().metrics)}


@case
def refusals() -> dict[str, Any]:
    t = torch.ones(8, 8, device="xla")
    marked = ramp(8, 8)
    xs.mark_sharding(marked, MESH, (0, 1))
    return {
        "mesh size": why(xs.mark_sharding, t, xs.Mesh(range(4), (2, 2)), (0, 1)),
        "rank": why(xs.mark_sharding, t, MESH, (0,)),
        "axis twice": why(xs.mark_sharding, t, MESH, (0, "x")),
        "axis": why(xs.mark_sharding, t, MESH, (2, None)),
        "name": why(xs.mark_sharding, t, MESH, ("z", None)),
        "a text": why(xs.mark_sharding, t[0], MESH, "x"),
        "cpu": why(xs.mark_sharding, torch.ones(8, 8), MESH, (0, 1)),
        "otherwise": why(xs.mark_sharding, marked, MESH, (1, 0)),
        "otherwise, replicated": why(xs.mark_sharding, marked, MESH, (None, None)),
        "clear cpu": why(xs.clear_sharding, torch.ones(8)),
        "left alone": [text(t), text(marked)],
    }


@case
def stored_data() -> dict[str, Any]:
    t = ramp(8, 8)
    found: dict[str, Any] = {"before": text(t)}
    wrapper = xs.mark_sharding(t, MESH, (0, None))
    found["text"] = [text(t), text(wrapper), wrapper.sharding_spec]
    found["same wrapper"] = xs.mark_sharding(wrapper, MESH, ("x", None), use_dynamo_custom_op=True) is wrapper
    buffer = buffer_of(t)
    xs.mark_sharding(t, MESH, ("x", None))
    found["same buffer"] = buffer_of(t) is buffer
    found["of each device"] = list(device_shards(t)[0].data.shape)
    xs.clear_sharding(t)
    found["again, after clearing"] = text(xs.mark_sharding(t, MESH, ("y", "x")))
    replicated = ramp(8, 8)
    xs.mark_sharding(replicated, MESH, (None, None))
    found["from replicated"] = [text(replicated), text(xs.mark_sharding(replicated, MESH, (0, 1)))]
    found["values"] = far(t, torch.arange(64.0).reshape(8, 8))
    return found


@case
def pending_results() -> dict[str, Any]:
    t = ramp(8, 8) + 1
    found: dict[str, Any] = {"texts": []}
    for spec in [(0, None), (0, None), (1, None)]:
        xs.mark_sharding(t, MESH, spec)
        found["texts"].append(text(t))
    found["pending"] = is_pending(t)
    torch_xla.sync()
    found["after sync"] = [text(t), is_pending(t), list(device_shards(t)[0].data.shape)]
    found["values"] = far(t, torch.arange(64.0).reshape(8, 8) + 1)
    found["otherwise"] = why(xs.mark_sharding, t, MESH, (0, None))
    return found


@case
def views() -> dict[str, Any]:
    base = ramp(8, 8)
    xs.mark_sharding(base, MESH, (0, 1))
    view = base[:4]
    found: dict[str, Any] = {"before": text(view)}
    xs.mark_sharding(view, MESH, (1, None))
    found["marked"] = [text(view), text(base)]
    view.add_(1)
    torch_xla.sync()
    found["written"] = [text(view), text(base)]
    expected = torch.arange(64.0).reshape(8, 8)
    expected[:4] += 1
    found["values"] = far(base, expected)
    xs.clear_sharding(view)
    found["cleared"] = [text(view), text(base)]
    return found


@case
def survival() -> dict[str, Any]:
    t = ramp(8, 8)
    xs.mark_sharding(t, MESH, (0, 1))
    copies = {"clone": t.clone(), "deepcopy": copy.deepcopy(t), "copy": copy.copy(t), "detach": t.detach()}
    found: dict[str, Any] = {"texts": {name: text(one) for name, one in copies.items()}}
    t.mul_(2)
    t[0] = 5
    torch_xla.sync()
    found["in place"] = [text(t), list(device_shards(t)[0].data.shape), t[0, 0].item(), t[1, 1].item()]
    xs.clear_sharding(copies["clone"])
    found["cleared copy"] = [text(copies["clone"]), text(t)]
    found["of a result"] = text(t + 1)
    return found


@case
def modules() -> dict[str, Any]:
    torch.manual_seed(0)
    on_cpu = torch.nn.Linear(8, 8)
    net = copy.deepcopy(on_cpu).to("xla")
    wrapper = xs.mark_sharding(net.weight, MESH, (0, 1))
    found: dict[str, Any] = {"parameter": [isinstance(net.weight, torch.nn.Parameter), wrapper.requires_grad, text(net.weight)]}
    state = net.state_dict()
    found["state_dict"] = {name: text(value) for name, value in state.items()}
    net.load_state_dict({name: value.cpu() * 2 for name, value in state.items()})
    found["loaded"] = [text(net.weight), far(net.weight, on_cpu.weight * 2)]
    twin = copy.deepcopy(net)
    found["deepcopy"] = [text(twin.weight), isinstance(twin.weight, torch.nn.Parameter), twin.weight.requires_grad]
    on_cpu.load_state_dict({name: value * 2 for name, value in on_cpu.state_dict().items()})
    x = torch.randn(4, 8)
    for module, device in [(on_cpu, "cpu"), (net, "xla")]:
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            module(x.to(device)).square().sum().backward()
            optimizer.step()
    torch_xla.sync()
    found["trained"] = [text(net.weight), far(net.weight, on_cpu.weight), list(device_shards(net.weight)[0].data.shape)]
    file = io.BytesIO()
    xm.save(net.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True, map_location="cpu")
    found["saved"] = [far(net.weight, saved["weight"]), text(net.weight), list(device_shards(net.weight)[0].data.shape)]
    return found


@case
def other_data() -> dict[str, Any]:
    """`.data =` and `set_` after marking."""
    found: dict[str, Any] = {}
    parameter = torch.nn.Linear(8, 8).to("xla").weight
    wrapper = xs.mark_sharding(ramp(8, 8), MESH, (0, 1))
    for name, t in {"tensor": ramp(8, 8), "parameter": parameter, "wrapper": wrapper}.items():
        xs.mark_sharding(t, MESH, (0, 1))
        t.data = ramp(8, 8) + 1
        found[name] = [text(t), stored(t), far(t, torch.arange(64.0).reshape(8, 8) + 1)]
    fresh = ramp(8, 8)
    parameter.data = fresh
    with torch.no_grad():
        fresh.add_(1)
    torch_xla.sync()
    found["shared"] = [text(parameter), stored(parameter), text(fresh), far(parameter, torch.arange(64.0).reshape(8, 8) + 1)]
    t = xs.mark_sharding(ramp(8, 8), MESH, (0, 1)).global_tensor
    t.set_(ramp(8, 8))
    found["set_"] = [text(t), stored(t)]
    base = ramp(16, 8)
    t.data = base[:8]
    found["a view"] = [text(t), text(base), stored(t), far(t, torch.arange(64.0).reshape(8, 8))]
    marked = xs.mark_sharding(ramp(8, 8), MESH, (1, None)).global_tensor
    t.data = marked
    found["has its own"] = [text(t), text(marked)]
    t.data = ramp(4, 8)
    found["another shape"] = [text(t), stored(t)]
    plain, dtype = ramp(8, 8), xs.mark_sharding(ramp(8, 8), MESH, (0, 1)).global_tensor
    plain.data = ramp(8, 8)
    dtype.data = ramp(8, 8).bfloat16()
    found["plain"], found["another dtype"] = text(plain), text(dtype)
    return found


@case
def written_modules() -> dict[str, Any]:
    """What stays of marks when parameters are loaded, copied to and cast."""
    net = torch.nn.Linear(8, 8).to("xla")
    xs.mark_sharding(net.weight, MESH, (0, 1))
    state = {name: value * 2 for name, value in torch.nn.Linear(8, 8).state_dict().items()}
    found: dict[str, Any] = {}
    net.load_state_dict(state, assign=False)
    found["load_state_dict"] = [text(net.weight), stored(net.weight), far(net.weight, state["weight"])]
    with torch.no_grad():
        net.weight.copy_(state["weight"] + 1)
    found["copy_"] = [text(net.weight), stored(net.weight), far(net.weight, state["weight"] + 1)]
    net.to(torch.bfloat16)
    found["cast"] = [text(net.weight), stored(net.weight)]
    net.load_state_dict({name: value.to("xla") for name, value in state.items()}, assign=True)
    found["assigned"] = text(net.weight)
    return found


@case
def w19_mark_sharding() -> dict[str, Any]:
    inputs = torch.randn(8, 32)
    linear = torch.nn.Linear(32, 10)
    on_cpu = linear(inputs)
    there = inputs.to("xla")
    linear.to("xla")
    xs.mark_sharding(there, MESH, ("x", None))
    xs.mark_sharding(linear.weight, MESH, (None, "y"))
    return {"texts": [text(there), text(linear.weight)], "error": far(linear(there), on_cpu)}


@case
def w22_clear_sharding() -> dict[str, Any]:
    xr.use_spmd()
    t = torch.randn(8, 8).to(torch_xla.device())
    wrapper = xs.mark_sharding(t, xs.get_1d_mesh("data"), ("data", None))
    before = text(t)
    plain = xs.clear_sharding(wrapper)
    return {"texts": [before, text(t), text(wrapper)], "same": plain is t, "device": str(plain.device), "again": xs.clear_sharding(t) is t}
