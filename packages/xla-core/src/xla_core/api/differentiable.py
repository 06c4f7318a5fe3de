"""Differentiable collectives (alias `xf`)."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.api import collectives
from xla_core.api.collectives import is_alone
from xla_core.api.job import global_ordinal, world_size
from xla_core.api.reductions import ReduceOp, parse_reduce_op
from xla_core.api.replica_groups import ReplicaGroups
from xla_core.api.user_modules import xm
from xla_core.base.budgets import budget

# Reductions whose gradient depends on input and result.
_WITH_GRADIENT_OF_RESULT = (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.MUL)


class AllReduce(torch.autograd.Function):
    """`all_reduce` with a gradient.

    sum: the incoming gradient, scaled; min, max: the same where the input is the result; mul: times result / input, 0 where that is 0.
    """

    @staticmethod
    def forward(ctx: Any, reduce_type: str, value: torch.Tensor, scale: float, groups: ReplicaGroups) -> torch.Tensor:
        """As `all_reduce`."""
        result: torch.Tensor = xm(collectives.all_reduce)(reduce_type, value, scale=scale, groups=groups)
        ctx.op, ctx.scale = parse_reduce_op(reduce_type), scale
        if ctx.op in _WITH_GRADIENT_OF_RESULT:
            ctx.save_for_backward(value, result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor, None, None]:
        """As the class says. Raises RuntimeError for other reductions."""
        (gradient,) = gradients
        if ctx.op is ReduceOp.SUM:
            return None, gradient * ctx.scale, None, None
        if ctx.op not in _WITH_GRADIENT_OF_RESULT:
            raise RuntimeError(f"all_reduce {ctx.op.value!r} has no gradient: use sum, mul, min or max")
        value, result = ctx.saved_tensors
        if ctx.op is ReduceOp.MUL:
            zero = torch.zeros_like(gradient)
            return None, torch.where(value == 0, zero, gradient * result / value), None, None
        return None, torch.where(value * ctx.scale == result, gradient * ctx.scale, torch.zeros_like(gradient)), None, None


class AllGather(torch.autograd.Function):
    """`all_gather` with the gradient of PyTorch/XLA: this replica's own slice of the gradient that it has of the whole."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int) -> torch.Tensor:
        """As `all_gather`."""
        ctx.dim, ctx.size = dim, value.shape[dim]
        result: torch.Tensor = xm(collectives.all_gather)(value, dim=dim)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """As the class says."""
        return gradients[0].narrow(ctx.dim, global_ordinal() * ctx.size, ctx.size), None


class AllGatherSummed(torch.autograd.Function):
    """`all_gather_summed` with its gradient: the sum over all replicas of the gradients of this one's part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int) -> torch.Tensor:
        """As `all_gather`."""
        ctx.dim = dim
        result: torch.Tensor = xm(collectives.all_gather)(value, dim=dim)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """As the class says."""
        count = world_size()
        return xm(collectives.reduce_scatter)("sum", gradients[0], 1.0, ctx.dim, count), None


class AllReduceSumLayer(torch.autograd.Function):
    """The sum over replicas, of values in forward and of gradients in backward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        """The sum of the values."""
        result: torch.Tensor = xm(collectives.all_reduce)("sum", value)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """The sum of the gradients."""
        result: torch.Tensor = xm(collectives.all_reduce)("sum", gradients[0])
        return result


@budget(compiles=None)
def all_reduce(reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: ReplicaGroups = None) -> torch.Tensor:
    """The reduction of a tensor over replicas, with the gradient of `AllReduce`."""
    if is_alone(between_devices=True):
        alone: torch.Tensor = xm(collectives.all_reduce)(reduce_type, value, scale=scale, groups=groups)
        return alone
    result: torch.Tensor = AllReduce.apply(reduce_type, value, scale, groups)  # type: ignore[no-untyped-call]
    return result


@budget(compiles=None)
def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The tensors of all replicas joined along `dim`, with the gradient of `AllGather`: this replica's slice of its own.

    That is the gradient of a loss of which each replica computes the same from the whole. Where the losses of replicas differ and their
    sum is meant, what the others have of this replica's part is missing: `all_gather_summed` has it.
    """
    if is_alone(between_devices=True):
        return _copy(value, dim)
    result: torch.Tensor = AllGather.apply(value, dim)  # type: ignore[no-untyped-call]
    return result


@budget(compiles=None)
def all_gather_summed(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """As `all_gather`, with the gradient of the sum of all replicas' losses: a reduce-scatter of the gradients."""
    if is_alone():
        return _copy(value, dim)
    result: torch.Tensor = AllGatherSummed.apply(value, dim)  # type: ignore[no-untyped-call]
    return result


def _copy(value: torch.Tensor, dim: int) -> torch.Tensor:
    """What one replica gathers, by operations that torch's transforms know. Raises what torch raises for a dimension that is not there."""
    value.size(dim)
    return value.clone()


@budget(compiles=None)
def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """`w_full @ x_full`, where each replica holds rows of `w_full` and columns of `x_full`; each gets all rows for its own columns.

    w: (n / N, k), x: (k, m / N), result: (n, m / N). split: parts in which the columns of `w` are multiplied.
    Raises ValueError if the shapes do not fit or `split` does not divide k.
    """
    if w.dim() != 2 or x.dim() != 2 or w.shape[1] != x.shape[0]:
        raise ValueError(f"distributed_mm takes matrices (n, k) and (k, m), got {tuple(w.shape)} and {tuple(x.shape)}")
    if split < 1 or w.shape[1] % split:
        raise ValueError(f"distributed_mm: split is {split}, which does not divide the {w.shape[1]} columns of w")
    width = w.shape[1] // split
    parts = [
        all_gather_summed(w[:, index * width : (index + 1) * width]) @ x[index * width : (index + 1) * width] for index in range(split)
    ]
    return torch.stack(parts).sum(0) if split > 1 else parts[0]


class SyncBatchNorm(torch.nn.Module):
    """Batch normalization over the batches of all replicas, as one replica with all of them would compute it.

    Input (batch, channels, …). num_features: channels. Statistics as `torch.nn.BatchNorm2d` keeps them.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The normalized batch, same shape. Raises ValueError unless its dimension 1 is `num_features`."""
        if batch.dim() < 2 or batch.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm takes (batch, {self.num_features}, …), got {tuple(batch.shape)}")
        shape = [1, self.num_features, *[1] * (batch.dim() - 2)]
        if not self.training:
            mean, variance = self.running_mean, self.running_var
        else:
            mean, variance = self._statistics(batch, [dim for dim in range(batch.dim()) if dim != 1], shape)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (batch - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)

    def _statistics(self, batch: torch.Tensor, dims: list[int], shape: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        count = batch.numel() // self.num_features * world_size()
        mean = _summed(batch.sum(dims)) / count
        variance = _summed(((batch - mean.view(shape)) ** 2).sum(dims)) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / max(1, count - 1)), self.momentum)
        return mean, variance


def _summed(value: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = AllReduceSumLayer.apply(value)  # type: ignore[no-untyped-call]
    return result
