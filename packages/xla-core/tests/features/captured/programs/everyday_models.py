"""What nearly everybody writes: arguments of all kinds, and models and modes of many kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CALLS = 22


def small_model(seed: int = 53) -> nn.Sequential:
    """Two layers on the device, with the same weights each time."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).to("xla")


def batch(call: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 4, generator=generator).to("xla"), torch.randint(3, (rows,), generator=generator).to("xla")


def fit(capture: Capture, model: nn.Module, rate: float = 0.05) -> Iterator[Any]:
    """Train a model; yields losses and what it holds."""
    optimizer = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=rate)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        yield step(*batch(call))
        yield [*model.parameters(), *model.buffers()]


@program
def arguments_by_position_and_by_name(capture: Capture) -> Iterator[Any]:
    """The same function is called with arguments left out, given by position and by name, in any order."""
    model = small_model()

    @capture
    def step(x: Tensor, scale: float = 1.0, *extra: Tensor, shift: Tensor | None = None, **options: Any) -> Tensor:
        found: Tensor = model(x).detach() * scale
        for other in extra:
            found = found + other
        if shift is not None:
            found = found - shift
        return found.abs() if options.get("positive", False) else found

    for call in range(24):
        x, bias = batch(call)[0], torch.full((3,), float(call)).to("xla")
        if call % 6 < 3:
            yield step(x) if call % 6 == 0 else step(x=x, scale=1.0) if call % 6 == 1 else step(x, 2.0)
        elif call % 6 == 3:
            yield step(shift=bias, x=x)
        elif call % 6 == 4:
            yield step(x, 1.0, bias, bias, positive=True)
        else:
            yield step(x, 1.0, bias, shift=bias, positive=call % 4 == 1)


@program
def arguments_that_may_be_none(capture: Capture) -> Iterator[Any]:
    """A mask and labels are given in some calls and None in others; without labels there is no training."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @capture
    def step(x: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = model(x)
        if mask is not None:
            logits = logits.masked_fill(mask, -1e4)
        if labels is None:
            return logits.detach(), None
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return logits.detach(), loss.detach()

    for call in range(24):
        x, y = batch(call)
        mask = torch.tensor([call % 3 == column for column in range(3)]).to("xla")
        yield step(x, mask if call % 3 == 1 else None, y if call % 2 else None)
    yield model.state_dict()


@program
def lists_and_dicts_as_arguments(capture: Capture) -> Iterator[Any]:
    """A dict of inputs with a list of tensors in it, spread by name; the list has one more tensor in each fourth call."""
    model = small_model()

    @capture
    def step(features: list[Tensor], *, target: dict[str, Tensor], weights: tuple[float, ...] = (1.0,)) -> dict[str, Tensor]:
        with torch.no_grad():
            logits = model(torch.stack(features).mean(0))
            losses = {name: F.cross_entropy(logits, labels, reduction="none") for name, labels in target.items()}
        return {name: weights[0] * loss.mean() for name, loss in losses.items()}

    for call in range(24):
        x, y = batch(call)
        item: dict[str, Any] = {"features": [x, -x, x * 2] if call % 4 == 3 else [x, x + 1], "target": {"main": y, "other": (y + 1) % 3}}
        yield step(**item) if call % 2 else step(item["features"], target=item["target"], weights=(0.5, 1.0))


@program
def the_model_and_its_optimizer_as_arguments(capture: Capture) -> Iterator[Any]:
    """The step is a free function that is given all it needs, for two models in turn."""

    @dataclass
    class Config:
        smoothing: float = 0.0
        clip: float | None = None

    @capture
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, criterion: Any, x: Tensor, y: Tensor, config: Config) -> Tensor:
        optimizer.zero_grad()
        loss = criterion(model(x), y, label_smoothing=config.smoothing)
        loss.backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        return loss.detach()  # type: ignore[no-any-return]

    config = Config()
    models = [small_model(seed) for seed in (1, 2)]
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.05) for model in models]
    for call in range(24):
        if call == 8:
            config.smoothing = 0.2
        if call == 16:
            config.clip = 0.1
        yield step(models[call % 2], optimizers[call % 2], F.cross_entropy, *batch(call), config)
    yield [model.state_dict() for model in models]


@program
def a_number_of_the_caller_that_changes_at_each_call(capture: Capture) -> Iterator[Any]:
    """The weight of a divergence is an attribute that rises with each call; noise is drawn in the step."""

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(2, 4)
            self.beta = 0.0

        def forward(self, x: Tensor) -> Tensor:
            mean, spread = self.encoder(x).chunk(2, 1)
            found = self.decoder(mean + torch.randn_like(spread) * (0.5 * spread).exp())
            divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
            loss: Tensor = F.mse_loss(found, x) + self.beta * divergence
            return loss

    torch.manual_seed(59)
    model = Autoencoder().to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    @capture
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss.detach()  # type: ignore[no-any-return]

    for call in range(CALLS):
        model.beta = min(1.0, call / 15)
        yield step(batch(call)[0])
    yield model.state_dict()


@program
def autocast_in_and_around_the_step(capture: Capture) -> Iterator[Any]:
    """The forward pass runs in bfloat16; in each fourth call autocast is off by an attribute."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.half = small_model(), True
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

        def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            self.optimizer.zero_grad()
            with torch.autocast("xla", dtype=torch.bfloat16, enabled=self.half):
                logits = self.model(x)
                loss = F.cross_entropy(logits, y)
            loss.backward()
            self.optimizer.step()
            return loss.detach(), logits.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        trainer.half = call % 4 != 3
        yield step(*batch(call))
    yield trainer.model.state_dict()


@program
def blocks_that_are_computed_twice(capture: Capture) -> Iterator[Any]:
    """Checkpointed blocks with dropout; checkpointing is switched off at call 8 and on again at 16."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.2)) for _ in range(2))
            self.saves_memory = True

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = x + (checkpoint(block, x, use_reentrant=False) if self.saves_memory and self.training else block(x))
            return self.last(x)  # type: ignore[no-any-return]

    torch.manual_seed(61)
    model = Net().to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        model.saves_memory = not 8 <= call < 16
        yield step(*batch(call))
    yield model.state_dict()


@program
def weights_of_a_norm_of_their_own(capture: Capture) -> Iterator[Any]:
    """A layer with weight norm, and one with spectral norm, whose buffers each forward pass in train mode changes."""
    torch.manual_seed(67)
    first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
    last = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 3))
    yield from fit(capture, nn.Sequential(first, nn.Tanh(), last).to("xla"))


@program
def buffers_that_forward_replaces(capture: Capture) -> Iterator[Any]:
    """Inputs are normalized by statistics that are buffers, which forward rebinds, and a count that it raises in place."""

    class Normalized(nn.Module):
        mean: Tensor
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 3)
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.count += 1
                self.mean = self.mean + (x.detach().mean(0) - self.mean) / self.count
            return self.out(x - self.mean)  # type: ignore[no-any-return]

    torch.manual_seed(71)
    yield from fit(capture, Normalized().to("xla"))


@program
def early_layers_that_stay_frozen(capture: Capture) -> Iterator[Any]:
    """A pretrained part in eval mode without gradients, a head that trains: fine-tuning as usual."""
    torch.manual_seed(73)
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5)).requires_grad_(False).eval()
    yield from fit(capture, nn.Sequential(body, nn.Linear(6, 3)).to("xla"))


@program
def evaluation_in_several_modes_of_the_caller(capture: Capture) -> Iterator[Any]:
    """One function is called with gradients on, under no_grad and under inference_mode, while the model changes at call 10."""
    model = small_model()
    parameters = list(model.parameters())

    @capture
    def evaluate(x: Tensor) -> tuple[Tensor, bool]:
        return model(x).softmax(-1).detach(), torch.is_grad_enabled()

    for call in range(24):
        if call == 10:
            with torch.no_grad():
                parameters[0].neg_()
        x = batch(call)[0]
        if call % 3 == 0:
            yield evaluate(x)
        elif call % 3 == 1:
            with torch.no_grad():
                yield evaluate(x)
        else:
            with torch.inference_mode():
                yield evaluate(x)


@program
def a_penalty_on_gradients(capture: Capture) -> Iterator[Any]:
    """A second derivative in the loss, with a weight that is lowered each fifth call."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    weights = {"penalty": 10.0}

    @capture
    def step(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        x = x.clone().requires_grad_(True)
        loss = F.cross_entropy(model(x).tanh(), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        penalty = (slope.norm(dim=1) - 0.1).square().mean()
        optimizer.zero_grad()
        (loss + weights["penalty"] * penalty).backward()
        optimizer.step()
        return {"loss": loss.detach(), "penalty": penalty.detach()}

    for call in range(CALLS):
        if call % 5 == 4:
            weights["penalty"] /= 2
        yield step(*batch(call))
    yield model.state_dict()
