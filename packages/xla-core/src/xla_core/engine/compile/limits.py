"""What the compiler of a platform cannot take, and would end the process at: refused before it sees the program."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xla_core.base.errors import LoweringError
from xla_core.engine.graph.graph import Graph

# By platform: dtypes, and what to do instead.
DTYPES: Mapping[str, tuple[np.dtype, str]] = {
    "tpu": (np.dtype(np.complex128), "TPUs have no complex numbers of 128 bits: use torch.complex64"),
}


def check(graph: Graph, platform: str) -> None:
    """Raise LoweringError, with the line of the operation, for a program that the compiler of a platform of `DTYPES` cannot take."""
    dtype, advice = DTYPES[platform]
    for slot, aval in enumerate(graph.parts.avals):
        if aval is not None and aval.physical == dtype:
            line = graph.line(slot)
            error = LoweringError(f"{aval}{f' recorded at {line}' if line else ''} is not possible on the device: {advice}")
            error.place = graph, slot
            raise error
