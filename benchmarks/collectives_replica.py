"""What each replica of the collectives benchmark does: collectives on `xla`, in Gloo and in hand-written JAX, in turns; training steps."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import jax
import numpy as np
import torch
import torch.distributed as dist
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

Milliseconds = list[float]


@dataclass(frozen=True, slots=True)
class Case:
    """A collective: the sum of `count` arrays f32[size] over all replicas in place, or a barrier if `count` is 0.

    calls: how many a turn times; turns: how often each contender has its turn.
    """

    name: str
    count: int
    size: int
    calls: int
    turns: int


@dataclass(frozen=True, slots=True)
class Training:
    """Steps of the digits network. batch: of this replica."""

    name: str
    batch: int
    calls: int
    turns: int


def xla_sum(case: Case, mine: float) -> tuple[Callable[[], object], Callable[[], float]]:
    """The sum on device xla, blocked; and what its first element is now."""
    tensors = [torch.full((case.size,), mine).to("xla") for _ in range(case.count)]

    def call() -> None:
        xm.all_reduce("sum", tensors)
        torch_xla.sync()
        xm.wait_device_ops()

    return call, lambda: tensors[-1][0].item()


def gloo_sum(case: Case, mine: float) -> tuple[Callable[[], object], Callable[[], float]]:
    """The sum of CPU tensors; a list is begun as a whole, then waited for."""
    tensors = [torch.full((case.size,), mine) for _ in range(case.count)]

    def call() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return call, lambda: tensors[-1][0].item()


def jax_sum(case: Case, mine: float) -> tuple[Callable[[], object], Callable[[], float]]:
    """The sum as one jitted `psum` for each array, which are donated."""
    mesh = Mesh(np.array(jax.devices()), ("replica",))
    everywhere = PartitionSpec()
    whole = NamedSharding(mesh, everywhere)

    def sums(arrays: list[jax.Array]) -> list[jax.Array]:
        return [lax.psum(array, "replica") for array in arrays]

    spread = jax.shard_map(sums, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    step = jax.jit(spread, donate_argnums=0)
    local = [jax.device_put(np.full(case.size, mine, np.float32), jax.local_devices()[0]) for _ in range(case.count)]
    state = [jax.make_array_from_single_device_arrays(array.shape, whole, [array]) for array in local]

    def call() -> None:
        state[:] = jax.block_until_ready(step(state))

    return call, lambda: float(np.asarray(state[-1].addressable_data(0))[0])


def contenders(case: Case, rank: int, count: int) -> dict[str, Callable[[], object]]:
    """What is called of each contender; raises AssertionError where one sums wrong."""
    if not case.count:
        return {"xla": lambda: xm.rendezvous("benchmark"), "gloo": dist.barrier}
    calls = {}
    for name, make in {"xla": xla_sum, "gloo": gloo_sum, "jax": jax_sum}.items():
        call, first = make(case, float(rank + 1))
        call()
        expected, found = count * (count + 1) / 2, first()
        assert found == expected, f"{case.name}: {name} makes {found} of what sums up to {expected}"
        calls[name] = call
    return calls


def timed(call: Callable[[], object], calls: int) -> float:
    """Milliseconds of a call, all replicas having begun together."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e3 * (time.perf_counter() - start) / calls


def collective(case: Case, rank: int, count: int) -> dict[str, Milliseconds]:
    """Milliseconds of each contender, by turn."""
    calls = contenders(case, rank, count)
    for call in calls.values():
        call()
    found: dict[str, Milliseconds] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(case.turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(timed(calls[name], case.calls))
    return found


def training(work: Training, rank: int) -> dict[str, Milliseconds]:
    """Milliseconds of a step of the digits network, steps running back to back."""
    from digits_distributed import network

    torch.manual_seed(rank)
    images, labels = torch.randn(work.batch, 1, 8, 8).to("xla"), torch.randint(10, (work.batch,)).to("xla")
    model = network(0).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(model(images), labels).backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()

    def steps() -> None:
        for _ in range(work.calls):
            step()
        xm.wait_device_ops()

    for _ in range(3):
        step()
    xm.wait_device_ops()
    return {"xla": [timed(steps, 1) / work.calls for _ in range(work.turns)]}


def replica(cases: list[Case], steps: list[Training]) -> dict[str, dict[str, Milliseconds]]:
    """Case → contender → milliseconds by turn, as this replica saw them."""
    rank, count = xr.global_ordinal(), xr.world_size()
    dist.init_process_group("gloo", init_method="xla://", timeout=timedelta(minutes=5))
    found = {case.name: collective(case, rank, count) for case in cases}
    return found | {work.name: training(work, rank) for work in steps}
