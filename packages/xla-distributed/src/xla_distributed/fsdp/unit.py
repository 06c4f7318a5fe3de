"""The parameters that one wrapper shards: where modules look for them, how they are gathered and their gradients reduced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

import torch_xla.core.xla_model as xm
from xla_core.abi.collectives import Groups, ReplicaGroups
from xla_distributed.fsdp.places import hide, show
from xla_distributed.fsdp.reduction import BucketizedReduceScatter
from xla_distributed.fsdp.sharding import ParameterSharding


@dataclass(frozen=True, slots=True)
class FsdpCollectives:
    """How a wrapper gathers and reduces. listed: the group as users give it, `group` as it was found; compute_dtype: of gathered
    parameters, None: their own; wide: gradients are reduced in float32; together: all that are there at once, in one collective or in as
    few as the compiler makes of them."""

    listed: ReplicaGroups
    group: Groups
    pin_layout: bool
    compute_dtype: torch.dtype | None
    wide: bool
    together: bool

    def gather(self, shards: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The shards of all members, concatenated along dimension 0."""
        if self.together:
            gathered: list[torch.Tensor] = xm.all_gather(list(shards), 0, self.listed, pin_layout=False)
            return gathered
        return [xm.all_gather(shard, 0, self.listed, pin_layout=self.pin_layout) for shard in shards]

    def scatter(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """This member's parts of the means of the tensors over the group, along dimension 0."""
        count = self.group.size
        if self.together and tensors:
            parts: list[torch.Tensor] = xm.reduce_scatter("sum", list(tensors), 1.0 / count, 0, count, self.listed, pin_layout=False)
            return parts
        return [xm.reduce_scatter("sum", tensor, 1.0 / count, 0, count, self.listed, pin_layout=self.pin_layout) for tensor in tensors]


@dataclass(eq=False)
class ShardedParameter:
    """A parameter, which holds a shard, and the places where modules look for it.

    accumulated: the sum of gradients that were not reduced yet, whole.
    """

    parameter: nn.Parameter
    sharding: ParameterSharding
    places: list[tuple[nn.Module, str]] = field(default_factory=list)
    accumulated: torch.Tensor | None = None


def sharding_of(parameter: torch.Tensor) -> ParameterSharding | None:
    """How a parameter is sharded; None if it is whole."""
    sharding: ParameterSharding | None = getattr(parameter, "_xla_sharding", None)
    return sharding


def shard_parameter(parameter: nn.Parameter, sharding: ParameterSharding, position: int, device: torch.device) -> None:
    """Let the parameter, which stays the object that it is, hold its shard, on `device`."""
    with torch.no_grad():
        parameter.data = sharding.shard(parameter.detach(), position).to(device)
    parameter.grad = None
    parameter._xla_sharding = sharding  # type: ignore[attr-defined]
    parameter._is_sharded = True  # type: ignore[attr-defined]


class FsdpUnit:
    """The parameters of one wrapper. synchronizes: whether backward reduces gradients or adds them up whole.

    buckets: reduce gradients together; None: each as soon as it is there, by itself.
    """

    def __init__(self, sharded: list[ShardedParameter], collectives: FsdpCollectives) -> None:
        self.sharded = sharded
        self.collectives = collectives
        self.synchronizes = True
        self.buckets: BucketizedReduceScatter | None = None

    def gathered(self, ties: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Gather the whole parameters, whose gradients go to the shards; only once `ties` are computed, if there are any."""
        shards = [self._to_send(record.parameter) for record in self.sharded]
        if ties and shards:
            with torch.no_grad():
                # Copies of the ties: the barrier orders, and what others hold stays what it is.
                copies = [shard.clone() for shard in shards]
                xm.optimization_barrier_([*copies, *(tie.detach().clone() for tie in ties)])
                shards = copies
        batches = [list(range(len(shards)))] if self.collectives.together and shards else [[index] for index in range(len(shards))]
        whole: list[torch.Tensor] = []
        for batch in batches:
            records = [self.sharded[index] for index in batch]
            parameters = [record.parameter for record in records]
            whole += _Gather.apply(self, records, [shards[index] for index in batch], *parameters)  # type: ignore[no-untyped-call]
        return whole

    def _to_send(self, shard: torch.Tensor) -> torch.Tensor:
        dtype = self.collectives.compute_dtype
        return shard.detach().to(dtype) if dtype is not None and shard.is_floating_point() else shard.detach()

    def show(self, whole: Sequence[torch.Tensor]) -> None:
        """Let the modules find whole parameters."""
        for record, tensor in zip(self.sharded, whole, strict=True):
            for owner, name in record.places:
                show(owner, name, tensor)

    def hide(self) -> None:
        """Let the modules find shards again."""
        for record in self.sharded:
            for owner, name in record.places:
                hide(owner, name)

    def reduce(self, records: Sequence[ShardedParameter], gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """This replica's shards of the mean gradients; None for those that go to `.grad` later."""
        summed = [self._summed(record, gradient) for record, gradient in zip(records, gradients, strict=True)]
        if not self.synchronizes:
            for record, gradient in zip(records, summed, strict=True):
                record.accumulated = gradient
            return [None] * len(records)
        padded = [record.sharding.padded(gradient) for record, gradient in zip(records, summed, strict=True)]
        if self.buckets is not None:
            for record, whole in zip(records, padded, strict=True):
                self.buckets(whole, partial(_add_mean, record.parameter, self.collectives.group.size))
            return [None] * len(records)
        shards = self.collectives.scatter(padded)
        return [shard.to(record.parameter.dtype) for record, shard in zip(records, shards, strict=True)]

    def _summed(self, record: ShardedParameter, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient and what was added up before, whole."""
        if self.collectives.wide:
            gradient = gradient.float()
        if record.accumulated is not None:
            gradient, record.accumulated = gradient + record.accumulated, None
        return gradient

    def flush(self) -> None:
        """Reduce the gradients that wait in buckets."""
        if self.buckets is not None:
            self.buckets.flush()

    def reduce_accumulated(self) -> None:
        """Reduce the sums of gradients for which the last backward had none to add."""
        for record in self.sharded if self.synchronizes else ():
            if record.accumulated is not None:
                gradient, record.accumulated = record.accumulated, None
                (shard,) = self.reduce([record], [gradient])
                if shard is not None:
                    _add_gradient(record.parameter, shard)


def _add_mean(parameter: nn.Parameter, count: int, shard: torch.Tensor) -> None:
    """Add this replica's shard of a sum over so many replicas, as their mean."""
    _add_gradient(parameter, shard / count)


def _add_gradient(parameter: nn.Parameter, shard: torch.Tensor) -> None:
    shard = shard.to(parameter.dtype)
    parameter.grad = shard if parameter.grad is None else parameter.grad + shard


class _Gather(torch.autograd.Function):
    """Gather shards to whole parameters, and reduce their gradients to gradients of the shards."""

    @staticmethod
    def forward(
        ctx: Any, unit: FsdpUnit, records: list[ShardedParameter], values: list[torch.Tensor], *shards: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """values: what the shards hold, as it travels."""
        ctx.set_materialize_grads(False)
        ctx.unit, ctx.records = unit, records
        gathered = unit.collectives.gather(values)
        whole = tuple(record.sharding.unsharded(padded) for record, padded in zip(records, gathered, strict=True))
        ctx.mark_non_differentiable(*(tensor for tensor, shard in zip(whole, shards, strict=True) if not shard.requires_grad))
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        """This replica's shards of the gradients' mean over the group."""
        given = zip(ctx.records, gradients, strict=True)
        places = [place for place, (record, gradient) in enumerate(given) if gradient is not None and record.parameter.requires_grad]
        shards: list[torch.Tensor | None] = [None] * len(ctx.records)
        with torch.no_grad():
            reduced = ctx.unit.reduce([ctx.records[place] for place in places], [gradients[place] for place in places])
        for place, shard in zip(places, reduced, strict=True):
            shards[place] = shard
        return None, None, None, *shards


def owned(module: nn.Module, wrapper: type[nn.Module], path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The paths and modules in `module`, itself included, without wrappers and what is in them; a module is given once for each path."""
    yield path, module
    for name, child in module._modules.items():
        if child is not None and not isinstance(child, wrapper):
            yield from owned(child, wrapper, f"{path}.{name}" if path else name)
