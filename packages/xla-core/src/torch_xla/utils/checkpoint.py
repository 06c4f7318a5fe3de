"""Trade memory for a second forward pass."""

from xla_core.legacy.checkpoint import CheckpointFunction, CheckpointStatus, checkpoint, chkpt_status, get_device_states, set_device_states

__all__ = ["CheckpointFunction", "CheckpointStatus", "checkpoint", "chkpt_status", "get_device_states", "set_device_states"]
