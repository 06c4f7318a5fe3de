"""Whole models: forward, backward and optimizers give on xla what they give on the CPU, compiled once."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import torch_xla

Tensor = torch.Tensor
Counts = Any


class Residual(nn.Module):
    """Two convolutions with normalisation around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


class Attention(nn.Module):
    """One block of a small language model: causal attention with a mask of its own, then a feed-forward part."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.mix(self.norm1(x)).split(width, 2))
        weights = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        weights = weights.masked_fill(self.mask[:length, :length] == 0, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).contiguous().view(batch, length, width))
        result: Tensor = x + self.feed(self.norm2(x))
        return result


class Language(nn.Module):
    """Embeddings, one block, and tied output weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.block = Attention(8, 2, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.block(self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device)))
        return F.linear(hidden, self.tokens.weight).flatten(0, 1)


class Recurrent(nn.Module):
    """An LSTM and its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(5, 7, num_layers=2, batch_first=True), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.cells(x)[0][:, -1])
        return result


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.GroupNorm(3, 6), nn.SiLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip


def resnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), Residual(4), nn.AvgPool2d(2), Residual(4), nn.Flatten(), nn.Linear(64, 4))


def transformer() -> nn.Module:
    return nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(24, 4))


# Model, shape of a batch (None: tokens), number of classes.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    "mlp": (mlp, (5, 6)),
    "cnn": (cnn, (3, 2, 8, 8)),
    "resnet": (resnet, (3, 2, 8, 8)),
    "gpt": (Language, None),
    "transformer": (transformer, (4, 3, 8)),
    "lstm": (Recurrent, (4, 3, 5)),
}


def batches(shape: tuple[int, ...] | None, count: int) -> list[tuple[Tensor, Tensor]]:
    """Inputs and classes."""
    generator = torch.Generator().manual_seed(5)
    if shape is None:
        tokens = torch.randint(0, 11, (count, 3, 7), generator=generator)
        return [(each[:, :-1], each[:, 1:].flatten()) for each in tokens]
    return [(torch.randn(shape, generator=generator), torch.randint(0, 3, shape[:1], generator=generator)) for _ in range(count)]


def train(model: nn.Module, device: str, data: list[tuple[Tensor, Tensor]], counts: Counts = None) -> Any:
    """Losses, final state and last gradients; checks what was compiled on the way."""
    model = model.to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for inputs, classes in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs.to(device)), classes.to(device))
        loss.backward()
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
        losses.append(loss.detach())
    if counts is not None:
        assert counts.UncachedCompile <= 2, "momentum buffers appear in the first step; everything else repeats"
    gradients = [each.grad.cpu() for each in model.parameters() if each.grad is not None]
    return [loss.item() for loss in losses], {name: each.cpu() for name, each in model.state_dict().items()}, gradients


@pytest.mark.parametrize("name", list(MODELS))
def test_training_agrees_with_the_cpu(name: str, counts: Counts) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make()
    data = batches(shape, 4)
    expected = train(copy.deepcopy(model), "cpu", data)
    counts.restart()
    got = train(model, "xla", data, counts)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    assert expected[1].keys() == got[1].keys() and len(expected[2]) == len(list(model.parameters()))


def test_evaluation_after_training_uses_the_running_statistics() -> None:
    torch.manual_seed(0)
    model = resnet()
    data = batches((3, 2, 8, 8), 2)
    results = []
    for device, twin in (("cpu", copy.deepcopy(model)), ("xla", model)):
        train(twin, device, data)
        twin.eval()
        with torch.no_grad():
            results.append(twin(data[0][0].to(device)).cpu())
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


OPTIMIZERS: dict[str, tuple[Callable[..., optim.Optimizer], dict[str, Any]]] = {
    "SGD": (optim.SGD, {"lr": 0.1}),
    "SGD_nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "SGD_maximize": (optim.SGD, {"lr": 0.1, "maximize": True, "dampening": 0.1, "momentum": 0.5}),
    "Adam": (optim.Adam, {"lr": 0.01}),
    "Adam_amsgrad": (optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "AdamW": (optim.AdamW, {"lr": 0.01}),
    "NAdam": (optim.NAdam, {"lr": 0.01}),
    "RAdam": (optim.RAdam, {"lr": 0.01}),
    "Adamax": (optim.Adamax, {"lr": 0.01}),
    "Adadelta": (optim.Adadelta, {}),
    "Adagrad": (optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1}),
    "Adafactor": (optim.Adafactor, {"lr": 0.05}),
    "RMSprop": (optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "Rprop": (optim.Rprop, {"lr": 0.01}),
    "ASGD": (optim.ASGD, {"lr": 0.05}),
}
# torch reads values of these on the host in every step, so that a step is several programs.
READ_VALUES = {"Adafactor", "ASGD"}


def optimise(
    kind: Callable[..., optim.Optimizer], options: dict[str, Any], device: str, counts: Counts, steps: int = 5
) -> tuple[list[Tensor], list[int]]:
    """Parameters after some steps with a schedule, and compiles after each step."""
    generator = torch.Generator().manual_seed(1)
    starts = [torch.randn(shape, generator=generator) for shape in ((3, 4), (4,), (1,), (2, 3, 2))]
    parameters = [nn.Parameter(start.to(device)) for start in starts]
    optimizer = kind(parameters, **options)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    torch_xla.sync()
    counts.restart()
    compiles = []
    for _ in range(steps):
        optimizer.zero_grad()
        sum((each.square().sum() + each.sin().sum() for each in parameters), torch.zeros((), device=device)).backward()
        optimizer.step()
        schedule.step()
        if device == "xla":
            torch_xla.sync()
        compiles.append(counts.UncachedCompile)
    return [each.detach().cpu() for each in parameters], compiles


@pytest.mark.parametrize("foreach", [None, False], ids=["default", "single"])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_optimizers_agree_with_the_cpu_and_compile_no_more_after_step_three(name: str, foreach: bool | None, counts: Counts) -> None:
    kind, options = OPTIMIZERS[name]
    expected, _ = optimise(kind, options, "cpu", counts)
    got, compiles = optimise(kind, {**options, "foreach": foreach}, "xla", counts)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    if name not in READ_VALUES:
        assert compiles[-1] == compiles[2] <= 2, compiles


def test_lbfgs_reads_values_and_still_agrees() -> None:
    results = []
    for device in ("cpu", "xla"):
        parameter = nn.Parameter(torch.tensor([1.5, -0.5]).to(device))
        optimizer = optim.LBFGS([parameter], lr=0.5, max_iter=5)

        def closure(parameter: nn.Parameter = parameter, optimizer: optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = (parameter**4 - parameter).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        results.append(parameter.detach().cpu())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_gradient_clipping_and_accumulation() -> None:
    results = []
    for device in ("cpu", "xla"):
        torch.manual_seed(3)
        model = mlp().to(device)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        norms = []
        for data, classes in batches((5, 6), 2):
            for part in data.split(2), data.split(3):
                F.cross_entropy(model(part[0].to(device)), classes[: len(part[0])].to(device)).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
            nn.utils.clip_grad_value_(model.parameters(), 0.2)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        results.append((norms, [each.detach().cpu() for each in model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_higher_derivatives() -> None:
    results = []
    for device in ("cpu", "xla"):
        x = torch.tensor([0.5, 2.0], device=device, requires_grad=True)
        (first,) = torch.autograd.grad((x**3).sin().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        jacobian = torch.autograd.functional.jacobian(lambda y: y.exp() * y.flip(0), x.detach())
        results.append((first.detach().cpu(), second.cpu(), jacobian.cpu()))
    torch.testing.assert_close(results[0], results[1])


class Twice(torch.autograd.Function):
    """Its own backward, with a saved tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * 2 + x * 0


def test_custom_functions_hooks_and_retained_gradients() -> None:
    seen: list[list[float]] = []
    x = torch.tensor([1.0, 2.0], device="xla", requires_grad=True)
    middle = Twice.apply(x)
    middle.retain_grad()
    middle.register_hook(lambda gradient: seen.append(gradient.tolist()))
    x.register_hook(lambda gradient: gradient * 10)
    (middle * middle).sum().backward()
    assert middle.grad is not None and x.grad is not None
    assert seen == [[4.0, 8.0]] and middle.grad.tolist() == [4.0, 8.0] and x.grad.tolist() == [80.0, 160.0]


def test_a_second_backward_and_a_changed_saved_tensor_are_refused() -> None:
    x = torch.ones(2, device="xla", requires_grad=True)
    loss = (x * x).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()
    square = x.exp()
    total = square.square().sum()
    square.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
    square = x.exp()
    total = square.square().sum()
    with torch.no_grad():
        torch._foreach_mul_([square], 2)  # lists count too, as their kernels do on the CPU
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_an_exception_inside_backward_reaches_the_caller() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            raise KeyError("from backward")

    x = torch.ones(2, device="xla", requires_grad=True)
    with pytest.raises(KeyError, match="from backward"):
        Broken.apply(x).sum().backward()
    (x * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2]


def test_no_grad_inference_and_detach() -> None:
    x = torch.ones(2, device="xla", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Dropout(0.5)).to("xla").eval()
        shown = model(x.detach().reshape(1, -1)).flatten()
        assert shown.is_inference() and shown.shape == (3,)
    assert (x.detach() * 2).tolist() == [2, 2] and not x.detach().requires_grad


INFERENCE: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda x: x.view(-1),
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:, 1],
    "split": lambda x: x.split(1),
    "view of a new tensor": lambda x: (x + 1).view(-1),
    "write through a view": lambda x: x[0].add_(1),
    "t_": lambda x: x.t_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "set_": lambda x: x.set_(x + 1),
    "resize_": lambda x: x.resize_(2),
}


@pytest.mark.parametrize("name", INFERENCE)
def test_tensors_from_outside_keep_their_kind_in_inference_mode(name: str) -> None:
    found = []
    for device in ("cpu", "xla"):
        x = torch.arange(6.0).reshape(2, 3).to(device)
        with torch.inference_mode():
            shown = INFERENCE[name](x)
        parts = shown if isinstance(shown, tuple) else (shown,)
        assert not x.is_inference()
        found.append([(part.is_inference(), part.tolist()) for part in parts] + [x.tolist()])
    assert found[0] == found[1]


def test_data_set_in_inference_mode() -> None:
    x = torch.ones(2, device="xla")
    with torch.inference_mode():
        x.data = x * 3
    assert x.tolist() == [3, 3]
    x.requires_grad_().square().sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6, 6]


def test_views_in_inference_mode_are_what_they_show() -> None:
    found = []
    for device in ("cpu", "xla"):
        normal = torch.arange(6.0, device=device).reshape(2, 3)
        with torch.inference_mode():
            inside = normal + 1
            views = [view(x) for x in (normal, inside) for view in (torch.t, lambda x: x[0], lambda x: x.split(1)[1], lambda x: x.view(-1))]
            normal.t().mul_(2)
        found.append([(view.is_inference(), view.tolist()) for view in views])
    assert found[0] == found[1]


def test_functional_gradients_run_in_the_callers_thread() -> None:
    class Cubed(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any) -> Any:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
            threads.append(threading.get_ident())
            return grad * 3 * ctx.saved_tensors[0] ** 2

    threads: list[int] = []
    found = torch.func.grad(lambda x: Cubed.apply(x).sum())(torch.tensor([1.0, 2.0], device="xla"))  # type: ignore[no-untyped-call]
    assert (found.tolist(), threads) == ([3.0, 12.0], [threading.get_ident()])


def test_functional_transforms() -> None:
    results = []
    for device in ("cpu", "xla"):
        x = torch.tensor([[0.5, 2.0], [1.0, 3.0]], device=device)
        results.append(torch.func.functional_call(nn.Linear(2, 2).to(device), {"weight": x, "bias": x[0]}, x).cpu())
    torch.testing.assert_close(*results)


def test_a_view_that_torch_cannot_make_again_is_an_error_and_no_wrong_gradient() -> None:
    leaf = torch.ones(4, device="xla", requires_grad=True)
    reshaped = leaf.view(1, 4)
    with torch.no_grad():
        reshaped.squeeze_()
    with pytest.raises(RuntimeError, match="invalid gradient"):
        reshaped.sum().backward()
    base = torch.ones(2, 2, device="xla")
    part = base.view(4).requires_grad_()[:2]
    base.mul_(2)
    with pytest.raises(RuntimeError, match="INTERNAL ASSERT"):
        part.sum().backward()


def test_what_lies_beside_a_view_has_no_gradient_before_and_after_a_write() -> None:
    """The CPU gives it none before, and one after."""
    gradients = {}
    for device in ("cpu", "xla"):
        for writes in (False, True):
            leaf = torch.zeros(2, 3, device=device, requires_grad=True)
            window = torch.stack([leaf, leaf])[..., 1:].as_strided((2, 2), (2, 1))
            with torch.no_grad():
                if writes:
                    window.zero_()
            window.sum().backward()
            assert leaf.grad is not None
            gradients[device, writes] = leaf.grad.tolist()
    assert gradients["xla", False] == gradients["xla", True] == gradients["cpu", False] != gradients["cpu", True]
