"""Compares a case on xla with the CPU, counts fallbacks and compilations while it trains, and times its steps."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from case import Batch, Case, Entry
from sides import Sides
from steps import Contender, turn

STEPS = 6
SETTLED = 3
"""The step after which nothing may be compiled."""
ROUNDS = 3
FLOOR = 1e-3
"""Of the largest gradient of all: a gradient that is smaller than that throughout is noise around zero, and is measured by this."""


def moved(value: Any, device: str) -> Any:
    """Nested tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: moved(part, device) for name, part in value.items()}
    return [moved(part, device) for part in value] if isinstance(value, list) else value


def floats(value: Any) -> Iterator[Tensor]:
    """The floating-point tensors of nested results, on the CPU, as float64."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value.detach().cpu().double()
    elif isinstance(value, dict):
        for part in value.values():
            yield from floats(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from floats(part)


def difference(found: Any, expected: Any, floor: float = 0.0) -> float:
    """The largest difference of nested tensors, each by the largest number of what is expected, or by `floor` where that is larger."""
    worst = 0.0
    for ours, theirs in zip(floats(found), floats(expected), strict=True):
        if ours.shape != theirs.shape:
            raise ValueError(f"a result has shape {tuple(ours.shape)} on xla and {tuple(theirs.shape)} on the CPU")
        if theirs.numel():
            scale = max(theirs.abs().max().item(), floor) or 1.0
            worst = max(worst, torch.nan_to_num((ours - theirs).abs().max() / scale, nan=torch.inf).item())
    return worst


def passes(case: Case, model: nn.Module, batch: Batch) -> tuple[Any, dict[str, Tensor]]:
    """Outputs and gradients of one forward and backward pass."""
    output = model(**batch)
    case.loss(output).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    found = list(floats(output))
    if case.also is not None:
        found += floats(case.also(model))
    return found, {name: gradient.cpu() for name, gradient in gradients.items()}


def compare(case: Case, sides: AbstractContextManager[Any]) -> dict[str, float]:
    """Relative differences of outputs and gradients between xla and the CPU; each runs within `sides`, the CPU first."""
    batch = case.batch(0)
    with sides:
        outputs, gradients = passes(case, copy.deepcopy(case.model), batch)
    with sides:
        found, found_gradients = passes(case, copy.deepcopy(case.model).to("xla"), moved(batch, "xla"))
    if found_gradients.keys() != gradients.keys():
        raise ValueError(f"only one of CPU and xla has gradients of {sorted(found_gradients.keys() ^ gradients.keys())}")
    floor = FLOOR * max(value.abs().max().item() for value in gradients.values())
    return {"outputs": difference(found, outputs), "gradients": difference(found_gradients, gradients, floor)}


def training(case: Case, device: str, close: Callable[[], None], compiled: bool = False) -> Callable[[], Tensor]:
    """A function that trains one step with the next of the batches, and returns the loss. compiled: by inductor."""
    model = copy.deepcopy(case.model).to(device)
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = [moved(case.batch(step), device) for step in range(STEPS)]
    count = 0

    def step() -> Tensor:
        nonlocal count
        batch = batches[count % STEPS]
        count += 1
        optimizer.zero_grad()
        loss = case.loss(called(**batch))
        loss.backward()
        optimizer.step()
        close()
        return loss.detach()

    return step


def train(eager: Callable[[], Tensor], xla: Callable[[], Tensor], sides: AbstractContextManager[Any]) -> tuple[float, int]:
    """The relative difference of the losses of some steps, and the programs that were compiled late; each step runs within `sides`."""
    losses, found, settled = [], [], 0
    for place in range(STEPS):
        with sides:
            losses.append(eager())
        with sides:
            found.append(xla())
        if place + 1 == SETTLED:
            settled = compiled_programs()
    return difference(found, losses), compiled_programs() - settled


def compiled_programs() -> int:
    """Programs compiled so far."""
    return met.counter_value("UncachedCompile") or 0


def fallbacks() -> dict[str, int]:
    """How often each operator has run on the CPU for want of a lowering; numbers that Python asks for are none."""
    counted = (name for name in met.counter_names() if name.startswith("aten::") and name != _READ)
    return {name: met.counter_value(name) or 0 for name in counted}


_READ = "aten::_local_scalar_dense"


def observe(entry: Entry, inductor: bool, budget_s: float) -> dict[str, Any]:
    """The row of a case; without times where no seconds are given for them."""
    if entry.make is None:
        raise ValueError(f"{entry.name} is no network but a run")
    torch.manual_seed(0)
    case = entry.make()
    case.model.train()
    row: dict[str, Any] = {**compare(case, nullcontext())}
    if row["gradients"] > entry.gradients:
        row["same_sides_gradients"] = compare(case, Sides())["gradients"]
    eager, xla = training(case, "cpu", lambda: None), training(case, "xla", torch_xla.sync)
    row["losses"], row["late_compiles"] = train(eager, xla, nullcontext())
    row["fallbacks"] = fallbacks()
    if row["losses"] > entry.gradients:
        row["same_sides_losses"], _ = train(training(case, "cpu", lambda: None), training(case, "xla", torch_xla.sync), Sides())
    if not budget_s:
        return row
    contenders = [Contender("xla", xla, xm.wait_device_ops), Contender("eager", eager, lambda: None)]
    if inductor and entry.inductor:
        contenders.append(Contender("inductor", training(case, "cpu", lambda: None, compiled=True), lambda: None))
        for _ in range(SETTLED):
            contenders[-1].step()
    for _ in range(ROUNDS):
        for contender in contenders:
            turn(contender, budget_s)
    row |= {f"{contender.name}_ms": statistics.median(contender.wall_ms) for contender in contenders}
    row["late_compiles"] += contenders[0].late_compiles or 0
    return row
