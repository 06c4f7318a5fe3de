"""Public functions cost what is declared beside them, and every test holds them to it."""

from __future__ import annotations

import inspect
import types

import pytest
import torch

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from xla_core.base import config
from xla_core.base.budgets import Budget, budget
from xla_core.base.errors import InternalError
from xla_core.testing import functions_without_budget

MODULES: tuple[types.ModuleType, ...] = (torch_xla, xm, xr, xf)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_each_public_function_declares_its_budget(module: types.ModuleType) -> None:
    assert functions_without_budget(module, "xla_core") == []


def test_tests_enforce_budgets() -> None:
    assert config.ENFORCE_BUDGETS.get()
    assert inspect.unwrap(xr.world_size) is not xr.world_size


def test_a_call_that_costs_more_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_ENFORCE_BUDGETS", "1")

    @budget()
    def total() -> float:
        return float((torch.ones(3, device="xla") * 1.25).sum())

    with pytest.raises(InternalError, match=r"total compiled \d programs in one call, its budget is 0: mend it, or declare"):
        total()

    @budget(compiles=None)
    def reading() -> float:
        return float((torch.ones(3, device="xla") * 1.75).sum())

    with pytest.raises(InternalError, match="reading read 1 values in one call, its budget is 0"):
        reading()

    @budget(compiles=None, reads=1)
    def fair() -> float:
        return float((torch.ones(3, device="xla") * 2.25).sum())

    assert fair() == pytest.approx(6.75)


def test_without_enforcement_a_function_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_ENFORCE_BUDGETS")

    def ordinal() -> int:
        return 0

    assert budget(reads=2)(ordinal) is ordinal and ordinal.__budget__ == Budget(0, 2)  # type: ignore[attr-defined]
