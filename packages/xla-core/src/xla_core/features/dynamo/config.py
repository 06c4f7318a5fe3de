"""Switches of the `openxla` backend, set as module attributes (`torch_xla._dynamo.config`)."""

from __future__ import annotations

# True: inputs of compiled graphs that are pending are computed without being counted and explained as such.
skip_input_data_check: bool = False
