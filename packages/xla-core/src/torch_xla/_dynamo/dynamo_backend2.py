"""Backend `openxla` as a function that `torch.compile` takes."""

from xla_core.features.dynamo.extraction import _dynamo_backend, dynamo_backend

__all__ = ["_dynamo_backend", "dynamo_backend"]
