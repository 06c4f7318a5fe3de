"""The wrapper on one replica, beside the module that is not wrapped: structure, gradients, state, refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla.core.xla_model as xm
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
from torch_xla.distributed.fsdp import checkpoint_module, consolidate_sharded_state_dicts
from torch_xla.distributed.fsdp.wrap import always_wrap_policy, lambda_auto_wrap_policy, size_based_auto_wrap_policy


def gradients(module: nn.Module, inputs: torch.Tensor, count: int = 1) -> list[torch.Tensor | None]:
    for _ in range(count):
        output = module(inputs)
        (output[0] if isinstance(output, tuple) else output).square().sum().backward()
    return [parameter.grad for parameter in module.parameters()]


def check_gradients(make: Callable[[], nn.Module], inputs: torch.Tensor, count: int = 1, **options: Any) -> FSDP:
    """Those of the wrapped module are those of the module, as shards: flat."""
    expected = gradients(make(), inputs, count)
    wrapped = FSDP(make(), **options)
    found = gradients(wrapped, inputs.to("xla"), count)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            torch.testing.assert_close(mine.cpu(), theirs.reshape(-1), rtol=1e-4, atol=1e-5)
    return wrapped


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def run() -> nn.Module:
        torch.manual_seed(1)
        return make()

    return run


class Unusual(nn.Module):
    """Weights that autograd keeps as views: transposed, in parts, repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.cube = nn.Parameter(torch.randn(2, 3, 4))
        self.row = nn.Parameter(torch.randn(1, 6))
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x @ self.weight) @ self.weight.t()
        y = y @ self.cube.permute(2, 0, 1)[:, 1] @ self.cube[0, :, 1:].contiguous()
        return y * self.row.expand(3, 6)[:, ::2][:, :3] * self.weight[::2, 1:4].sum()


class Twice(nn.Module):
    """One wrapped module that is called twice, and one that stands in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = FSDP(nn.Linear(4, 4)) if _wrap_inside else nn.Linear(4, 4)
        self.same = self.layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.same(torch.tanh(self.layer(torch.tanh(self.layer(x)))))
        return result


_wrap_inside = False
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "views": (Unusual, (3, 4)),
    "gru": (partial(nn.GRU, 4, 3), (5, 2, 4)),
    "attention": (partial(nn.TransformerEncoderLayer, 8, 2, 16, dropout=0.0), (3, 2, 8)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), (2, 2, 5, 5)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (2, 4)),
    "list": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2)), (2, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_many_kinds_of_modules(name: str) -> None:
    make, shape = MODULES[name]
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"auto_wrap_policy": always_wrap_policy} if name in ("batch norm", "list") else {}
    check_gradients(seeded(make), inputs, disable_reshard_on_root=False, **options)


def test_flat_parameters_of_a_recurrent_module() -> None:
    make = seeded(partial(nn.GRU, 4, 3))
    inputs = torch.randn(5, 2, 4)
    expected = torch.cat([gradient.reshape(-1) for gradient in gradients(make(), inputs) if gradient is not None])
    (found,) = gradients(FSDP(make(), flatten_parameters=True, disable_reshard_on_root=False), inputs.to("xla"))
    assert found is not None
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_a_wrapper_that_is_called_twice_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.randn(3, 4)
    expected = gradients(seeded(Twice)(), inputs)
    monkeypatch.setitem(globals(), "_wrap_inside", True)
    found = gradients(FSDP(seeded(Twice)()), inputs.to("xla"))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine is not None and theirs is not None
        torch.testing.assert_close(mine.cpu(), theirs.reshape(-1), rtol=1e-4, atol=1e-5)


def test_weights_tied_between_wrappers() -> None:
    def make(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
        torch.manual_seed(1)
        first, last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        last.weight = first.weight
        return nn.Sequential(wrap(first), nn.Tanh(), last)

    inputs = torch.randn(3, 4)
    (expected,) = gradients(make(lambda layer: layer), inputs)
    wrapped = FSDP(make(FSDP))
    (found,) = gradients(wrapped, inputs.to("xla"))
    assert found is not None and expected is not None
    torch.testing.assert_close(found.cpu(), expected.reshape(-1), rtol=1e-4, atol=1e-5)
    assert list(wrapped.state_dict()) == ["0.weight", "2.weight"]


def test_parameters_stay_the_objects_that_they_are() -> None:
    module = nn.Linear(4, 3)
    before = list(module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    wrapped = FSDP(module)
    assert all(mine is theirs for mine, theirs in zip(wrapped.parameters(), before, strict=True))
    assert all(getattr(parameter, "_is_sharded", False) and parameter.shape == (parameter.numel(),) for parameter in before)
    assert wrapped.module.module is module and wrapped.in_features == 4
    start = module.bias.detach().cpu()
    wrapped(torch.ones(1, 4, device="xla")).sum().backward()
    optimizer.step()
    assert torch.equal(module.bias.detach().cpu(), start - 0.5)


def test_modules_find_whole_parameters_while_they_run_only() -> None:
    seen: list[torch.Size] = []

    class Looks(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            seen.append(self.weight.shape)
            return super().forward(input)

    module = Looks(4, 3)
    wrapped = FSDP(module)
    wrapped(torch.ones(1, 4, device="xla")).sum().backward()
    assert seen == [(3, 4)] and module.weight.shape == (12,)
    with torch.no_grad():
        wrapped(torch.ones(1, 4, device="xla"))
    assert module.weight.shape == (12,)
    with pytest.raises(RuntimeError):
        wrapped(torch.ones(1, 5, device="xla"))
    assert module.weight.shape == (12,)


def test_nothing_keeps_whole_parameters_after_forward() -> None:
    """But those of the outermost wrapper, unless it is told."""
    import gc
    import weakref

    whole: list[Any] = []

    class Looks(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            whole.append(weakref.ref(self.weight))
            return super().forward(input)

    wrapped = FSDP(nn.Sequential(FSDP(Looks(4, 4)), Looks(4, 4)))
    loss = wrapped(torch.ones(1, 4, device="xla")).sum()
    gc.collect()
    assert whole[0]() is None and whole[1]() is not None
    loss.backward()
    del loss
    gc.collect()
    assert whole[1]() is None


def test_backward_twice_and_checkpoints_of_torch() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    expected = gradients(copy.deepcopy(module), torch.ones(2, 4), 2)

    class Repeats(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    for wrapped in (FSDP(Repeats(copy.deepcopy(module)), disable_reshard_on_root=False), Repeats(FSDP(copy.deepcopy(module)))):
        loss = wrapped(torch.ones(2, 4, device="xla")).square().sum()
        loss.backward(retain_graph=isinstance(wrapped, FSDP) is False)
        wrapped(torch.ones(2, 4, device="xla")).square().sum().backward()
        for parameter, theirs in zip(wrapped.parameters(), expected, strict=True):
            assert parameter.grad is not None and theirs is not None
            torch.testing.assert_close(parameter.grad.cpu(), theirs.reshape(-1), rtol=1e-4, atol=1e-5)
    plain = FSDP(copy.deepcopy(module), disable_reshard_on_root=False)
    loss = plain(torch.ones(2, 4, device="xla")).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    for parameter, theirs in zip(plain.parameters(), expected, strict=True):
        assert parameter.grad is not None and theirs is not None
        torch.testing.assert_close(parameter.grad.cpu(), theirs.reshape(-1), rtol=1e-4, atol=1e-5)


def test_sums_of_no_sync_are_reduced_by_the_next_backward() -> None:
    """Also those of parameters for which that one has no gradient."""

    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, first: bool) -> torch.Tensor:
            return (2 * self.first).sum() if first else (3 * self.second).sum()

    for options in ({}, {"reduce_scatter_bucket_size_mb": 1}):
        wrapped = FSDP(Chooses(), **options)
        with wrapped.no_sync():
            wrapped(True).backward()
            wrapped(True).backward()
        assert all(parameter.grad is None for parameter in wrapped.parameters())
        wrapped(False).backward()
        assert [parameter.grad.tolist() for parameter in wrapped.parameters() if parameter.grad is not None] == [[4, 4], [3, 3]]


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.5, float("inf")])
def test_clipping_is_that_of_torch(norm_type: float) -> None:
    module = nn.Linear(4, 3)
    wrapped = FSDP(copy.deepcopy(module))
    inputs = torch.randn(5, 4)
    gradients(module, inputs)
    gradients(wrapped, inputs.to("xla"))
    expected = nn.utils.clip_grad_norm_(module.parameters(), 0.3, norm_type)
    torch.testing.assert_close(wrapped.clip_grad_norm_(0.3, norm_type).cpu(), expected)
    for mine, theirs in zip(wrapped.parameters(), module.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad.reshape(-1))
    with pytest.raises(ValueError, match="norm_type is 0"):
        wrapped.clip_grad_norm_(1.0, 0.0)


def test_dtypes_of_parameters_inputs_and_buffers() -> None:
    seen: dict[str, torch.dtype] = {}

    class Looks(nn.Linear):
        shift: torch.Tensor

        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("shift", torch.ones(2))

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            seen.update(input=input.dtype, weight=self.weight.dtype, shift=self.shift.dtype)
            return super().forward(input) + self.shift

    wrapped = FSDP(Looks(), compute_dtype=torch.bfloat16, buffer_dtype=torch.float32)
    output = wrapped(torch.randn(4, 3, device="xla"))
    output.sum().backward()
    assert output.dtype == torch.float32 and seen == {"input": torch.bfloat16, "weight": torch.bfloat16, "shift": torch.float32}
    assert all(parameter.grad is not None and parameter.grad.dtype == torch.float32 for parameter in wrapped.parameters())
    low = FSDP(Looks(), compute_dtype=torch.bfloat16)
    assert low.state_dict()["shift"].dtype == torch.bfloat16
    whole = consolidate_sharded_state_dicts([low.state_dict()], low.get_shard_metadata())
    assert {value.dtype for value in whole.values()} == {torch.float32}


def test_state_comes_back_also_into_other_nestings() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    module = make()
    nested = FSDP(copy.deepcopy(module), auto_wrap_policy=always_wrap_policy)
    state = nested.state_dict()
    assert list(state) == list(module.state_dict())
    other = FSDP(make())
    other.load_state_dict(state)
    for name, value in other.state_dict().items():
        assert torch.equal(value.cpu(), module.state_dict()[name].reshape(-1) if value.dim() else module.state_dict()[name])
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({})
    named = {f"_fsdp_wrapped_module._fpw_module.{name}": value for name, value in state.items()}
    other.load_state_dict(named)


def test_training_goes_on_from_the_shards_states(tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(2)
        model = FSDP(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), auto_wrap_policy=always_wrap_policy)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
        losses = []
        for step in steps:
            optimizer.zero_grad()
            loss = model(torch.full((2, 4), 1.0 + step, device="xla")).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model, optimizer = made()
    train(model, optimizer, range(3))
    xm.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state")
    expected = train(model, optimizer, range(3, 6))
    model, optimizer = made()
    state = torch.load(tmp_path / "state")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert train(model, optimizer, range(3, 6)) == expected


def test_modules_on_meta() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)))
        module[1][1].weight = nn.Parameter(torch.empty(3, 3))
    torch.manual_seed(3)
    wrapped = FSDP(copy.deepcopy(module), auto_wrap_policy=always_wrap_policy)
    assert all(parameter.device.type == "xla" for parameter in wrapped.parameters())
    wrapped(torch.randn(5, 4, device="xla")).sum().backward()
    assert wrapped.state_dict()["1.0.running_var"].tolist() != []

    def ones(each: nn.Module) -> None:
        each.to_empty(device="cpu", recurse=False)
        for tensor in [*each.parameters(recurse=False), *each.buffers(recurse=False)]:
            tensor.fill_(1)

    filled = FSDP(copy.deepcopy(module), param_init_fn=ones)
    assert filled.state_dict()["1.1.weight"].tolist() == [1.0] * 9
    with pytest.raises(RuntimeError, match="left weight, bias of a Linear on meta"):
        FSDP(copy.deepcopy(module), param_init_fn=lambda each: None)

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(2, device="meta"))

    with pytest.raises(RuntimeError, match=r"a Bare has weight on meta and no reset_parameters\(\)"):
        FSDP(Bare())


def test_policies_choose_what_is_wrapped() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)), nn.LayerNorm(8))

    def wrapped(policy: Any) -> list[str]:
        module = FSDP(make(), auto_wrap_policy=policy)
        return [type(each.module.module).__name__ for each in module.modules() if isinstance(each, FSDP)][1:]

    assert wrapped(always_wrap_policy) == ["Linear", "Sequential", "Linear", "LayerNorm", "LayerNorm"]
    assert wrapped(partial(lambda_auto_wrap_policy, lambda_fn=lambda each: isinstance(each, nn.LayerNorm))) == ["LayerNorm"] * 2
    assert wrapped(partial(size_based_auto_wrap_policy, min_num_params=50)) == ["Sequential"]
    assert wrapped(torch.distributed.fsdp.wrap.ModuleWrapPolicy({nn.Linear})) == ["Linear", "Linear"]


def test_what_is_wrapped_already_is_left_alone() -> None:
    inner = FSDP(nn.Linear(4, 4))
    made: list[type] = []

    def make(module: nn.Module, **options: Any) -> FSDP:
        made.append(type(module))
        assert options["shard_param_on_dim_0"]
        return FSDP(checkpoint_module(module), **options)

    wrapped = FSDP(
        nn.Sequential(inner, nn.Tanh(), nn.Linear(4, 2)),
        auto_wrap_policy=always_wrap_policy,
        auto_wrapper_callable=make,
        shard_param_on_dim_0=True,
    )
    assert wrapped[0] is inner and made == [nn.Tanh, nn.Linear]
    with pytest.raises(RuntimeError, match="wrapped in XlaFullyShardedDataParallel already"):
        FSDP(wrapped)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"compute_dtype is torch.int32, must be one of torch.float32"):
        FSDP(nn.Linear(2, 2), compute_dtype=torch.int32)
    with pytest.raises(ValueError, match="sharding_rank is 3; by sharding_groups this replica has 0"):
        FSDP(nn.Linear(2, 2), sharding_rank=3)
    with pytest.raises(ValueError, match="sharding_world_size is 2"):
        FSDP(nn.Linear(2, 2), sharding_world_size=2)
    with pytest.raises(TypeError, match="shard_everything"):
        FSDP(nn.Linear(2, 2), shard_everything=True)

    class Clips(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            wrapped.clip_grad_norm_(1.0)
            return super().forward(input)

    wrapped = FSDP(Clips(2, 2))
    with pytest.raises(RuntimeError, match="inside the module's forward pass"):
        wrapped(torch.ones(1, 2, device="xla"))
