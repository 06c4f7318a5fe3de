"""Views of operators that others have registered (`Tensor(a)` in their schema): read, written through, and differentiated as on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

OPS = torch.ops.xla_core_own_views
VIEWS: dict[str, tuple[str, Any]] = {
    "columns": ("(Tensor(a) self, int step=1) -> Tensor(a)", lambda x, step=1: x.t()[::step]),
    "window": ("(Tensor(a) self) -> Tensor(a)", lambda x: x.reshape(-1).as_strided((3, 2), (2, 1), 1)),
    "bits": ("(Tensor(a) self) -> Tensor(a)", lambda x: x.view(torch.int32)),
    "pair": ("(Tensor(a) self) -> (Tensor(a), Tensor(a))", lambda x: (x[:1], x[1:].t())),
    "rows": ("(Tensor(a) self) -> Tensor(a)[]", lambda x: list(x)),
}


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    library = torch.library.Library("xla_core_own_views", "DEF")
    for name, (schema, view) in VIEWS.items():
        library.define(name + schema)
        library.impl(name, view, "CompositeExplicitAutograd")
    yield
    library._destroy()


def parts(view: Any) -> list[Tensor]:
    return [view] if isinstance(view, Tensor) else list(view)


@pytest.mark.parametrize("name", VIEWS)
def test_reads_and_writes_reach_the_base(name: str) -> None:
    bases = [torch.arange(12.0).view(3, 4).to(device) for device in ("cpu", "xla")]
    views = [parts(getattr(OPS, name)(base)) for base in bases]
    for there, here in zip(*views, strict=True):
        assert torch.equal(here.cpu(), there) and here.stride() == there.stride() and here.storage_offset() == there.storage_offset()
        assert here.untyped_storage().data_ptr() == bases[1].untyped_storage().data_ptr()
    for base, view in zip(bases, views, strict=True):
        view[-1].mul_(3)
        view[0][1:].add_(1)
        base[2].add_(1)
    assert torch.equal(bases[1].cpu(), bases[0])
    for there, here in zip(*views, strict=True):
        assert torch.equal(here.cpu(), there)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "graded"])
def test_torch_knows_them_as_views(name: str, grad: bool) -> None:
    known = []
    for device in ("cpu", "xla"):
        base = torch.ones(3, 4).to(device).requires_grad_(grad)
        known.append([(view._is_view(), view._base is base, view.requires_grad) for view in parts(getattr(OPS, name)(base))])
    assert known[0] == known[1]


def test_views_of_torch_s_prims_are_views() -> None:
    prims = torch.ops.prims
    for device in ("cpu", "xla"):
        base = torch.ones(3, 4).to(device)
        views = (
            prims.view_of(base),
            prims.transpose(base, [1, 0]),
            prims.split_dim(base, 1, 2),
            prims.broadcast_in_dim(base, [2, 3, 4], [1, 2]),
        )
        assert all(view._is_view() and view._base is base for view in views)


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered:UserWarning")
@pytest.mark.parametrize("name", ["columns", "window", "pair"])  # rows may not be written in place, bits have no gradient
def test_they_are_differentiated_by_their_parts(name: str) -> None:
    gradients = []
    for device in ("cpu", "xla"):
        base = torch.arange(12.0).view(3, 4).to(device).requires_grad_()
        shown = parts(getattr(OPS, name)(base * 2))
        shown[0].mul_(3)
        sum((view.square().sum() for view in shown), base.sum()).backward()
        assert base.grad is not None
        gradients.append(base.grad.cpu())
    assert torch.equal(*gradients)


def test_a_view_of_a_view() -> None:
    bases = [torch.arange(40.0).view(5, 8).to(device) for device in ("cpu", "xla")]
    for base in bases:
        OPS.columns(base[1:].t()[::2], step=2).add_(OPS.window(base[3:])[0, 0])
    assert torch.equal(bases[1].cpu(), bases[0])


def test_torch_s_own_operators_for_tests_have_gradients() -> None:
    gradients = []
    for device in ("cpu", "xla"):
        x = torch.arange(6.0).view(2, 3).to(device).requires_grad_()
        torch._test_autograd_multiple_dispatch_view(x).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    assert torch.equal(*gradients)
