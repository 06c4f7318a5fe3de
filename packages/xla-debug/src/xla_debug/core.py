"""The core's one door, checked: every module of this package takes `abi` from here."""

from __future__ import annotations

from pathlib import Path

from xla_core import abi as abi

abi.require((1, 9), "xla-debug")
abi.pass_over(Path(__file__).parent)


def nbytes_at(graph: abi.Graph, slot: int) -> int:
    """Bytes on the device of the value at `slot`."""
    aval = abi.aval_at(graph.entries, slot)
    return 0 if aval is None else aval.nbytes
