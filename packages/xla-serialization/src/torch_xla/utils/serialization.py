"""Save and load one tensor at a time (api.md Z02, Z03); usual alias `xser`."""

from xla_serialization.xser import TensorReference, load, save

__all__ = ["TensorReference", "load", "save"]
