"""`XlaFullyShardedDataParallel` beside plain training on the CPU with the whole batch: parameters, norms, bytes, collectives."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import harness
import torch_xla
import torch_xla._XLAC as _XLAC
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
from torch_xla.distributed.fsdp import checkpoint_module, consolidate_sharded_model_checkpoints
from torch_xla.distributed.fsdp.utils import apply_xla_patch_to_nn_linear
from torch_xla.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

STEPS = 20
WORDS, WIDTH, DEPTH = 11, 6, 2


class Block(nn.Module):
    """Parameters whose shapes 2 and 4 replicas do not divide, and one without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 7)
        self.down = nn.Linear(7, WIDTH, bias=False)
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """The head is tied to the embedding, one bias is frozen."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.words.weight
        self.head.bias.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(1.5))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


def net() -> Net:
    torch.manual_seed(5)
    return Net()


def inside_out(module: nn.Module, **options: Any) -> nn.Module:
    return checkpoint_module(FSDP(module, **options))


def outside_in(module: nn.Module, **options: Any) -> nn.Module:
    return FSDP(checkpoint_module(module), **options)


def from_meta(**options: Any) -> FSDP:
    """A network made on meta, which takes the values of another one as it is wrapped."""
    with torch.device("meta"):
        made = Net()
    made.head.weight = made.words.weight
    modules = dict(made.named_modules())
    values = net()

    def init(module: nn.Module) -> None:
        path = next(path for path, each in modules.items() if each is module)
        module.to_empty(device="cpu", recurse=False)
        source = values.get_submodule(path)
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            tensor.data.copy_(getattr(source, name).data)

    return FSDP(made, param_init_fn=init, **options)


BLOCKS = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})


@dataclass(frozen=True)
class Case:
    """make: the wrapped network. micro: backwards for each step, all but the last without sync. low: computes in bfloat16."""

    make: Callable[[int], FSDP]
    micro: int = 1
    low: bool = False
    optimizer: Callable[..., torch.optim.Optimizer] = partial(torch.optim.AdamW, lr=0.02)


def wrapped(**options: Any) -> Callable[[int], FSDP]:
    return lambda size: FSDP(net(), **options)


CASES = {
    "meta": Case(lambda size: from_meta(auto_wrap_policy=BLOCKS, disable_reshard_on_root=False)),
    "flat, checkpoints inside": Case(wrapped(auto_wrap_policy=BLOCKS, auto_wrapper_callable=outside_in, flatten_parameters=True)),
    "rows, checkpoints outside": Case(
        wrapped(
            auto_wrap_policy=BLOCKS,
            auto_wrapper_callable=inside_out,
            shard_param_on_dim_0=True,
            coalesce_all_gather_ops=True,
            reduce_scatter_bucket_size_mb=1,
        )
    ),
    "no sync": Case(
        wrapped(
            auto_wrap_policy=partial(size_based_auto_wrap_policy, min_num_params=90),
            coalesce_all_gather_ops=True,
            optimization_barrier_in_forward=False,
            optimization_barrier_in_backward=False,
            sync_on_finalization=True,
        ),
        micro=2,
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    ),
    "kept, groups": Case(
        lambda size: FSDP(
            apply_xla_patch_to_nn_linear(net()).to("xla"),
            auto_wrap_policy=BLOCKS,
            flatten_parameters=True,
            reshard_after_forward=False,
            execute_sharding_on_init=False,
            sharding_groups=[list(range(size))[::-1]],
            sharding_rank=size - 1 - int(xr.global_ordinal()),
            sharding_world_size=size,
            pin_layout_in_collective_ops=False,
        ),
    ),
    "low": Case(
        wrapped(auto_wrap_policy=BLOCKS, flatten_parameters=True, compute_dtype=torch.bfloat16, fp32_reduce_scatter=True), low=True
    ),
}


def batches(case: Case, rank: int, size: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """For each step, this replica's part of the micro-batches, and the whole."""
    generator = torch.Generator().manual_seed(3)
    whole = torch.randint(WORDS, (STEPS, case.micro, 2 * size, 4), generator=generator)
    return [[(batch[2 * rank : 2 * rank + 2], batch) for batch in step] for step in whole]


def loss_of(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), words.roll(1, 1).flatten())


def plain(case: Case, size: int) -> tuple[nn.Module, list[float]]:
    """Stock training with the whole batch, in float32, or with parameters rounded for each replica's part."""
    model = net()
    optimizer = case.optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
    norms = []
    for step in batches(case, 0, size):
        optimizer.zero_grad()
        for _, words in step:
            for part in words.chunk(size) if case.low else [words]:
                low = {name: value.to(torch.bfloat16) for name, value in [*model.named_parameters(), *model.named_buffers()]}
                logits = torch.func.functional_call(model, low, part) if case.low else model(part)
                (loss_of(logits, part) * len(part) / len(words) / len(step)).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    return model, norms


def train(case: Case, rank: int, size: int) -> tuple[FSDP, list[float]]:
    model = case.make(size)
    optimizer = case.optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
    norms = []
    for step in batches(case, rank, size):
        optimizer.zero_grad()
        with model.no_sync():
            for mine, _ in step[:-1]:
                (loss_of(model(mine.to("xla")), mine.to("xla")) / len(step)).backward()
        mine = step[-1][0].to("xla")
        (loss_of(model(mine), mine) / len(step)).backward()
        norms.append(model.clip_grad_norm_(0.5))
        xm.optimizer_step(optimizer)  # has nothing to reduce
        torch_xla.sync()
    return model, [norm.item() for norm in norms]


def compared(name: str, rank: int, size: int, folder: Path) -> dict[str, Any]:
    """The largest differences after all steps."""
    case = CASES[name]
    expected, expected_norms = plain(case, size)
    model, norms = train(case, rank, size)
    prefix = str(folder / name.replace(" ", "_"))
    xm.save({"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}, f"{prefix}.{rank}.pth", master_only=False)
    xm.rendezvous("saved")
    whole, _ = consolidate_sharded_model_checkpoints(prefix, ".*.pth", save_model=False)
    state = expected.state_dict()
    return {
        "names": sorted(whole) == sorted(state) and len(set(map(str, (value.dtype for value in whole.values())))) == 1,
        "off": max((whole[key].float() - value).abs().max().item() for key, value in state.items()),
        "norms off": max(abs(mine / theirs - 1) for mine, theirs in zip(norms, expected_norms, strict=True)),
        "shards": {key: list(value.shape) for key, value in model.state_dict().items()},
    }


@dataclass
class Program:
    """The collectives of a step's program in their order, each with how many matrix products it waits for."""

    collectives: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def of(cls, hlo: str) -> Program:
        body = next(part for part in hlo.split("\n}\n") if " all-gather(" in part)
        lines = re.findall(r"^  (?:ROOT )?(\S+) = .*? ([\w-]+)\(([^)]*)\)", body, re.M)
        operands = {name: re.findall(r"[\w.-]+", given) for name, _, given in lines}
        kinds = {name: kind for name, kind, _ in lines}
        waits: dict[str, frozenset[str]] = {}
        for name, kind, _ in lines:  # operands come first
            found = frozenset().union(*(waits.get(operand, frozenset()) for operand in operands[name]))
            waits[name] = found | {name} if kind == "dot" else found
        return cls([(kinds[name], len(waits[name])) for name in kinds if kinds[name] in ("all-gather", "reduce-scatter", "all-reduce")])


def layers(count: int, width: int, **options: Any) -> FSDP:
    torch.manual_seed(0)
    made = nn.Sequential(*(nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh()) for _ in range(count)))
    return FSDP(made, auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear}), **options)


def program(**options: Any) -> list[tuple[str, int]]:
    model = layers(4, 8, **options)
    model(torch.ones(2, 8, device="xla", requires_grad=True)).sum().backward()
    hlo = _XLAC._get_xla_tensors_hlo([parameter.grad for parameter in model.parameters()])
    torch_xla.sync()
    return Program.of(hlo).collectives


def used() -> int:
    return int(xm.get_memory_info()["bytes_used"])


def memory(size: int) -> dict[str, int]:
    """Bytes on the device that a model and its optimizer take, and what parameters are there between forward and backward."""
    torch_xla.sync()
    before = used()
    model = layers(4, 256)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.ones(2, 256, device="xla")
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(inputs).square().sum()
        torch_xla.sync()
        between = used()
        loss.backward()
        optimizer.step()
        del loss
        optimizer.zero_grad()
        torch_xla.sync()
        xm.wait_device_ops()
    return {"end": used() - before, "between": between - before, "parameters": 4 * 256 * 256 * 4}


def work(rank: int, folder: str, *names: str) -> dict[str, Any]:
    size = int(xr.world_size())
    report: dict[str, Any] = {name: compared(name, rank, size, Path(folder)) for name in names or CASES}
    if not names:
        report["program"] = program()
        report["program without barriers"] = program(optimization_barrier_in_forward=False, optimization_barrier_in_backward=False)
        report["memory"] = memory(size)
    return report


if __name__ == "__main__":
    harness.main(work)
