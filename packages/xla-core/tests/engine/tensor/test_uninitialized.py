"""Lazy modules that are moved before their first forward pass."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.LazyLinear(3), (2, 4)),
    "conv": (lambda: nn.LazyConv2d(2, 3), (1, 3, 5, 5)),
    "transposed": (lambda: nn.LazyConvTranspose1d(2, 2), (1, 3, 4)),
    "batch norm": (lambda: nn.LazyBatchNorm1d(), (4, 3)),
}
pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")


@pytest.mark.parametrize("name", MODULES)
def test_a_lazy_module_takes_its_shape_on_the_device(name: str) -> None:
    make, shape = MODULES[name]
    module = copy.deepcopy(make().to("xla"))
    assert all(is_lazy(parameter) and isinstance(parameter, nn.Parameter) for parameter in module.parameters())
    out = module(torch.ones(shape, device="xla"))
    out.sum().backward()
    plain = copy.deepcopy(module).to("cpu")
    torch.testing.assert_close(out.detach().cpu(), plain.train()(torch.ones(shape)).detach(), rtol=1e-4, atol=1e-5)
    for parameter in module.parameters():
        assert parameter.device.type == "xla" and isinstance(parameter, nn.Parameter) and not is_lazy(parameter)
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape


def test_it_trains_and_is_saved_before_and_after() -> None:
    module = nn.LazyLinear(2).to("xla")
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    assert all(is_lazy(value) for value in torch.load(file, weights_only=False).values())
    module(torch.ones(1, 3, device="xla"))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = module.weight.detach().cpu()
    module(torch.ones(1, 3, device="xla")).sum().backward()
    optimizer.step()
    torch.testing.assert_close(module.weight.detach().cpu(), before - 0.1)


def test_it_cannot_be_used_before() -> None:
    module = nn.LazyLinear(2).to("xla")
    with pytest.raises(RuntimeError, match="uninitialized"):
        _ = module.weight.shape
