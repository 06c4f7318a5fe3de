"""Where buffers that are marked for donation are taken over, beside steps."""

from xla_core.legacy.xlac.donation import alias_with_buffer_donor_config

__all__ = ["alias_with_buffer_donor_config"]
