"""Read XLA's profiles (`*.xplane.pb`): the kernels that ran on the devices, when, and the operator that each comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.profiler import ProfileData

from xla_debug.profiling.hlo_origins import Origin, origins
from xla_debug.profiling.wire_format import Message
from xla_debug.regular_files import read_bytes

# Fields of XSpace, XPlane, entries of its maps, XEventMetadata, XStat, XStatMetadata.
_PLANES = 1
_PLANE_NAME, _EVENT_METADATA, _STAT_METADATA = 2, 4, 5
_VALUE = 2
_METADATA_ID, _METADATA_NAME, _METADATA_STATS = 1, 2, 5
_STAT_ID, _UNSIGNED, _SIGNED, _BYTES = 1, 3, 4, 6
_PROGRAMS = "/host:metadata"
_SESSION = "Task Environment"
_DEVICE = "/device:"
_OPERATIONS = "XLA Ops"  # the line of a TPU's plane with operations; its other lines show the same time by step and by program
_DONE = "end: "
_TITLE = re.compile(r"(.*)\((\d+)\)")


class ProfileFileError(ValueError):
    """A file or folder holds no profile that can be read."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that ran on a device. start_ns: since the epoch. own_ns: its duration without kernels inside it, which loops have.

    name: of the instruction or kernel. program: the name of its HLO module, `jit_train_step`. line: the thread or stream that ran it.
    """

    name: str
    program: str
    origin: Origin
    device: str
    line: str
    start_ns: float
    duration_ns: float
    own_ns: float


def profile_files(path: str | os.PathLike[str]) -> list[Path]:
    """List the files of a profile: the file given, or those of the newest profile below a folder, one per host. Raises ProfileFileError."""
    target = Path(path)
    if target.is_file():
        return [target]
    runs: dict[Path, list[Path]] = {}
    for file in target.glob("**/*.xplane.pb"):
        runs.setdefault(file.parent, []).append(file)
    if not runs:
        issue = "holds no profile" if target.is_dir() else "does not exist"
        raise ProfileFileError(f"{path} {issue}: give a folder that torch_xla.debug.profiler.start_trace wrote to, or its .xplane.pb file")
    return sorted(runs[max(runs, key=lambda folder: max(file.stat().st_mtime_ns for file in runs[folder]))])


def kernels(path: str | os.PathLike[str]) -> Iterator[Kernel]:
    """Yield the kernels that ran on the devices during a profile. path: as for `profile_files`. Raises ProfileFileError."""
    for file in profile_files(path):
        try:
            data = read_bytes(file)
            profile = ProfileData.from_serialized_xspace(data)
            metadata = [Message(plane) for plane in Message(data).parts(_PLANES)]
            yield from _Profile(profile, {plane.text(_PLANE_NAME): plane for plane in metadata}).kernels()
        except (OSError, ValueError, RuntimeError) as error:
            raise ProfileFileError(f"{file}: no profile that can be read ({error}); give a .xplane.pb file, whole") from error


@dataclass(frozen=True, slots=True)
class _Event:
    """A kernel's event in its plane. number: the id of its program. done_ns: when its work was done, which may be after the event's end."""

    name: str
    program: str
    number: int
    start_ns: float
    duration_ns: float
    done_ns: float


@dataclass(frozen=True, slots=True)
class _ProfiledProgram:
    """A program in a profile. proto: the encoded HLO, empty where the profile does not have it."""

    name: str
    number: int
    proto: bytes


class _Profile:
    """One file of a profile. metadata: its planes, decoded here, since JAX's reader leaves out their metadata."""

    def __init__(self, profile: Any, metadata: Mapping[str, Message]) -> None:
        self._planes = list(profile.planes)
        self._metadata = metadata
        self._programs = {program.number: program for program in _programs(metadata[_PROGRAMS])} if _PROGRAMS in metadata else {}
        self._origins: dict[int, dict[str, Origin]] = {}

    def kernels(self) -> Iterator[Kernel]:
        """Yield all kernels, plane by plane, line by line."""
        session = next((plane for plane in self._planes if plane.name == _SESSION), None)
        epoch_ns = 0.0 if session is None else float(dict(session.stats).get("profile_start_time", 0))
        for plane in self._planes:
            lines = list(plane.lines)
            lines = [line for line in lines if line.name == _OPERATIONS] or lines
            described = _described(self._metadata[plane.name]) if plane.name.startswith(_DEVICE) else None
            events = [[event for event in line.events if not event.name.startswith("$")] for line in lines]  # `$` begins Python frames
            done = {dict(event.stats).get("_c"): event.start_ns for group in events for event in group if event.name.startswith(_DONE)}
            for line, group in zip(lines, events, strict=True):
                ordered = sorted(_events(group, described, done), key=lambda event: (event.start_ns, -event.duration_ns))
                for event, own_ns in _own_times(ordered):
                    program = self._program(event)
                    yield Kernel(
                        event.name,
                        program.name,
                        self._origins_in(program).get(event.name) or Origin(event.name),
                        plane.name.removeprefix(_DEVICE),
                        line.name,
                        epoch_ns + event.start_ns,
                        max(event.duration_ns, event.done_ns - event.start_ns),
                        own_ns,
                    )

    def _program(self, event: _Event) -> _ProfiledProgram:
        """Find the program of an event by its number, or else by its name."""
        named = (program for program in self._programs.values() if program.name == event.program)
        return self._programs.get(event.number) or next(named, _ProfiledProgram(event.program, event.number, b""))

    def _origins_in(self, program: _ProfiledProgram) -> dict[str, Origin]:
        cached = self._origins.get(program.number)
        if cached is None:
            cached = self._origins[program.number] = origins(program.proto)
        return cached


def _events(events: Iterable[Any], described: Mapping[str, int] | None, done: Mapping[Any, float]) -> Iterator[_Event]:
    """Yield the events of kernels. described: for a device's plane the program ids of instructions, by the names of events; else None.

    done: when the work of an event was done, by the id that connects the two.
    """
    for event in events:
        stats = dict(event.stats)
        name = stats.get("hlo_op")
        program, program_id = stats.get("hlo_module", ""), stats.get("program_id", 0)
        if name is None and described is not None:
            name = event.name.partition(" = ")[0].removeprefix("%")  # TPUs give the instruction as text
            program_id = described.get(event.name, program_id)
        if name is not None:
            end_ns = event.start_ns + event.duration_ns
            yield _Event(str(name), str(program), int(program_id), event.start_ns, event.duration_ns, done.get(stats.get("_p", 0), end_ns))


def _own_times(events: Iterable[_Event]) -> Iterator[tuple[_Event, float]]:
    """Yield each event of a thread with its own time, without the events inside it. events: in order of start."""
    running: list[tuple[_Event, float]] = []

    def finished() -> tuple[_Event, float]:
        event, inside_ns = running.pop()
        if running:
            outer, ns = running[-1]
            running[-1] = outer, ns + event.duration_ns
        late_ns = max(event.done_ns - event.start_ns - event.duration_ns, 0.0)  # other threads finished the work
        return event, max(event.duration_ns - inside_ns, 0.0) + late_ns

    for event in events:
        while running and running[-1][0].start_ns + running[-1][0].duration_ns <= event.start_ns:
            yield finished()
        running.append((event, 0.0))
    while running:
        yield finished()


def _described(plane: Message) -> dict[str, int]:
    """Read the program ids that a plane's metadata gives for events, by the names of the events."""
    names = {}
    for entry in plane.parts(_STAT_METADATA):
        stat = Message(Message(entry).part(_VALUE))
        names[stat.number(_METADATA_ID)] = stat.text(_METADATA_NAME)
    program_ids: dict[str, int] = {}
    for entry in plane.parts(_EVENT_METADATA):
        metadata = Message(Message(entry).part(_VALUE))
        for part in metadata.parts(_METADATA_STATS):
            stat = Message(part)
            if names.get(stat.number(_STAT_ID)) == "program_id":
                program_ids[metadata.text(_METADATA_NAME)] = stat.number(_UNSIGNED) or stat.number(_SIGNED)
    return program_ids


def _programs(plane: Message) -> Iterator[_ProfiledProgram]:
    """Yield the programs of a profile."""
    for entry in plane.parts(_EVENT_METADATA):
        metadata = Message(Message(entry).part(_VALUE))
        title = _TITLE.fullmatch(metadata.text(_METADATA_NAME))
        proto = next(filter(None, (Message(stat).part(_BYTES) for stat in metadata.parts(_METADATA_STATS))), None)
        if title is not None and proto is not None:
            yield _ProfiledProgram(title[1], int(title[2]), proto)
