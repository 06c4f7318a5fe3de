"""Lightning's Trainer on one and on two xla devices trains as on the CPU, and gathers with the gradient that it expects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch.accelerators import XLAAccelerator
from sklearn.datasets import load_digits

STRATEGIES = {1: "SingleDeviceXLAStrategy", 2: "XLAStrategy"}


@pytest.fixture(scope="module")
def cpu(run_program: Callable[..., Any]) -> Any:
    return run_program("lightning_trainer", 0)


@pytest.fixture(scope="module", params=STRATEGIES)
def devices(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def xla(run_program: Callable[..., Any], devices: int) -> Any:
    return run_program("lightning_trainer", devices, CPU_NUM_DEVICES=str(devices))


def test_no_tpu_is_seen_where_there_is_none() -> None:
    assert XLAAccelerator.auto_device_count() == 0
    assert not XLAAccelerator.is_available()


def test_lightning_chooses_its_strategy_for_xla(xla: Any, devices: int) -> None:
    assert xla["strategy"] == STRATEGIES[devices]
    assert [(each["device"], each["size"]) for each in xla["replicas"]] == [("xla", devices)] * devices


def test_weights_equal_the_cpu(xla: Any, cpu: Any) -> None:
    assert xla["weights"].keys() == cpu["weights"].keys()
    for name, expected in cpu["weights"].items():
        torch.testing.assert_close(torch.tensor(xla["weights"][name]), torch.tensor(expected), rtol=1e-4, atol=1e-5, msg=name)


def test_logged_metrics_equal_the_cpu(xla: Any, cpu: Any) -> None:
    assert xla["metrics"]["accuracy"] == pytest.approx(cpu["metrics"]["accuracy"])
    assert xla["metrics"]["loss"] == pytest.approx(cpu["metrics"]["loss"], rel=1e-4)


def test_gathered_labels_are_those_of_the_data(xla: Any) -> None:
    expected = sorted(load_digits(return_X_y=True)[1][:128].tolist())
    for each in xla["replicas"]:
        assert each["labels"] == expected


def test_the_gradient_of_gathering_is_the_own_part_of_the_own_loss(xla: Any, devices: int) -> None:
    """As in PyTorch/XLA. The loss of replica r, counted from 1, is r times the sum of squares of 1, …, n."""
    ranks = range(1, devices + 1)
    for rank, each in zip(ranks, xla["replicas"], strict=True):
        assert each["gathered"] == [float(other) for other in ranks]
        assert each["gradient"] == 2.0 * rank * rank


def test_gathering_tensors_of_the_cpu_has_a_gradient(xla: Any) -> None:
    assert [each["gradient_on_cpu"] for each in xla["replicas"]] == [1.0] * len(xla["replicas"])


def test_gathering_has_no_gradient_unless_asked_for(xla: Any, devices: int) -> None:
    expected = devices == 1  # then the library gives back the tensor itself
    assert [each["gradient_unless_synced"] for each in xla["replicas"]] == [expected] * devices


@pytest.mark.parametrize("devices", STRATEGIES)
def test_bf16_true_trains_in_bfloat16(run_program: Callable[..., Any], cpu: Any, devices: int) -> None:
    found = run_program("lightning_trainer", devices, "bf16-true", CPU_NUM_DEVICES=str(devices))
    for name, expected in cpu["weights"].items():
        weight = torch.tensor(found["weights"][name])
        assert torch.equal(weight, weight.bfloat16().float()), f"{name} has more than bfloat16 holds"
        torch.testing.assert_close(weight, torch.tensor(expected), rtol=0.05, atol=0.05, msg=name)
    assert found["metrics"]["loss"] == pytest.approx(cpu["metrics"]["loss"], rel=0.05)
