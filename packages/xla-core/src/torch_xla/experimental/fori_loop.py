"""Loops whose end is decided on the device."""

from xla_core.features.control_flow.loops import fori_loop, while_loop

__all__ = ["fori_loop", "while_loop"]
