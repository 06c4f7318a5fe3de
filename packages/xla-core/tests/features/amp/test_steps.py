"""Single steps of optimizers as functions, beside `torch.optim`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torch_xla import _XLAC
from torch_xla.amp.autocast_mode import autocast
from torch_xla.amp.syncfree import _functional, adam, adamw, sgd

FLAGS = {"weight_decay": 0.1, "lr": 0.05}


def _tensors(*values: float) -> list[torch.Tensor]:
    return [torch.full((3,), value, device="xla") for value in values]


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam(decoupled: bool, single: bool) -> None:
    theirs = torch.full((3,), 1.0, requires_grad=True)
    optimizer = (torch.optim.AdamW if decoupled else torch.optim.Adam)([theirs], betas=(0.8, 0.9), amsgrad=True, **FLAGS)
    param, mean, square, peak = _tensors(1.0, 0.0, 0.0, 0.0)
    step = torch.zeros((), device="xla")
    for grad, bad in ((0.5, 0.0), (7.0, 1.0), (-0.25, 0.0)):
        found_inf = torch.tensor(bad, device="xla")
        (given,) = _tensors(grad)
        if single:
            rest = (0.8, 0.9, 0.05, 0.1, 1e-8, True, False, decoupled)
            _XLAC._xla_adam_optimizer_step_(found_inf, step, param, given, mean, square, peak, *rest)
        else:
            options: dict[str, Any] = {"amsgrad": True, "beta1": 0.8, "beta2": 0.9, "eps": 1e-8, "maximize": False, **FLAGS}
            _functional.adam_step(found_inf, [step], [param], [given], [mean], [square], [peak], use_adamw=decoupled, **options)
        if not bad:
            theirs.grad = torch.full((3,), grad)
            optimizer.step()
    assert step.item() == 2
    torch.testing.assert_close(param.cpu(), theirs.detach())


@pytest.mark.parametrize("single", [False, True])
def test_sgd(single: bool) -> None:
    theirs = torch.full((3,), 1.0, requires_grad=True)
    optimizer = torch.optim.SGD([theirs], momentum=0.9, nesterov=True, **FLAGS)
    param, buffer = _tensors(1.0, 0.0)
    step = torch.zeros((), device="xla")
    for grad, bad in ((0.5, 0.0), (7.0, 1.0), (-0.25, 0.0)):
        found_inf = torch.tensor(bad, device="xla")
        (given,) = _tensors(grad)
        if single:
            _XLAC._xla_sgd_optimizer_step_(found_inf, step, param, buffer, given, 0.1, 0.9, 0.05, 0.0, True, False)
        else:
            options: dict[str, Any] = {"momentum": 0.9, "dampening": 0.0, "nesterov": True, "maximize": False, **FLAGS}
            _functional.sgd_step(found_inf, [step], [param], [given], [buffer], **options)
        if not bad:
            theirs.grad = torch.full((3,), grad)
            optimizer.step()
    torch.testing.assert_close(param.cpu(), theirs.detach())


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_buffers_are_made_where_momentum_needs_them(momentum: float) -> None:
    theirs = torch.full((3,), 1.0, requires_grad=True)
    optimizer = torch.optim.SGD([theirs], momentum=momentum, dampening=0.5, maximize=True, **FLAGS)
    (param,), step, buffers = _tensors(1.0), torch.zeros((), device="xla"), [None]
    options: dict[str, Any] = {"momentum": momentum, "dampening": 0.5, "nesterov": False, "maximize": True, **FLAGS}
    for grad in (0.5, -2.0, 1.0):
        _functional.sgd_step(torch.zeros(1, device="xla"), [step], [param], _tensors(grad), buffers, **options)
        theirs.grad = torch.full((3,), grad)
        optimizer.step()
    torch.testing.assert_close(param.cpu(), theirs.detach())
    assert (buffers[0] is None) is (momentum == 0)
    with pytest.raises(ValueError):
        _functional.sgd_step(torch.zeros(1, device="xla"), [step], [param], _tensors(1.0), [], **options)


def test_old_homes() -> None:
    from torch_xla import amp

    assert (adam.Adam, adamw.AdamW, sgd.SGD) == (amp.syncfree.Adam, amp.syncfree.AdamW, amp.syncfree.SGD)
    assert autocast is amp.autocast
