"""From a compiled program to its plan: time by the compiler's cycles where it has them, else by a roofline.

Nothing takes less than its operations at the device's peak or its bytes at the memory's, whichever is longer; a Pallas kernel for TPUs
as long as that of its units which has most to do (`kernels.py`). A collective takes the bytes that a device sends, over the links of the
axes along which its group extends (`links.py`); one that runs beside other work costs what that work does not cover.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from xla_debug.plan.constants import same_each_turn
from xla_debug.plan.exchanges import Exchange
from xla_debug.plan.hardware import OVERRATED, SPEEDS, Speed
from xla_debug.plan.hlo import Instruction, Program
from xla_debug.plan.kernels import kernel_seconds
from xla_debug.plan.links import Background, Way, way
from xla_debug.plan.liveness import memory
from xla_debug.plan.products import is_product
from xla_debug.plan.schema import Buffer, Cost, ProgramPlan, Traffic
from xla_debug.plan.traffic import axis_of, collective
from xla_debug.plan.work import Step, steps
from xla_debug.profiling.hlo_origins import Origin, origins
from xla_debug.profiling.wire_format import text_field

MEMORY = {
    "arguments": "argument_size_in_bytes",
    "results": "output_size_in_bytes",
    "reused": "alias_size_in_bytes",
    "temporaries": "temp_size_in_bytes",
    "code": "generated_code_size_in_bytes",
    "peak": "peak_memory_in_bytes",
}
"""Fields of a program's plan by the names that the compiler's figures have."""
_MOST_ROWS, _MOST_BUFFERS, _MOST_POINTS, _MOST_COPIES = 200, 10, 400, 4


def described(compiled: Any, kind: str, devices: Sequence[Any], mesh: Mapping[str, int], **known: Any) -> ProgramPlan:
    """The plan of a compiled program. kind: model of the devices; mesh: sizes of its axes by name. known: what the caller knows of it."""
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    stats = compiled.memory_analysis()
    return of_module(module, {name: getattr(stats, figure) for name, figure in MEMORY.items()}, kind, devices, mesh, **known)


def of_module(
    module: bytes, memory_of: Mapping[str, Any], kind: str, devices: Sequence[Any], mesh: Mapping[str, int], **known: Any
) -> ProgramPlan:
    """The plan of an optimized program, an `HloModuleProto`. memory_of: the compiler's figures, by the names in `MEMORY`."""
    program = Program(module)
    made_by = origins(text_field(1, module))
    sums = _Sums(program, made_by, SPEEDS.get(kind), devices, mesh)
    for step in steps(program):
        sums.add(step)
    held = memory(program)
    return ProgramPlan(
        **known,
        **{**sums.fields(), **memory_of},
        buffers=[_buffer(item.instruction, item.nbytes, program, made_by) for item in held.largest[:_MOST_BUFFERS] if item.nbytes],
        schedule=_thinned(held.temporaries),
    )


class _Sums:
    """Sums over the steps of a program, in their order."""

    def __init__(
        self, program: Program, made_by: Mapping[str, Origin], speed: Speed | None, devices: Sequence[Any], mesh: Mapping[str, int]
    ) -> None:
        self._program, self._made_by, self._speed, self._devices, self._mesh = program, made_by, speed, devices, mesh
        self._rows: dict[tuple[str, str | None], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
        self._traffic: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        self._background = Background()
        self._seconds: dict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._flops = self._nbytes = self._wide = self._regathered = 0.0

    def add(self, step: Step) -> None:
        """Add a step."""
        op, times, speed = step.instruction, step.times, self._speed
        self._flops += step.flops * times
        self._nbytes += step.nbytes * times
        self._wide += step.wide * times
        if speed is not None:
            self._seconds["memory"] += times * step.nbytes / speed.memory
            self._seconds["compute"] += times * step.flops / _peak(step, self._program, speed)
        self._counts["copies"] += times * (op.opcode in ("copy", "transpose", "copy-start"))
        self._counts["unknown"] += times * _is_unknown(step)
        if step.exchange is None:
            self._compute(step)
        else:
            self._exchange(op, step.exchange, times)

    def _exchange(self, op: Instruction, exchange: Exchange, times: int) -> None:
        if exchange.begins:
            exchanged = collective(self._program, op, exchange.collective, len(self._devices))
            taken = Way((), 0.0) if self._speed is None else way(exchanged, self._devices, self._speed)
            row = self._traffic[exchanged.kind, axis_of(exchanged.first, self._mesh) or f"{exchanged.size} devices"]
            for position, value in enumerate((times, times * exchanged.sent, times * taken.seconds * 1000)):
                row[position] += value
            if exchanged.kind == "all-gather" and times > 1 and same_each_turn(self._program, exchange.collective.operands[0]):
                self._regathered += (times - 1) * exchanged.sent
            self._seconds["links"] += times * taken.seconds
            self._background.begin(exchange.key, taken, times)
        if exchange.ends:
            self._seconds["exposed"] += times * self._background.end(exchange.key)

    def _compute(self, step: Step) -> None:
        seconds, times = _compute_seconds(step, self._program, self._speed), step.times
        self._background.beside(seconds, times)
        self._seconds["busy"] += times * seconds
        if self._speed is not None and _by_cycles(step, self._speed):
            self._seconds["cycles"] += times * seconds
        if step.kernel is not None:
            self._seconds["kernels"] += times * seconds
        origin = _origin(step.instruction, self._program, self._made_by)
        for position, value in enumerate((times, times * step.flops, times * step.nbytes, times * seconds * 1000)):
            self._rows[origin.operator, origin.line][position] += value

    def fields(self) -> dict[str, Any]:
        """The sums, by the names of the plan's fields."""
        seconds = self._seconds
        total = seconds["busy"] + seconds["exposed"]
        costs = sorted(self._rows.items(), key=lambda row: -row[1][3])[:_MOST_ROWS]
        traffic = sorted(self._traffic.items(), key=lambda row: -row[1][2])
        return {
            "flops": self._flops,
            "nbytes": self._nbytes,
            "ms": 1000 * total,
            **{f"{name}_ms": 1000 * seconds[name] for name in ("compute", "memory", "links", "exposed")},
            "cycles": seconds["cycles"] / total if total else 0.0,
            "kernels": seconds["kernels"] / total if total else 0.0,
            "unknown": self._counts["unknown"],
            "copies": self._counts["copies"],
            "wide_flops": self._wide,
            "regathered": self._regathered,
            "costs": [Cost(*key, int(times), flops, int(nbytes), ms) for key, (times, flops, nbytes, ms) in costs],
            "traffic": [Traffic(*key, int(count), nbytes, ms) for key, (count, nbytes, ms) in traffic],
        }


def _is_unknown(step: Step) -> bool:
    """A kernel of the user's, or of a library, of which only the bytes are known. Those of XLA:TPU itself do little."""
    op = step.instruction
    ours = step.exchange is None and not step.cycles and step.kernel is None and op.opcode == "custom-call" and not is_product(op)
    return ours and (op.target == "tpu_custom_call" or "$" in op.target)


def _by_cycles(step: Step, speed: Speed) -> bool:
    return bool(speed.clock and step.cycles) and step.instruction.opcode not in OVERRATED


def _compute_seconds(step: Step, program: Program, speed: Speed | None) -> float:
    if speed is None:
        return 0.0
    in_memory = step.nbytes / speed.memory
    if step.kernel is not None and speed.clock:
        return max(kernel_seconds(step.kernel, speed), in_memory)
    # The compiler of TPUs gives some products that it fuses with collectives fewer cycles than their operations take at the peak.
    at_peak = max(step.flops / _peak(step, program, speed), in_memory)
    return max(at_peak, step.cycles / speed.clock) if _by_cycles(step, speed) else at_peak


def _peak(step: Step, program: Program, speed: Speed) -> float:
    """Operations a second for the dtype of an instruction's operands. On TPUs float32 is multiplied in bfloat16 unless told otherwise."""
    if speed.clock:
        return speed.flops_bf16
    operands = [program.by_id[number] for number in step.instruction.operands if number in program.by_id]
    dtypes = {array.dtype for operand in operands for array in operand.arrays}
    if not dtypes & {"f32", "f64"} or dtypes & {"bf16", "f16"}:
        return speed.flops_bf16
    return speed.flops_f32 if step.wide else speed.flops_tf32


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
