"""Save and load one tensor at a time; usual alias `xser`."""

from xla_serialization.torch_formats.xser import TensorReference, load, save

__all__ = ["TensorReference", "load", "save"]
