"""Collectives keep the contract of operations, each as the only replica of a job."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.testing import OperatorContract
from xla_distributed.collectives.ops.all_gather import ALL_GATHER
from xla_distributed.collectives.ops.all_reduce import ALL_REDUCE

TOKEN = torch.zeros((), dtype=torch.uint8)


class TestAllReduce(OperatorContract):
    operator = ALL_REDUCE.operation

    def samples(self) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        tensors = [torch.linspace(-1, 1, 6).reshape(2, 3), torch.arange(4.0)]
        return [((tensors, TOKEN, reduction, scale, [], []), {}) for reduction in ("sum", "max") for scale in (1.0, 0.5)]

    def expected(self, *args: Any, **kwargs: Any) -> Any:
        tensors, token, _, scale, *_ = args
        return [tensor * scale for tensor in tensors], token


class TestAllGather(OperatorContract):
    operator = ALL_GATHER.operation

    def samples(self) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(([torch.arange(6.0).reshape(2, 3)], TOKEN, dim, 1, [], []), {}) for dim in (0, 1)]

    def expected(self, *args: Any, **kwargs: Any) -> Any:
        return args[0], args[1]
