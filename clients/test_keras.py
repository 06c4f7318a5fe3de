"""keras on its torch backend stays on the CPU beside torch_xla; models exported through `torch_xla.stablehlo` give the same outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(run_program: Callable[..., Any]) -> Any:
    return run_program("keras_digits")


def test_a_model_trains_on_the_cpu(found: Any) -> None:
    assert found["devices"] == ["cpu"]
    assert found["losses"][1] < found["losses"][0]


def test_training_starts_no_xla_client(found: Any) -> None:
    assert found["started"] == [False, False]


def test_no_accelerator_is_seen(found: Any) -> None:
    assert not found["tpus"] and not found["cuda"] and found["accelerators"] == 0


def test_the_exported_model_gives_the_outputs_of_the_model(found: Any) -> None:
    assert found["error"] < 1e-5


def test_a_model_trains_on_xla_where_keras_is_told_to(found: Any, run_program: Callable[..., Any]) -> None:
    moved = run_program("keras_digits", KERAS_TORCH_DEVICE="xla")
    assert moved["devices"] == ["xla"]
    assert moved["losses"] == pytest.approx(found["losses"], rel=1e-4)
