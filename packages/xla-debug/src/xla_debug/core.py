"""The core's ABI, with its version checked: every module of this package imports the ABI's modules from here."""

from __future__ import annotations

from pathlib import Path

from xla_core import abi as abi

abi.require((4, 0), "xla-debug")
abi.events.exclude_frames(Path(__file__).parent)

budget = abi.declarations.budget
collectives = abi.collectives
differences = abi.differences
events = abi.events
files = abi.files
graph = abi.graph
job = abi.job
metrics = abi.metrics
process = abi.process
sharding = abi.sharding
targets = abi.targets
tensors = abi.tensors
texts = abi.texts
