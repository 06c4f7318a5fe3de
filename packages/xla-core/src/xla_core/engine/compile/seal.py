"""What may not happen any more once a process is sealed: new programs, and value reads and uploads if that is wanted."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field

from xla_core.base.config import SealMode
from xla_core.base.errors import SealedError
from xla_core.base.metrics import Direction
from xla_core.engine.compile.cache import Program, programs
from xla_core.engine.compile.nearest import Change, KnownProgram, explained, larger_size
from xla_core.engine.graph.graph import Graph, Inputs

_COMPARED = 64
"""With how many of the programs that were used last a new one is compared."""


@dataclass(slots=True, eq=False)
class Seal:
    """A seal. programs, reads, transfers: what a new program, a value read and an upload are; None: nothing. leaks: in words, once each."""

    programs: SealMode
    reads: SealMode | None
    transfers: SealMode | None
    leaks: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def leak(self, mode: SealMode, text: str) -> None:
        """Note a leak: raises SealedError, or warns."""
        with self._lock:
            is_new = text not in self.leaks
            if is_new:
                self.leaks.append(text)
        if mode is SealMode.ERROR:
            raise SealedError(text)
        if is_new:
            warnings.warn(text, RuntimeWarning, stacklevel=3)


_present: list[Seal] = []  # of the whole process, the last one counts


def seal_process(seal: Seal) -> None:
    """Seal the process, until `lift`."""
    _present.append(seal)


def lift(seal: Seal) -> None:
    """Lift a seal; an earlier one counts again."""
    if seal in _present:
        _present.remove(seal)


def check_program(program: Program, graph: Graph, inputs: Inputs, line: str | None) -> None:
    """Raise SealedError, or warn, if the process is sealed: a program is about to be compiled. line: that asked for it."""
    if not _present:
        return
    seal = _present[-1]
    known = {each.name: each for each in map(_known, programs().compiled(_COMPARED))}
    new = KnownProgram.of(graph, (*inputs.fixed_floats, *inputs.fixed_ints), line, "")
    difference = explained(new, list(known.values()))
    recorded = f" (recorded at {difference.line})" if difference.line not in (None, line) else ""
    text = f"the process is sealed, and {_asking(line)} needs a program that is not compiled: {difference.text}{recorded}"
    larger = larger_size(new, known.values()) if difference.change is Change.INPUT_SHAPE else None
    if larger is not None:
        advice = f"pad dimension {larger.dim} of input {larger.index} from {larger.size} to {larger.padded}, which is compiled"
    elif difference.change is Change.CONSTANT:
        advice = "let the number have two values before the seal, so that it is an input of the program"
    elif difference.change is Change.FIRST:
        advice = "run this part before the seal, too"
    else:
        advice = difference.advice
    seal.leak(seal.programs, f"{text}. {advice[:1].upper()}{advice[1:]}")


def check_transfer(direction: Direction, nbytes: int, line: str | None) -> None:
    """Raise SealedError, or warn, if the process is sealed against moves of data in this direction. line: of the user's that asked for it.

    What a loader uploads in its own threads, ahead of the steps, is no leak.
    """
    if not _present:
        return
    seal = _present[-1]
    uploads = direction is Direction.TO_DEVICE
    mode = seal.transfers if uploads else seal.reads
    if mode is None or (uploads and line is None):
        return
    what = f"uploads {nbytes:,} bytes" if uploads else f"reads {nbytes:,} bytes from the device"
    remedy = "before the seal, or through a loader" if uploads else "behind the sealed part"
    seal.leak(mode, f"the process is sealed, and {_asking(line)} {what}: do that {remedy}")


def _asking(line: str | None) -> str:
    """Who asks: a line of the user's, or a thread in which there is none."""
    return line or f"the thread {threading.current_thread().name!r}"


def forbids_moves() -> bool:
    """Whether a seal forbids value reads or uploads."""
    return bool(_present) and (_present[-1].reads is not None or _present[-1].transfers is not None)


def _known(pair: tuple[Graph, Program]) -> KnownProgram:
    graph, program = pair
    return KnownProgram.of(graph, (*program.floats, *program.ints), None, program.graph_hash)
