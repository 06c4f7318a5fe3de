"""The schema of a run report in JSON: version 1. Times are seconds since the epoch (`*_s`), durations milliseconds (`*_ms`).

Fields may be added within a version, with a default; a reader ignores those that it does not know. Anything else is a new version.
Each field has bounds, far above the values of any run: a file may come from anybody, and code that renders it can rely on them.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from annotated_types import Ge, Le, MaxLen, Predicate

FORMAT = "xla-debug account"  # what files say; it stays, so that older and newer releases read each other's
VERSION = 1

_T = TypeVar("_T")
_LINE_NUMBER = re.compile(r".*:([0-9]{1,9})", re.DOTALL)


def line_number(line: str | None) -> int | None:
    """The line number of a `file:line`; None if it has none, or one that no file has."""
    match = _LINE_NUMBER.fullmatch(line or "")
    return int(match[1]) if match else None


def _names_a_line(text: str) -> bool:
    """Whether this is a `file:line`."""
    return line_number(text) is not None


Count = Annotated[int, Ge(0), Le(2**63 - 1)]
"""A count of anything, also of bytes."""
Number = Annotated[int, Ge(0), Le(2**31 - 1)]
"""The number of a process, a replica or a line."""
Seconds = Annotated[float, Ge(0.0), Le(2.5e11)]
"""Seconds since the epoch, to the year 9892, or of a run."""
Milliseconds = Annotated[float, Ge(0.0), Le(1e15)]
Text = Annotated[str, MaxLen(200_000)]
Line = Annotated[str, MaxLen(20_000), Predicate(_names_a_line)]
"""A `file:line`."""
Rows = Annotated[list[_T], MaxLen(1_000_000)]
Names = Annotated[dict[Text, _T], MaxLen(10_000)]


class Phase(enum.Enum):
    """The phases of the host thread that runs the steps."""

    TRACING = "tracing"
    """Recording operations: torch, autograd and the core."""
    LOOKUP = "look-up"
    """Key, look-up and launch of programs, and the rest of a sync."""
    COMPILE = "compile"
    TRANSFER = "transfer"
    """Copies between host and device, without waiting for the data."""
    WAITING = "waiting"
    """Blocked until the device was done."""
    FALLBACK = "fallback"
    """Operators without a lowering, on the CPU."""
    LOADER = "loader"
    """In data loaders: reading, making and awaiting batches."""
    PYTHON = "python"
    """Other code of the user's."""

    __hash__ = object.__hash__  # phases are keys of sums in each step; an Enum's own hash is slow Python code


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
    """How a program differs from the nearest one that was known when it was compiled."""

    FIRST = "first"
    """No similar program was known."""
    INPUT_SHAPE = "input shape"
    INPUT_DTYPE = "input dtype"
    INPUT_COUNT = "inputs"
    CONSTANT = "constant"
    """A Python number that does not shape the program: it is an input from now on."""
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
    """The difference between a program and the nearest known one: described in `text`, with the user's line that causes it, and advice.

    nearest: the `graph_hash` of that program; None if none was similar.
    """

    change: Change
    text: Text
    line: Line | None = None
    advice: Text = ""
    nearest: Text | None = None


@dataclass(frozen=True, slots=True)
class Compile:
    """A compilation. line: of the sync or read that asked for it. step: the index of its step, from 0.

    donated: how many inputs give their memory to results; donated_bytes: the bytes of these.
    """

    start_s: Seconds
    ms: Milliseconds
    step: Count
    line: Line | None
    cause: Text | None
    name: Text | None
    graph_hash: Text
    operations: Count
    inputs: Count
    results: Count
    difference: ProgramDifference
    graph: Text = ""
    """The program as text; the largest are left out."""
    donated: Count = 0
    donated_bytes: Count = 0


@dataclass(frozen=True, slots=True)
class Background:
    """Work of the compiler that no step waited for. compiles: programs that were used again, compiled to run fastest.

    by_operation: executions of programs that were not compiled yet, operation by operation (`background_compile`).
    """

    compiles: Count = 0
    ms: Milliseconds = 0.0
    by_operation: Count = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A step, from the end of one step sync to the next. ms: of the thread that steps, by `Phase.value`; device_ms: the device at work."""

    start_s: Seconds
    ms: Names[Milliseconds]
    device_ms: Milliseconds
    compiles: Count = 0


HOST = "host"
"""The track of the thread that runs the steps."""
DEVICE = "device"
"""The phase of spans on a device."""
TOOL = "xla-debug"
"""The phase of this tool's own work in the thread that runs the steps; it occurs only in spans."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time in one of the last steps.

    track: what it occupied, such as `host`, `xla:0` or `copies`. phase: a `Phase.value`, DEVICE or TOOL.
    name: of the program, the operator or the copy. estimated: from samples, which divide the time between events. launched_s: of a program,
    when the host handed it to the device.
    """

    track: Text
    phase: Text
    name: Text
    start_s: Seconds
    ms: Milliseconds
    line: Line | None = None
    estimated: bool = False
    launched_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """All syncs of one kind (`step` or `read`) that a line asked for. steps: the number of steps with such a sync."""

    line: Line | None
    kind: Text
    cause: Text | None
    count: Count
    steps: Count
    blocked_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class Fallback:
    """All calls of an operator that ran on the CPU at a line. nbytes: moved for them."""

    operator: Text
    line: Line | None
    count: Count
    nbytes: Count
    ms: Milliseconds


@dataclass(frozen=True, slots=True)
class Transfer:
    """All copies in one direction (`to_device` or `from_device`) that a line asked for."""

    direction: Text
    line: Line | None
    count: Count
    nbytes: Count
    ms: Milliseconds


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device in bytes: in use now, in use at most so far, and in all (0 if unknown)."""

    device: Text
    in_use: Count
    peak: Count
    limit: Count


@dataclass(frozen=True, slots=True)
class Live:
    """Buffers of one device and shape that one line made. holder: the container that keeps them, as `list 'losses' (40 items)`."""

    line: Line | None
    device: Text
    shape: Text
    count: Count
    nbytes: Count
    holder: Text | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a process's devices. over_time: (seconds since the epoch, bytes in use on all devices), oldest first."""

    devices: Rows[DeviceMemory] = field(default_factory=list)
    over_time: Rows[tuple[Seconds, Count]] = field(default_factory=list)
    live: Rows[Live] = field(default_factory=list)
    """The largest first."""


@dataclass(frozen=True, slots=True)
class HotLine:
    """Host time spent below a line of the user's, estimated from samples. phase: a `Phase.value`."""

    line: Line
    phase: Text
    ms: Milliseconds


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of a source file, as they were when it ran. first: the number of the first line."""

    first: Number
    lines: Rows[Text]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, with the line to change. cost_ms: its cost in the whole run, as far as known. replica: None for all.

    source: that line with the lines around it; None where the file could not be read.
    """

    problem: Problem
    line: Line | None
    text: Text
    advice: Text
    cost_ms: Milliseconds = 0.0
    replica: Number | None = None
    source: Excerpt | None = None


@dataclass(frozen=True, slots=True)
class Replica:
    """One process of the run.

    verdict: its bottleneck. phases_ms, device_ms: totals of the steps' over `measured_steps`, those after the warm-up of a longer run.
    timeline: the newest steps, or evenly chosen ones of a long run, oldest first. spans: what happened in the last steps, by start.
    """

    ordinal: Number
    pid: Number
    host: Text
    hardware: Text
    started_s: Seconds
    seconds: Seconds
    finished: bool
    steps: Count
    verdict: Bottleneck
    phases_ms: Names[Milliseconds]
    device_ms: Milliseconds
    measured_steps: Count = 0
    timeline: Rows[Step] = field(default_factory=list)
    compiles: Rows[Compile] = field(default_factory=list)
    syncs: Rows[Sync] = field(default_factory=list)
    fallbacks: Rows[Fallback] = field(default_factory=list)
    transfers: Rows[Transfer] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    hot_lines: Rows[HotLine] = field(default_factory=list)
    findings: Rows[Finding] = field(default_factory=list)
    spans: Rows[Span] = field(default_factory=list)
    background: Background = field(default_factory=Background)


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a run, for bug reports. settings: variables of these packages that are set."""

    python: Text
    platform: Text
    versions: Names[Text]
    settings: Names[Text]


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run of a script. exit_code: None while it runs."""

    format: Text
    version: Count
    command: Rows[Text]
    started_s: Seconds
    seconds: Seconds
    exit_code: Annotated[int, Ge(-(2**31)), Le(2**31 - 1)] | None
    environment: Environment
    replicas: Rows[Replica] = field(default_factory=list)
    findings: Rows[Finding] = field(default_factory=list)
    """Of all replicas, the costliest first."""
