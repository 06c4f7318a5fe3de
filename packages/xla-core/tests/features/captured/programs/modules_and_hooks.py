"""Layers of torch with state or options of their own, and hooks that act in special ways, in steps that train."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

CALLS = 20


def batch(call: int, rows: int = 4, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(rows * size, dtype=torch.float32).reshape(rows, size) * 2 + call).to("xla")


def trained(capture: Capture, model: nn.Module, before: Callable[[int], None] = lambda call: None, calls: int = CALLS) -> Iterator[Any]:
    """Train a model towards small outputs with a captured step; `before` each call the caller does something."""
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1, momentum=0.5)

    @capture
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(calls):
        before(call)
        yield step(batch(call))
    yield model.state_dict()


def net(*layers: nn.Module) -> nn.Sequential:
    """Layers on the device, after a seed."""
    return nn.Sequential(*layers).to("xla")


@program
def weights_that_the_forward_renormalizes(capture: Capture) -> Iterator[Any]:
    """An embedding with a largest norm writes to its weight in the forward pass."""
    torch.manual_seed(3)
    embedding = nn.Embedding(5, 3, max_norm=0.5, padding_idx=0).to("xla")
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.5)

    @capture
    def step(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = embedding(tokens).sum(1).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        yield step(((torch.arange(4) * 2 + call) % 5).to("xla"))
        yield embedding.weight


@program
def layers_of_lstms(capture: Capture) -> Iterator[Any]:
    """Two layers of an LSTM with dropout in between, whose state goes on from call to call; the caller forgets it at call 9."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.lstm, self.out = nn.LSTM(3, 4, num_layers=2, dropout=0.3, batch_first=True), nn.Linear(4, 2)
            self.state: Any = None

        def forward(self, x: Tensor) -> Tensor:
            y, state = self.lstm(x[None], self.state)
            self.state = tuple(each.detach() for each in state)
            return self.out(y)

    model = Tagger().to("xla")

    def before(call: int) -> None:
        if call == 9:
            model.state = None
        model.lstm.dropout = 0.3 if call < 14 else 0.0

    yield from trained(capture, model, before)
    yield model.state


@program
def attention_in_two_modes(capture: Capture) -> Iterator[Any]:
    """A layer of a transformer in training and in evaluation, with a mask that the caller gives in some calls."""
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True).to("xla")

    @capture
    def step(x: Tensor, mask: Tensor | None) -> Tensor:
        return layer(x, src_mask=mask).detach()

    mask = nn.Transformer.generate_square_subsequent_mask(3).to("xla")
    for call in range(CALLS):
        layer.train(call % 6 < 3)
        yield step(batch(call, 3, 4)[None], mask if call % 2 else None)


@program
def a_cache_of_parametrizations(capture: Capture) -> Iterator[Any]:
    """A layer is used twice under parametrize.cached; the parametrization has a number that the caller changes."""

    class Symmetric(nn.Module):
        scale = 1.0

        def forward(self, weight: Tensor) -> Tensor:
            return (weight + weight.t()) * self.scale / 2

    torch.manual_seed(3)
    layer = nn.Linear(3, 3).to("xla")
    parametrize.register_parametrization(layer, "weight", Symmetric())

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            with parametrize.cached():
                return self.layer(self.layer(x))

    def before(call: int) -> None:
        layer.parametrizations.weight[0].scale = 1.0 if call < 9 else 0.5

    yield from trained(capture, Twice(), before)


@program
def weights_pruned_more_and_more(capture: Capture) -> Iterator[Any]:
    """The caller prunes the smallest weights at three calls, and makes that permanent at call 15."""
    torch.manual_seed(3)
    model = net(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def before(call: int) -> None:
        if call in (4, 8, 12):
            mask = (torch.arange(12).reshape(4, 3) % (call // 2) != 0).to("xla")
            prune.custom_from_mask(model[0], "weight", mask)
        if call == 15:
            prune.remove(model[0], "weight")

    yield from trained(capture, model, before)


@program
def a_spectral_norm_that_comes_and_goes(capture: Capture) -> Iterator[Any]:
    """The caller adds a spectral norm to a layer at call 6, and takes it away at call 13."""
    torch.manual_seed(3)
    model = net(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def before(call: int) -> None:
        if call == 6:
            torch.manual_seed(5)
            torch.nn.utils.parametrizations.spectral_norm(model[0])
        if call == 13:
            parametrize.remove_parametrizations(model[0], "weight")

    yield from trained(capture, model, before)


@program
def statistics_that_a_norm_stops_to_track(capture: Capture) -> Iterator[Any]:
    """The caller changes the momentum of a batch norm, stops tracking, and sets its statistics back."""
    torch.manual_seed(3)
    norm = nn.BatchNorm1d(4)
    model = net(nn.Linear(3, 4), norm, nn.Linear(4, 2))

    def before(call: int) -> None:
        norm.momentum = 0.1 if call < 7 else 0.3
        if call == 10:
            norm.reset_running_stats()
        norm.track_running_stats = call < 15
        norm.train(call % 5 != 4)

    yield from trained(capture, model, before)


@program(refused="reads a value")
def norms_without_momentum(capture: Capture) -> Iterator[Any]:
    """A batch norm that averages over all batches (momentum=None), on the device."""
    torch.manual_seed(3)
    yield from trained(capture, net(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2)))


@program
def a_layer_made_in_its_first_call(capture: Capture) -> Iterator[Any]:
    """A lazy layer gets its shape in the first call, inside the step, which makes the optimizer then, too."""

    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.Linear(4, 1)).to("xla")
            self.optimizer: Any = None

        def step(self, x: Tensor) -> Tensor:
            y = self.model(x)
            if self.optimizer is None:
                with torch.no_grad():
                    for index, parameter in enumerate(self.model.parameters()):
                        parameter.fill_(0.1 * (index + 1))
                y = self.model(x)
                self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
            loss = y.square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
    yield trainer.model.state_dict()


@program
def hooks_registered_by_the_step(capture: Capture) -> Iterator[Any]:
    """The step registers a hook on each of its tensors and on a layer, and removes the latter; the hooks scale by an attribute."""
    torch.manual_seed(3)
    model = net(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    scale = {"value": 1.0}

    @capture
    def step(x: Tensor) -> list[Any]:
        model.zero_grad()
        handle = model[1].register_forward_hook(lambda module, args, output: output * 2)
        y = model(x)
        handle.remove()
        y.register_hook(lambda gradient: gradient * scale["value"])
        y.square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    for call in range(CALLS):
        scale["value"] = 1.0 if call < 8 else 0.25
        yield step(batch(call))
    yield len(model[1]._forward_hooks)


@program(refused="another operand")
def hooks_that_add_up_at_a_weight(capture: Capture) -> Iterator[Any]:
    """A mistake that many make: the step registers a hook on a weight at each call, and never removes it."""
    weight = torch.ones(3, device="xla").requires_grad_()

    @capture
    def step(x: Tensor) -> Tensor:
        weight.register_hook(lambda gradient: gradient * 2)
        (gradient,) = torch.autograd.grad((weight * x).sum(), weight)
        return gradient

    for call in range(CALLS):
        yield step(batch(call))


@program
def layers_watched_by_one_hook(capture: Capture) -> Iterator[Any]:
    """One hook on all layers puts the means of outputs into a dict by name, in calls where the caller wants that."""
    torch.manual_seed(3)
    model = net(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    means: dict[str, Tensor] = {}
    wanted = {"on": False}
    for name, layer in model.named_modules():

        def keep(module: nn.Module, args: Any, output: Tensor, name: str = name) -> None:
            if wanted["on"]:
                means[name] = output.detach().mean()

        layer.register_forward_hook(keep)

    def before(call: int) -> None:
        wanted["on"] = call % 3 == 1

    for result in trained(capture, model, before):
        yield result
        yield dict(means)


@program
def deep_copies_of_a_trained_model(capture: Capture) -> Iterator[Any]:
    """The caller copies the model and the optimizer in the middle, trains the copy for some calls, and goes on with the first."""
    torch.manual_seed(3)

    class Trainer:
        def __init__(self) -> None:
            self.model = net(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)

        def step(self, x: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    first: Any = None
    for call in range(26):
        if call == 8:
            first = (trainer.model, trainer.optimizer)
            trainer.model, trainer.optimizer = copy.deepcopy(first)
        if call == 17:
            trainer.model, trainer.optimizer = first
        yield step(batch(call))
    yield trainer.model.state_dict()


@program
def mixed_precision_with_master_weights(capture: Capture) -> Iterator[Any]:
    """The model is bfloat16; its gradients go to float32 copies, which an optimizer trains; a scale doubles by the caller."""
    torch.manual_seed(3)
    model = net(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(torch.bfloat16)
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    settings = {"scale": 8.0}

    @capture
    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        loss = model(x.bfloat16()).float().square().mean()
        (loss * settings["scale"]).backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float() / settings["scale"]
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
        return loss.detach()

    for call in range(CALLS):
        if call % 6 == 5:
            settings["scale"] *= 2
        yield step(batch(call))
    yield masters


@program
def losses_with_weights_of_classes_in_a_list(capture: Capture) -> Iterator[Any]:
    """A weighted loss whose weights are a buffer that the caller replaces, with label smoothing that it changes."""
    torch.manual_seed(3)
    model = nn.Linear(3, 2).to("xla")
    loss_of = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), label_smoothing=0.0).to("xla")
    step = capture(lambda x, y: loss_of(model(x), y).detach())
    for call in range(CALLS):
        if call == 7:
            loss_of.weight = torch.tensor([3.0, 0.5]).to("xla")
        loss_of.label_smoothing = 0.1 * (call // 5)
        if call == 16:
            loss_of.reduction = "sum"
        yield step(batch(call), (torch.arange(4) % 2).to("xla"))


@program
def padding_that_changes_by_kind(capture: Capture) -> Iterator[Any]:
    """The caller changes the padding of a convolution, its mode of padding, and the size that pooling gives."""
    torch.manual_seed(3)
    conv, pool = nn.Conv1d(1, 2, 3, padding=1, padding_mode="zeros").to("xla"), nn.AdaptiveAvgPool1d(2)
    step = capture(lambda x: pool(F.relu(conv(x[:, None]))).detach())
    for call in range(CALLS):
        if call == 6:
            pool.output_size = 3
        if call == 12:
            conv.padding = (0,)
        yield step(batch(call, 2, 6))
