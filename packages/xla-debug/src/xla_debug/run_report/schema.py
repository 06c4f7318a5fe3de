"""The schema of a run report in JSON: version 1. Times are seconds since the epoch (`*_s`), durations milliseconds (`*_ms`).

Fields may be added within a version, with a default; a reader ignores those that it does not know. Anything else is a new version.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

FORMAT = "xla-debug account"  # what files say; it stays, so that older and newer releases read each other's
VERSION = 1


class Phase(enum.Enum):
    """The phases of the host thread that runs the steps."""

    TRACING = "tracing"
    """Recording operations: torch, autograd and the core."""
    LOOKUP = "look-up"
    """Key, look-up and launch of programs, and what else a sync does."""
    COMPILE = "compile"
    TRANSFER = "transfer"
    """Copies between host and device, without waiting for what is copied."""
    WAITING = "waiting"
    """Blocked until the device was done."""
    FALLBACK = "fallback"
    """Operators without a lowering, on the CPU."""
    LOADER = "loader"
    """In data loaders: reading, making and awaiting batches."""
    PYTHON = "python"
    """Other code of the user's."""

    __hash__ = object.__hash__  # phases are keys of what is added up in each step; an Enum's own hash is Python code


class Bottleneck(enum.Enum):
    """The bottleneck of a run."""

    DEVICE = "device-bound"
    TRACING = "tracing-bound"
    COMPILE = "compile-bound"
    TRANSFER = "transfer-bound"
    FALLBACK = "fallback-bound"
    LOADER = "loader-bound"
    PYTHON = "python-bound"
    NOTHING = "nothing measured"


class Change(enum.Enum):
    """The difference between a program and the nearest one that was known when it was compiled."""

    FIRST = "first"
    """There was none like it."""
    INPUT_SHAPE = "input shape"
    INPUT_DTYPE = "input dtype"
    INPUT_COUNT = "inputs"
    CONSTANT = "constant"
    """A Python number that is only a value: it is an input from now on."""
    ARGUMENT = "argument"
    """A Python number or option that shapes the program."""
    OPERATION_ADDED = "operation added"
    OPERATION_REMOVED = "operation removed"
    OPERATION_CHANGED = "operation changed"
    RESULTS = "results"
    """The same operations; another set of their results is kept."""
    MEMORY = "memory"
    """The same program; other inputs may be overwritten."""
    SETTINGS = "settings"
    """The same program under other settings or shardings."""


class Problem(enum.Enum):
    """The kinds of findings."""

    SHAPES = "changing shapes"
    NUMBERS = "changing numbers"
    PROGRAMS = "changing programs"
    READS = "reads in the loop"
    FALLBACK = "operators on the CPU"
    LOADER = "slow input"
    PYTHON = "slow Python"
    MEMORY = "growing memory"
    STRAGGLER = "straggler"


@dataclass(frozen=True, slots=True)
class ProgramDifference:
    """The change, described (`text`), with the user's line it comes from and what to do about it.

    nearest: the `graph_hash` of the program that it was compared with; None if there was none like it.
    """

    change: Change
    text: str
    line: str | None = None
    advice: str = ""
    nearest: str | None = None


@dataclass(frozen=True, slots=True)
class Compile:
    """A compilation. line: the sync or read that asked for it. step: the one it was in, from 0.

    donated: how many inputs give their memory to results; donated_bytes: how much that is.
    """

    start_s: float
    ms: float
    step: int
    line: str | None
    cause: str | None
    name: str | None
    graph_hash: str
    operations: int
    inputs: int
    results: int
    difference: ProgramDifference
    graph: str = ""
    """The program as text; the largest are left out."""
    donated: int = 0
    donated_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """From the end of one step sync to that of the next. ms: by `Phase.value`, of the thread that steps; device_ms: the device at work."""

    start_s: float
    ms: dict[str, float]
    device_ms: float
    compiles: int = 0


HOST = "host"
"""The track of the thread that runs the steps."""
DEVICE = "device"
"""The phase of what a device runs."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time in one of the last steps.

    track: what it occupied, such as `host`, `xla:0` or `copies`. phase: a `Phase.value`, or DEVICE.
    name: of the program, the operator or the copy. estimated: from samples, which divide the time between events. launched_s: of a program,
    when the host handed it to the device.
    """

    track: str
    phase: str
    name: str
    start_s: float
    ms: float
    line: str | None = None
    estimated: bool = False
    launched_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """All syncs of one kind (`step` or `read`) that a line asked for. steps: in how many steps it did."""

    line: str | None
    kind: str
    cause: str | None
    count: int
    steps: int
    blocked_ms: float


@dataclass(frozen=True, slots=True)
class Fallback:
    """All calls of an operator that ran on the CPU at a line. nbytes: moved for it."""

    operator: str
    line: str | None
    count: int
    nbytes: int
    ms: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """All copies in one direction (`to_device` or `from_device`) that a line asked for."""

    direction: str
    line: str | None
    count: int
    nbytes: int
    ms: float


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device: now, at most so far, and what it has (0 where unknown)."""

    device: str
    in_use: int
    peak: int
    limit: int


@dataclass(frozen=True, slots=True)
class Live:
    """Buffers of one device and shape that one line made. holder: what keeps them, such as `list 'losses' (40 items)`."""

    line: str | None
    device: str
    shape: str
    count: int
    nbytes: int
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """over_time: (seconds since the epoch, bytes in use on all devices), oldest first."""

    devices: list[DeviceMemory] = field(default_factory=list)
    over_time: list[tuple[float, int]] = field(default_factory=list)
    live: list[Live] = field(default_factory=list)
    """The largest first."""


@dataclass(frozen=True, slots=True)
class HotLine:
    """Host time spent below a line of the user's, estimated from samples. phase: a `Phase.value`."""

    line: str
    phase: str
    ms: float


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of a source file, as they were when it ran. first: the number of the first one."""

    first: int
    lines: list[str]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, with the line to change. cost_ms: what it cost in the whole run, as far as known. replica: None for all.

    source: that line in its surroundings; None where the file could not be read.
    """

    problem: Problem
    line: str | None
    text: str
    advice: str
    cost_ms: float = 0.0
    replica: int | None = None
    source: Excerpt | None = None


@dataclass(frozen=True, slots=True)
class Replica:
    """One process of the run.

    verdict: its bottleneck. phases_ms, device_ms: totals of the steps' over `measured_steps`, those after the warm-up of a longer run.
    timeline: the newest steps, or evenly chosen ones of a long run, oldest first. spans: what happened in the last steps, by start.
    """

    ordinal: int
    pid: int
    host: str
    hardware: str
    started_s: float
    seconds: float
    finished: bool
    steps: int
    verdict: Bottleneck
    phases_ms: dict[str, float]
    device_ms: float
    measured_steps: int = 0
    timeline: list[Step] = field(default_factory=list)
    compiles: list[Compile] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    hot_lines: list[HotLine] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a run, for bug reports. settings: variables of these packages that are set."""

    python: str
    platform: str
    versions: dict[str, str]
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run of a script. exit_code: None while it runs."""

    format: str
    version: int
    command: list[str]
    started_s: float
    seconds: float
    exit_code: int | None
    environment: Environment
    replicas: list[Replica] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Of all replicas, the costliest first."""
