"""Marks at the bounds of composites."""

from __future__ import annotations

from xla_core.features.export.markers import (
    BoundaryMetadata,
    BoundaryMetadataSerializer,
    deserialize_composite_attr,
    mark_tensor,
    mark_tensor_meta,
    serialize_composite_attr,
)
from xla_core.features.export.markers import mark_tensor as mark_tensor_xla

__all__ = [
    "BoundaryMetadata",
    "BoundaryMetadataSerializer",
    "deserialize_composite_attr",
    "mark_tensor",
    "mark_tensor_meta",
    "mark_tensor_xla",
    "serialize_composite_attr",
]
