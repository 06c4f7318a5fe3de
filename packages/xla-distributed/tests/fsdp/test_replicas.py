"""Parameters sharded among replicas that are processes: each starts `programs/fsdp.py`, which compares with plain training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Report = dict[str, Any]
CASES = ("meta", "flat, checkpoints inside", "rows, checkpoints outside", "no sync", "kept, groups", "low")
GATHER, SCATTER = "all-gather", "reduce-scatter"


@pytest.fixture(scope="module")
def reports(start: Callable[..., Any]) -> list[Report]:
    found: list[Report] = start("fsdp", 2).reports()
    return found


def check_equal(report: Report, case: str) -> None:
    """Rounding of float32; of bfloat16, whose products CPU torch and XLA round at different places."""
    low = case == "low"
    assert report[case]["off"] < (2e-2 if low else 1e-5)
    assert report[case]["norms off"] < (1e-1 if low else 1e-4)
    assert report[case]["names"]


@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_are_those_of_plain_training(reports: list[Report], case: str) -> None:
    for report in reports:
        check_equal(report, case)


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 4])
def test_twenty_steps_of_other_numbers_of_replicas(start: Callable[..., Any], size: int) -> None:
    for report in start("fsdp", size).reports():
        for case in CASES:
            check_equal(report, case)
        check_memory(report["memory"], size)


def test_state_dicts_have_shards_by_the_modules_names(reports: list[Report]) -> None:
    shards = reports[0]["rows, checkpoints outside"]["shards"]
    assert shards["words.weight"] == shards["head.weight"] == [6, 6] and shards["blocks.1.up.weight"] == [4, 6]
    assert reports[0]["meta"]["shards"]["words.weight"] == [33] and reports[0]["meta"]["shards"]["blocks.0.gain"] == [1]
    elements = 7 * 6 + 7 + 6 * 7 + 1
    flat = reports[0]["flat, checkpoints inside"]["shards"]
    assert flat == {"scale": [], "flat_param_0": [33], "flat_param_1": [6]} | {
        f"blocks.{n}.flat_param_0": [elements // 2] for n in range(2)
    }


def test_one_gather_before_each_use_and_one_scatter_for_each_gradient(reports: list[Report]) -> None:
    """In backward the next layer is gathered before the gradients of this one travel, which so may go beside its computation."""
    for name in ("program", "program without barriers"):
        kinds = [kind for kind, _ in reports[0][name]]
        forward, backward = [GATHER] * 4, [GATHER, GATHER, SCATTER, GATHER, SCATTER, GATHER, SCATTER, SCATTER]
        assert kinds == forward + backward


def test_barriers_say_when_parameters_are_gathered(reports: list[Report]) -> None:
    """How many of the 12 matrix products of four layers each gather of forward waits for, and each in backward."""
    gathers = [waits for kind, waits in reports[0]["program"] if kind == GATHER]
    assert gathers == [0, 1, 2, 3, 4, 4, 6, 8]
    free = [waits for kind, waits in reports[0]["program without barriers"] if kind == GATHER]
    assert free[:6] == [0] * 6


def check_memory(memory: dict[str, int], size: int) -> None:
    """Parameters and the two moments of Adam, a part of each; nothing whole waits for backward."""
    expected = 3 * memory["parameters"] / size
    assert expected <= memory["end"] < 1.05 * expected
    assert memory["between"] < 1.05 * expected


def test_a_replica_holds_its_part(reports: list[Report]) -> None:
    for report in reports:
        check_memory(report["memory"], 2)
