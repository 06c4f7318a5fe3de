"""State that an optimizer makes, and what nobody marked, is sharded alike in all steps, so that one program runs them."""

from __future__ import annotations

from typing import Any

import pytest

WIDE = 96


def shapes(first: list[int], vector: list[int], last: list[int]) -> list[list[int]]:
    """Of two layers with a normalization between them."""
    return [first, vector, vector, vector, last, vector]


HELD = {
    "data": shapes([WIDE, 16], [WIDE], [WIDE, WIDE]),
    "tensor": shapes([WIDE // 2, 16], [WIDE], [WIDE, WIDE // 2]),
    "fsdp": shapes([WIDE // 8, 16], [WIDE // 8], [WIDE // 8, WIDE]),
}


@pytest.mark.parametrize("optimizer", ["momentum", "AdamW"])
@pytest.mark.parametrize("layout", HELD)
def test_a_training_loop_is_one_program(layout: str, optimizer: str, report: Any) -> None:
    found = report("state.loops")[layout][optimizer]
    assert found["compiled"] == [1, 0, 0, 0]
    assert found["error"] < 1e-4
    assert found["held"] == HELD[layout]
    assert found["state"] == [[shape] * (1 if optimizer == "momentum" else 2) for shape in HELD[layout]], "as the parameters"
    assert found["buffers"] == [[WIDE], [WIDE]], "as they came"


def test_inputs_of_other_shardings_and_the_same_shape(report: Any) -> None:
    found = report("state.of_two_shardings")
    assert found == {"compiled": [1, 0, 0], "held": [64, 128], "error": 0.0}
