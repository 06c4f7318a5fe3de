"""Compute recorded programs with torch on the CPU, operation by operation: nothing compiles, and thousands of programs run in a minute.

What such a run shows is how operations are recorded, not how they are lowered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from xla_core.base import config
from xla_core.engine.compile import build
from xla_core.engine.compile.by_torch import by_torch


@contextmanager
def graphs_by_torch() -> Iterator[None]:
    """Programs that are built inside are computed by torch."""
    with config.override(config.REFERENCE, True), mock.patch.object(build, "reference", by_torch):
        yield
