"""Data over meshes that do not divide it evenly: what devices hold, programs, and properties beside NumPy; after `marking_cases`."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import hypothesis
import numpy as np
import torch
from hypothesis import strategies as st

import torch_xla
import torch_xla._XLAC
import torch_xla.distributed.spmd as xs
from harness import MESH, bytes_of_each, case, far, ramp, stored, text
from xla_core.abi.metrics import counter
from xla_core.abi.tensors import buffer_of

LINE = xs.Mesh(range(8), (8,), ("x",))


@case
def memory() -> dict[str, Any]:
    line, both = xs.mark_sharding(ramp(10, 7), LINE, ("x", None)), xs.mark_sharding(ramp(10, 7), MESH, ("x", "y"))
    found: dict[str, Any] = {"line": bytes_of_each(line), "both": bytes_of_each(both)}
    both.global_tensor.mul_(2)
    torch_xla.sync()
    found["written"] = [bytes_of_each(both), far(both, ramp(10, 7).cpu() * 2), text(both)]
    found["fewer than devices"] = [bytes_of_each(xs.mark_sharding(ramp(3), LINE, ("x",))), stored(xs.mark_sharding(ramp(3), LINE, ("x",)))]
    xs.clear_sharding(both)
    found["cleared"] = [far(both, ramp(10, 7).cpu() * 2), list(buffer_of(both.global_tensor).shape)]
    return found


@case
def training() -> dict[str, Any]:
    torch.manual_seed(6)
    expected = torch.nn.Sequential(torch.nn.Linear(7, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3))
    net = copy.deepcopy(expected).to("xla")
    for place in (0, 2):
        xs.mark_sharding(net[place].weight, MESH, ("x", "y"))
        xs.mark_sharding(net[place].bias, MESH, ("x",))
    x, compiled = torch.randn(5, 7), []
    there = xs.mark_sharding(x.to("xla"), MESH, ("x", None))
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.02, eps=1e-3) for module in (expected, net)]
    for _ in range(4):
        before = counter("UncachedCompile")
        for module, data, optimizer in zip((expected, net), (x, there), optimizers, strict=True):
            optimizer.zero_grad()
            module(data).square().sum().backward()
            optimizer.step()
        torch_xla.sync()
        compiled.append(counter("UncachedCompile") - before)
    moments = optimizers[1].state[net[0].weight]
    return {
        "compiled": compiled,
        "held": [bytes_of_each(t)[0] for t in (net[0].weight, moments["exp_avg"], moments["exp_avg_sq"])],
        "error": max(far(a, b) for a, b in zip(net.parameters(), expected.parameters(), strict=True)),
    }


@st.composite
def questions(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, torch.dtype]:
    """A shape, a spec and a dtype."""
    shape = tuple(draw(st.lists(st.integers(0, 11), min_size=1, max_size=3)))
    spec: list[Any] = [() for _ in shape]
    for axis in draw(st.permutations((0, 1))):
        dim = draw(st.integers(-1, len(shape) - 1))
        if dim >= 0:
            spec[dim] = (*spec[dim], axis)
    return shape, tuple(spec), draw(st.sampled_from((torch.float32, torch.bfloat16, torch.int64, torch.bool)))


def compare() -> None:
    """Shards, reading back, arithmetic in place and loading shards, for any shape and spec."""

    @hypothesis.settings(max_examples=12, deadline=None, database=None, derandomize=True)
    @hypothesis.given(questions())
    def check(asked: tuple[tuple[int, ...], Any, torch.dtype]) -> None:
        shape, spec, dtype = asked
        values = (torch.arange(math.prod(shape)).reshape(shape) % 7).to(dtype)
        marked = xs.mark_sharding(values.to("xla"), MESH, spec)
        counts = [math.prod((4, 2)[axis] for axis in axes) for axes in spec]
        each = [-(-size // count) for size, count in zip(shape, counts, strict=True)]
        assert bytes_of_each(marked) == [math.prod(each) * values.element_size()] * 8, "an equal share, rounded up"
        assert torch.equal(marked.cpu(), values)
        grid = np.pad(values.to(torch.float32).numpy(), [(0, count * size - n) for count, size, n in zip(counts, each, shape, strict=True)])
        for device, shard in enumerate(marked.local_shards):
            place = (device // 2, device % 2)
            tile = [functools.reduce(lambda at, axis: at * (4, 2)[axis] + place[axis], axes, 0) for axes in spec]
            start = [number * size for number, size in zip(tile, each, strict=True)]
            theirs = grid[tuple(slice(first, first + size) for first, size in zip(start, each, strict=True))]
            assert np.array_equal(shard.data.to(torch.float32).numpy(), theirs), f"device {device}"
        if math.prod(counts) == 1:
            return
        other = xs.mark_sharding(torch.zeros_like(values).to("xla"), MESH, spec)
        other.load_local_shards_(marked.local_shards)
        assert torch.equal(other.cpu(), values) and bytes_of_each(other) == bytes_of_each(marked)

    check()


@case
def properties() -> dict[str, Any]:
    compare()
    return {"right": True}


@case
def programs() -> dict[str, Any]:
    """Nothing is gathered for what is done to each element."""
    t, other = (xs.mark_sharding(ramp(10, 7), LINE, ("x", None)) for _ in range(2))
    result = xs.mark_sharding(t * 2 + other, LINE, ("x", None))
    text_of = torch_xla._XLAC._get_xla_tensors_hlo([result.global_tensor])
    return {"text": text_of, "error": far(result, ramp(10, 7).cpu() * 3), "held": bytes_of_each(result)}
