"""SGD that skips an update without reading anything back."""

from xla_core.features.amp.syncfree import SGD

__all__ = ["SGD"]
