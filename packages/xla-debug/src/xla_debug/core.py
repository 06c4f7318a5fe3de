"""The core's ABI, its version checked: every module of this package takes the ABI's modules from here."""

from __future__ import annotations

from pathlib import Path

from xla_core import abi as abi

abi.require((2, 8), "xla-debug")
abi.events.exclude_frames(Path(__file__).parent)

collectives = abi.collectives
events = abi.events
files = abi.files
graph = abi.graph
metrics = abi.metrics
process = abi.process
tensors = abi.tensors
