"""Train a small GPT on the source of Python's standard library, byte by byte: one program, partitioned over a mesh of devices.

A mesh such as `--mesh data=2,fsdp=2,tensor=2` says how (`*`: as many as are left): `data` and `fsdp` shard the batch, `fsdp` the
parameters and what the optimizer keeps of them, `tensor` each matrix product. Without other hardware the devices are eight virtual ones
(CPU_NUM_DEVICES). The model does not know of any of this but for one call that shards the activations between its layers.
"""

import copy
import math
import os
import re
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

AXES = ("data", "fsdp", "tensor")
BYTES = 256
READ_LAG = 4
"""Steps between recording a loss and reading it, so that the read does not hold up the devices."""
TOLERANCE = 2e-3
"""Relative difference allowed between the losses of the mesh and of plain torch: sums are taken in another order."""
TEXT_SIZE = 2_000_000

Spec = tuple[str | tuple[str, ...] | None, ...]
BATCH_AXES = ("data", "fsdp")

# What splits the dimensions of a parameter, by its name. Matrices are [out, in], as torch has them.
PARTITION_SPECS: tuple[tuple[str, Spec], ...] = (
    (r"(query|key|value|up)\.weight", ("tensor", "fsdp")),  # each device computes some of the outputs …
    (r"(query|key|value|up)\.bias", ("tensor",)),
    (r"(proj|down)\.weight", ("fsdp", "tensor")),  # … and sums over the same ones here
    (r"(proj|down)\.bias", ("fsdp",)),
    (r"out\.weight", ("tensor", "fsdp")),
    (r"embed\.weight", ("fsdp", "tensor")),  # split by `fsdp` along the width, the batch being so too, looking up would move all of it
    (r"position", (None, "tensor")),
    (r"norm\d?\.(weight|bias)", ("fsdp",)),
)


@dataclass(frozen=True, slots=True)
class Size:
    """layers, width of the hidden state, heads, bytes of a sequence (tokens), sequences of a batch."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    tokens: int = 64
    batch: int = 16


def unmarked(hidden: Tensor) -> Tensor:
    """The activations as they are."""
    return hidden


class Layer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.query, self.key, self.value, self.proj = (nn.Linear(size.width, size.width) for _ in range(4))
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def attend(self, hidden: Tensor) -> Tensor:
        """Causal self-attention; f32[batch, tokens, width] → the same."""
        parts = [part(hidden).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)]
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        result: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return result

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attend(self.norm1(hidden))
        result: Tensor = hidden + self.down(F.gelu(self.up(self.norm2(hidden)), approximate="tanh"))
        return result


class Gpt(nn.Module):
    """Bytes i64[batch, tokens] → logits f32[batch, tokens, 256]. mark: called with what goes from layer to layer, returns it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, size.width)
        self.position = nn.Parameter(0.02 * torch.randn(size.tokens, size.width))
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.out = nn.Linear(size.width, BYTES, bias=False)
        self.mark: Callable[[Tensor], Tensor] = unmarked

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.mark(self.embed(text) + self.position)
        for layer in self.layers:
            hidden = self.mark(layer(hidden))
        logits: Tensor = self.out(self.norm(hidden))
        return logits


def partition_spec_of(name: str) -> Spec:
    """The partition spec of the parameter of that name."""
    return next(spec for pattern, spec in PARTITION_SPECS if re.search(rf"(^|\.){pattern}$", name))


def shard_parameters(model: Gpt, mesh) -> None:  # type: ignore[no-untyped-def]
    """Lay the parameters of a model on `xla` out over a mesh with the axes `AXES`, and what goes from layer to layer."""
    import torch_xla.distributed.spmd as xs

    for name, parameter in model.named_parameters():
        xs.mark_sharding(parameter, mesh, partition_spec_of(name))

    def mark(hidden: Tensor) -> Tensor:
        # The gradient too: it would be cut as it pleases the compiler, and put together again.
        marked: Tensor = xs.mark_sharding_with_gradients(hidden, mesh, (BATCH_AXES, None, None))
        return marked

    model.mark = mark


def read_text() -> Tensor:
    """The first `TEXT_SIZE` bytes of the standard library's modules, by name: u8[n]."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)[:TEXT_SIZE]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batches(text: Tensor, size: Size, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of the text at random places, and the same moved by one: i64[batch, tokens] each."""
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(size.tokens + 1)
    for _ in range(count):
        places = torch.randint(len(text) - size.tokens, (size.batch, 1), generator=generator)
        pieces = text[places + window].long()
        yield pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


class Trainer:
    """A model with its optimizer. `step` launches a step and returns its loss, unread."""

    def __init__(self, model: Gpt, end_step: Callable[[], None]) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
        self.end_step = end_step

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Forward, backward, optimizer."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), labels.flatten())
        loss.backward()
        self.optimizer.step()
        result = loss.detach()
        self.end_step()
        return result


def train(title: str, trainer: Trainer, data: Iterator[tuple[Tensor, Tensor]], steps: int, console: Console) -> list[float]:
    """All steps under a progress bar; returns the losses."""
    losses: list[float] = []
    unread: deque[Tensor] = deque()
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=steps, loss=math.nan)
        for inputs, labels in data:
            unread.append(trainer.step(inputs, labels))
            if len(unread) > READ_LAG:
                losses.append(unread.popleft().item())
            progress.update(task, advance=1, loss=losses[-1] if losses else math.nan)
        losses += [loss.item() for loss in unread]
        progress.update(task, loss=losses[-1])
    return losses


def kept_of(trainer: Trainer, parameter: Tensor) -> list[Tensor]:
    """A parameter and what the optimizer keeps of it."""
    return [parameter, *(value for value in trainer.optimizer.state[parameter].values() if value.shape == parameter.shape)]


def bytes_by_device(tensors: list[Tensor]) -> list[int]:
    """What each device holds of some tensors."""
    from xla_core.abi.tensors import buffer_of

    sizes: dict[int, int] = {}
    for tensor in tensors:
        for shard in buffer_of(tensor).addressable_shards:
            sizes[shard.device.id] = sizes.get(shard.device.id, 0) + shard.data.nbytes
    return [sizes[device] for device in sorted(sizes)]


def spec_text(spec: Spec) -> str:
    """A partition spec in short: `tensor × fsdp`, `-` for what is not split."""
    return " × ".join("-" if entry is None else entry if isinstance(entry, str) else "·".join(entry) for entry in spec)


def show_shardings(trainer: Trainer, console: Console) -> None:
    """A table of the parameters, alike ones in one row, and a picture of each way in which a matrix is cut."""
    import torch_xla.distributed.spmd as xs

    rows: dict[tuple[Spec, torch.Size], dict[str, Tensor]] = {}
    pictures: dict[str, str] = {}
    for name, parameter in trainer.model.named_parameters():
        spec = partition_spec_of(name)
        rows.setdefault((spec, parameter.shape), {})[name] = parameter
        if parameter.dim() == 2:
            pictures.setdefault(xs.XLAShardedTensor(parameter).sharding_spec, f"{name}: {spec_text(spec)}")
    table = Table(title="Shardings of the parameters and of Adam's two moments of them", title_justify="left")
    for heading in ("parameters", "shape", "split by", "bytes", "on a device", "share"):
        table.add_column(heading, justify="right" if heading in ("bytes", "on a device", "share") else "left")
    for (spec, shape), alike in rows.items():
        kept = [tensor for parameter in alike.values() for tensor in kept_of(trainer, parameter)]
        whole, shard = sum(tensor.nbytes for tensor in kept), max(bytes_by_device(kept))
        names = " ".join(dict.fromkeys(re.sub(r"^layers\.\d+\.", "", name) for name in alike))
        table.add_row(names, " × ".join(map(str, shape)), spec_text(spec), f"{whole:,}", f"{shard:,}", f"1/{whole / shard:.3g}")
    console.print(table)
    for text, title in pictures.items():
        console.print(f"\n{title}  {text}", soft_wrap=True)
        xs.debugging.visualize_sharding(text, use_color=console.is_terminal, scale=0.6, min_width=18)


def parse_mesh(context: click.Context, parameter: click.Parameter, value: str) -> dict[str, int]:
    """Sizes of the axes, 1 for those not named, 0 for `*`."""
    sizes = dict.fromkeys(AXES, 1)
    for part in value.split(","):
        match = re.fullmatch(r"\s*(\w+)=([1-9]\d*|\*)\s*", part)
        if match is None or match[1] not in AXES:
            raise click.BadParameter(f"{part!r} is not NAME=SIZE with a name of {', '.join(AXES)} and a size of 1 or more, or *")
        sizes[match[1]] = 0 if match[2] == "*" else int(match[2])
    if list(sizes.values()).count(0) > 1:
        raise click.BadParameter(f"{value!r} has more than one *")
    return sizes


def over_all(sizes: dict[str, int]) -> dict[str, int]:
    """The sizes of a mesh over all devices, with that of the axis which is 0. Raises `click.UsageError` for a mesh of another size."""
    import torch_xla.runtime as xr

    xr.use_spmd()
    count = xr.global_runtime_device_count()
    fixed = math.prod(size for size in sizes.values() if size)
    whole = {axis: size or count // fixed for axis, size in sizes.items()}
    if math.prod(whole.values()) != count:
        raise click.UsageError(f"--mesh is over {fixed} devices, {count} are there (on the CPU, CPU_NUM_DEVICES says how many)")
    return whole


def check_sizes(sizes: dict[str, int], size: Size) -> None:
    """Raises `click.UsageError` where the model cannot be cut so."""
    for name, number, axes in (
        ("--batch", size.batch, BATCH_AXES),
        ("--width", size.width, ("fsdp",)),
        ("--heads", size.heads, ("tensor",)),
    ):
        shards = math.prod(sizes[axis] for axis in axes)
        if number % shards:
            raise click.UsageError(f"{name} {number} cannot be cut into {shards} equal shards ({' × '.join(axes)})")
    if size.width % size.heads:
        raise click.UsageError(f"--width {size.width} is not a multiple of --heads {size.heads}")


def trainer_on_mesh(model: Gpt, sizes: dict[str, int]) -> tuple[Trainer, object]:
    """The model on the devices, and the sharding of its batches."""
    import torch_xla
    import torch_xla.distributed.spmd as xs

    mesh = xs.Mesh(range(math.prod(sizes.values())), tuple(sizes.values()), tuple(sizes))
    on_devices = model.to("xla")
    shard_parameters(on_devices, mesh)
    return Trainer(on_devices, torch_xla.sync), xs.ShardingSpec(mesh, (BATCH_AXES, None))


@click.command(help=__doc__)
@click.option("--mesh", "sizes", default="data=*,fsdp=2,tensor=2", show_default=True, callback=parse_mesh, help="Sizes of the axes.")
@click.option("--steps", type=click.IntRange(1), default=60, show_default=True)
@click.option("--layers", type=click.IntRange(1), default=Size().layers, show_default=True)
@click.option("--width", type=click.IntRange(1), default=Size().width, show_default=True)
@click.option("--heads", type=click.IntRange(1), default=Size().heads, show_default=True)
@click.option("--tokens", type=click.IntRange(2), default=Size().tokens, show_default=True, help="Bytes of a sequence.")
@click.option("--batch", type=click.IntRange(1), default=Size().batch, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--compare/--no-compare", default=True, show_default=True, help="Run the same steps in plain torch, on one device, as well.")
def demo(sizes: dict[str, int], steps: int, seed: int, compare: bool, **numbers: int) -> None:
    start = time.perf_counter()
    torch.set_num_threads(1)  # the devices are threads too, and idle ones of torch would spin beside them
    size = Size(**numbers)
    check_sizes({axis: parts or 1 for axis, parts in sizes.items()}, size)
    sizes = over_all(sizes)
    check_sizes(sizes, size)
    console = Console(highlight=False)
    torch.manual_seed(seed)
    model = Gpt(size)
    alone = Trainer(copy.deepcopy(model), lambda: None)
    trainer, spec = trainer_on_mesh(model, sizes)
    text = read_text()
    uploaded = ((spec.upload(inputs), spec.upload(labels)) for inputs, labels in batches(text, size, steps, seed))
    losses = train(" · ".join(f"{axis}={parts}" for axis, parts in sizes.items()), trainer, uploaded, steps, console)
    show_shardings(trainer, console)
    stored = bytes_by_device([tensor for parameter in trainer.model.parameters() for tensor in kept_of(trainer, parameter)])
    summary = Table(show_header=False, box=None, pad_edge=False)
    summary.add_row("bytes per device", " ".join(f"{number:,}" for number in stored))
    summary.add_row("bytes unsharded", f"{3 * sum(parameter.nbytes for parameter in alone.model.parameters()):,}")
    summary.add_row("loss, first and last", f"{losses[0]:.4f} {losses[-1]:.4f}")
    difference = 0.0
    if compare:
        expected = train("plain torch, one device", alone, batches(text, size, steps, seed), steps, console)
        difference = max(abs(mine - theirs) / theirs for mine, theirs in zip(losses, expected, strict=True))
        summary.add_row("largest difference to one device", f"{difference:.1e} (relative, at most {TOLERANCE:.0e})")
    summary.add_row("total time", f"{time.perf_counter() - start:.1f} s")
    console.print(summary)
    if difference > TOLERANCE:
        raise click.ClickException("the mesh and plain torch disagree")


def main() -> int:
    """Exit code; a wrong option value is one line on stderr and exit code 2."""
    os.environ.setdefault("CPU_NUM_DEVICES", "8")  # read when the runtime is first used
    try:
        demo.main(standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"Error: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        click.echo("stopped", err=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
