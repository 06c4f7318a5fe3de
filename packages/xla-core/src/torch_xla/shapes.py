"""Few shapes for data of many lengths: sizes chosen from the lengths, batches padded to them."""

from xla_core.features.shapes.buckets import Bucket as Bucket
from xla_core.features.shapes.buckets import Buckets as Buckets
from xla_core.features.shapes.buckets import Waste as Waste
from xla_core.features.shapes.buckets import choose_buckets as choose_buckets
from xla_core.features.shapes.padding import Padding as Padding

__all__ = ["Bucket", "Buckets", "Padding", "Waste", "choose_buckets"]
