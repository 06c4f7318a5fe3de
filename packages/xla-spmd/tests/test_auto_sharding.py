"""A GPT whose shardings the policy chooses: losses of plain torch, an eighth of the state on each of eight devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "auto_sharding.py"


@pytest.fixture(scope="module")
def report(eight_devices: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = eight_devices(str(PROGRAM))[0]
    return found


def test_losses_are_those_of_plain_torch(report: dict[str, Any]) -> None:
    assert report["auto"]
    assert report["losses"] == pytest.approx(report["expected"], rel=1e-4)


@pytest.mark.parametrize("kind", ["weights", "moments"])
def test_each_device_holds_an_eighth(kind: str, report: dict[str, Any]) -> None:
    shares = report[kind]
    assert shares.pop("scale") == 1.0  # three elements
    assert len(shares) > 20 and set(shares.values()) == {1 / 8}


def test_shardings(report: dict[str, Any]) -> None:
    texts = report["texts"]
    assert texts["embedding.weight"] == "{devices=[8,1]0,1,2,3,4,5,6,7}"
    assert texts["positions"] == texts["blocks.layers.0.linear2.weight"] == "{devices=[1,8]0,1,2,3,4,5,6,7}"
    assert texts["scale"] == ""


def test_a_batch_is_sharded_along_dimension_0_until_it_is_marked(report: dict[str, Any]) -> None:
    assert report["batch"] == "{devices=[8,1]0,1,2,3,4,5,6,7}"
    assert report["marked"] == "{devices=[2,4]0,2,4,6,1,3,5,7}"
    assert report["odd"] == ["", "", ""]


def test_steps_are_one_program_in_the_end(report: dict[str, Any]) -> None:
    assert report["compiles"][2] == report["compiles"][3]
