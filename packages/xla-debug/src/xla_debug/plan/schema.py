"""A plan: what is known of a script's programs on devices that are not there. It is JSON, field by field."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Cost:
    """An operator of a program, at a line. flops: of products; nbytes: read and written; ms: estimated; times: how often it runs."""

    operator: str
    line: str | None
    times: int
    flops: float
    nbytes: int
    ms: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one kind. axis: of the mesh, or how many devices exchange. nbytes: that a device sends. ms: estimated."""

    kind: str
    axis: str
    count: int
    nbytes: float
    ms: float


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer that is held when most memory is. padding: bytes of it without elements."""

    shape: str
    operator: str
    line: str | None
    nbytes: int
    padding: int


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """A program, per device. error: why it does not compile; then nothing else is known.

    arguments, results: bytes that it takes and gives; reused: of the results in the memory of arguments; temporaries; code; peak: as the
    compiler has it. ms: estimated time of a run; compute_ms, memory_ms, links_ms: what each alone would take; exposed_ms: of the links
    while nothing else runs. cycles: share of `ms` from the compiler's own cycles; kernels: from the code of Pallas kernels; unknown:
    kernels of which only the bytes are known. wide_flops: of products in 64 bits, or in all of 32. regathered: bytes that a device sends in
    all-gathers of what no turn of their loop changes, but for the first turn. runs: how often the script ran it. schedule: temporaries
    along it, at most 400 numbers.
    """

    name: str
    line: str | None
    operations: int
    compile_s: float = 0.0
    error: str | None = None
    arguments: int = 0
    results: int = 0
    reused: int = 0
    temporaries: int = 0
    code: int = 0
    peak: int = 0
    flops: float = 0.0
    nbytes: float = 0.0
    ms: float = 0.0
    compute_ms: float = 0.0
    memory_ms: float = 0.0
    links_ms: float = 0.0
    exposed_ms: float = 0.0
    cycles: float = 0.0
    kernels: float = 0.0
    unknown: int = 0
    copies: int = 0
    wide_flops: float = 0.0
    regathered: float = 0.0
    runs: int = 0
    costs: list[Cost] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    schedule: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class State:
    """Bytes of one device that live between programs: parameters, their gradients, what optimizers keep, all else."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    other: int = 0
    replicated: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer + self.other


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with another mesh. peak: bytes of a device. ms: of a step, None without one. bound: by what. error: why it is none."""

    mesh: dict[str, int]
    fits: bool
    peak: int
    ms: float | None
    bound: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A script on a target. memory: bytes of each device. steps: that ran. error: of the script, if it ended with one.

    flops_peak: operations a second of a device, in bfloat16. mesh: sizes of the axes over which the script shards, by name. searched: plans
    with other meshes, the best first, without their programs.
    """

    target: str
    kind: str
    devices: int
    shape: list[int]
    memory: int
    flops_peak: float
    command: list[str]
    steps: int = 0
    error: str | None = None
    state: State = field(default_factory=State)
    programs: list[ProgramPlan] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    mesh: dict[str, int] = field(default_factory=dict)
    searched: list[Candidate] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """The most bytes that a device needs at once: the state, and what the greediest program adds to it."""
        added = [program.temporaries + program.code + max(program.results - program.reused, 0) for program in self.programs]
        held = [program.arguments for program in self.programs]
        return max([self.state.total, *held], default=0) + max(added, default=0)

    @property
    def step(self) -> ProgramPlan | None:
        """The program of a steady step: of those that ran most often, the longest."""
        compiled = [program for program in self.programs if program.error is None]
        most = max((program.runs for program in compiled), default=0)
        return max((program for program in compiled if program.runs == most), key=lambda program: program.ms, default=None)


def to_json(plan: Plan) -> bytes:
    """The plan as JSON, with what follows from its fields: `peak`, `fits`, `step_ms`, `mfu`."""
    step = plan.step
    derived = {"peak": plan.peak, "fits": fits(plan), "step_ms": step.ms if step else None, "mfu": mfu(plan)}
    return json.dumps({**dataclasses.asdict(plan), **derived}, indent=1).encode()


def from_json(content: bytes) -> Plan:
    """The plan that a child process wrote. Raises ValueError for other content."""
    data: dict[str, Any] = json.loads(content)
    programs = [
        ProgramPlan(
            **{
                **row,
                "costs": [Cost(**cost) for cost in row["costs"]],
                "traffic": [Traffic(**traffic) for traffic in row["traffic"]],
                "buffers": [Buffer(**buffer) for buffer in row["buffers"]],
            }
        )
        for row in data["programs"]
    ]
    names = {item.name for item in dataclasses.fields(Plan)}
    nested = {"state": State(**data["state"]), "programs": programs, "searched": [Candidate(**row) for row in data["searched"]]}
    return Plan(**{**{name: data[name] for name in names & data.keys()}, **nested})


def fits(plan: Plan) -> bool:
    """Whether every program compiles and a device has the memory that the script needs."""
    return plan.error is None and all(program.error is None for program in plan.programs) and plan.peak <= plan.memory


def bound(program: ProgramPlan) -> str:
    """What takes most of a program's time by itself: operations, memory, or links that nothing covers."""
    parts = {"operations": program.compute_ms, "memory": program.memory_ms, "links": program.exposed_ms}
    return max(parts, key=parts.__getitem__)


def mfu(plan: Plan) -> float | None:
    """Share of the peak operations of the devices that the products of a steady step are; None without one."""
    step = plan.step
    return step.flops / (plan.flops_peak * step.ms / 1000) if step and step.ms and plan.flops_peak else None
