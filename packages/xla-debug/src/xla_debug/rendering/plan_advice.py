"""What to change, where a figure of the plan shows it."""

from __future__ import annotations

from collections.abc import Iterator

from xla_debug.plan.schema import Plan, ProgramPlan
from xla_debug.rendering.formatting import percent, size

_WORTH = 0.02
"""Share of a device's memory from which on waste is worth a word."""
_MANY_COPIES = 100
"""Copies and transposes in a step above which they are worth a word; a TPU's are mostly prefetches."""
_WIDE = 0.1
"""Share of the operations of products from which on their precision is worth a word."""
_FULL = 0.9
"""Share of the memory above which a plan is tight."""


def advice(plan: Plan) -> list[str]:
    """Sentences, each with the figure behind it."""
    step = plan.step
    sentences = [*_memory(plan), *([] if step is None else _step(plan, step))]
    if plan.fallbacks:
        sentences.append(f"run on the host, at each call: {'; '.join(plan.fallbacks[:3])}. Replace them, or write a lowering")
    return sentences


def _memory(plan: Plan) -> Iterator[str]:
    state, step = plan.state, plan.step
    if plan.devices > 1 and state.replicated > _WORTH * plan.memory:
        yield (
            f"each of {plan.devices} devices has {size(state.replicated)} of parameters that are equal on all: shard them "
            "(xs.mark_sharding, FSDPv2), and each keeps a part"
        )
    if state.gradients > _WORTH * plan.memory:
        yield (
            f"{size(state.gradients)} of gradients outlive each step: call optimizer.zero_grad() after optimizer.step(), and they are no "
            "results of a program"
        )
    if step is None or not plan.memory:
        return
    wasted = sum(buffer.padding for buffer in step.buffers)
    if wasted > _WORTH * plan.memory:
        yield f"{size(wasted)} of the largest buffers are padding of tiles: make the last dimensions multiples of 128 (and of 8)"
    if plan.peak > _FULL * plan.memory and step.temporaries > 0.3 * plan.peak:
        yield (
            f"temporaries take {size(step.temporaries)} of {size(plan.peak)}: compute activations again in the backward pass "
            "(torch_xla.utils.checkpoint, or scan_layers), or make the batch smaller"
        )
    elif state.total + 2 * step.temporaries < _FULL * plan.memory and step.temporaries > _WORTH * plan.memory:
        yield f"twice the batch (or sequence) fits as well: {size(plan.peak)} of {size(plan.memory)} are used"


def _step(plan: Plan, step: ProgramPlan) -> Iterator[str]:
    if step.ms and step.exposed_ms > 0.2 * step.ms:
        yield f"{percent(step.exposed_ms / step.ms)} of the step wait for links: another mesh may exchange less"
    if step.regathered > _WORTH * plan.memory:
        yield (
            f"a loop gathers the same again in each turn, {size(int(step.regathered))} of a device in a step: gather it before the loop, "
            "or accumulate gradients over fewer and larger batches"
        )
    if step.wide_flops > _WIDE * step.flops and not plan.kind.startswith("cpu"):
        yield (
            f"{percent(step.wide_flops / step.flops)} of the operations of products are in float64, or in float32 at the precision "
            "'highest': torch.autocast('xla', torch.bfloat16), or torch_xla.backends.set_mat_mul_precision('default'), takes a fraction "
            "of the time"
        )
    if step.copies > _MANY_COPIES and not plan.kind.startswith("TPU"):
        yield f"{step.copies} copies and transposes in a step: keep one memory format"
    if step.runs and len(plan.programs) > 4 * max(1, plan.steps):
        yield f"{len(plan.programs)} programs for {plan.steps} steps: values that are read, or shapes that change, split the step"
