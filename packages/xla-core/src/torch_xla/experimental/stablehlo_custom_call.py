"""Calls of targets that XLA knows by name."""

from xla_core.features.export.custom_call import extract_custom_call_outputs_shape_dtype as extract_custom_call_outputs_shape_dtype
from xla_core.features.export.custom_call import place_to_device as place_to_device
from xla_core.features.export.custom_call import place_to_host as place_to_host
from xla_core.features.export.custom_call import stablehlo_custom_call as stablehlo_custom_call
from xla_core.features.export.custom_call import to_device_backward as to_device_backward
from xla_core.features.export.custom_call import to_host_backward as to_host_backward

__all__ = [name for name in dir() if not name.startswith("__")]
