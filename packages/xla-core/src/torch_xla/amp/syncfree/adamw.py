"""AdamW that skips an update without reading anything back."""

from xla_core.features.amp.syncfree import AdamW

__all__ = ["AdamW"]
