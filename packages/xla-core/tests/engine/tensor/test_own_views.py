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
