"""Marks at the bounds of composites."""

from xla_core.features.export.markers import BoundaryMetadata as BoundaryMetadata
from xla_core.features.export.markers import BoundaryMetadataSerializer as BoundaryMetadataSerializer
from xla_core.features.export.markers import deserialize_composite_attr as deserialize_composite_attr
from xla_core.features.export.markers import mark_tensor as mark_tensor
from xla_core.features.export.markers import mark_tensor_meta as mark_tensor_meta
from xla_core.features.export.markers import serialize_composite_attr as serialize_composite_attr

mark_tensor_xla = mark_tensor

__all__ = [name for name in dir() if not name.startswith("__")]
