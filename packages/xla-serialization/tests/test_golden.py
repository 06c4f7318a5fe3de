"""A checkpoint of version 1, as it was first written, stays readable: tests/data/version-1, and version-1-sharded of several processes."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

import xla_serialization as checkpoint
from xla_serialization import Checkpoint
from xla_serialization.format.dtypes import DTYPES

DATA = Path(__file__).parent / "data"


def tensors() -> dict[str, torch.Tensor]:
    """One of each dtype: small numbers, which all have."""
    return {name: torch.tensor([0.0, 1.0, 2.0]).to(dtype) for name, dtype in DTYPES.items()}


def content() -> dict[Any, Any]:
    """One of each kind."""
    state: Any = OrderedDict(weight=torch.ones(2, 3))
    state._metadata = OrderedDict({"": {"version": 2}})
    tied = torch.arange(4.0)
    return {
        "dtypes": tensors(),
        "shapes": [torch.tensor(7), torch.zeros(0, 3), torch.zeros(1, 2, 1)],
        "tied": (tied, {"again": tied}),
        "state": state,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "array": np.arange(3, dtype=np.int16),
        "scalar": np.float32(1.5),
        "numbers": [None, True, -3, 10**30, 0.1, float("inf"), complex(1, float("-inf"))],
        "texts": ["é", "\udc80", b"\x00\xff", bytearray(b"a")],
        "containers": [(1,), {2}, frozenset({3}), deque([4], maxlen=5), Counter("aab"), defaultdict(list, {"k": [6]})],
        "torch": [torch.Size([1, 2]), torch.bfloat16, torch.device("xla:0"), torch.strided],
        "others": [range(1, 9, 2), slice(None, 4), Path("a/b")],
        ("key", 1): {"a.b": torch.ones(1)},
    }


def test_a_checkpoint_of_version_1_is_read() -> None:
    found, wanted = checkpoint.load(DATA / "version-1"), content()
    assert list(found) == list(wanted)
    for name, tensor in wanted.pop("dtypes").items():
        assert found["dtypes"][name].dtype is tensor.dtype
        assert torch.equal(found["dtypes"][name].to(torch.complex128), tensor.to(torch.complex128))
    for one, other in zip(found["shapes"], wanted.pop("shapes"), strict=True):
        assert one.dtype is other.dtype and torch.equal(one, other)
    assert found["tied"][0] is found["tied"][1]["again"] and torch.equal(found["tied"][0], wanted.pop("tied")[0])
    assert found["state"]._metadata == {"": {"version": 2}} and torch.equal(found["state"]["weight"], wanted.pop("state")["weight"])
    assert isinstance(found["parameter"], torch.nn.Parameter) and torch.equal(found["parameter"], wanted.pop("parameter"))
    assert found["array"].dtype == np.int16 and np.array_equal(found["array"], wanted.pop("array"))
    assert type(found["scalar"]) is np.float32
    assert torch.equal(found["key", 1]["a.b"], wanted.pop(("key", 1))["a.b"])
    for name, value in wanted.items():
        assert found[name] == value, name
    assert found["containers"][3].maxlen == 5 and found["containers"][5]["new"] == []


def test_a_divided_checkpoint_of_version_1_is_read() -> None:
    held = Checkpoint(DATA / "version-1-sharded")
    assert len(held.manifest.tensors["w"].pieces) == 4 and len(held.manifest.files) == 2
    assert torch.equal(held["w"], torch.arange(24.0).reshape(4, 6)) and torch.equal(held["b"], torch.ones(3))
    before = held.bytes_read
    assert torch.equal(held.part("w", (slice(1, 3), slice(2, 4))), torch.arange(24.0).reshape(4, 6)[1:3, 2:4])
    assert held.bytes_read == before + 2 * 2 * 4
