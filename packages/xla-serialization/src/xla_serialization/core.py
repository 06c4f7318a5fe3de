"""The core's one door, checked: every module of this package takes `abi` from here."""

from __future__ import annotations

from pathlib import Path

from xla_core import abi as abi

abi.require((1, 5), "xla-serialization")
abi.pass_over(Path(__file__).parent)
