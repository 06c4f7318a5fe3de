"""Convolutions of all kinds on `xla` beside eager torch: forward, input gradient and weight gradient, each a program of one operation.

Both get contiguous operands of the same values, and take turns; a cell is the median of each one's times.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from rich.table import Table
from torch import Tensor

from harness import STEADY, Row, rerun_with, wide_console, write_results

GOAL = 1.5
PASSES = ("forward", "to the input", "to the weight")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Kind:
    """One convolution: shapes as torch has them, and what is not a default."""

    name: str
    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    output_padding: int = 0

    @property
    def settings(self) -> tuple[Any, ...]:
        """Torch's arguments from the stride on."""
        rank = len(self.x) - 2
        spread = [[value] * rank for value in (self.stride, self.padding, self.dilation, self.output_padding)]
        return (*spread[:3], self.transposed, spread[3], self.groups)


KINDS = (
    Kind("2d, 64 → 64 at 32 × 32", (32, 64, 32, 32), (64, 64, 3, 3), padding=1),
    Kind("2d, 256 → 256 at 8 × 8", (32, 256, 8, 8), (256, 256, 3, 3), padding=1),
    Kind("2d, 512 → 512 at 2 × 2", (32, 512, 2, 2), (512, 512, 3, 3), padding=1),
    Kind("2d, 3 → 64, 7 × 7, stride 2", (8, 3, 112, 112), (64, 3, 7, 7), 2, 3),
    Kind("2d, 64 → 128, 1 × 1, stride 2", (32, 64, 32, 32), (128, 64, 1, 1), 2),
    Kind("2d, 64 → 64, dilation 2", (16, 64, 32, 32), (64, 64, 3, 3), padding=2, dilation=2),
    Kind("depthwise, 96, 7 × 7", (4, 96, 56, 56), (96, 1, 7, 7), padding=3, groups=96),
    Kind("depthwise, 144, 3 × 3, stride 2", (8, 144, 56, 56), (144, 1, 3, 3), 2, 1, groups=144),
    Kind("grouped, 128 in 32, 3 × 3", (16, 128, 28, 28), (128, 4, 3, 3), padding=1, groups=32),
    Kind("grouped, 256 in 4, 3 × 3", (16, 256, 14, 14), (256, 64, 3, 3), padding=1, groups=4),
    Kind("1d, 256 → 256, 5", (16, 256, 400), (256, 256, 5), padding=2),
    Kind("1d, 1 → 64, 16, stride 8", (16, 1, 16000), (64, 1, 16), 8),
    Kind("1d, depthwise, 256, 31", (16, 256, 400), (256, 1, 31), padding=15, groups=256),
    Kind("3d, 32 → 32, 3 × 3 × 3", (4, 32, 16, 28, 28), (32, 32, 3, 3, 3), padding=1),
    Kind("3d, 3 → 32, stride 2", (4, 3, 16, 56, 56), (32, 3, 3, 3, 3), 2, 1),
    Kind("transposed, 128 → 64, 4 × 4, stride 2", (16, 128, 16, 16), (128, 64, 4, 4), 2, 1, transposed=True),
    Kind("transposed, 256 → 128, 2 × 2, stride 2", (16, 256, 16, 16), (256, 128, 2, 2), 2, transposed=True),
    Kind("transposed, 1d, 256 → 128, 16, stride 8", (8, 256, 128), (256, 128, 16), 8, 4, transposed=True),
)


def programs(kind: Kind, operands: tuple[Tensor, ...], finish: Callable[[], object]) -> dict[str, Callable[[], Tensor]]:
    """What computes each pass, and waits for it."""
    x, weight, grad = operands

    def forward() -> Tensor:
        result: Tensor = torch.ops.aten.convolution(x, weight, None, *kind.settings)
        finish()
        return result

    def backward(mask: list[bool]) -> Tensor:
        results = torch.ops.aten.convolution_backward(grad, x, weight, None, *kind.settings, mask)
        finish()
        return next(result for result, wanted in zip(results, mask, strict=True) if wanted)

    return {
        PASSES[0]: forward,
        PASSES[1]: partial(backward, [True, False, False]),
        PASSES[2]: partial(backward, [False, True, False]),
    }


def measure(kind: Kind, dtype: torch.dtype, budget_s: float) -> list[Row]:
    """Compares the results, then times both in turns; a row for each pass. Raises AssertionError where they differ."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    torch.manual_seed(0)
    x, weight = torch.randn(kind.x).to(dtype), torch.randn(kind.weight).to(dtype)
    grad = torch.randn(torch.ops.aten.convolution(x, weight, None, *kind.settings).shape).to(dtype)
    here = programs(kind, (x, weight, grad), lambda: None)

    def ran() -> None:
        torch_xla.sync()
        xm.wait_device_ops()

    there = programs(kind, tuple(part.to("xla") for part in (x, weight, grad)), ran)
    ran()
    rows: list[Row] = []
    for name in PASSES:
        expected, got = here[name](), there[name]().cpu()
        error = (got.double() - expected.double()).abs().max() / expected.double().abs().max()
        if error > (1e-4 if dtype == torch.float32 else 3e-2):
            raise AssertionError(f"{kind.name}, {name}: results differ by {error:.1e} of the largest value")
        times: dict[str, list[float]] = {"xla": [], "torch": []}
        end = time.perf_counter() + budget_s
        while time.perf_counter() < end or len(times["xla"]) < 3:
            for on, run in (("xla", there[name]), ("torch", here[name])):
                start = time.perf_counter()
                run()
                times[on].append(1e3 * (time.perf_counter() - start))
        xla, eager = (statistics.median(times[on]) for on in ("xla", "torch"))
        rows.append({"convolution": kind.name, "pass": name, "xla_ms": xla, "torch_ms": eager, "vs_torch": xla / eager})
    return rows


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--only", help="Kinds with this in their name.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--budget", type=click.FloatRange(0.0), default=0.5, show_default=True, help="Seconds for each pass.")
def main(target: Path | None, only: str | None, dtype: str, budget: float) -> None:
    rerun_with({**STEADY, "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"})
    table = Table(title=f"Convolutions, {dtype}, goal ≤ {GOAL} × torch", title_justify="left")
    for heading in ("convolution", "pass", "ms", "torch, ms", "× torch", ""):
        table.add_column(heading, justify="left" if heading in ("convolution", "pass", "") else "right")
    rows: list[Row] = []
    for kind in KINDS:
        if only is None or only in kind.name:
            rows += measure(kind, DTYPES[dtype], budget)
    for row in rows:
        reached = float(row["vs_torch"] or 0)
        numbers = [f"{row[key]:.2f}" for key in ("xla_ms", "torch_ms", "vs_torch")]
        table.add_row(str(row["convolution"]), str(row["pass"]), *numbers, "met" if reached <= GOAL else "missed")
    wide_console().print(table)
    if target is not None:
        write_results(target, "convolutions", rows, dtype=dtype)


if __name__ == "__main__":
    main()
