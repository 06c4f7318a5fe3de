"""`ZeroRedundancyOptimizer` beside a stock optimizer that has the whole batch on the CPU: parameters, norms, bytes, reads and compiles."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import harness
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer
from xla_core.abi.events import CompileEvent, Direction, FallbackEvent, SyncEvent, subscribe

STEPS = 6
Tensors = list[torch.Tensor]


class Net(torch.nn.Module):
    """Parameters whose shapes two replicas do not divide, one of no dimension, one that is divided, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = torch.nn.Linear(5, 3)
        self.second = torch.nn.Linear(3, 4)
        self.gain = torch.nn.Parameter(torch.tensor(1.5))
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * self.second(torch.tanh(self.first(x))) * self.gain


@dataclass(frozen=True)
class Case:
    """options: of the optimizer; zero: of ours only; clip: the norm that the stock one clips to; micro: backwards for each step."""

    optimizer: Any
    options: dict[str, Any]
    zero: dict[str, Any] = field(default_factory=dict)
    clip: float | None = None
    dtype: torch.dtype = torch.float32
    groups: bool = False
    micro: int = 1


BUCKETS = {"bucket_cap_mb_all_gather": 1, "bucket_cap_mb_reduce_scatter": 1}
CASES = {
    "adamw": Case(torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.1}, {"sharding_groups": [[1, 0]]}, clip=1.0),
    "groups": Case(
        torch.optim.SGD,
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
        {"max_norm": 0.5, "lazy_init": True, **BUCKETS},
        clip=0.5,
        groups=True,
    ),
    "low": Case(
        torch.optim.AdamW,
        {"lr": 1e-4},
        {"use_grad_acc_hook": True, "save_master_weights": True, "higher_cc_precision": True, **BUCKETS},
        clip=1.0,
        dtype=torch.bfloat16,
        micro=2,
    ),
}


def grouped(case: Case, net: torch.nn.Module) -> Any:
    """The parameters, or two groups of them with options of their own."""
    if not case.groups:
        return net.parameters()
    named = dict(net.named_parameters())
    biases = [named.pop(name) for name in list(named) if "bias" in name]
    return [{"params": list(named.values())}, {"params": biases, "lr": 0.01, "weight_decay": 0.0}]


def scheduler_of(case: Case, optimizer: torch.optim.Optimizer) -> Any:
    """A scheduler that asks for the optimizer's defaults, and changes two options of each group."""
    if case.groups:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.1, 0.05], total_steps=STEPS + 1)
    return torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)


def batches(case: Case, rank: int | None, count: int) -> Iterator[Tensors]:
    """The micro-batches of each step: a replica's part of them, or the whole."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        micro = [torch.randn(2 * count, 5, generator=generator).to(case.dtype) for _ in range(case.micro)]
        yield [batch if rank is None else batch[2 * rank : 2 * rank + 2] for batch in micro]


def backward(case: Case, net: torch.nn.Module, micro: Tensors) -> None:
    for batch in micro:
        (net(batch).float().square().mean() / case.micro).backward()


def listed(tensors: Any) -> list[Any]:
    return [tensor.detach().cpu().float().tolist() for tensor in tensors]


def stock(case: Case, count: int) -> dict[str, Any]:
    """The result of a stock optimizer in float32 with the whole batch; the parameters are of the case's dtype."""
    net = Net().to(case.dtype)
    wide = copy.deepcopy(net).float()
    optimizer = case.optimizer(grouped(case, wide), **case.options)
    scheduler = scheduler_of(case, optimizer)
    norms = []
    for micro in batches(case, None, count):
        net.zero_grad()
        wide.zero_grad()
        for batch in micro:
            # Whole, or as the replicas cut it where low precision would round the sum of their gradients.
            parts = [batch] if case.dtype == torch.float32 else batch.split(2)
            for part in parts:
                backward(case, net, [part])
                for mine, gave in zip(wide.parameters(), net.parameters(), strict=True):
                    if gave.grad is not None:
                        gradient = gave.grad.float() / len(parts)
                        mine.grad = gradient if mine.grad is None else mine.grad + gradient
                net.zero_grad()
        if case.clip is not None:
            norms.append(torch.nn.utils.clip_grad_norm_(wide.parameters(), case.clip).item())
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            for gave, mine in zip(net.parameters(), wide.parameters(), strict=True):
                gave.copy_(mine)
    return {"end": listed(net.parameters()), "wide": listed(wide.parameters()), "norms": norms, "bytes": nbytes(optimizer)}


def nbytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the state, without step counters."""
    tensors = (value for state in optimizer.state.values() for name, value in state.items() if name != "step")
    return sum(value.numel() * value.element_size() for value in tensors)


class Events:
    """Programs compiled, and how often pending work was run, a value came to the host or the CPU stepped in."""

    def __init__(self) -> None:
        self.compiled = 0
        self.acted = 0
        subscribe(self.count)

    def count(self, event: Any) -> None:
        self.compiled += isinstance(event, CompileEvent)
        self.acted += isinstance(event, (SyncEvent, FallbackEvent)) or getattr(event, "direction", None) is Direction.FROM_DEVICE


EVENTS = Events()


@dataclass
class Training:
    """A network on the device with our optimizer."""

    case: Case
    net: torch.nn.Module
    optimizer: ZeroRedundancyOptimizer
    scheduler: Any

    @classmethod
    def of(cls, case: Case) -> Training:
        net = Net().to(case.dtype).to("xla")
        late = "lazy_init" in case.zero
        if late:
            for parameter in net.parameters():
                parameter.data += 1
        optimizer = ZeroRedundancyOptimizer(grouped(case, net), case.optimizer, **case.zero, **case.options)
        scheduler = scheduler_of(case, optimizer)
        if late:
            for parameter in net.parameters():
                parameter.data -= 1
            optimizer.init_zero()
        return cls(case, net, optimizer, scheduler)

    def run(self, part: list[Tensors]) -> dict[str, Any]:
        """Some steps; norms, programs compiled by then, and what steps read or ran on the spot."""
        found: dict[str, Any] = {"norms": [], "compiled": [], "acted": 0, "freed": True}
        for micro in part:
            self.optimizer.zero_grad()
            backward(self.case, self.net, [batch.to("xla") for batch in micro])
            found["freed"] &= all(parameter.grad is None for parameter in self.net.parameters())
            before = EVENTS.acted
            self.optimizer.step()
            found["acted"] += EVENTS.acted - before
            self.scheduler.step()
            torch_xla.sync()
            if self.optimizer.grad_norm is not None:
                found["norms"].append(self.optimizer.grad_norm.item())
            found["compiled"].append(EVENTS.compiled)
        return found

    def end(self) -> tuple[list[Any], list[Any]]:
        """The parameters, and what the optimizer saves of its shards."""
        saved = self.optimizer.state_dict().get("sharded_master_weights", {})
        return listed(self.net.parameters()), listed(saved.values())


def compared(case: Case, rank: int, count: int) -> dict[str, Any]:
    training = Training.of(case)
    found = training.run(list(batches(case, rank, count)))
    found["late"] = found["compiled"][-1] - found["compiled"][2]
    found["end"], found["masters"] = training.end()
    found["bytes"] = nbytes(training.optimizer.base_optimizer)
    return {"mine": found, "stock": stock(case, count)}


def through_file(sources: list[Any], targets: list[Any]) -> None:
    """Load what each source gives as its state."""
    file = io.BytesIO()
    torch.save([source.state_dict() for source in sources], file)
    file.seek(0)
    for target, state in zip(targets, torch.load(file, weights_only=True), strict=True):
        target.load_state_dict(state)


def resumed(case: Case, rank: int, count: int) -> dict[str, Any]:
    """Parameters and shards after the steps of `compared`, with a break after the third, from which all came back from a file."""
    steps = list(batches(case, rank, count))
    first, second = Training.of(case), Training.of(case)
    first.run(steps[:3])
    with torch.no_grad():
        for parameter in second.net.parameters():
            parameter.add_(1.0)
    through_file([first.optimizer, first.scheduler, first.net], [second.optimizer, second.scheduler, second.net])
    torch_xla.sync()
    compiled = EVENTS.compiled
    second.run(steps[3:])
    end, masters = second.end()
    return {"end": end, "masters": masters, "compiled": EVENTS.compiled - compiled}


def groups_of_one(rank: int, count: int) -> dict[str, Any]:
    """Two models, one for each replica, whose gradients are clipped by one norm."""
    parameter = torch.nn.Parameter(torch.full((3,), 1.0 + rank, device="xla"))
    groups = [[other] for other in range(count)]
    optimizer = ZeroRedundancyOptimizer(
        [parameter], torch.optim.SGD, max_norm=2.0, sharding_groups=groups, grad_norm_groups=[list(range(count))], lr=1.0
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (parameter * (3.0 + rank)).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert optimizer.grad_norm is not None
    return {
        "loss": loss.item(),
        "norm": optimizer.grad_norm.item(),
        "end": parameter.tolist(),
        "sharding": optimizer.state_dict()["sharding"],
    }


def told(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def wrong(rank: int, count: int) -> dict[str, list[str]]:
    optimizer = ZeroRedundancyOptimizer(Net().to("xla").parameters(), torch.optim.SGD, lr=0.1)
    state = optimizer.state_dict()
    theirs = xm.mesh_reduce("sharding", state["sharding"], lambda parts: parts[(rank + 1) % count])
    small = ZeroRedundancyOptimizer([torch.nn.Parameter(torch.ones(3, device="xla"))], torch.optim.SGD, lr=0.1).state_dict()
    parameters = list(Net().to("xla").parameters())
    return {
        "another": told(lambda: optimizer.load_state_dict({**state, "sharding": theirs})),
        "shapes": told(lambda: optimizer.load_state_dict(small)),
        "groups": told(lambda: ZeroRedundancyOptimizer(parameters, torch.optim.SGD, sharding_groups=[[rank], [1 - rank, 2]])),
    }


def hybrid(rank: int, count: int) -> dict[str, Any]:
    """Four replicas in two groups, [0, 2] and [1, 3], each with its own data: parameters beside those of a stock optimizer."""
    case = Case(torch.optim.AdamW, {"lr": 0.02 + 0.02 * (rank % 2)}, {"sharding_groups": [[0, 2], [1, 3]]}, clip=1.0)
    training = Training.of(case)
    training.run(list(batches(case, rank // 2, 2)))
    return {"mine": training.end()[0], "stock": stock(case, 2)["end"]}


def work(rank: int, folder: str, which: str = "all") -> dict[str, Any]:
    count = xr.world_size()
    if which == "hybrid":
        return hybrid(rank, count)
    return {
        "cases": {name: compared(case, rank, count) for name, case in CASES.items()},
        "resumed": {name: resumed(CASES[name], rank, count) for name in ("groups", "low")},
        "start": listed(Net().to(torch.bfloat16).parameters()),
        "alone": groups_of_one(rank, count),
        "wrong": wrong(rank, count),
    }


if __name__ == "__main__":
    harness.main(work)
