"""`torch_xla.seal`: after the warm-up nothing is compiled any more, or an error says what would have been."""

from __future__ import annotations

import atexit
import sys
from typing import Literal, TypeAlias

from xla_core.api.step import sync
from xla_core.base import config
from xla_core.base.budgets import budget
from xla_core.base.config import SealMode
from xla_core.engine.compile.cache import programs
from xla_core.engine.compile.seal import Seal, lift, seal_process
from xla_core.engine.runtime.source_location import in_region

Mode: TypeAlias = Literal["error", "warn"]


class Sealed:
    """A seal, which is lifted by `lift`, or at the end of a `with` block."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    @property
    def leaks(self) -> tuple[str, ...]:
        """What happened that the seal forbids, in words, once each: the line, what differs, and what to do."""
        return tuple(self._seal.leaks)

    def lift(self) -> None:
        """End the seal; an earlier one that is still there counts again. Does nothing the second time."""
        lift(self._seal)

    def __enter__(self) -> Sealed:
        return self

    def __exit__(self, *error: object) -> None:
        self.lift()


@budget(compiles=None)
def seal(mode: Mode | None = None, *, reads: Mode | None = None, transfers: Mode | None = None) -> Sealed:
    """From now on a program that was not compiled before is an error, in all threads: `SealedError` names the line, the nearest known
    program and what differs from it, and a size that is compiled to which the data can be padded.

    mode: "warn" compiles such programs, warns of each once and lists them when the process ends; None: as `XLA_SEAL` says, else "error".
    reads, transfers: what a value read, and an upload, are; None: allowed. What is pending runs first. A program that is only on disk is
    not compiled. What raised stays pending as long as its tensors are held.

    Raises RuntimeError before anything was compiled, and inside of a function or block of `torch_xla.compile`.
    """
    if in_region():
        raise RuntimeError("torch_xla.seal() inside of torch_xla.compile: the program of that region is not compiled yet; seal behind it")
    chosen = config.SEAL.get() if mode is None else _mode("mode", mode)
    of_reads, of_transfers = (None if each is None else _mode(name, each) for name, each in (("reads", reads), ("transfers", transfers)))
    sync()
    if not programs().compiled(1):
        raise RuntimeError("torch_xla.seal() before anything was compiled: run the warm-up first, with each shape that will come")
    made = Seal(chosen, of_reads, of_transfers)
    seal_process(made)
    if SealMode.WARN in (chosen, of_reads, of_transfers):
        atexit.register(_list_leaks, made)
    return Sealed(made)


def _mode(name: str, mode: str) -> SealMode:
    try:
        return SealMode(mode)
    except ValueError:
        raise ValueError(f'{name} is {mode!r}, must be "error" or "warn"') from None


def _list_leaks(made: Seal) -> None:
    if made.leaks:
        lines = [f"  {number}. {text}" for number, text in enumerate(made.leaks, 1)]
        print(f"torch_xla.seal(): {len(lines)} leaks:", *lines, sep="\n", file=sys.stderr)
