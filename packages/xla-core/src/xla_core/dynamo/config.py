"""Switches of the `openxla` backend, set as module attributes (`torch_xla._dynamo.config`)."""

from __future__ import annotations

# True: no call looks whether inputs of its graph are pending, to count and to explain that they are computed apart. They are all the same.
skip_input_data_check: bool = False
