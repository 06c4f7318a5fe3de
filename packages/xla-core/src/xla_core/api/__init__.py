"""Devices, steps and the runtime, as torch_xla.core.xla_model and torch_xla.runtime offer them; other packages' parts of both."""
