"""The usual layouts of a transformer block over eight devices: what each device holds, and the collectives that JAX needs for the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "layouts.py"
LAYOUTS = ("data", "tensor", "fsdp", "fsdp and tensor")
# What each device holds of each weight; of the hidden state, and of what is inside the feed-forward.
SHARES = {"data": 1.0, "tensor": 1 / 8, "fsdp": 1 / 8, "fsdp and tensor": 1 / 8}
ACTIVATIONS = {"data": [1 / 8, 1 / 8], "tensor": [1.0, 1 / 8], "fsdp": [1 / 8, 1 / 8], "fsdp and tensor": [1 / 4, 1 / 8]}
SQUARE, LONG = 64 * 64, 4 * 64 * 64  # elements of the four weights of the attention, of the two of the feed-forward
# What is gathered of weights, in elements. Of a weight that `tensor` divides, half is all that a device works with.
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
    assert tuple(found["layouts"]) == LAYOUTS
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_those_of_plain_torch(layout: str, report: dict[str, Any]) -> None:
    for losses in report["layouts"][layout].values():
        assert losses["losses"] == pytest.approx(report["expected"], rel=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_device_holds_its_share(layout: str, report: dict[str, Any]) -> None:
    shares = report["layouts"][layout]["ours"]["shares"]
    for kind in ("weights", "gradients", "moments"):
        assert len(shares[kind]) == 6 and set(shares[kind].values()) == {SHARES[layout]}, kind
    assert shares["activations"] == ACTIVATIONS[layout]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_collectives_are_those_of_jax(layout: str, report: dict[str, Any]) -> None:
    ours, by_hand = (report["layouts"][layout][who] for who in ("ours", "by hand"))
    assert ours["counts"] == by_hand["counts"]
    assert ours["counts"].get("all-reduce", 0) > 0
    assert ours["gathered"] == by_hand["gathered"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_weight_is_gathered_that_need_not_be(layout: str, report: dict[str, Any]) -> None:
    assert report["layouts"][layout]["ours"]["gathered"] == GATHERED[layout]
