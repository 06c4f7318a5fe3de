"""`EvenSharding`: shards of tensors of any shape make up the tensor."""

from __future__ import annotations

import pytest
import torch

from xla_distributed.even_sharding import EvenSharding


@pytest.mark.parametrize("members", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (4,), (3, 5), (4, 3), (6, 2, 2), (2, 0)])
def test_shards_concatenated_are_the_tensor(shape: tuple[int, ...], members: int) -> None:
    whole = torch.randn(shape)
    shardings = [EvenSharding(shape, members, place) for place in range(members)]
    shards = [sharding.shard(whole) for sharding in shardings]
    assert {shard.shape for shard in shards} == {shards[0].shape}
    assert sum(shard.numel() for shard in shards) < whole.numel() + members
    for sharding in shardings:
        assert torch.equal(sharding.unsharded(torch.cat(shards)), whole)
