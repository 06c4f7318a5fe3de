"""Scripts as people write them for well-known methods, made small: how many of them are captured?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 24


def net(*sizes: int, seed: int = 3) -> nn.Sequential:
    """Layers on the device, with the same weights each time."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for one, other in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(one, other), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to("xla")


def rows(call: int, count: int = 4, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(count * size, dtype=torch.float32).reshape(count, size) * 2 + call).to("xla")


def labels(call: int, count: int = 4, classes: int = 2) -> Tensor:
    """Classes of a call, on the device."""
    return ((torch.arange(count) * 7 + call) % classes).to("xla")


@program
def an_autoencoder_with_annealing(capture: Capture) -> Iterator[Any]:
    """A variational autoencoder, whose weight of the divergence rises with the trainer's count of steps."""

    class Trainer:
        def __init__(self) -> None:
            self.encoder, self.decoder, self.steps = net(3, 4), net(2, 3), 0
            self.optimizer = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], lr=0.02)

        def step(self, x: Tensor) -> dict[str, Any]:
            mean, log_variance = self.encoder(x).chunk(2, 1)
            z = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
            rebuilt = F.mse_loss(self.decoder(z), x)
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
            beta = min(1.0, self.steps / 15)
            loss = rebuilt + beta * divergence
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.steps += 1
            return {"loss": loss.detach(), "beta": beta}

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(rows(call))


@program
def noise_that_is_taken_away(capture: Capture) -> Iterator[Any]:
    """A diffusion model: random times, tables on the device, and an average of the weights."""
    model, average = net(4, 6, 3), net(4, 6, 3)
    alphas = torch.cumprod(1 - torch.linspace(0.01, 0.3, 10), 0).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    @capture
    def step(x: Tensor) -> Tensor:
        times = torch.randint(0, 10, (x.shape[0],), device=x.device)
        noise = torch.randn_like(x)
        alpha = alphas[times][:, None]
        noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
        loss = F.mse_loss(model(torch.cat([noisy, times[:, None] / 10], 1)), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for mine, new in zip(average.parameters(), model.parameters(), strict=True):
                mine.mul_(0.9).add_(new, alpha=0.1)
        return loss.detach()

    for call in range(CALLS):
        yield step(rows(call))
    yield average.state_dict()


@program
def a_student_of_a_warm_teacher(capture: Capture) -> Iterator[Any]:
    """BYOL-like: a teacher whose momentum follows a cosine of the step's count, and a temperature by epochs."""

    class Trainer:
        def __init__(self, total: int) -> None:
            self.student, self.teacher, self.total, self.count = net(3, 4, 2), net(3, 4, 2), total, 0
            self.teacher.requires_grad_(False)
            self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
            self.center = torch.zeros(1, 2, device="xla")

        def step(self, x: Tensor, other: Tensor) -> Tensor:
            momentum = 1 - (1 - 0.9) * (math.cos(math.pi * self.count / self.total) + 1) / 2
            temperature = 0.5 if self.count < 8 else 0.25
            goal = F.softmax((self.teacher(x) - self.center) / temperature, 1)
            loss = -(goal * F.log_softmax(self.student(other), 1)).sum(1).mean()
            self.optimizer.zero_grad()
            loss.backward()
            for group in self.optimizer.param_groups:
                group["lr"] = 0.1 * (1 - self.count / self.total)
            self.optimizer.step()
            with torch.no_grad():
                for mine, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    mine.copy_(momentum * mine + (1 - momentum) * new)
                self.center = 0.9 * self.center + 0.1 * goal.mean(0, keepdim=True)
            self.count += 1
            return loss.detach()

    trainer = Trainer(30)
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(rows(call), rows(call) + 0.1)
    yield trainer.center, trainer.teacher.state_dict()


@program
def gradients_without_conflicts(capture: Capture) -> Iterator[Any]:
    """PCGrad: gradients of two tasks are projected off each other, then set at the parameters."""
    model = net(3, 4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        parameters = list(model.parameters())
        out = model(x)
        losses = [F.cross_entropy(out, y), out.square().mean()]
        flat = [torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters, retain_graph=True)]) for loss in losses]
        projected = []
        for index, gradient in enumerate(flat):
            other = flat[1 - index]
            product = torch.dot(gradient, other)
            projected.append(gradient - torch.where(product < 0, product / other.square().sum(), 0.0) * other)
        start = 0
        for parameter in parameters:
            parameter.grad = sum(each[start : start + parameter.numel()] for each in projected).view_as(parameter)
            start += parameter.numel()
        optimizer.step()
        return torch.stack([loss.detach() for loss in losses])

    for call in range(CALLS):
        yield step(rows(call), labels(call))
    yield model.state_dict()


@program
def adapters_of_low_rank(capture: Capture) -> Iterator[Any]:
    """LoRA: frozen weights with small factors, which the caller merges at call 10 and takes out again at call 14."""

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear, rank: int = 1, alpha: float = 2.0) -> None:
            super().__init__()
            self.base, self.scaling, self.merged = base.requires_grad_(False), alpha / rank, False
            self.down = nn.Parameter(torch.full((rank, base.in_features), 0.1))
            self.up = nn.Parameter(torch.zeros(base.out_features, rank))

        def forward(self, x: Tensor) -> Tensor:
            y = self.base(x)
            return y if self.merged else y + (x @ self.down.t() @ self.up.t()) * self.scaling

        def merge(self, merged: bool) -> None:
            if merged is not self.merged:
                self.base.weight.data += (1 if merged else -1) * (self.up @ self.down) * self.scaling
                self.merged = merged

    torch.manual_seed(3)
    model = nn.Sequential(Adapted(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)).to("xla")
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.05)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        if call in (10, 14):
            model[0].merge(call == 10)
        yield step(rows(call), labels(call))
    yield model.state_dict()


@program
def images_that_grow(capture: Capture) -> Iterator[Any]:
    """Progressive growing: a new stage fades in by a number that rises at each step of the trainer's, and counts anew per stage."""

    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(3)
            self.stages = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)]).to("xla")
            self.depth, self.alpha = 1, 1.0
            self.optimizer = torch.optim.Adam(self.stages.parameters(), lr=0.02)

        def step(self, x: Tensor) -> Tensor:
            y = x
            for stage in self.stages[: self.depth - 1]:
                y = torch.tanh(stage(y))
            new = torch.tanh(self.stages[self.depth - 1](y))
            y = torch.lerp(y, new, self.alpha) if self.alpha < 1 else new
            loss = (y - x.roll(1, 1)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.alpha = min(1.0, self.alpha + 0.2)
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(30):
        if call in (8, 18):
            trainer.depth, trainer.alpha = trainer.depth + 1, 0.0
        yield step(rows(call))


@program
def a_loss_scale_of_ones_own(capture: Capture) -> Iterator[Any]:
    """Dynamic loss scaling without reading: the scale is on the device, and steps with infinite gradients change nothing."""
    model, scale, good = net(3, 4, 2), torch.full((), 4.0, device="xla"), torch.zeros((), device="xla")
    parameters = list(model.parameters())

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss * scale, parameters)
        finite = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= torch.where(finite, 0.1 * gradient / scale, 0.0)
            good.copy_(torch.where(finite, good + 1, 0.0))
            scale.copy_(torch.where(finite, torch.where(good % 5 == 0, scale * 2, scale), scale / 2))
        return loss.detach()

    for call in range(CALLS):
        yield step(rows(call) * (math.inf if call % 9 == 8 else 1.0), labels(call))
        yield scale, good
    yield model.state_dict()


@program
def a_model_that_is_averaged_from_some_step_on(capture: Capture) -> Iterator[Any]:
    """Stochastic averaging by hand: from the tenth step on, with a count of models in Python."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.average, self.steps, self.averaged = net(3, 4, 2), net(3, 4, 2), 0, 0
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.steps += 1
            if self.steps >= 10 and self.steps % 2 == 0:
                with torch.no_grad():
                    for mine, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
                        mine += (new - mine) / (self.averaged + 1)
                self.averaged += 1
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(30):
        yield step(rows(call), labels(call))
    yield trainer.average.state_dict(), trainer.averaged
