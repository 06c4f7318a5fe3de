"""accelerate over two xla replicas, started after the devices were listed: by `xmp.spawn`, and by its own launcher for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

VARIABLES = {
    "spawn": {},
    "fork": {},
    "notebook": {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "TPU_NAME": "local"},  # what the launcher takes for a notebook with TPUs
}


@pytest.fixture(scope="module", params=VARIABLES)
def job(request: pytest.FixtureRequest, run_program: Callable[..., Any]) -> Any:
    return run_program("accelerate_replicas", request.param, CPU_NUM_DEVICES="2", **VARIABLES[request.param])


def test_both_devices_are_listed_before_the_launch(job: Any) -> None:
    assert (job["devices"], job["count"]) == (["xla:0", "xla:1"], 2)


def test_each_replica_knows_its_place(job: Any) -> None:
    assert [(each["rank"], each["size"], each["device"]) for each in job["replicas"]] == [(0, 2, "xla"), (1, 2, "xla")]


def test_metrics_are_of_exactly_1001_samples(job: Any) -> None:
    for each in job["replicas"]:
        assert sorted(each["samples"]) == list(range(1001))


def test_the_end_of_the_loader_is_known(job: Any) -> None:
    for each in job["replicas"]:
        assert each["ends"] == [False] * 15 + [True]


def test_sums_are_over_both(job: Any) -> None:
    assert [each["sum"] for each in job["replicas"]] == [3.0, 3.0]


def test_training_equals_the_cpu_with_the_batches_of_both(job: Any) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for rows in torch.linspace(0, 1, 24).unsqueeze(1).split(8):
        optimizer.zero_grad()
        nn.functional.mse_loss(layer(rows), 2 * rows).backward()
        optimizer.step()
    expected = [parameter.item() for parameter in layer.parameters()]
    for each in job["replicas"]:
        assert each["weights"] == pytest.approx(expected, rel=1e-5)
