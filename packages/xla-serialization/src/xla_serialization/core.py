"""The core's ABI, with its version checked: every module of this package imports the ABI's modules from here."""

from __future__ import annotations

from pathlib import Path

from xla_core import abi as abi

abi.require((4, 0), "xla-serialization")
abi.events.exclude_frames(Path(__file__).parent)

budget = abi.declarations.budget
files = abi.files
job = abi.job
process = abi.process
sharding = abi.sharding
tensors = abi.tensors
