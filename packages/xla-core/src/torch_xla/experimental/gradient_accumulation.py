"""Gradients over several small batches in one loop on the device."""

from xla_core.features.control_flow.accumulation import gradient_accumulation

__all__ = ["gradient_accumulation"]
