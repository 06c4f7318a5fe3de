"""From a compiled program to its plan: time by the compiler's cycles where it has them, else by a roofline.

A product takes as long as its operations at the device's peak or its bytes at the memory's, whichever is longer. A collective takes the
bytes that a device sends in a ring, over the links of the axes along which its group extends, in both directions; one that runs beside
other work costs what that work does not cover.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from xla_debug.plan.hardware import SPEEDS, Speed
from xla_debug.plan.hlo import Instruction, Program
from xla_debug.plan.liveness import memory
from xla_debug.plan.schema import Buffer, Cost, ProgramPlan, Traffic
from xla_debug.plan.traffic import Collective, axis_of, collective
from xla_debug.plan.work import Step, steps
from xla_debug.profiling.hlo_origins import Origin, origins

_MOST_ROWS, _MOST_BUFFERS, _MOST_POINTS, _MOST_COPIES = 200, 10, 400, 4


def described(compiled: Any, kind: str, devices: Sequence[Any], mesh: Mapping[str, int], **known: Any) -> ProgramPlan:
    """The plan of a compiled program. kind: model of the devices; mesh: sizes of its axes by name. known: what the caller knows of it."""
    stats = compiled.memory_analysis()
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    program = Program(module)
    made_by = origins(b"\x0a" + _length(len(module)) + module)
    speed = SPEEDS.get(kind)
    rows: dict[tuple[str, str | None], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    traffic: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    flying: dict[int, float] = {}
    sums: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for step in steps(program):
        op = step.instruction
        exchanged = collective(program, op, len(devices))
        seconds = _compute_seconds(step, speed)
        sums["flops"] += step.flops * step.times
        sums["nbytes"] += step.nbytes * step.times
        if speed is not None:
            sums["memory"] += step.times * step.nbytes / speed.memory
            sums["compute"] += step.times * step.flops / _peak(op, program, speed)
        if op.opcode in ("copy", "transpose") or op.opcode == "copy-start":
            counts["copies"] += step.times
        if op.opcode == "custom-call" and not step.cycles:
            counts["unknown"] += step.times
        if op.opcode.endswith("-done"):
            sums["exposed"] += step.times * flying.pop(next(iter(op.operands), 0), 0.0)
            continue
        if exchanged is not None:
            on_links = 0.0 if speed is None else _link_seconds(exchanged, devices, speed)
            row = traffic[exchanged.kind, axis_of(exchanged.first, mesh) or f"{exchanged.size} devices"]
            for position, value in enumerate((step.times, step.times * exchanged.sent, step.times * on_links * 1000)):
                row[position] += value
            sums["links"] += step.times * on_links
            if op.opcode.endswith("-start"):
                flying[op.id] = on_links
                continue
            sums["exposed"] += step.times * on_links
            seconds = 0.0
        for waiting in flying:
            flying[waiting] = max(0.0, flying[waiting] - seconds)
        sums["busy"] += step.times * seconds
        if step.cycles and speed is not None and speed.clock:
            sums["cycles"] += step.times * seconds
        origin = _origin(op, program, made_by)
        for position, value in enumerate((step.times, step.times * step.flops, step.times * step.nbytes, step.times * seconds * 1000)):
            rows[origin.operator, origin.line][position] += value
    total = sums["busy"] + sums["exposed"]
    held = memory(program)
    return ProgramPlan(
        **known,
        arguments=stats.argument_size_in_bytes,
        results=stats.output_size_in_bytes,
        reused=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
        peak=stats.peak_memory_in_bytes,
        flops=sums["flops"],
        nbytes=sums["nbytes"],
        ms=1000 * total,
        compute_ms=1000 * sums["compute"],
        memory_ms=1000 * sums["memory"],
        links_ms=1000 * sums["links"],
        exposed_ms=1000 * sums["exposed"],
        cycles=sums["cycles"] / total if total else 0.0,
        unknown=counts["unknown"],
        copies=counts["copies"],
        costs=[
            Cost(operator, line, int(times), flops, int(nbytes), ms)
            for (operator, line), (times, flops, nbytes, ms) in sorted(rows.items(), key=lambda row: -row[1][3])[:_MOST_ROWS]
        ],
        traffic=[
            Traffic(collective_kind, axis, int(count), nbytes, ms)
            for (collective_kind, axis), (count, nbytes, ms) in sorted(traffic.items(), key=lambda row: -row[1][2])
        ],
        buffers=[_buffer(item.instruction, item.nbytes, program, made_by) for item in held.largest[:_MOST_BUFFERS] if item.nbytes],
        schedule=_thinned(held.temporaries),
    )


def _compute_seconds(step: Step, speed: Speed | None) -> float:
    if speed is None:
        return 0.0
    if speed.clock and step.cycles:
        return step.cycles / speed.clock
    # Without cycles, on a TPU: copies between memories, and kernels of the user's.
    return max(step.flops / speed.flops_bf16, step.nbytes / speed.memory)


def _peak(op: Instruction, program: Program, speed: Speed) -> float:
    """Operations a second for the dtype of an instruction's operands. On TPUs float32 is multiplied in bfloat16 unless told otherwise."""
    if speed.clock:
        return speed.flops_bf16
    dtypes = {array.dtype for number in op.operands if number in program.by_id for array in program.by_id[number].arrays}
    return speed.flops_f32 if dtypes & {"f32", "f64"} and not dtypes & {"bf16", "f16"} else speed.flops_bf16


def _link_seconds(exchanged: Collective, devices: Sequence[Any], speed: Speed) -> float:
    """How long the links take, at their peak. On a torus, a ring along each axis along which the group extends, in both directions."""
    coordinates = [getattr(devices[number], "coords", None) for number in exchanged.first if number < len(devices)]
    axes = sum(len(set(axis)) > 1 for axis in zip(*coordinates, strict=True)) if all(coordinates) else 1
    return exchanged.sent / (2 * speed.link * max(1, min(axes, speed.links))) if speed.clock else exchanged.sent / speed.link


def _origin(op: Instruction, program: Program, made_by: Mapping[str, Origin]) -> Origin:
    """The torch operator behind an instruction; of a copy and the like, that of what it copies."""
    origin = made_by.get(op.name, Origin(op.opcode))
    for _ in range(_MOST_COPIES):
        if origin.line is not None or not op.operands or op.operands[0] not in program.by_id:
            break
        op = program.by_id[op.operands[0]]
        behind = made_by.get(op.name, Origin(op.opcode))
        origin = behind if behind.line is not None else origin
    return origin


def _buffer(op: Instruction, nbytes: int, program: Program, made_by: Mapping[str, Origin]) -> Buffer:
    origin = _origin(op, program, made_by)
    shape = str(max(op.made, key=lambda array: array.stored))
    padding = sum(array.stored - array.nbytes for array in op.made if not array.space)
    return Buffer(shape, origin.operator, origin.line, nbytes, padding)


def _thinned(values: Sequence[int]) -> list[int]:
    """At most so many numbers, each the largest of its neighbours."""
    size = -(-len(values) // _MOST_POINTS) or 1
    return [max(values[begin : begin + size]) for begin in range(0, len(values), size)]


def _length(value: int) -> bytes:
    """A length as protocol buffers write it."""
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
