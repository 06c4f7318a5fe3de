"""Training loops as several kinds of users write them: inner loops, attacks, GANs, bandits, meta-learning, models that change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 20


def small_model(seed: int = 7) -> nn.Sequential:
    """Two layers on the device, with the same weights each time."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to("xla")


def batch(call: int, rows: int = 4) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 3, generator=generator).to("xla"), torch.randint(2, (rows,), generator=generator).to("xla")


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The usual loss."""
    return F.cross_entropy(model(x), y)


@program
def three_updates_in_one_call(capture: Capture) -> Iterator[Any]:
    """One call makes several steps of the optimizer, as many as the caller says."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    @capture
    def step(x: Tensor, y: Tensor, updates: int) -> list[Tensor]:
        losses = []
        for _ in range(updates):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    for call in range(CALLS):
        yield step(*batch(call), 3 if call % 5 else 1)
    yield model.state_dict(), optimizer.state_dict()["state"]


@program
def two_optimizers_on_the_same_weights(capture: Capture) -> Iterator[Any]:
    """A first optimizer steps at each call, a second one with weight decay at each fourth, which a counter at the trainer says."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.count = small_model(), 0
            self.fast = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.5)
            self.slow = torch.optim.AdamW(self.model.parameters(), lr=0.01, weight_decay=0.1)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.model.zero_grad()
            loss = loss_of(self.model, x, y)
            loss.backward()
            self.fast.step()
            if self.count % 4 == 3:
                self.slow.step()
            self.count += 1
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        yield step(*batch(call))
    yield trainer.model.state_dict(), trainer.count, trainer.slow.state_dict()["state"]


@program
def requires_grad_by_turns(capture: Capture) -> Iterator[Any]:
    """A GAN in one step: while the generator learns, the weights of the critic require no gradients, and stay so until the next call."""
    generator, critic = small_model(1), nn.Linear(2, 1).to("xla")
    for_generator = torch.optim.Adam(generator.parameters(), lr=0.02, betas=(0.5, 0.9))
    for_critic = torch.optim.RMSprop(critic.parameters(), lr=0.01)

    @capture
    def step(noise: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        critic.requires_grad_(True)
        for_critic.zero_grad()
        of_critic = critic(generator(noise).detach()).mean() - critic(real).mean()
        of_critic.backward()
        for_critic.step()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.2, 0.2)
        critic.requires_grad_(False)
        for_generator.zero_grad()
        of_generator = -critic(generator(noise)).mean()
        of_generator.backward()
        for_generator.step()
        return of_critic.detach(), of_generator.detach()

    for call in range(CALLS):
        yield step(batch(call)[0], batch(call + 50)[0][:, :2])
        yield [parameter.requires_grad for parameter in critic.parameters()]
    yield generator.state_dict(), critic.state_dict()


@program(refused="sets requires_grad")
def weights_frozen_for_good_by_the_step(capture: Capture) -> Iterator[Any]:
    """The caller lets all weights require gradients before each call; the step takes that from the first layer and leaves it so."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        model[0].requires_grad_(False)
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        model.requires_grad_(True)
        yield step(*batch(call))
        yield model[0].weight.requires_grad


@program
def adversarial_training(capture: Capture) -> Iterator[Any]:
    """The step moves its inputs against the gradient first, on a leaf of its own, then trains on them; the strength grows by the caller."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.epsilon = small_model(), 0.0
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            delta = torch.zeros_like(x, requires_grad=True)
            loss_of(self.model, x + delta, y).backward()
            moved = x + self.epsilon * delta.grad.sign()
            self.optimizer.zero_grad()
            loss = loss_of(self.model, moved, y)
            loss.backward()
            self.optimizer.step()
            return loss.detach(), moved

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        trainer.epsilon = call / 50
        yield step(*batch(call))


@program
def weights_of_tasks_that_are_learned(capture: Capture) -> Iterator[Any]:
    """Two tasks weigh each other by learned variances; a third joins when the caller appends it to the list of tasks."""
    model = small_model()
    logs = nn.ParameterList([nn.Parameter(torch.zeros(())) for _ in range(3)]).to("xla")
    tasks = ["class", "size"]
    optimizer = torch.optim.Adam([*model.parameters(), *logs], lr=0.05)

    @capture
    def step(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out = model(x)
        losses = {"class": F.cross_entropy(out, y), "size": out.square().mean(), "sign": F.softplus(out[:, 0]).mean()}
        total = sum(losses[task] * torch.exp(-log) + log for task, log in zip(tasks, logs, strict=False))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return {task: losses[task].detach() for task in tasks}

    for call in range(CALLS):
        if call == 9:
            tasks.append("sign")
        yield step(*batch(call))
    yield list(logs)


@program
def gradients_that_the_caller_changes(capture: Capture) -> Iterator[Any]:
    """One captured function makes gradients, another one steps; in between the caller clips, scales, drops and replaces gradients."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @capture
    def backward(x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(model, x, y)
        loss.backward()
        return loss.detach()

    @capture
    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    for call in range(24):
        yield backward(*batch(call))
        parameters = list(model.parameters())
        if call % 3 == 0:
            nn.utils.clip_grad_norm_(parameters, 0.1)
        if call % 4 == 1:
            parameters[0].grad = torch.ones_like(parameters[0])
        if call % 6 == 2:
            parameters[1].grad = None
        if call % 5 == 4:
            for parameter in parameters[2:]:
                parameter.grad.data.mul_(0.5)
        update()
    yield model.state_dict()


@program
def a_head_of_more_classes(capture: Capture) -> Iterator[Any]:
    """Continual learning: after call 9 the head is replaced by a larger one with the old weights inside, and the optimizer is a new one."""

    class Learner:
        def __init__(self) -> None:
            self.model = small_model()
            self.make_optimizer()

        def make_optimizer(self) -> None:
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = loss_of(self.model, x, y)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    learner = Learner()
    step = capture(learner.step)
    for call in range(CALLS):
        if call == 9:
            head = nn.Linear(4, 3).to("xla")
            with torch.no_grad():
                head.weight.fill_(0.1)
                head.weight[:2] = learner.model[2].weight
                head.bias.zero_()
            learner.model[2] = head
            learner.make_optimizer()
        yield step(*batch(call))
    yield learner.model.state_dict()
