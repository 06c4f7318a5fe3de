"""The usual kinds of parallelism of a transformer block over eight devices: the shards, and the collectives, which are those of JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "parallelism.py"
WAYS = ("data", "tensor", "fsdp", "fsdp and tensor")
# What each device holds of each weight; of the hidden state, and of what is inside the feed-forward.
SHARES = {"data": 1.0, "tensor": 1 / 8, "fsdp": 1 / 8, "fsdp and tensor": 1 / 8}
ACTIVATIONS = {"data": [1 / 8, 1 / 8], "tensor": [1.0, 1 / 8], "fsdp": [1 / 8, 1 / 8], "fsdp and tensor": [1 / 4, 1 / 8]}
SQUARE, LONG = 64 * 64, 4 * 64 * 64  # elements of the four weights of the attention, of the two of the feed-forward
# What is gathered of weights, in elements. Of a weight that `tensor` shards, half is all that a device works with.
GATHERED = {
    "data": [],
    "tensor": [],
    "fsdp": [SQUARE] * 4 + [LONG] * 2,
    "fsdp and tensor": [SQUARE // 2] * 4 + [LONG // 2] * 4,  # those of the feed-forward once more in backward
}


@pytest.fixture(scope="module")
def report(eight_devices: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any]
    found, said = eight_devices(str(PROGRAM))
    assert "Involuntary full rematerialization" not in said
    assert tuple(found["ways"]) == WAYS
    return found


@pytest.mark.parametrize("way", WAYS)
def test_losses_are_those_of_plain_torch(way: str, report: dict[str, Any]) -> None:
    for losses in report["ways"][way].values():
        assert losses["losses"] == pytest.approx(report["expected"], rel=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_each_device_holds_its_share(way: str, report: dict[str, Any]) -> None:
    shares = report["ways"][way]["ours"]["shares"]
    for kind in ("weights", "gradients", "moments"):
        assert len(shares[kind]) == 6 and set(shares[kind].values()) == {SHARES[way]}, kind
    assert shares["activations"] == ACTIVATIONS[way]


@pytest.mark.parametrize("way", WAYS)
def test_the_collectives_are_those_of_jax(way: str, report: dict[str, Any]) -> None:
    ours, by_hand = (report["ways"][way][who] for who in ("ours", "by hand"))
    assert ours["counts"] == by_hand["counts"]
    assert ours["counts"].get("all-reduce", 0) > 0
    assert ours["gathered"] == by_hand["gathered"]


@pytest.mark.parametrize("way", WAYS)
def test_no_weight_is_gathered_that_need_not_be(way: str, report: dict[str, Any]) -> None:
    assert report["ways"][way]["ours"]["gathered"] == GATHERED[way]
