"""Lists of tensors in buckets of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from xla_core.api.collectives import all_gather, all_reduce, reduce_scatter
from xla_core.api.replica_groups import ReplicaGroups
from xla_core.api.user_modules import xm
from xla_core.base.budgets import budget

_MIB = 1 << 20


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def buckets(sizes: list[int], cap: int) -> list[list[int]]:
    """Indices of tensors of these sizes, in buckets of at most `cap` bytes, but for the rule below.

    A tensor larger than a bucket joins a bucket that is less than half full if both stay below two caps, and closes it.
    """
    closed: list[list[int]] = []
    opened: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        if size > cap and total < cap / 2 and total + size <= 2 * cap:
            closed.append([*opened, index])
            opened, total = [], 0
            continue
        if opened and total + size > cap:
            closed.append(opened)
            opened, total = [], 0
        opened.append(index)
        total += size
    return [*closed, opened] if opened else closed


def _check_list(name: str, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(item, torch.Tensor) for item in value):
        raise TypeError(f"CoalescingBuckets: {name} must be a list of tensors, got {type(value).__name__}")


class CoalescingBuckets:
    """Applies `func` to a list of tensors bucket by bucket.

    A bucket of one tensor is passed as `func(tensor, output)`, a larger one as `func(list, outputs)`; outputs are None if there are
    none. Raises TypeError for what is no list of tensors, ValueError if there are more or fewer outputs than inputs.
    """

    def __init__(
        self,
        func: Callable[[Any, Any], Any],
        input_list: list[torch.Tensor],
        output_list: list[torch.Tensor] | None = None,
        bucket_cap_mb: int = 160,
    ) -> None:
        _check_list("input_list", input_list)
        if output_list is not None:
            _check_list("output_list", output_list)
            if len(output_list) != len(input_list):
                raise ValueError(f"CoalescingBuckets: {len(output_list)} outputs for {len(input_list)} inputs")
        self._func = func
        self._inputs = input_list
        self._outputs = output_list
        self._cap = bucket_cap_mb * _MIB

    def __call__(self) -> list[Any]:
        """Results in the order of the inputs."""
        results: list[Any] = []
        for bucket in buckets([_size(tensor) for tensor in self._inputs], self._cap):
            inputs = [self._inputs[index] for index in bucket]
            outputs = None if self._outputs is None else [self._outputs[index] for index in bucket]
            if len(bucket) == 1:
                results.append(self._func(inputs[0], None if outputs is None else outputs[0]))
            else:
                results.extend(self._func(inputs, outputs))
        return results


@budget(compiles=None)
def all_gather_bucketized(
    input_list: list[torch.Tensor],
    dim: int = 0,
    groups: ReplicaGroups = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
    """Concatenate the tensors of a list as `all_gather` does, in buckets of up to `bucket_cap_mb` MiB: one program holds less at a time.

    Raises RuntimeError for pin_layout; else as `all_gather`.
    """
    if pin_layout:
        raise RuntimeError("all_gather_bucketized needs pin_layout=False")

    def gather(tensors: Any, outputs: Any) -> Any:
        return xm(all_gather)(tensors, dim=dim, groups=groups, output=outputs, pin_layout=False)

    return CoalescingBuckets(gather, input_list, output, bucket_cap_mb)()


@budget(compiles=None)
def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: ReplicaGroups = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
    """Reduce and shard the tensors of a list as `reduce_scatter` does, in buckets of up to `bucket_cap_mb` MiB.

    Raises RuntimeError for pin_layout; else as `reduce_scatter`.
    """
    if pin_layout:
        raise RuntimeError("reduce_scatter_bucketized needs pin_layout=False")

    def scatter(tensors: Any, outputs: Any) -> Any:
        return xm(reduce_scatter)(reduce_type, tensors, scale, scatter_dim, shard_count, groups, outputs, pin_layout=False)

    return CoalescingBuckets(scatter, input_list, output, bucket_cap_mb)()


def gradient_buckets(gradients: Iterable[torch.Tensor], cap: int) -> Iterator[list[torch.Tensor]]:
    """Runs of gradients of at most `cap` bytes; one that is larger goes alone."""
    opened: list[torch.Tensor] = []
    total = 0
    for gradient in gradients:
        size = _size(gradient)
        if opened and total + size > cap:
            yield opened
            opened, total = [], 0
        opened.append(gradient)
        total += size
    if opened:
        yield opened


@budget(compiles=None)
def all_reduce_bucketized_gradients(
    gradients: Iterable[torch.Tensor], scale: float, groups: ReplicaGroups, pin_layout: bool, bucket_cap_mb: int = 0
) -> None:
    """Sum gradients over replicas in place, in buckets of up to `bucket_cap_mb` MiB, 0: one by one. scale, groups: as of `all_reduce`."""
    for bucket in gradient_buckets(gradients, bucket_cap_mb * _MIB):
        xm(all_reduce)("sum", bucket, scale=scale, groups=groups, pin_layout=pin_layout)
