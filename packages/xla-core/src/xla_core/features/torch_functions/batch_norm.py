"""Batch normalisation, whose schema hides that it updates the running statistics."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.engine.tensor.dispatch import add_handlers

aten = torch.ops.aten


def batch_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`native_batch_norm`: its schema hides that it updates the running statistics, so the functional form is recorded."""
    names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    mean, variance, training = given["running_mean"], given["running_var"], given["training"]
    if (mean is None) != (variance is None):
        raise ValueError("batch_norm: running_mean and running_var are given both or neither, got one of them")
    if mean is None:
        return aten._native_batch_norm_legit.no_stats(
            given["input"], given["weight"], given["bias"], training, given["momentum"], given["eps"]
        )
    if not training:  # saves nothing
        return aten._native_batch_norm_legit_no_training.default(*[given[name] for name in names if name != "training"])
    *results, new_mean, new_variance = aten._native_batch_norm_legit_functional.default(*[given[name] for name in names])
    mean.copy_(new_mean)
    variance.copy_(new_variance)
    return tuple(results)


def register() -> None:
    """Serve torch's operators by it."""
    add_handlers({"native_batch_norm": batch_norm, "_native_batch_norm_legit": batch_norm})
