"""Be told when a tensor's value is there."""

from xla_core.api.callback import on_ready_callback, on_ready_event

__all__ = ["on_ready_callback", "on_ready_event"]
