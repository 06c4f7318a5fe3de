"""Calls of targets that XLA knows by name."""

from __future__ import annotations

from xla_core.features.export.custom_call import (
    extract_custom_call_outputs_shape_dtype,
    place_to_device,
    place_to_host,
    stablehlo_custom_call,
    to_device_backward,
    to_host_backward,
)

__all__ = [
    "extract_custom_call_outputs_shape_dtype",
    "place_to_device",
    "place_to_host",
    "stablehlo_custom_call",
    "to_device_backward",
    "to_host_backward",
]
