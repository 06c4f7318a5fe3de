"""Switches of the `openxla` backend, set as module attributes (`torch_xla._dynamo.config`)."""

from __future__ import annotations

# True: the inputs of compiled graphs are taken to be on the device already; a pending one is an error instead of being computed.
skip_input_data_check: bool = False
