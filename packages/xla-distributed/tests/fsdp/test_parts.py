"""Containers, linear layers, checkpointed modules, and reduction in buckets."""

from __future__ import annotations

import copy
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import torch_xla
from torch_xla.distributed.fsdp import checkpoint_module
from torch_xla.distributed.fsdp.utils import (
    BucketizedReduceScatter,
    DummyReduceScatter,
    apply_xla_patch_to_nn_linear,
    dummy_all_gather,
    dummy_all_reduce,
)
from torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel import apply_to_tensors, collect_tensors

Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    logits: torch.Tensor
    name: str = "x"


def test_containers_keep_their_kind() -> None:
    one = torch.ones(1)
    nested = [one, (one, 2), {"a": one}, OrderedDict(b=one), Pair(one, "c"), Output(one), {one}, None]
    doubled = apply_to_tensors(lambda tensor: tensor * 2, nested)
    assert [type(each) for each in doubled] == [type(each) for each in nested]
    assert len(collect_tensors(nested)) == 7 and all(tensor.item() == 2 for tensor in collect_tensors(doubled))
    assert doubled[1][1] == 2 and doubled[4].second == "c" and doubled[5].name == "x"


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 4, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_patched_linear_layers_compute_what_linear_layers_do(shape: tuple[int, ...], bias: bool) -> None:
    plain = nn.Sequential(nn.Linear(3, 4, bias=bias))
    patched = apply_xla_patch_to_nn_linear(copy.deepcopy(plain)).to("xla")
    inputs = torch.randn(shape)
    results = []
    for module, device in ((plain, "cpu"), (copy.deepcopy(patched), "xla")):
        given = inputs.clone().to(device).requires_grad_()
        output = module(given)
        output.square().sum().backward()
        results.append([output, given.grad, *(parameter.grad for parameter in module.parameters())])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(theirs.cpu(), mine, rtol=1e-4, atol=1e-5)
    assert patched[0].weight.grad is None, "the copy has its own"


def test_checkpointed_modules_run_again_in_backward() -> None:
    runs: list[int] = []

    class Counts(nn.Linear):
        def forward(self, input: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
            runs.append(1)
            return super().forward(input) * factor

    plain = Counts(3, 2)
    module = checkpoint_module(copy.deepcopy(plain))
    plain(torch.ones(1, 3), factor=2.0).sum().backward()
    assert checkpoint_module(module) is module
    runs.clear()
    module(torch.ones(1, 3, requires_grad=True), factor=2.0).sum().backward()
    assert len(runs) >= 2 and plain.weight.grad is not None
    assert torch.equal(module.weight.grad, plain.weight.grad)


def test_buckets_give_shards_when_they_are_full_or_at_the_end() -> None:
    given: list[tuple[int, torch.Tensor]] = []
    buckets = BucketizedReduceScatter(1, 1, None, True)
    half = torch.arange(131072.0, device="xla")
    for number in range(5):
        buckets(half + number, lambda shard, number=number: given.append((number, shard)))  # type: ignore[misc]
    assert [number for number, _ in given] == [0, 1, 2, 3]
    buckets.flush()
    buckets.flush()
    assert all(torch.equal(shard.cpu(), half.cpu() + number) for number, shard in given) and len(given) == 5
    torch_xla.sync()


def test_stand_ins_send_nothing_and_have_the_shapes() -> None:
    given: list[torch.Tensor] = []
    dummy = DummyReduceScatter(2)
    dummy(torch.arange(4.0), given.append)
    dummy.flush()
    assert given[0].tolist() == [0, 1]
    assert dummy_all_gather(torch.ones(2, 3), dim=1, groups=[[0, 1]]).shape == (2, 6)
    assert dummy_all_reduce("sum", torch.ones(2), scale=0.5).tolist() == [0.5, 0.5]
    tensors = [torch.ones(2)]
    assert dummy_all_reduce("sum", tensors, scale=0.5) is tensors and tensors[0].tolist() == [0.5, 0.5]
