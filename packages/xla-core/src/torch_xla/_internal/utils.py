"""Real device names."""

from xla_core.api.devices import parse_real_name as parse_xla_device

__all__ = ["parse_xla_device"]
