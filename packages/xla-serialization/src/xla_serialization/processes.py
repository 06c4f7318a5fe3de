"""Processes of one SPMD program save one checkpoint together. A process on its own, or a replica, meets nobody."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from jax.experimental import multihost_utils

from xla_serialization.core import abi
from xla_serialization.errors import CheckpointError


def several() -> bool:
    """Whether this process is one of several that run one program."""
    place = abi.topology()
    return place.spmd and place.process_count > 1


def index() -> int:
    """The number of this process among those that save together."""
    return abi.topology().process_index if several() else 0


def exchange(told: Any) -> list[Any]:
    """What each process tells, by number, as JSON. All must call it equally often."""
    if not several():
        return [told]
    mine = np.frombuffer(json.dumps(told).encode(), np.uint8)
    lengths = np.ravel(multihost_utils.process_allgather(np.array([mine.size], np.int32)))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: mine.size] = mine
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:length].tobytes()) for row, length in zip(np.reshape(rows, (len(lengths), -1)), lengths, strict=True)]


def agree(error: BaseException | None) -> None:
    """Raise on every process if there was an error on one: its own, or CheckpointError with what the others say."""
    said = exchange(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    failed = [f"process {number}: {text}" for number, text in enumerate(said) if text is not None]
    if failed:
        raise CheckpointError(f"nothing was saved, because of {'; '.join(failed)}")
