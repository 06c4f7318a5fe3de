"""Whole training steps: the median steady step on `xla`, in plain torch and in hand-written, jitted JAX, interleaved in one run.

All contenders start from the same weights on the same batch; before the clock starts their first losses (or decoded tokens) must agree.
Steps run back to back, as in a training loop, and once more with a wait after each.
"""

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import models_jax
import models_torch
from harness import STEADY, Row, rerun_with, wide_console, write_results

CHECKED_STEPS = 3
VERIFIED_STEPS = 20
"""More than the calls after a capture that are all verified: what is timed is what comes later."""
TOLERANCE = {"cpu": 1e-3, "cuda": 2e-2}
"""Relative difference allowed between losses; cuda multiplies in TF32 everywhere."""
TOLERANCE_OF_HALF = 5e-2
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CONTENDERS = ("xla", "captured", "unchecked", "torch", "inductor", "jax")
XLA = ("xla", "captured", "unchecked")


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, its batch, its optimizer in both frameworks (none: greedy decoding), and the goals against JAX: back to back, blocked."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    in_jax: models_jax.Model
    goals: tuple[float, ...]
    captured_goals: tuple[float, ...]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    rule: models_jax.Rule | None = None
    dtype: torch.dtype = torch.float32


@dataclass(slots=True)
class Contender:
    """One implementation, and what has been measured of it: milliseconds per step by round.

    step launches a step, finish blocks until all that was launched is done.
    """

    name: str
    step: Callable[[], Any]
    finish: Callable[[], object]
    first_s: float = 0.0
    checked: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)
    blocked_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    steps: int = 0
    late_compiles: int | None = None


def images(batch: int, channels: int, edge: int) -> tuple[Tensor, Tensor]:
    """Random images and labels of ten classes."""
    return torch.randn(batch, channels, edge, edge), torch.randint(10, (batch,))


def sentences(batch: int, size: models_torch.GptSize) -> tuple[Tensor, Tensor]:
    """Random tokens, and the same moved by one as labels."""
    tokens = torch.randint(size.vocabulary, (batch, size.tokens + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def workloads(quick: bool, batch: int | None = None, dtype: torch.dtype = torch.float32) -> dict[str, Workload]:
    """The five workloads, in their real or in tiny sizes, with another batch (but for `decode`) and dtype if that is given."""
    size = models_torch.GptSize(1, 32, 16, 64) if quick else models_torch.GptSize()
    of_images, of_maps, of_texts = (batch or (tiny if quick else usual) for tiny, usual in ((4, 64), (4, 32), (2, 8)))
    gpt, gpt_jax = partial(models_torch.Gpt, size), models_jax.gpt(size)
    rows = [
        Workload(
            "mlp", partial(models_torch.Mlp, 16 if quick else 256), lambda: (torch.randn(of_images, 64), torch.randint(10, (of_images,))),
            models_jax.mlp, (2.3, 2.3), (1.10, 1.15), partial(torch.optim.Adam, lr=1e-3), models_jax.adam(1e-3),
        ),
        Workload(
            "cnn", partial(models_torch.Cnn, 2 if quick else 32), partial(images, of_images, 1, 28),
            models_jax.cnn, (0.33, 0.33), (0.33, 0.33), partial(torch.optim.SGD, lr=0.01), models_jax.sgd(0.01),
        ),
        Workload(
            "resnet18", partial(models_torch.ResNet18, *((2, 2) if quick else (64, 4))), partial(images, of_maps, 3, 32),
            models_jax.resnet18, (0.48, 0.48), (0.48, 0.48), partial(torch.optim.SGD, lr=0.01, momentum=0.9), models_jax.sgd(0.01, 0.9),
        ),
        Workload(
            "gpt", gpt, partial(sentences, of_texts, size),
            gpt_jax, (0.52, 0.52), (0.52, 0.52), partial(torch.optim.AdamW, lr=3e-4, weight_decay=0.01), models_jax.adam(3e-4, 0.01),
        ),
        Workload("decode", gpt, partial(sentences, 1, size), gpt_jax, (1.10, 1.25), (1.03, 1.03)),
    ]  # fmt: skip
    return {row.name: replace(row, dtype=dtype) for row in rows}


def in_dtype(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats in `dtype`, other elements as they are."""
    return part.to(dtype) if part.is_floating_point() else part


def in_jax(part: Tensor, dtype: torch.dtype) -> Any:
    """The same as an array of JAX."""
    array = jnp.array(part.detach().numpy())
    return array.astype(jnp.bfloat16) if part.is_floating_point() and dtype is torch.bfloat16 else array


def torch_step(
    work: Workload, device: torch.device, close: Callable[[], None], compiled: bool = False, wrap: Any = lambda step: step,
    keep_gradients: bool = True,
) -> Callable[[], Tensor]:  # fmt: skip
    """The step on one torch device; `close` ends it. compiled: by inductor; wrap: what is called in its place."""
    torch.manual_seed(0)
    model = work.model()
    batch = work.batch()
    model = model.to(device, work.dtype)
    called = torch.compile(model) if compiled else model
    inputs, labels = (in_dtype(part, work.dtype).to(device) for part in batch)
    if work.optimizer is None:
        return models_torch.decoding_step(called, inputs, close, wrap)
    step = models_torch.training_step(called, work.optimizer(model.parameters()), inputs, labels, close, keep_gradients)
    return wrap(step)  # type: ignore[no-any-return]


def jax_steps(work: Workload) -> models_jax.Steps:
    """The step in JAX, from the weights and the batch that `torch_step` makes."""
    torch.manual_seed(0)
    model = work.model()
    inputs, labels = (in_jax(part, work.dtype) for part in work.batch())
    params = {name: in_jax(value, work.dtype) for name, value in model.named_parameters()}
    buffers = {name: in_jax(value, work.dtype) for name, value in model.named_buffers() if value.is_floating_point()}
    if work.rule is None:
        return models_jax.decoding_step(work.in_jax, params, inputs)
    return models_jax.training_step(work.in_jax, work.rule, params, buffers, inputs, labels)


def build(name: str, work: Workload, kind: str) -> Contender:
    """The contender of that name."""
    if name in XLA:
        import torch_xla
        import torch_xla.core.xla_model as xm

        if name == "xla":
            return Contender(name, torch_step(work, torch_xla.device(), torch_xla.sync), xm.wait_device_ops)
        capture = partial(torch_xla.compile, capture=True, verify_every=None if name == "unchecked" else "auto")
        return Contender(name, torch_step(work, torch_xla.device(), lambda: None, wrap=capture), xm.wait_device_ops)
    if name == "jax":
        return Contender(name, *jax_steps(work))
    finish: Callable[[], object] = torch.cuda.synchronize if kind == "cuda" else lambda: None
    return Contender(name, torch_step(work, torch.device(kind), lambda: None, compiled=name == "inductor"), finish)


def check(title: str, contenders: list[Contender], tolerance: float) -> None:
    """The first steps of all contenders; raises `AssertionError` where a loss or token differs from the first contender's."""
    for contender in contenders:
        start = time.perf_counter()
        for place in range(CHECKED_STEPS):
            result = np.asarray(contender.step().tolist(), dtype=np.float64).reshape(-1)
            contender.checked.extend(result.tolist())
            if not place:
                contender.first_s = time.perf_counter() - start
    expected = contenders[0].checked
    for contender in contenders[1:]:
        near = [math.isclose(a, b, rel_tol=tolerance) for a, b in zip(expected, contender.checked, strict=True)]
        if not all(near):
            raise AssertionError(
                f"{title}: {contenders[0].name} and {contender.name} disagree over the first {CHECKED_STEPS} steps: "
                f"{expected} and {contender.checked} (relative tolerance {tolerance})"
            )


def turn(contender: Contender, budget_s: float) -> None:
    """One contender's part of a round: as many steps as fit the budget back to back, and as many blocked, each after its like."""
    start = time.perf_counter()
    contender.step()
    contender.finish()
    count = max(1, min(200, int(budget_s / 2 / (time.perf_counter() - start))))
    compiled = compiles(contender)
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(count):
        contender.step()
    contender.finish()
    contender.wall_ms.append(1e3 * (time.perf_counter() - start) / count)
    contender.cpu_ms.append(1e3 * (time.process_time() - busy) / count)
    walls = []
    for _ in range(count):
        start = time.perf_counter()
        contender.step()
        contender.finish()
        walls.append(time.perf_counter() - start)
    contender.blocked_ms.append(1e3 * statistics.median(walls))
    contender.steps += 2 * count
    if contender.name in XLA:
        contender.late_compiles = (contender.late_compiles or 0) + compiles(contender) - compiled


def compiles(contender: Contender) -> int:
    """Graphs compiled so far by the XLA device."""
    if contender.name not in XLA:
        return 0
    from xla_core.abi.metrics import counter

    return counter("UncachedCompile")


def measure(work: Workload, names: tuple[str, ...], kind: str, rounds: int, budget_s: float) -> list[Row]:
    """Checks, then times all contenders in turns; returns a row for each."""
    contenders = [build(name, work, kind) for name in names]
    check(work.name, contenders, TOLERANCE[kind] if work.dtype is torch.float32 else TOLERANCE_OF_HALF)
    for contender in contenders:
        if contender.name == "captured":
            for _ in range(VERIFIED_STEPS):
                contender.step()
    for place in range(rounds):
        for contender in contenders[place % len(contenders) :] + contenders[: place % len(contenders)]:
            turn(contender, budget_s)
    by_name = {contender.name: contender for contender in contenders}
    return [row_of(work, contender, by_name) for contender in contenders]


def ratio(left: list[float], right: list[float]) -> float:
    """Median of the ratios of the rounds: what slows a whole round down cancels out."""
    return statistics.median(a / b for a, b in zip(left, right, strict=True))


def row_of(work: Workload, contender: Contender, by_name: dict[str, Contender]) -> Row:
    """Numbers of one contender."""
    row: Row = {
        "model": work.name,
        "on": contender.name,
        "wall_ms": statistics.median(contender.wall_ms),
        "blocked_ms": statistics.median(contender.blocked_ms),
        "cpu_ms": statistics.median(contender.cpu_ms),
        "first_s": contender.first_s,
        "steps": contender.steps,
        "late_compiles": contender.late_compiles,
    }
    for other in ("jax", "torch"):
        if other in by_name:
            row[f"wall_vs_{other}"] = ratio(contender.wall_ms, by_name[other].wall_ms)
            row[f"blocked_vs_{other}"] = ratio(contender.blocked_ms, by_name[other].blocked_ms)
            row[f"cpu_vs_{other}"] = ratio(contender.cpu_ms, by_name[other].cpu_ms)
    if contender.name == "captured" and "unchecked" in by_name:
        row["checking"] = 100 * (ratio(contender.wall_ms, by_name["unchecked"].wall_ms) - 1)
    goals = {"xla": work.goals, "captured": work.captured_goals}.get(contender.name)
    if goals and "jax" in by_name:
        row["goal"] = ", ".join(f"≤ {goal:.2f}" for goal in goals)
        reached = (row["wall_vs_jax"], row["blocked_vs_jax"])
        row["met"] = all(float(found or 0) <= goal for found, goal in zip(reached, goals, strict=True))
    return row


COLUMNS = ("wall_ms", "blocked_ms", "cpu_ms", "wall_vs_jax", "blocked_vs_jax", "cpu_vs_jax", "wall_vs_torch", "first_s", "checking")


def show(rows: list[Row], console: Console) -> None:
    """The rich table."""
    table = Table(title="Median steady step, back to back: forward, backward, optimizer (decode: one token)")
    for heading in (
        "model",
        "on",
        "ms",
        "blocked",
        "CPU ms",
        "× jax",
        "blocked",
        "CPU",
        "× torch",
        "first s",
        "checking, %",
        "goals × jax",
        "met",
    ):
        table.add_column(heading, justify="left" if heading in ("model", "on") else "right")
    for row in rows:
        cells = [row.get(key) for key in COLUMNS]
        numbers = [f"{cell:,.2f}" if isinstance(cell, float) else "" for cell in cells]
        met = row.get("met")
        table.add_row(
            str(row["model"]), str(row["on"]), *numbers, str(row.get("goal", "")), "" if met is None else "yes" if met else "no",
            end_section=row["on"] == "jax", style="bold" if row["on"] in XLA else None,
        )  # fmt: skip
    console.print(table)


def names_of(allowed: tuple[str, ...], text: str | None, option: str) -> tuple[str, ...]:
    """A comma-separated choice; all where nothing is given. Raises `click.UsageError` on an unknown name."""
    chosen = tuple(part.strip() for part in text.split(",")) if text else allowed
    unknown = [name for name in chosen if name not in allowed]
    if unknown:
        raise click.UsageError(f"{option}: {', '.join(unknown)} is not one of {', '.join(allowed)}")
    return chosen


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--models", help="Comma-separated: mlp, cnn, resnet18, gpt, decode.")
@click.option("--contenders", help="Comma-separated: xla, captured, unchecked, torch, inductor, jax.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--budget", type=click.FloatRange(0.0), default=1.0, show_default=True, help="Seconds of steps per turn.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--batch", type=click.IntRange(1), help="Of the models that train; usually 64, resnet18 32, gpt 8.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--quick", is_flag=True, help="Tiny sizes: does it run at all?")
def main(
    target: Path | None, models: str | None, contenders: str | None, rounds: int, budget: float, device: str, batch: int | None,
    dtype: str, quick: bool,
) -> None:  # fmt: skip
    on_cpu = {"JAX_PLATFORMS": "cpu"} if device == "cpu" else {}
    chosen_from = workloads(quick, batch, DTYPES[dtype])
    names = names_of(CONTENDERS, contenders, "--contenders")
    chosen = names_of(tuple(chosen_from), models, "--models")
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("--device cuda: this torch sees no CUDA device")
    rerun_with({**STEADY, **on_cpu, "PJRT_DEVICE": device.upper()})
    torch.set_float32_matmul_precision("high" if device == "cuda" else "highest")
    rows: list[Row] = []
    for name in chosen:
        rows += measure(chosen_from[name], names, device, rounds, 0.02 if quick else budget)
    show(rows, wide_console())
    if target is not None:
        write_results(
            target,
            "steps",
            rows,
            device=device,
            batch=batch,
            dtype=dtype,
            rounds=rounds,
            threads=torch.get_num_threads(),
            passive=os.environ["OMP_WAIT_POLICY"],
        )


if __name__ == "__main__":
    main()
