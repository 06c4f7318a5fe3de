"""NamedShardings of programs: meshes with their devices in any order, beside the indices that JAX gives for each device."""

from __future__ import annotations

import itertools
import math
import random
import traceback
from typing import Any

import hypothesis
import numpy as np
import torch
from hypothesis import strategies as st

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from harness import FIRST, bytes_of_each, case, far, text
from xla_core.abi.sharding import device_shards
from xla_spmd.mesh import physical_devices
from xla_spmd.named_sharding import device_order, named_sharding
from xla_spmd.shards import shard_indices

SHAPES = ((8,), (4, 2), (2, 4), (2, 2, 2), (1, 8), (8, 1), (2, 1, 4))


@st.composite
def meshes_and_specs(draw: st.DrawFn) -> tuple[xs.Mesh, Any]:
    """A mesh of the eight devices, in any order or a transposed one of programs', and a spec."""
    shape = draw(st.sampled_from(SHAPES))
    ids = device_order()
    if draw(st.booleans()):
        ids = ids.reshape(2, 2, 2).transpose(draw(st.permutations(range(3)))).ravel()
    else:
        random.Random(draw(st.integers(0, 999))).shuffle(ids)
    spec: list[Any] = [() for _ in range(draw(st.integers(1, 3)))]
    for axis in draw(st.permutations(range(len(shape)))):
        dim = draw(st.integers(-1, len(spec) - 1))
        if dim >= 0:
            spec[dim] = (*spec[dim], axis)
    return xs.Mesh(ids, shape), tuple(spec)


def holdable(tiles: np.ndarray[Any, Any]) -> bool:
    """Whether some mesh over the devices in the order of programs says this: by trying all."""
    *split, replicas = tiles.shape
    for axes in itertools.permutations(range(3)):
        found = device_order().reshape(2, 2, 2).transpose(axes).reshape(-1, replicas)
        if np.array_equal(np.sort(found), np.sort(tiles.reshape(-1, replicas))):
            return True
    return False


def compare(seen: dict[str, int]) -> None:
    """Compare with JAX for any mesh and spec; `seen` counts them."""

    @hypothesis.settings(max_examples=150, deadline=None, database=None)
    @hypothesis.given(meshes_and_specs())
    def check(asked: tuple[xs.Mesh, Any]) -> None:
        mesh, spec = asked
        sharding = mesh.get_op_sharding(spec)
        found = named_sharding(sharding)
        if found is None:
            assert not holdable(sharding.tiles), f"programs can hold {sharding}"
            seen["impossible"] += 1
            return
        assert [device.id for device in found.mesh.devices.flat] == device_order().tolist()
        shape = tuple(8 for _ in spec)
        theirs_of = found.devices_indices_map(shape)
        devices = physical_devices()
        for number, index in enumerate(shard_indices(sharding, shape, range(8))):
            mine = [slice(0, 8, 1)] * len(shape) if index.indices is ... else index.indices
            theirs = [slice(*one.indices(8)) for one in theirs_of[devices[number]]]
            assert mine == theirs, f"{sharding}: device {number} holds {theirs}"
        seen["same"] += 1
        seen["split"] += math.prod(sharding.dims) > 1

    check()


def outcome() -> dict[str, Any]:
    seen = {"same": 0, "impossible": 0, "split": 0}
    try:
        compare(seen)
    except Exception:
        return {"wrong": traceback.format_exc()}
    return {"wrong": "", **seen}


@case
def as_jax_shards() -> dict[str, Any]:
    xr.use_spmd()
    return {"order": device_order().tolist(), **outcome()}


@case
def another_order() -> dict[str, Any]:
    early = torch.arange(16.0).to("xla")
    region = xs.enable_manual_sharding(torch.arange(64.0).reshape(8, 8).to("xla"), (0, 1), mesh=FIRST)
    found: dict[str, Any] = {"order": device_order().tolist(), "shard": region.tolist()}
    whole = xs.disable_manual_sharding(region + 1, (0, 1), (8, 8), mesh=FIRST)
    return {**found, "errors": [far(whole, torch.arange(64.0).reshape(8, 8) + 1), far(early, torch.arange(16.0))], "text": text(whole)}


@case
def as_jax_shards_in_another_order() -> dict[str, Any]:
    return outcome()


@case
def several_orders() -> dict[str, Any]:
    x = torch.arange(64.0).reshape(8, 8)
    first = xs.mark_sharding(x.to("xla"), FIRST, (0, 1))
    found: dict[str, Any] = {"first": [text(first), [shard.data[0, 0].item() for shard in first.local_shards]]}
    other = xs.mark_sharding(x.to("xla"), xs.Mesh(range(8), (4, 2)), (0, 1))
    found["other"] = [text(other), [shard.data[0, 0].item() for shard in other.local_shards]]
    found["of each device"] = [list(device_shards(t.global_tensor)[0].data.shape) for t in (first, other)]
    found["replicas"] = list(
        device_shards(xs.mark_sharding(x.to("xla"), xs.Mesh([1, 3, 0, 2, 4, 5, 6, 7], (2, 4)), (0, None)).global_tensor)[0].data.shape
    )
    shards = other.local_shards
    for shard in shards:
        shard.data = shard.data + 1
    other.load_local_shards_(shards)
    pending = xs.mark_sharding(first * 2, xs.Mesh(range(8), (2, 4)), ((1, 0), None))
    found["errors"] = [far(other, x + 1), far(pending, x * 2), far(first @ other, x @ (x + 1))]
    found["texts"] = [text(other), text(pending)]
    return found


def compare_orders(seen: dict[str, int]) -> None:
    """What devices hold by a mesh of any order, beside the elements of the tensor on the CPU; `seen` counts the orders that are no walk."""

    @hypothesis.settings(max_examples=20, deadline=None, database=None, derandomize=True)
    @hypothesis.given(meshes_and_specs(), st.integers(5, 9))
    def check(asked: tuple[xs.Mesh, Any], size: int) -> None:
        mesh, spec = asked
        sharding = mesh.get_op_sharding(spec)
        x = torch.arange(float(size ** len(spec))).reshape([size] * len(spec))
        marked = xs.mark_sharding(x.to("xla"), mesh, spec)
        marked.global_tensor.mul_(2)
        torch_xla.sync()
        share = math.prod(-(-size // count) for count in [*sharding.dims, *[1] * (len(spec) - len(sharding.dims))]) * 4
        assert bytes_of_each(marked) == [share] * 8
        for index, shard in zip(shard_indices(sharding, tuple(x.shape), range(8)), marked.local_shards, strict=True):
            inside = ... if index.indices is ... else tuple(index.indices)
            assert torch.equal(shard.unpadded_data, x[inside] * 2), f"{sharding}: {shard.shard_device}"
        seen["other orders"] += named_sharding(sharding) is None

    check()


@case
def any_orders() -> dict[str, Any]:
    seen = {"other orders": 0}
    keeps_the_order = xs.mark_sharding(torch.ones(8, 8).to("xla"), FIRST, (0, 1))
    compare_orders(seen)
    return {**seen, "order": device_order().tolist(), "kept": text(keeps_the_order)}
