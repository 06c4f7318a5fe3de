"""FSDP2 (`fully_shard`) on two processes; a section of `torch_stack.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_model_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch_stack import compiled, finish_step

HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Net(nn.Module):
    """Sizes that two cannot divide; a `reset_parameters` that gives the same numbers on any device."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.head = nn.Linear(width, 3)

    def reset_parameters(self) -> None:
        for number, parameter in enumerate(self.parameters()):
            with torch.no_grad():
                steps = torch.arange(float(parameter.numel()), device=parameter.device).reshape(parameter.shape)
                parameter.copy_(torch.sin(steps + number))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return self.head(x)


def sharded(device: str, meta: bool = False, width: int = 7, **options: Any) -> Net:
    with torch.device("meta" if meta else device):
        net = Net(width)
    if not meta:
        net.reset_parameters()
    for layer in net.layers:
        fully_shard(layer, mesh=init_device_mesh(device, (2,)), **options)
    fully_shard(net, mesh=init_device_mesh(device, (2,)), **options)
    return net


def step(net: Net, optimizer: torch.optim.Optimizer, number: int, rank: int, parts: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of this rank and norm of the gradients; of `parts` backward passes only the last one reduces gradients."""
    device = next(net.parameters()).device.type
    x = torch.randn(4, net.head.in_features, generator=torch.Generator().manual_seed(10 * number + rank)).to(device)
    optimizer.zero_grad()
    for part in range(parts):
        net.set_requires_gradient_sync(part == parts - 1)  # type: ignore[operator]
        loss = net(x * (part + 1)).float().square().mean() / parts
        loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    finish_step(device)
    return loss.detach(), norm.full_tensor()  # type: ignore[attr-defined]


def trained(rank: int, device: str, parts: int = 1, reset: bool = False, **options: Any) -> dict[str, Any]:
    net = sharded(device, meta=reset, **options)
    if reset:
        net.to_empty(device=device)
        full = Net()
        full.reset_parameters()
        set_model_state_dict(net, full.state_dict(), options=StateDictOptions(full_state_dict=True))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    seen, programs = [], []
    for number in range(3):
        seen.append(step(net, optimizer, number, rank, parts))
        programs.append(compiled(device))
    local = [list(parameter.to_local().shape) for parameter in net.parameters()]  # type: ignore[attr-defined]
    return {"seen": seen, "local": local, "end": [p.full_tensor().detach() for p in net.parameters()], "late": programs[-1] - programs[1]}


def states(rank: int, device: str) -> dict[str, Any]:
    """Full state dicts as torch makes them, and training that goes on from them."""
    net = sharded(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    step(net, optimizer, 0, rank)
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model, state = get_state_dict(net, optimizer, options=full)
    found = {"model": {name: value.clone() for name, value in model.items()}, "names": sorted(state.get("state", ()))}
    goal = step(net, optimizer, 1, rank)
    sharded_model, sharded_state = get_state_dict(net, optimizer)
    again = sharded(device)
    other = torch.optim.AdamW(again.parameters(), lr=0.1)
    set_state_dict(again, other, model_state_dict=sharded_model, optim_state_dict=sharded_state)
    return found | {"goal": goal, "on": [step(net, optimizer, 2, rank), step(again, other, 2, rank)]}


def memory(rank: int, device: str) -> list[int]:
    """Bytes in use for parameters, gradients and Adam's state, without sharding and with it; the CPU counts none."""
    if device == "cpu":
        return []
    counts = []
    for shard in (False, True):
        torch.xla.synchronize()  # type: ignore[attr-defined]
        before = torch.xla.memory_allocated()  # type: ignore[attr-defined]
        net: Any = sharded(device, width=256) if shard else Net(256).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        net(torch.ones(1, 256, device=device)).sum().backward()
        optimizer.step()
        finish_step(device)
        torch.xla.synchronize()  # type: ignore[attr-defined]
        counts.append(torch.xla.memory_allocated() - before)  # type: ignore[attr-defined]
        del net, optimizer
    return counts


def quick(rank: int, device: str) -> dict[str, Any]:
    return {"meta": trained(rank, device, reset=True), "memory": memory(rank, device)}


def found(rank: int, device: str) -> dict[str, Any]:
    return {
        "kept whole": trained(rank, device, reshard_after_forward=False),
        "bfloat16": trained(rank, device, mp_policy=HALF),
        "parts": trained(rank, device, parts=2),
        "states": states(rank, device),
    }
