"""Public functions cost what is declared beside them, and every test holds them to it."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from xla_core.base import config
from xla_core.base.budgets import Budget, budget
from xla_core.base.errors import InternalError

# Of other wheels, or found by `__getattr__`: their own packages test what they cost.
MODULES: tuple[types.ModuleType, ...] = (torch_xla, xm, xr)


def public_functions() -> dict[str, Any]:
    """The functions of the core in the modules that users import, by name."""
    found = {
        f"{module.__name__}.{name}": thing
        for module in MODULES
        for name, thing in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(thing) and thing.__module__.startswith("xla_core.")
    }
    assert len(found) > 50
    return found


def test_each_public_function_declares_its_budget() -> None:
    assert [name for name, function in public_functions().items() if not isinstance(getattr(function, "__budget__", None), Budget)] == []


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
