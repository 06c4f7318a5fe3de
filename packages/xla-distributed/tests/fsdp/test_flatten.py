"""Parameters in flat ones, beside the module whose parameters they are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from torch_xla.distributed.fsdp.xla_flatten_params_wrapper import FlatParameter, XlaFlattenParamsWrapper, replace_by_prefix_


def tied() -> nn.Module:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    return module


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_gradients_and_results_are_those_of_the_module(device: str) -> None:
    plain, wrapped = tied(), XlaFlattenParamsWrapper(tied().to(device))
    inputs = torch.randn(4, 3)
    for module, given in ((plain, inputs), (wrapped, inputs.to(device))):
        module(given).square().sum().backward()
    (flat,) = wrapped.parameters()
    assert isinstance(flat, FlatParameter) and flat.shape == (21,) and flat.grad is not None
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters() if parameter.grad is not None])
    torch.testing.assert_close(flat.grad.cpu(), expected, rtol=1e-4, atol=1e-5)
    names, shapes, numels = flat.metadata()
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "2.bias"] and shapes[0] == (3, 3) and numels == [9, 3, 3, 3, 3]
    for view, parameter in zip(flat.get_param_views(), plain.parameters(), strict=True):
        assert torch.equal(view.cpu(), parameter)


def test_state_is_that_of_the_module_or_flat() -> None:
    plain = tied()
    wrapped = XlaFlattenParamsWrapper(copy.deepcopy(plain))
    state = wrapped.state_dict()
    assert state.keys() == plain.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
    flat = wrapped.flat_state_dict()
    assert flat.keys() == {"flat_param_0", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    for given in (plain.state_dict(), flat):
        other = XlaFlattenParamsWrapper(tied())
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        other.load_state_dict(given)
        assert all(torch.equal(other.state_dict()[name], value) for name, value in plain.state_dict().items())
        with pytest.raises(RuntimeError, match="flat_param_0"):
            other.load_state_dict({name: value for name, value in given.items() if "running" in name})


def test_own_parameters_for_a_while() -> None:
    wrapped = XlaFlattenParamsWrapper(tied())
    with wrapped.unflatten_params():
        assert wrapped[0].weight is wrapped[2].weight and isinstance(wrapped[0].weight, nn.Parameter)
        with torch.no_grad():
            wrapped[0].weight.fill_(2)
    assert [name for name, _ in wrapped.named_parameters()] == ["flat_param_0"]
    assert wrapped.state_dict()["2.weight"].tolist() == [[2.0] * 3] * 3 and wrapped[0].weight[0, 0] == 2


def test_lists_and_names() -> None:
    module = tied()
    wrapped = XlaFlattenParamsWrapper(module, [[module[0].bias], [module[2].bias, module[1].bias]], ["first", "second"])
    assert {name: tuple(value.shape) for name, value in wrapped.named_parameters()} == {
        "first": (3,),
        "second": (6,),
        "_fpw_module.0.weight": (3, 3),
        "_fpw_module.1.weight": (3,),
    }
    assert wrapped.state_dict().keys() == tied().state_dict().keys()


def test_wrong_lists() -> None:
    module = tied()
    with pytest.raises(ValueError, match=r"shape \(2,\) that is none of the module's"):
        XlaFlattenParamsWrapper(module, [nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="1 names for 2 lists"):
        XlaFlattenParamsWrapper(module, [[module[0].bias], [module[2].bias]], ["one"])
    with pytest.raises(ValueError, match="empty list"):
        XlaFlattenParamsWrapper(module, [[]])
    with pytest.raises(ValueError, match="one dtype, got"):
        FlatParameter([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))])
    with pytest.raises(ValueError, match="got none"):
        FlatParameter([])


def test_prefixes() -> None:
    state = {"a.x": 1, "a.y": 2, "b": 3}
    replace_by_prefix_(state, "a.", "c.d.")
    assert state == {"b": 3, "c.d.x": 1, "c.d.y": 2}
    with pytest.raises(ValueError, match="both 'a'"):
        replace_by_prefix_(state, "a", "a")
