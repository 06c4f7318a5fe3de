"""Equal layers, of which one is compiled."""

from xla_core.features.control_flow.layers import scan_layers

__all__ = ["scan_layers"]
