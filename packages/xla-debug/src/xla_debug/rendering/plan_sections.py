"""The parts of a plan as tables of texts, for the terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xla_debug.plan.schema import Plan, ProgramPlan, bound, fits, mfu
from xla_debug.rendering.formatting import counted, duration, percent, size


@dataclass(frozen=True, slots=True)
class Section:
    """A table. Columns whose name begins with `>` have numbers. bars: a share for each row, or none; strong: the last row is the sum."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]
    bars: list[float] = field(default_factory=list)
    strong: bool = False


def verdict(plan: Plan) -> tuple[str, bool]:
    """Whether it fits, in a sentence, and whether that is good."""
    if plan.error is not None:
        return f"It fails there: {plan.error}", False
    if any(program.error for program in plan.programs):
        return "It does not compile", False
    if fits(plan):
        return f"It fits: {size(plan.peak)} of {size(plan.memory)} on each device", True
    return f"It does not fit: {size(plan.peak)} needed, {size(plan.memory)} on each device", False


def pace(plan: Plan) -> str:
    """The estimated time of a step and what bounds it; "" without a step."""
    step = plan.step
    if step is None or not step.ms:
        return ""
    part = mfu(plan)
    used = f", {percent(part)} of the peak operations" if part is not None else ""
    return f"estimated {duration(step.ms)} per step{used}, bound by {bound(step)}"


def subject(plan: Plan) -> str:
    """What was planned, and for which devices."""
    shape = "x".join(map(str, plan.shape))
    devices = f"{counted(plan.devices, 'device')} ({shape}) of {plan.kind}" if plan.devices > 1 else f"one {plan.kind}"
    return f"{' '.join(plan.command)}, {counted(plan.steps, 'step')} on {plan.target}: {devices}"


def sections(plan: Plan) -> Iterator[Section]:
    """All tables of a plan; empty ones are left out."""
    step = plan.step
    parts = [_searched(plan), _memory(plan), _programs(plan)]
    if step is not None and step.ms:
        parts += [_time(step), _costs(step), _traffic(step), _buffers(step)]
    yield from (part for part in parts if part.rows)


def _searched(plan: Plan) -> Section:
    rows = [
        [
            ",".join(f"{name}={parts}" for name, parts in candidate.mesh.items()),
            "" if candidate.ms is None else duration(candidate.ms),
            size(candidate.peak),
            candidate.error or (f"bound by {candidate.bound}" if candidate.fits else "does not fit"),
        ]
        for candidate in plan.searched
    ]
    return Section(f"Meshes of {plan.devices} devices", "the best first", ["mesh", ">step", ">peak", "why"], rows)


def _memory(plan: Plan) -> Section:
    state = plan.state
    named = [
        ("parameters", state.parameters),
        ("gradients", state.gradients),
        ("optimizer", state.optimizer),
        ("other tensors", state.other),
        ("temporaries, results and code", max(plan.peak - state.total, 0)),
    ]
    shown = [(name, nbytes) for name, nbytes in named if nbytes]
    whole = max(plan.memory, plan.peak) or 1
    shown += [("peak", plan.peak)] if shown else []
    rows = [[name, size(nbytes), percent(nbytes / whole)] for name, nbytes in shown]
    return Section("Memory of a device", "", ["", ">bytes", ">share"], rows, [nbytes / whole for _, nbytes in shown], strong=True)


def _programs(plan: Plan) -> Section:
    total = duration(1000 * sum(program.compile_s for program in plan.programs))
    columns = ["asked for at", ">runs", ">compile", ">takes", ">temp", ">time"]
    rows = [
        [
            program.line or program.name,
            str(program.runs),
            duration(1000 * program.compile_s),
            size(program.arguments),
            size(program.temporaries),
            duration(program.ms) if program.ms else "",
        ]
        for program in plan.programs
    ]
    return Section(f"Programs: {len(plan.programs)}", f"compiled in {total}", columns, rows)


def _time(step: ProgramPlan) -> Section:
    intensity = step.flops / step.nbytes if step.nbytes else 0.0
    sent = sum(row.nbytes for row in step.traffic)
    rows = [
        ["operations", f"{step.flops / 1e9:,.1f} GFLOP", duration(step.compute_ms)],
        ["memory", size(step.nbytes), duration(step.memory_ms)],
        ["links", size(sent), duration(step.links_ms)],
        ["estimated", f"{intensity:,.0f} FLOP per byte", duration(step.ms)],
    ]
    kernels = f", {percent(step.kernels)} by the code of kernels" if step.kernels else ""
    sources = (
        f"{percent(step.cycles)} by the compiler's cycles{kernels}, the rest by peaks" if step.cycles else "by the peaks of the device"
    )
    unknown = f"; {counted(step.unknown, 'kernel')} by bytes only" if step.unknown else ""
    return Section("A step", sources + unknown, ["", ">amount", ">alone"], rows, strong=True)


def _costs(step: ProgramPlan) -> Section:
    columns = ["operator", "line", ">times", ">GFLOP", ">bytes", ">time", ">share"]
    rows = [
        [
            cost.operator,
            cost.line or "",
            str(cost.times),
            f"{cost.flops / 1e9:,.2f}",
            size(cost.nbytes),
            duration(cost.ms),
            percent(cost.ms / step.ms),
        ]
        for cost in step.costs
        if cost.ms
    ]
    return Section("Operators that cost most", "", columns, rows)


def _traffic(step: ProgramPlan) -> Section:
    rows = [[row.kind, row.axis, str(row.count), size(row.nbytes), duration(row.ms)] for row in step.traffic]
    return Section(
        "Collectives", f"{duration(step.exposed_ms)} not covered by other work", ["kind", "along", ">count", ">sent", ">time"], rows
    )


def _buffers(step: ProgramPlan) -> Section:
    rows = [[row.shape, row.operator, row.line or "", size(row.nbytes), size(row.padding)] for row in step.buffers]
    return Section("Largest temporaries at the peak", "", ["shape", "operator", "line", ">bytes", ">padding"], rows)
