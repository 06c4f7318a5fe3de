"""A sample of torch's database of operators on device `xla`, and every entry that ever failed; `hatch run ops` runs all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts" / "ops"))

import checks
import report
from entries import Suite, Task, tasks
from exclusions import EXCLUSIONS

EVERY = 24
ALL = {suite: [task for task in tasks([suite], None) if task.name not in EXCLUSIONS[suite]] for suite in Suite}
# Entries that were wrong, failed or fell back once.
ONCE: dict[Suite, tuple[str, ...]] = {
    Suite.OPS: (
        "nn.functional.alpha_dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.feature_alpha_dropout.with_train",
        "nn.functional.linear",
        "resize_as_",
        "tensor_split",
    ),
    Suite.ERRORS: (),
    Suite.MODULES: (),
    Suite.OPTIMIZERS: (),
}
# The CPU's own results are wrong: NaN for the complex gradient.
UNLIKE_THE_CPU = {"renorm"}
SAMPLE = [task for every in ALL.values() for task in every[::EVERY] if task.name not in UNLIKE_THE_CPU]
CHOSEN = [*SAMPLE, *(task for suite, every in ALL.items() for task in every if task.name in ONCE[suite] and task not in SAMPLE)]


@pytest.mark.parametrize("task", CHOSEN, ids=lambda task: f"{task.suite.value}-{task.name}")
def test_entry(task: Task) -> None:
    found = checks.run(task, checks.Settings("xla", 4, False))
    row = {"suite": task.suite.value, "name": task.name, "found": found}
    assert [failure for failure in report.failures([row]) if failure[2] not in report.RIGHT] == []


def test_names_are_those_of_entries() -> None:
    for suite in Suite:
        assert {*ONCE[suite], *EXCLUSIONS[suite]} <= {task.name for task in tasks([suite], None)}
