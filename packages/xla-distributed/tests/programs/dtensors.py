"""Meshes of one dimension and DTensors on two processes; a section of `torch_stack.py`."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.tensor as dtensor
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.nn import functional as F
from torch_stack import compiled, finish_step, refusal

ROWS, COLUMNS, WHOLE, SUM = Shard(0), Shard(1), Replicate(), Partial()


class Bench:
    """A mesh, and DTensors on it of fixed values."""

    def __init__(self, rank: int, device: str) -> None:
        self.rank, self.device = rank, device
        self.mesh = init_device_mesh(device, (2,), mesh_dim_names=("d",))
        generator = torch.Generator().manual_seed(0)
        self.x, self.y = (torch.randn(5, 4, generator=generator) for _ in range(2))
        self.weight, self.bias = torch.randn(6, 4, generator=generator), torch.randn(6, generator=generator)
        self.batch = torch.randn(2, 6, 4, generator=generator)
        self.index = torch.tensor([3, 0, 4])

    def put(self, tensor: torch.Tensor, placement: Placement) -> DTensor:
        return distribute_tensor(tensor.to(self.device), self.mesh, [placement])


def described(result: Any) -> Any:
    """Where the result is, and all of it."""
    if isinstance(result, DTensor):
        local = result.to_local()
        return [str(result.placements), list(result.shape), list(local.shape), result.full_tensor().detach()]
    return [described(each) for each in result] if isinstance(result, list | tuple) else result


def redistributed(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for source in (ROWS, COLUMNS, WHOLE, SUM, Partial("max"), Partial("avg")):
        for target in (ROWS, COLUMNS, WHOLE):
            if source.is_partial():
                tensor = DTensor.from_local(bench.x.to(bench.device) * (bench.rank + 1), bench.mesh, [source])
            else:
                tensor = bench.put(bench.x, source)
            found[f"{source} to {target}"] = described(tensor.redistribute(bench.mesh, [target]))
    found["one row"] = described(bench.put(torch.ones(1, 3), ROWS) + 1)
    found["not from rank 0"] = described(
        distribute_tensor(torch.ones(4, 2, device=bench.device) * (bench.rank + 1), bench.mesh, [ROWS], src_data_rank=None)
    )
    return found


def computed(bench: Bench) -> dict[str, Any]:
    """Operations on sharded operands."""
    x, y = bench.put(bench.x, ROWS), bench.put(bench.y, ROWS)
    whole, columns = bench.put(bench.y, WHOLE), bench.put(bench.x, COLUMNS)
    weight, index = bench.put(bench.weight.t(), WHOLE), bench.put(bench.index, WHOLE)
    operations: dict[str, Callable[[], Any]] = {
        "sum of rows and all": lambda: x + whole,
        "sum of rows and columns": lambda: y + columns,
        "product": lambda: x @ weight,
        "product along what is sharded": lambda: columns @ bench.put(bench.weight.t(), ROWS),
        "einsum": lambda: torch.einsum("ij,jk->ik", x, weight),
        "reductions": lambda: [x.sum(), x.sum(0), x.mean(1), x.amax(0), x.norm(), x.std(0), *x.max(1)],
        "softmax": lambda: [x.softmax(0), x.softmax(1), columns.log_softmax(1)],
        "norm": lambda: F.layer_norm(x, (4,)),
        "embedding": lambda: [F.embedding(index, x), F.embedding(index, columns)],
        "order": lambda: [*x.sort(0), *x.topk(2, 0), columns.argmax(1), x.cumsum(0)],
        "shapes": lambda: [x.t(), x.unsqueeze(0), x[1:3], x[:, 1], *x.split(2, 1), torch.cat([x, y]), torch.stack([x, y])],
        "choice": lambda: [torch.where(x > 0, x, y), columns.index_select(0, index), columns[index]],
        "in place": lambda: copy.deepcopy(x).add_(y).mul_(3),
        "lists": lambda: [torch._foreach_add([x, columns], 2.0), torch._foreach_norm([x, columns])],
        "losses": lambda: [F.mse_loss(x, y), F.binary_cross_entropy_with_logits(x, (y > 0).float())],
        "factories": lambda: [make((3, 4), device_mesh=bench.mesh, placements=[ROWS]) for make in (dtensor.ones, dtensor.zeros)],
    }
    return {name: described(operation()) for name, operation in operations.items()}


def gradients(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def record(name: str, loss: Callable[..., Any], *leaves: tuple[torch.Tensor, Placement]) -> None:
        tensors = [bench.put(tensor, placement).requires_grad_() for tensor, placement in leaves]
        loss(*tensors).backward()
        found[name] = [described(tensor.grad) for tensor in tensors]

    places = {
        "columns": (WHOLE, ROWS, ROWS),
        "rows": (Shard(2), COLUMNS, WHOLE),
        "batch": (ROWS, WHOLE, WHOLE),
        "times": (COLUMNS, WHOLE, WHOLE),
    }
    for name, (x, weight, bias) in places.items():
        inputs = ((bench.batch, x), (bench.weight, weight), (bench.bias, bias))
        record(f"linear by {name}", lambda *each: F.linear(*each).square().sum(), *inputs)
    record("no bias", lambda x, weight: F.linear(x, weight).square().sum(), (bench.x, ROWS), (bench.weight, WHOLE))
    record("norm", lambda x, weight: F.layer_norm(x, (4,), weight).exp().sum(), (bench.x, ROWS), (bench.y[0], WHOLE))
    record("local", lambda x: (x.to_local() * (bench.rank + 1)).sum(), (bench.x, ROWS))
    record("whole", lambda x: (x.full_tensor() * (bench.rank + 1)).sum(), (bench.x, ROWS))
    record("redistributed", lambda x: x.redistribute(bench.mesh, [COLUMNS]).square().sum(), (bench.x, ROWS))
    return found


def modules(bench: Bench) -> dict[str, Any]:
    def place(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, [ROWS])))

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(bench.device)
    distribute_module(
        net, bench.mesh, place, lambda _, inputs, mesh: (bench.put(inputs[0], WHOLE),), lambda _, out, mesh: out.full_tensor()
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    losses, programs = [], []
    for _ in range(5):
        optimizer.zero_grad()
        loss = net(bench.x.to(bench.device)).square().mean()
        loss.backward()
        optimizer.step()
        finish_step(bench.device)
        programs.append(compiled(bench.device))
        losses.append(loss.detach())
    return {"losses": losses, "parameters": [described(each) for each in net.parameters()], "late": programs[-1] - programs[2]}


def kept(bench: Bench) -> list[Any]:
    file = io.BytesIO()
    torch.save(bench.put(bench.x, ROWS), file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    return [described(again), repr(again).replace(", device='xla:0'", "").replace("'xla'", "'cpu'")]


def random_numbers(bench: Bench) -> dict[str, Any]:
    """What torch has for no device of the CPU: seen by the test itself."""
    if bench.device == "cpu":
        return {}
    found: dict[str, Any] = {}
    torch.manual_seed(7)
    for name, placement in (("sharded", ROWS), ("whole", WHOLE)):
        options: Any = {"device_mesh": bench.mesh, "placements": [placement]}
        drawn = [dtensor.rand((64, 8), **options), dtensor.rand((64, 8), **options), dtensor.randn((64, 8), **options)]
        drawn += [nn.init.uniform_(dtensor.empty((64, 8), **options)), F.dropout(dtensor.ones((64, 8), **options), 0.5)]
        found[name] = [tensor.full_tensor() for tensor in drawn]
    found["plain"] = torch.rand(4, device="xla")
    torch.manual_seed(7)
    found["again"] = dtensor.rand((64, 8), device_mesh=bench.mesh, placements=[ROWS]).full_tensor()
    return found


def found(rank: int, device: str) -> dict[str, Any]:
    bench = Bench(rank, device)
    return {
        "mesh": [bench.mesh.get_local_rank(), bench.mesh.size(), bench.mesh.get_coordinate(), bench.mesh["d"].mesh.tolist()],
        "redistributed": redistributed(bench),
        "computed": computed(bench),
        "gradients": gradients(bench),
        "modules": modules(bench),
        "kept": kept(bench),
        "random": random_numbers(bench),
        "refused": [
            refusal(lambda: distribute_tensor(torch.ones(4, device=device, requires_grad=True) * 2, bench.mesh, [ROWS])),
            refusal(lambda: distribute_tensor(torch.ones(4, device=device), bench.mesh, [ROWS, ROWS])),
            refusal(lambda: bench.put(bench.x, ROWS) + bench.x.to(device)),
            refusal(lambda: bench.put(bench.x, ROWS).redistribute(bench.mesh, [SUM])),
        ],
    }
