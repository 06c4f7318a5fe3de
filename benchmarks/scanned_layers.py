"""Equal layers by `scan_layers` beside the same layers one after the other: compiling, memory while compiling, and steady passes."""

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import click
import torch
from torch import Tensor, nn

from harness import STEADY, Row, print_tables, rerun_with, write_results

COMPILE_GOAL = 1.2
RUN_GOAL = 1.05
LAYERS = 24
FEW = 2


class Layer(nn.Module):
    """A transformer layer: attention and a feed-forward part, each behind a norm and beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        hidden: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return hidden


def worker(kind: str, layers: int, width: int, tokens: int, passes: int) -> None:
    """A process under test: prints seconds of the first forward and backward pass and of a later one, the growth of memory in MB by the
    first, and processor seconds of a later one, which do not depend as much on what else runs.
    """
    import torch_xla
    from torch_xla.experimental.scan_layers import scan_layers

    torch.manual_seed(0)
    (torch.ones(2, device="xla") + 1).cpu()  # what is loaded and started at a first program is not asked for
    stack = nn.ModuleList(Layer(width) for _ in range(layers)).to("xla")
    x = torch.randn(4, tokens, width).to("xla")
    torch_xla.sync(wait=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, busy = [], []
    for _ in range(passes + 1):
        start, busy_before = time.perf_counter(), time.process_time()
        stack.zero_grad()
        if kind == "scan":
            result = scan_layers(stack, x, is_layer_pure=True)
        else:
            result = x
            for layer in stack:
                result = layer(result)
        result.square().mean().backward()
        torch_xla.sync(wait=True)
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - busy_before)
        if len(seconds) == 1:
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(seconds[0], statistics.median(seconds[1:] or seconds), grown / 1024, statistics.median(busy[1:] or busy))


def measured(kind: str, layers: int, quick: bool, passes: int, width: int, tokens: int) -> tuple[float, ...]:
    """What a worker prints."""
    numbers = ["3" if quick and layers == LAYERS else str(layers), str(64 if quick else width), str(16 if quick else tokens), str(passes)]
    run = subprocess.run([sys.executable, __file__, "--worker", " ".join([kind, *numbers])], stdout=subprocess.PIPE, text=True, check=True)
    return tuple(map(float, run.stdout.split()[-4:]))


def rows(rounds: int, quick: bool) -> list[Row]:
    """Fresh processes in turns: medians of rounds."""
    contenders = (("scan", LAYERS), ("scan", FEW), ("unrolled", LAYERS), ("unrolled", FEW))
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {each: [] for each in contenders}
    for place in range(rounds):
        for each in contenders if place % 2 == 0 else reversed(contenders):
            found[each].append(measured(*each, quick, 3 if quick else 10, 256, 128))
    middle = {each: [statistics.median(column) for column in zip(*values, strict=True)] for each, values in found.items()}
    result: list[Row] = []
    for (kind, layers), (compiling, running, memory, busy) in middle.items():
        times: Row = {"compile_s": compiling - running, "pass_ms": 1e3 * running, "pass_cpu_ms": 1e3 * busy}
        result.append({"layers": layers, "by": kind, **times, "memory_MB": memory})
    few, many = middle["scan", FEW], middle["scan", LAYERS]
    unrolled = middle["unrolled", LAYERS]
    growth = (many[0] - many[1]) / (few[0] - few[1])
    result.append(
        {"what": f"recording and compiling, {LAYERS} layers × {FEW}", "ratio": growth, "goal": COMPILE_GOAL, "met": growth <= COMPILE_GOAL}
    )
    for what, ratio in (("time", many[1] / unrolled[1]), ("processor time", many[3] / unrolled[3])):
        result.append({"what": f"{what} of a steady pass, scan × unrolled", "ratio": ratio, "goal": RUN_GOAL, "met": ratio <= RUN_GOAL})
    return result


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--quick", is_flag=True, help="Few, small layers: does it run at all?")
@click.option("--worker", "worked", hidden=True)
def main(target: Path | None, rounds: int, quick: bool, worked: str | None) -> None:
    if worked is not None:
        kind, *numbers = worked.split()
        worker(kind, *map(int, numbers))
        return
    rerun_with({**STEADY, "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"})
    found = rows(1 if quick else rounds, quick)
    print_tables("Forward and backward pass of equal transformer layers", found, ("layers", "what"))
    if target is not None:
        write_results(target, "scanned layers", found, rounds=rounds)


if __name__ == "__main__":
    main()
