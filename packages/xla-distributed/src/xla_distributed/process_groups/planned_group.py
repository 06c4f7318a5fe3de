"""The process group of a process that plans for devices which are not there: the other members do what this one does.

Integers that came from the host are exchanged there, because the host goes on by them: the buckets of `DistributedDataParallel`, the sizes
and bytes of pickled objects. All else is recorded as ever, and nothing of it has a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import Work

from xla_core.abi.collectives import ReduceOp
from xla_core.abi.targets import known_elements
from xla_distributed.collectives.reductions import reduced_among_threads
from xla_distributed.process_groups.process_group import ProcessGroupXla
from xla_distributed.process_groups.works import RecordedWork


def _known(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """The elements of integer tensors on the CPU; None if there is a tensor with others, or one whose elements nobody knows."""
    known: list[torch.Tensor] = []
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            return None
        elements = known_elements(tensor) if tensor.device.type == "xla" else tensor
        if elements is None:
            return None
        known.append(elements)
    return known


class PlannedProcessGroup(ProcessGroupXla):
    """`ProcessGroupXla` among replicas that are equal."""

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        """Overwrite the tensors with the root's values, which are the same."""
        return super().broadcast(tensors, opts) if _known(tensors) is None else RecordedWork(tensors)

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce tensors in place."""
        listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        known = _known(listed)
        if known is None:
            return super().allreduce(tensors, opts)
        op, scale = self._reduction(opts)
        for tensor, result in zip(listed, reduced_among_threads([known] * self.size(), ReduceOp(op), scale), strict=True):
            tensor.data.copy_(result)
        return RecordedWork(listed)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Fill the list `outputs[i]` with input i of each member."""
        known = _known(inputs)
        if known is None:
            return super().allgather(outputs, inputs, opts)
        for parts, tensor in zip(outputs, known, strict=True):
            for output in parts:
                output.copy_(tensor.reshape(output.shape))
        return RecordedWork(outputs)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Fill each output with the members' tensors in line."""
        known = _known(inputs)
        if known is None:
            return super().all_gather_single_coalesced(outputs, inputs, opts)
        for output, tensor in zip(outputs, known, strict=True):
            output.copy_(torch.cat([tensor.reshape(-1)] * self.size()).reshape(output.shape))
        return RecordedWork(outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The root fills its list with the members' tensors."""
        if _known(inputs) is None:
            return super().gather(outputs, inputs, opts)
        return self.allgather(outputs, inputs) if self.rank() == self._root(opts, "gather") else RecordedWork(outputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Member j gets tensor j of the root's list."""
        own = [listed[self.rank()] for listed in inputs] if self.rank() == self._root(opts, "scatter") else []
        known = _known(own)
        if not own or known is None:
            return super().scatter(outputs, inputs, opts)
        for output, tensor in zip(outputs, known, strict=True):
            output.data.copy_(tensor)
        return RecordedWork(outputs)
