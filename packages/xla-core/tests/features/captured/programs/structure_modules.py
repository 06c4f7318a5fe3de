"""Models that are taken apart and put together between calls: layers, parameters, hooks, and numbers of modules."""

from __future__ import annotations

import copy
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

CALLS = 22


class Net(nn.Module):
    """Layers in a list, and a head."""

    def __init__(self, depth: int = 2, seed: int = 101) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.dropout, self.head = nn.Dropout(0.0), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(self.dropout(x))  # type: ignore[no-any-return]


def batch(call: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 4, generator=generator).to("xla"), torch.randint(3, (rows,), generator=generator).to("xla")


class Trainer:
    """A model, its optimizer and a plain training step."""

    def __init__(self) -> None:
        self.model = Net().to("xla")
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=0.03)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of training; the loss, without its graph."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def train(capture: Capture, between: Callable[[int, Trainer], Any]) -> Iterator[Any]:
    """Train; `between` runs before each call. Yields losses, gradients and parameters."""
    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        between(call, trainer)
        yield step(*batch(call))
        yield [parameter.grad for parameter in trainer.model.parameters()]
        yield trainer.model.state_dict()
    yield trainer.optimizer.state_dict()["state"]


@program
def a_layer_that_is_swapped(capture: Capture) -> Iterator[Any]:
    """The head is replaced at call 3 and at call 12, where the optimizer is made anew, and the first head comes back at 20."""
    heads: list[nn.Linear] = []

    def between(call: int, trainer: Trainer) -> None:
        if call in (3, 12):
            heads.append(trainer.model.head)
            torch.manual_seed(call)
            trainer.model.head = nn.Linear(4, 3).to("xla")
        if call == 12:
            trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
        if call == 20:
            trainer.model.head = heads[0]

    yield from train(capture, between)


@program
def layers_that_are_appended(capture: Capture) -> Iterator[Any]:
    """A network that grows: a layer more at calls 3 and 10, whose parameters join the optimizer, and one less at call 18."""

    def between(call: int, trainer: Trainer) -> None:
        if call in (3, 10):
            torch.manual_seed(call)
            layer = nn.Linear(4, 4).to("xla")
            trainer.model.layers.append(layer)
            trainer.optimizer.add_param_group({"params": layer.parameters(), "lr": 0.1})
        if call == 18:
            del trainer.model.layers[1]

    yield from train(capture, between)


@program(refused="copy_")
def parameters_that_get_other_data(capture: Capture) -> Iterator[Any]:
    """The data of a weight is replaced between calls 2 and 3, copied to at call 7, filled at call 13, and replaced each call from 18 on."""

    def between(call: int, trainer: Trainer) -> None:
        weight = trainer.model.head.weight
        if call == 2 or call >= 18:
            weight.data = torch.linspace(-1, 1, 12).reshape(3, 4).to("xla") / (1 + call)
        if call == 7:
            with torch.no_grad():
                weight.copy_(torch.eye(3, 4))
        if call == 13:
            nn.init.constant_(trainer.model.layers[0].weight, 0.2)  # type: ignore[arg-type]

    yield from train(capture, between)


@program
def weights_that_are_loaded(capture: Capture) -> Iterator[Any]:
    """Weights come from a state dict: copied at calls 3 and 9, and assigned at 15, where the optimizer goes on with the old parameters."""
    saved = Net(seed=7).state_dict()

    def between(call: int, trainer: Trainer) -> None:
        if call in (3, 9):
            trainer.model.load_state_dict(saved)
        if call == 15:
            trainer.model.load_state_dict({name: value.to("xla") for name, value in saved.items()}, assign=True)

    yield from train(capture, between)


@program
def tensors_that_are_swapped(capture: Capture) -> Iterator[Any]:
    """torch.utils.swap_tensors exchanges a parameter with another of the caller's at calls 4, 11 and 19."""
    other = nn.Parameter(torch.linspace(-0.5, 0.5, 12).reshape(3, 4).to("xla"))

    def between(call: int, trainer: Trainer) -> None:
        if call in (4, 11, 19):
            trainer.model.head.weight.grad = None
            torch.utils.swap_tensors(trainer.model.head.weight, other)

    yield from train(capture, between)
    yield other


@program
def gradients_switched_off_and_on(capture: Capture) -> Iterator[Any]:
    """A layer requires gradients in two of three calls; the caller clears the old gradient when it freezes."""

    def between(call: int, trainer: Trainer) -> None:
        trainer.model.layers[0].requires_grad_(call % 3 != 2)
        if call % 3 == 2:
            trainer.model.zero_grad()

    yield from train(capture, between)


@program
def a_copy_of_the_model(capture: Capture) -> Iterator[Any]:
    """At call 6 the trainer gets a deep copy of its model and an optimizer for it, at call 14 one without, so that nothing trains."""
    old: list[Net] = []

    def between(call: int, trainer: Trainer) -> None:
        if call in (6, 14):
            old.append(trainer.model)
            trainer.model = copy.deepcopy(trainer.model)
        if call == 6:
            trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.05)

    yield from train(capture, between)
    yield [model.state_dict() for model in old]


@program
def weights_of_another_precision(capture: Capture) -> Iterator[Any]:
    """The model goes to doubles at call 5, to bfloat16 at 11, and back to floats at 17, each time with a new optimizer."""
    kinds = {5: torch.float64, 11: torch.bfloat16, 17: torch.float32}
    model = Net().to("xla")
    state: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        state["optimizer"].zero_grad()
        loss = F.cross_entropy(model(x.to(model.head.weight.dtype)), y)
        loss.backward()
        state["optimizer"].step()
        return loss.detach()

    for call in range(CALLS):
        if call in kinds:
            model.to(kinds[call])
            state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
        yield step(*batch(call))
    yield model.state_dict()


@program
def methods_that_are_patched(capture: Capture) -> Iterator[Any]:
    """The forward of one layer is replaced at call 4 and restored at 10; the class's method is wrapped from call 15 to 19."""
    plain = Net.forward

    def doubled(self: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * 2, self.bias)

    def between(call: int, trainer: Trainer) -> None:
        if call == 4:
            trainer.model.head.forward = types.MethodType(doubled, trainer.model.head)  # type: ignore[method-assign]
        if call == 10:
            del trainer.model.head.forward
        if call in (15, 19):
            Net.forward = plain if call == 19 else lambda self, x: plain(self, x) - 0.5 * x[:, :3]  # type: ignore[method-assign]

    try:
        yield from train(capture, between)
    finally:
        Net.forward = plain  # type: ignore[method-assign]


@program
def hooks_that_come_and_go(capture: Capture) -> Iterator[Any]:
    """A hook of a forward pass from call 3 to 9, one of a gradient from call 12 to 18 whose factor changes at 15, and a counting one."""
    hooks: dict[str, Any] = {}
    factor = [0.5]
    seen = []

    def between(call: int, trainer: Trainer) -> None:
        if call == 3:
            hooks["forward"] = trainer.model.layers[1].register_forward_hook(lambda module, given, found: found * 0.5 + 0.1)
        if call == 12:
            hooks["gradient"] = trainer.model.head.weight.register_hook(lambda gradient: gradient * factor[0])
        if call == 15:
            factor[0] = -2.0
        if call in (9, 18):
            hooks["forward" if call == 9 else "gradient"].remove()
        if call == 20:
            trainer.model.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[0]))

    yield from train(capture, between)
    yield seen


@program
def weights_that_are_pruned(capture: Capture) -> Iterator[Any]:
    """Half of a weight is masked at call 7, more of it at call 12, and the mask is made permanent at call 18."""

    def between(call: int, trainer: Trainer) -> None:
        layer = trainer.model.layers[0]
        if call in (7, 12):
            prune.custom_from_mask(layer, "weight", torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1]] * 2).roll(call // 12, 0).to("xla"))
        if call == 18:
            prune.remove(layer, "weight")

    yield from train(capture, between)


@program
def a_parametrization_that_is_registered_later(capture: Capture) -> Iterator[Any]:
    """From call 5 on the head's weight is kept symmetric about a number that changes at call 11; at call 16 it becomes plain again."""

    class Bounded(nn.Module):
        limit = 0.3

        def forward(self, weight: Tensor) -> Tensor:
            return self.limit * torch.tanh(weight)

    bounded = Bounded()

    def between(call: int, trainer: Trainer) -> None:
        if call == 5:
            parametrize.register_parametrization(trainer.model.head, "weight", bounded)
        if call == 11:
            bounded.limit = 1.5
        if call == 16:
            parametrize.remove_parametrizations(trainer.model.head, "weight")

    yield from train(capture, between)


@program
def layers_that_begin_to_share_weights(capture: Capture) -> Iterator[Any]:
    """The two layers are tied at call 6, and parted again by a copy at call 15."""

    def between(call: int, trainer: Trainer) -> None:
        first, second = trainer.model.layers
        if call == 6:
            second.weight = first.weight
        if call == 15:
            second.weight = nn.Parameter(first.weight.detach().clone() + 0.1)  # type: ignore[operator]

    yield from train(capture, between)


@program
def dropout_that_is_lowered_at_each_call(capture: Capture) -> Iterator[Any]:
    """The probability is a Python float at the module, from 0.5 at the first call to 0 at call 15."""

    def between(call: int, trainer: Trainer) -> None:
        trainer.model.dropout.p = max(0.0, 0.5 - call / 30)

    yield from train(capture, between)


@program
def a_captured_model_that_grows(capture: Capture) -> Iterator[Any]:
    """What is captured is the model itself; a layer is appended at call 4, replaced at call 9, its numbers change at 13 and 20."""
    torch.manual_seed(103)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to("xla").requires_grad_(False)
    run = capture(model)
    for call in range(CALLS):
        if call == 4:
            model.append(nn.LeakyReLU(0.1))
        if call == 9:
            model[1] = nn.GroupNorm(2, 4).to("xla").requires_grad_(False)
        if call == 13:
            model[2] = nn.LeakyReLU(0.7)
        if call == 20:
            model[1].eps = 0.5  # type: ignore[assignment]
        yield run(batch(call)[0])


class Residual(nn.Module):
    """Blocks that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(97)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.skipped = [False] * 3
        self.at_random = False

    def forward(self, x: Tensor) -> Tensor:
        """All blocks but the skipped ones."""
        for block, skipped in zip(self.blocks, self.skipped, strict=True):
            if not (random.random() < 0.5 if self.at_random else skipped):
                x = x + torch.tanh(block(x))
        return x


@program
def blocks_that_are_skipped_by_flags(capture: Capture) -> Iterator[Any]:
    """The caller sets items of a list of flags: another block is left out in each third call, and none in between."""
    model = Residual().to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    @capture
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()  # type: ignore[no-any-return]

    for call in range(24):
        model.skipped[call // 3 % 3] = call % 3 == 2
        yield step(batch(call)[0])
        model.skipped[call // 3 % 3] = False
        yield list(model.parameters())


@program(refused="random")
def blocks_that_are_skipped_at_random(capture: Capture) -> Iterator[Any]:
    """The module draws numbers of Python's random to decide which blocks to leave out."""
    model = Residual().to("xla")
    model.at_random = True
    random.seed(5)

    @capture
    def step(x: Tensor) -> Tensor:
        return model(x).detach()  # type: ignore[no-any-return]

    for call in range(CALLS):
        yield step(batch(call)[0])
