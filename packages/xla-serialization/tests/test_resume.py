"""Training that is interrupted goes on as if it had not been: every bit of parameters, optimizer, random states and losses is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("how", ["manager", "plain"])
def test_ten_steps_and_ten_in_a_new_process_are_twenty(run: Callable[..., list[Any]], tmp_path: Path, how: str) -> None:
    (whole,) = run("resumed", how, tmp_path / "whole", 0, 20)
    (first,) = run("resumed", how, tmp_path / "parts", 0, 10)
    (second,) = run("resumed", how, tmp_path / "parts", 10, 20)
    assert len(set(whole["losses"])) == 20
    assert first["losses"] + second["losses"] == whole["losses"]
    assert second["state"] == whole["state"]
