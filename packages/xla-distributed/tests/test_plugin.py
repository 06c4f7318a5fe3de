"""The names that this package offers are those that the core's table expects of it."""

from __future__ import annotations

import importlib

import pytest
import torch

import torch_xla._XLAC as xlac
from xla_distributed.collectives import ops
from xla_distributed.plugin import offered


def test_offered_names_are_names_of_users_modules() -> None:
    for name in offered():
        module, _, attribute = name.rpartition(".")
        found = importlib.import_module(module)
        assert attribute in found.__all__ or (found is xlac and callable(getattr(xlac, attribute))), name


def test_each_collective_is_offered() -> None:
    functions = ops.offered()
    assert {"torch_xla.core.xla_model.all_reduce", "torch_xla.core.xla_model.send"} <= functions.keys() <= offered().keys()
    assert all(function.__module__.startswith("xla_distributed.collectives.ops.") for function in functions.values())


def test_low_level_collectives_of_one_replica_give_what_they_got() -> None:
    x, token = torch.arange(4.0).to("xla"), xlac._get_all_reduce_token("")
    alone = [
        xlac._xla_all_reduce("sum", x, 1.0, [], True),
        xlac._xla_all_gather(x, 0, 1, [], True),
        *xlac._xla_all_gather_coalesced([x], token, 0, 1, [], True)[:1],
        xlac._xla_reduce_scatter("sum", x, token, 1.0, 0, 1, [], True)[0],
        xlac._xla_all_to_all(x, token, 0, 0, 1, [], True)[0],
        xlac._xla_collective_permute(x, token, [[0, 0]])[0],
    ]
    assert [tensor.tolist() for tensor in alone] == [[0.0, 1.0, 2.0, 3.0]] * 6
    with pytest.raises(ValueError, match="shard_count is 2"):
        xlac._xla_all_gather(x, 0, 2, [], True)
