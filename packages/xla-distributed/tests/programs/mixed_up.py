"""Replicas that mix up programs with collectives which all have run before: `mixed_up.py FOLDER CASE ARGS…`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import harness
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
from xla_core.abi.collectives import get_all_reduce_token
from xla_distributed.job import flight_recorder

Program = tuple[str, int]
PROGRAMS: tuple[Program, ...] = (("sum", 1), ("max", 1), ("mul", 1), ("sum", 5), ("max", 5))
LAST: Program = ("min", 3)  # ends each schedule: what one replica ran once more, or less, is found here at the latest


def reduced(rank: int, program: Program) -> list[float]:
    kind, size = program
    found: list[float] = xm.all_reduce(kind, torch.full((size,), rank + 2.0, device="xla")).tolist()
    return found


def expected(program: Program) -> list[float]:
    kind, size = program
    values = torch.arange(2.0, 2.0 + int(xr.world_size()))
    reductions: dict[str, Callable[[], torch.Tensor]] = {"sum": values.sum, "max": values.max, "min": values.min, "mul": values.prod}
    return [reductions[kind]().item()] * size


def outcome(action: Callable[[], Any]) -> dict[str, Any]:
    """What an action gives, or its error; the collective that failed is forgotten, so that others can follow."""
    try:
        return {"result": action()}
    except Exception as error:
        get_all_reduce_token()[1].all_reduce_token = None
        return {"error": type(error).__name__, "text": str(error)}


def schedule(chance: random.Random, length: int) -> list[Program]:
    return [chance.choice(PROGRAMS) for _ in range(length)]


def changed(chance: random.Random, programs: Sequence[Program]) -> list[Program]:
    """Programs that differ from these at one place, which is swapped with the next, left out, run twice, or another one."""
    while True:
        found, place, other = list(programs), chance.randrange(len(programs) - 1), chance.choice(PROGRAMS)
        match chance.choice(("swap", "skip", "repeat", "replace")):
            case "swap":
                found[place : place + 2] = reversed(found[place : place + 2])
            case "skip":
                del found[place]
            case "repeat":
                found.insert(place, found[place])
            case _:
                found[place] = other
        if found != list(programs):
            return found


def schedules(rank: int, folder: str, seed: str, count: str) -> Any:
    """Runs random schedules, of which one replica runs another one in two of three: where each replica got an error, and all before."""
    for program in (*PROGRAMS, LAST):
        reduced(rank, program)
    chance = random.Random(int(seed))
    seen = []
    for number in range(int(count)):
        programs = schedule(chance, chance.randint(2, 8))
        other, guilty = changed(chance, programs), chance.randrange(int(xr.world_size()))
        both = [(*programs, LAST), (*(other if number % 3 else programs), LAST)]
        first = next((place for place, (one, two) in enumerate(zip(*both, strict=False)) if one != two), None)
        seen.append({"differ": first, **ran(rank, both[rank == guilty])})
    return seen


def ran(rank: int, programs: Sequence[Program]) -> dict[str, Any]:
    """Where an error came, and which; whether all results before it were right."""
    for place, program in enumerate(programs):
        found = outcome(lambda program=program: reduced(rank, program))
        if found.get("result") != expected(program):
            return {"at": place, **found}
    return {"at": None}


def captured(kind: str) -> Callable[[], Any]:
    value = torch.full((2,), xr.global_ordinal() + 2.0).to("xla")
    step = torch_xla.compile(lambda x: xm.all_reduce(kind, x + 1), capture=True, verify_every=None)
    return lambda: step(value).tolist()


def compiled(operation: Any) -> Callable[[], Any]:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        dist.all_reduce(y, operation)
        return y

    function = torch.compile(step, backend="openxla")
    value = torch.full((2,), dist.get_rank() + 2.0).to("xla")
    return lambda: function(value).tolist()


def replicated(size: int) -> Callable[[], Any]:
    """A step of DistributedDataParallel."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(size, 1).to("xla"), gradient_as_bucket_view=True)
    inputs = torch.ones(1, size, device="xla")

    def step() -> Any:
        model.zero_grad()
        model(inputs).sum().backward()
        torch_xla.sync()
        return [round(float(parameter.grad.sum()), 3) for parameter in model.parameters()]

    return step


def of_group(group: Any, operation: Any) -> Callable[[], Any]:
    def step() -> Any:
        value = torch.full((2,), dist.get_rank() + 2.0, device="xla")
        dist.all_reduce(value, operation, group)
        return value.tolist()

    return step


def mixed(mine: Sequence[Callable[[], Any]], rank: int) -> dict[str, Any]:
    """What two actions give that both replicas know, then one on each at the same time, then the first again on both."""
    known = [action() for action in mine for _ in range(4)]
    return {"known": known, **outcome(mine[rank]), "after": outcome(mine[0])}


def ways(rank: int, folder: str) -> Any:
    """Each way to a collective: two programs that both replicas know, which they then run at the same time."""
    dist.init_process_group("xla", init_method="xla://")
    found = {
        "captured": mixed((captured("sum"), captured("max")), rank),
        "compiled": mixed((compiled(dist.ReduceOp.SUM), compiled(dist.ReduceOp.MAX)), rank),
        "ddp": mixed((replicated(4), replicated(7)), rank),
        "torch.distributed": mixed((of_group(None, dist.ReduceOp.SUM), of_group(None, dist.ReduceOp.MAX)), rank),
    }
    return {"ways": found, "tags": tags(rank)}


def tags(rank: int) -> list[Any]:
    """Rendezvous with the same tags, then with others."""
    same = outcome(lambda: [part.decode() for part in xm.rendezvous("one", f"{rank}\n".encode())])
    reduce = outcome(lambda: xm.mesh_reduce(f"mean of {'loss' if rank else 'score'}", float(rank), max))
    meet = outcome(lambda: xm.rendezvous("end" if rank else "begin"))
    return [same, reduce, meet, outcome(lambda: xm.mesh_reduce("mean", float(rank), sum))]


def groups(rank: int, folder: str) -> Any:
    """Collectives of a group of two that are mixed up; then replica 0 runs one of the group where the others run one of all."""
    dist.init_process_group("xla", init_method="xla://")
    group = dist.new_group([0, 1])
    of_two, of_all = of_group(group, dist.ReduceOp.SUM), of_group(None, dist.ReduceOp.SUM)
    found = mixed((of_two, of_group(group, dist.ReduceOp.MAX)), rank) if rank < 2 else {}
    of_all()
    crossing = outcome(of_two if rank == 0 else of_all)
    harness.note(folder, f"crossed-{rank}", "")
    while not (Path(folder) / "crossed-2").exists():
        time.sleep(0.05)  # replica 2 hears of it from the others while they are there
    return {"mixed": found, "crossing": crossing}


def unconfirmed(rank: int, folder: str, how: str) -> Any:
    """As on devices whose collectives are launched without confirmation: replicas mix up a sum and a maximum, and then meet."""
    recorder = flight_recorder._recorder
    if recorder is None:
        raise RuntimeError("this process records nothing")
    recorder.peers = None
    if how == "meet":
        recorder.job_client.report_run = lambda *_: None  # so that nothing but a meeting shows it
    for program in PROGRAMS[:2]:
        reduced(rank, program)
    right = reduced(rank, PROGRAMS[rank]) == expected(PROGRAMS[rank])
    if how == "watch":
        while True:
            time.sleep(0.05)
    found = {"right": right, "rendezvous": outcome(lambda: xm.rendezvous("end")), "new program": outcome(lambda: reduced(rank, LAST))}
    harness.report(folder, rank, found)
    return found


if __name__ == "__main__":
    folder, case, *rest = harness.sys.argv[1:]
    harness.sys.argv[1:] = [folder, *rest]
    harness.main(globals()[case])
