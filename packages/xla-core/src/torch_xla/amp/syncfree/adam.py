"""Adam that skips an update without reading anything back."""

from xla_core.features.amp.syncfree import Adam

__all__ = ["Adam"]
