"""`assume_pure`, `scan_layers` and `gradient_accumulation` against the same in plain torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla.experimental import eager_mode_context
from torch_xla.experimental.assume_pure import PureModule, assume_pure, j2t_autograd
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.scan_layers import scan_layers
from xla_core.base.errors import UnsupportedOperationError

from ...conftest import Counts


@pytest.fixture(params=[False, True], ids=["lazy", "eager"])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with eager_mode_context(True) if request.param else nullcontext():
        yield


@pytest.mark.usefixtures("mode")
def test_a_pure_function_is_called_once_for_each_kind_of_arguments() -> None:
    calls = []

    def fn(a: Any, b: dict[str, Any], scale: int = 1) -> Any:
        calls.append(tuple(a.shape))
        return {"product": (a @ b["w"]).relu() * scale, "scale": scale, "none": None}

    pure = assume_pure(fn)
    torch.manual_seed(0)
    for rows, scale in ((2, 3), (2, 3), (4, 3), (2, 5), (2, 3)):
        start, weight = torch.randn(rows, 3), torch.randn(3, 3)
        found = []
        for device, call in (("cpu", fn), ("xla", pure)):
            a, w = (each.clone().to(device).detach().requires_grad_() for each in (start, weight))
            result = call(a, {"w": w}, scale=scale)
            result["product"].square().sum().backward()
            assert (result["scale"], result["none"]) == (scale, None)
            found.append([each.detach().cpu() for each in (result["product"], a.grad, w.grad)])
        for expected, got in zip(*found, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 5 + 3  # by the CPU each time, by the device for each kind


def test_a_pure_function_is_one_operation_and_compiles_once(counts: Counts) -> None:
    pure = assume_pure(lambda x: x.sin().cos().tan())
    for turn in range(3):
        result = pure(torch.full((3,), 0.1 * turn).to("xla"))
        assert torch_xla._XLAC._get_xla_tensors_text([result]).count("sin") == 0
        torch_xla.sync()
    assert counts.UncachedCompile <= 1
    torch.testing.assert_close(result.cpu(), torch.full((3,), 0.2).sin().cos().tan())


def test_seeds_of_pure_functions() -> None:
    drawn = assume_pure(torch.rand_like)
    x = torch.ones(16, device="xla")
    assert not torch.equal(drawn(x).cpu(), drawn(x).cpu())
    given = assume_pure(torch.rand_like, add_rng_seed_argument=True)
    first, again, other = (given(x, rng_seed=seed).cpu() for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(TypeError, match="rng_seed"):
        given(x)


def test_pure_modules_train() -> None:
    torch.manual_seed(0)
    reference = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    module = copy.deepcopy(reference).to("xla")
    pure = PureModule(module)
    data = torch.randn(5, 3)
    for model, forward, device in ((reference, reference, "cpu"), (module, pure, "xla")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            forward(data.to(device)).square().mean().backward()
            optimizer.step()
    for expected, got in zip(reference.parameters(), pure.parameters(), strict=True):
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)


def test_wrong_arguments_of_pure_functions() -> None:
    pure = assume_pure(lambda x, y=None: x)
    with pytest.raises(RuntimeError, match="not an XLA tensor"):
        pure(torch.ones(2))
    with pytest.raises(TypeError, match="cannot take a set"):
        pure(torch.ones(2, device="xla"), {1})


def test_jax_functions_with_gradients() -> None:
    import jax.numpy as jnp

    x = torch.tensor([0.5, 1.0], device="xla", requires_grad=True)
    j2t_autograd(jnp.sin)(x).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), x.detach().cpu().cos())


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.usefixtures("mode")
def test_layers(pure: bool) -> None:
    torch.manual_seed(0)
    reference = [torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0) for _ in range(3)]
    layers = [copy.deepcopy(layer).to("xla") for layer in reference]
    x = torch.randn(2, 4, 8)
    expected = x
    for layer in reference:
        expected = layer(expected)
    expected.square().sum().backward()
    for _ in range(2):
        for layer in layers:
            layer.zero_grad()
        got = scan_layers(layers, x.to("xla"), is_layer_pure=pure)
        got.square().sum().backward()
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
        for one, other in zip(reference, layers, strict=True):
            for wanted, param in zip(one.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(param.grad.cpu(), wanted.grad, rtol=1e-3, atol=1e-3)


def test_dropout_in_layers_differs_from_layer_to_layer() -> None:
    class Drop(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, x: Any) -> Any:
            return x + torch.nn.functional.dropout(torch.ones_like(x), 0.5) * self.scale

    result = scan_layers([Drop().to("xla") for _ in range(4)], torch.zeros(256, device="xla"))
    assert sorted(set(result.tolist())) == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_wrong_layers() -> None:
    x = torch.ones(2, 3, device="xla")
    assert scan_layers([], x) is x
    with pytest.raises(ValueError, match="layer 1 are not those of layer 0: weight differ"):
        scan_layers([torch.nn.Linear(3, 3, bias=False).to("xla"), torch.nn.Linear(3, 4, bias=False).to("xla")], x)
    with pytest.raises(ValueError, match="with parameters"):
        scan_layers([torch.nn.ReLU(), torch.nn.ReLU()], x)
    with pytest.raises(ValueError, match="layer 1 has not the modules of layer 0.*: itself"):
        scan_layers([torch.nn.LayerNorm(3).to("xla"), torch.nn.GroupNorm(1, 3).to("xla")], x)
    with pytest.raises(ValueError, match="another mode: 1"):
        dropping = [torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout()).to("xla") for _ in range(2)]
        dropping[1][1].eval()
        scan_layers(dropping, x)
    with pytest.raises(UnsupportedOperationError, match="writes to one of its arguments"):
        scan_layers([torch.nn.BatchNorm1d(3).to("xla")] * 2, x)
    with torch.autocast("xla", dtype=torch.bfloat16), pytest.raises(ValueError, match="f32\\[2,3\\] as bf16.*convert what it returns"):
        scan_layers([torch.nn.Linear(3, 3).to("xla")] * 2, x)


class Normed(torch.nn.Module):
    """A layer with buffers that it writes to, one that it replaces, and one that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("shift", torch.arange(3.0))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.largest = torch.maximum(self.largest, x.detach().max())
        return torch.tanh(self.norm(self.linear(x))) + self.shift


@pytest.mark.parametrize("kind", ["plain", "pure", "evaluated", "partitioned"])
def test_buffers_of_layers(kind: str) -> None:
    from functorch.compile import min_cut_rematerialization_partition

    torch.manual_seed(0)
    reference = [Normed().train(kind != "evaluated") for _ in range(3)]
    layers = [copy.deepcopy(layer).to("xla") for layer in reference]
    partition = min_cut_rematerialization_partition if kind == "partitioned" else None
    for _ in range(2):
        x = torch.randn(5, 3)
        expected = x
        for layer in reference:
            expected = layer(expected)
        expected.square().sum().backward()
        got = scan_layers(layers, x.to("xla"), partition, kind == "pure")
        got.square().sum().backward()
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(reference, layers, strict=True):
        for wanted, found in zip([*one.buffers(), *one.parameters()], [*other.buffers(), *other.parameters()], strict=True):
            torch.testing.assert_close(found.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-4)
            if wanted.grad is not None:
                torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("mode")
def test_gradients_accumulate() -> None:
    torch.manual_seed(0)
    reference = torch.nn.Linear(3, 1)
    model = copy.deepcopy(reference).to("xla")
    data, target = torch.randn(4, 5, 3), torch.randn(4, 5, 1)
    for _ in range(2):  # the second time onto what is there
        expected = sum(torch.nn.functional.mse_loss(reference(x), y) / 4 for x, y in zip(data, target, strict=True))
        expected.backward()
        loss, count = gradient_accumulation(
            lambda x, y, n: (torch.nn.functional.mse_loss(model(x), y), n + 1),
            (data.to("xla"), target.to("xla")),
            model,
            torch.tensor(0, device="xla"),
        )
        torch.testing.assert_close(loss.cpu(), expected.detach())
        assert int(count) == 4
    for wanted, param in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(param.grad.cpu(), wanted.grad, rtol=1e-4, atol=1e-5)


def test_wrong_steps_of_accumulation() -> None:
    model = torch.nn.Linear(3, 1).to("xla")
    with pytest.raises(ValueError, match="scalar loss"):
        gradient_accumulation(lambda x: model(x), (torch.ones(4, 5, 3, device="xla"),), model)
    with pytest.raises(ValueError, match="at least one part"):
        gradient_accumulation(lambda: model, (), model)
    with pytest.raises(TypeError, match="a tuple of tensors, got a Tensor"):
        gradient_accumulation(lambda x: model(x).mean(), torch.ones(4, 5, 3, device="xla"), model)
