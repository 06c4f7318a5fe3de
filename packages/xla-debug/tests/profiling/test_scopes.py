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
def test_operations_keep_their_scopes_in_text_and_hlo() -> None:
    tensor = torch.ones(2).to("xla")
    with xp.Trace("train"):
        with xp.Trace("forward"):
            doubled = tensor * 2
        result = doubled + 1
        assert xlac._set_xla_custom_op_name_prefix(result, "block/", 1)
    text, hlo = xlac._get_xla_tensors_text([result]), xlac._get_xla_tensors_hlo([result])
    (mul,) = [line for line in text.splitlines() if "aten::mul(" in line]
    (add,) = [line for line in text.splitlines() if "aten::add(" in line]
    assert "test_scopes.py" in mul and "scope=train.forward" in mul and "scope=train," in add
    assert 'op_name="jit(program)/train/forward/aten.mul' in hlo and 'op_name="jit(program)/train/block/aten.add' in hlo
    assert result.tolist() == [3.0, 3.0] and "scope=" not in xlac._get_xla_tensors_text([tensor + 1])


@pytest.mark.usefixtures("lines")
def test_step_traces_end_their_own_steps() -> None:
    with xp.StepTrace("step", step_num=1):
        kept = torch.ones(2, device="xla") + 1
    assert kept.tolist() == [2.0, 2.0]


def test_without_lines_scopes_are_the_user_s_own_business() -> None:
    with xp.Trace("train"):
        torch_xla.sync()
        xm.mark_step()
