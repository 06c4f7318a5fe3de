"""Training that is interrupted goes on as if it had not been: every bit of parameters, optimizer, random states and losses is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("how", ["manager", "plain"])
def test_the_steps_after_a_checkpoint_are_those_of_a_new_process_that_loads_it(
    run: Callable[..., list[Any]], tmp_path: Path, how: str
) -> None:
    """One process takes twenty steps, with the checkpoint in the middle; another takes the last ten."""
    (whole,) = run("resumed", how, tmp_path, 0, 20)
    (second,) = run("resumed", how, tmp_path, 10, 20)
    assert len(set(whole["losses"])) == 20
    assert second["losses"] == whole["losses"][10:]
    assert second["state"] == whole["state"]
