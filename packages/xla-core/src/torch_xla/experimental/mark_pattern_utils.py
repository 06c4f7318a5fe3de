"""Composites: operations that are exported with their decomposition."""

from xla_core.features.export.markers import StableHLOCompositeBuilder

__all__ = ["StableHLOCompositeBuilder"]
