"""Reinforcement learning as people write it, made small, and critics that are frozen by turns."""

from __future__ import annotations

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
def several_critic_steps_and_a_penalty(capture: Capture) -> Iterator[Any]:
    """WGAN-GP: the caller asks for the generator's part in each third call."""
    generator, critic = net(3, 3), net(3, 4, 1, seed=5)
    for_generator = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.0, 0.9))
    for_critic = torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.0, 0.9))

    @capture
    def train_critic(real: Tensor) -> Tensor:
        fake = generator(torch.randn_like(real)).detach()
        mixed = torch.lerp(real, fake, torch.rand(real.shape[0], 1, device="xla")).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()
        return loss.detach()

    @capture
    def train_generator(count: int) -> Tensor:
        loss = -critic(generator(torch.randn(count, 3, device="xla"))).mean()
        for_generator.zero_grad()
        loss.backward()
        for_generator.step()
        return loss.detach()

    for call in range(CALLS):
        yield train_critic(rows(call))
        if call % 3 == 2:
            yield train_generator(4)


@program
def a_critic_frozen_as_in_image_translation(capture: Capture) -> Iterator[Any]:
    """The usual `set_requires_grad` of image translation: the critic is frozen while the generator learns, generator first."""

    class Model:
        def __init__(self) -> None:
            self.generator, self.critic = net(3, 3), net(6, 4, 1, seed=5)
            self.for_generator = torch.optim.Adam(self.generator.parameters(), lr=0.01)
            self.for_critic = torch.optim.Adam(self.critic.parameters(), lr=0.01)

        def set_requires_grad(self, module: nn.Module, requires_grad: bool) -> None:
            for parameter in module.parameters():
                parameter.requires_grad = requires_grad

        def optimize(self, a: Tensor, b: Tensor) -> Tensor:
            fake = self.generator(a)
            self.set_requires_grad(self.critic, True)
            self.for_critic.zero_grad()
            of_fake, of_real = self.critic(torch.cat([a, fake.detach()], 1)), self.critic(torch.cat([a, b], 1))
            (F.softplus(of_fake).mean() + F.softplus(-of_real).mean()).backward()
            self.for_critic.step()
            self.set_requires_grad(self.critic, False)
            self.for_generator.zero_grad()
            loss = F.softplus(-self.critic(torch.cat([a, fake], 1))).mean() + F.l1_loss(fake, b)
            loss.backward()
            self.for_generator.step()
            return loss.detach()

    model = Model()
    step = capture(model.optimize)
    for call in range(40):
        yield step(rows(call), rows(call + 50))


@program
def a_policy_in_several_epochs(capture: Capture) -> Iterator[Any]:
    """PPO: clipped ratios over epochs and minibatches within a call; the limit shrinks by the caller's progress."""

    class Agent:
        def __init__(self) -> None:
            self.policy, self.value, self.progress = net(3, 4, 2), net(3, 4, 1, seed=5), 0.0
            self.optimizer = torch.optim.Adam([*self.policy.parameters(), *self.value.parameters()], lr=0.01, eps=1e-5)

        def update(self, states: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
            with torch.no_grad():
                old = F.log_softmax(self.policy(states), 1).gather(1, actions[:, None])[:, 0]
                gains = returns - self.value(states)[:, 0]
                gains = (gains - gains.mean()) / (gains.std() + 1e-8)
            limit = 0.2 * (1 - self.progress)
            for _ in range(2):
                for part in range(2):
                    chosen = slice(part * 2, part * 2 + 2)
                    log = F.log_softmax(self.policy(states[chosen]), 1)
                    ratio = (log.gather(1, actions[chosen][:, None])[:, 0] - old[chosen]).exp()
                    gain = gains[chosen]
                    loss = -torch.min(ratio * gain, ratio.clamp(1 - limit, 1 + limit) * gain).mean()
                    loss = (
                        loss
                        + 0.5 * (self.value(states[chosen])[:, 0] - returns[chosen]).square().mean()
                        - 0.01 * -(log.exp() * log).sum(1).mean()
                    )
                    self.optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                    self.optimizer.step()
            return loss.detach()

    agent = Agent()
    step = capture(agent.update)
    for call in range(20):
        agent.progress = call / 20
        yield step(rows(call), labels(call), rows(call + 30)[:, 0])


@program
def actors_critics_and_a_temperature(capture: Capture) -> Iterator[Any]:
    """SAC-like: three optimizers, two critics, a learned temperature, soft targets; the actor learns in each second step of its count."""

    class Agent:
        def __init__(self) -> None:
            self.actor, self.critic, self.target = net(3, 4, 1), net(4, 4, 2, seed=5), net(4, 4, 2, seed=5)
            self.log_alpha = torch.zeros((), device="xla", requires_grad=True)
            self.for_actor = torch.optim.Adam(self.actor.parameters(), lr=0.01)
            self.for_critic = torch.optim.Adam(self.critic.parameters(), lr=0.01)
            self.for_alpha = torch.optim.Adam([self.log_alpha], lr=0.01)
            self.updates = 0

        def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
            mean = self.actor(states)
            noise = torch.randn_like(mean)
            return torch.tanh(mean + 0.1 * noise), -0.5 * noise.square().sum(1)

        def update(self, states: Tensor, rewards: Tensor) -> dict[str, Any]:
            alpha = self.log_alpha.exp().detach()
            with torch.no_grad():
                actions, log = self.act(states.flip(0))
                goal = rewards + 0.9 * (self.target(torch.cat([states.flip(0), actions], 1)).min(1).values - alpha * log)
            values = self.critic(torch.cat([states, rewards[:, None]], 1))
            of_critic = (values - goal[:, None]).square().mean()
            self.for_critic.zero_grad()
            of_critic.backward()
            self.for_critic.step()
            logs: dict[str, Any] = {"critic": of_critic.detach(), "alpha": alpha}
            if self.updates % 2 == 0:
                actions, log = self.act(states)
                of_actor = (alpha * log - self.critic(torch.cat([states, actions], 1)).min(1).values).mean()
                self.for_actor.zero_grad()
                of_actor.backward()
                self.for_actor.step()
                of_alpha = -(self.log_alpha * (log + 1).detach()).mean()
                self.for_alpha.zero_grad()
                of_alpha.backward()
                self.for_alpha.step()
                logs["actor"] = of_actor.detach()
            with torch.no_grad():
                for mine, new in zip(self.target.parameters(), self.critic.parameters(), strict=True):
                    mine.data.mul_(0.95).add_(0.05 * new.data)
            self.updates += 1
            return logs

    agent = Agent()
    step = capture(agent.update)
    for call in range(CALLS):
        yield step(rows(call), rows(call + 40)[:, 0])
