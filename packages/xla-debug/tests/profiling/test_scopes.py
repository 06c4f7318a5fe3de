"""Scopes of the profiler that a step sync finds open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla._XLAC as xlac
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp


@pytest.fixture
def lines() -> Iterator[None]:
    torch_xla.sync()
    xlac._set_ir_debug(True)
    yield
    xlac._set_ir_debug(False)


@pytest.mark.usefixtures("lines")
def test_a_step_may_not_end_in_a_scope_whose_name_operations_keep() -> None:
    with xp.Trace("train"), xp.Trace("forward"):
        kept = torch.ones(2, device="xla") + 1
        for sync in (torch_xla.sync, xm.mark_step, xlac._xla_step_marker):
            with pytest.raises(RuntimeError, match=r"train\.forward is open"):
                sync()
        torch_xla.sync(reset_scope=False)
    torch_xla.sync()
    assert kept.tolist() == [2.0, 2.0]


@pytest.mark.usefixtures("lines")
def test_step_traces_end_their_own_steps() -> None:
    with xp.StepTrace("step", step_num=1):
        kept = torch.ones(2, device="xla") + 1
    assert kept.tolist() == [2.0, 2.0]


def test_without_lines_scopes_are_the_user_s_own_business() -> None:
    with xp.Trace("train"):
        torch_xla.sync()
        xm.mark_step()
