"""Loops of learners: policies, targets, decoders with teachers, learning to learn."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

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
def averages_over_copies_of_the_model(capture: Capture) -> Iterator[Any]:
    """Reptile: a deep copy of the model learns for two steps with an optimizer of its own; the model moves towards it."""
    model = small_model()

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        learner = copy.deepcopy(model)
        optimizer = torch.optim.SGD(learner.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = loss_of(learner, x, y)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for mine, learned in zip(model.parameters(), learner.parameters(), strict=True):
                mine.lerp_(learned, 0.5)
        return loss.detach()

    for call in range(CALLS):
        yield step(*batch(call))
    yield model.state_dict()


@program
def learning_to_learn(capture: Capture) -> Iterator[Any]:
    """MAML: an inner step by functional_call, whose graph the outer loss goes through; an inner rate is learned, too."""
    model = small_model()
    rate = torch.full((), 0.1, device="xla").requires_grad_()
    optimizer = torch.optim.Adam([*model.parameters(), rate], lr=0.02)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        weights = dict(model.named_parameters())
        inner = F.cross_entropy(functional_call(model, weights, x[:2]), y[:2])
        gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        weights = {name: weight - rate * each for (name, weight), each in zip(weights.items(), gradients, strict=True)}
        outer = F.cross_entropy(functional_call(model, weights, x[2:]), y[2:])
        outer.backward()
        optimizer.step()
        return outer.detach()

    for call in range(CALLS):
        yield step(*batch(call))
    yield model.state_dict(), rate


@program
def an_ensemble_by_vmap(capture: Capture) -> Iterator[Any]:
    """Three models as one: stacked weights, trained by hand with torch.func; one of them is loaded anew after call 11."""
    models = [small_model(seed) for seed in (1, 2, 3)]
    weights, buffers = stack_module_state(models)  # type: ignore[arg-type]
    base = models[0]

    def loss(weights: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(base, (weights, buffers), (x,)), y)

    @capture
    def step(x: Tensor, y: Tensor) -> None:
        gradients = vmap(grad(loss), in_dims=(0, 0, None, None))(weights, buffers, x, y)
        with torch.no_grad():
            for name in weights:
                weights[name] -= 0.1 * gradients[name]

    for call in range(CALLS):
        step(*batch(call))
        if call == 11:
            with torch.no_grad():
                weights["0.weight"][1] = 0.25
        yield weights["0.weight"], weights["2.bias"]


@program
def a_policy_with_a_baseline(capture: Capture) -> Iterator[Any]:
    """Policy gradients: the caller reads the mean reward of each call and keeps its average at the agent, who subtracts it."""

    class Agent:
        def __init__(self) -> None:
            self.policy, self.baseline, self.entropy = small_model(), 0.0, 0.05
            self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.02)

        def step(self, states: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
            log = F.log_softmax(self.policy(states), 1)
            chosen = log.gather(1, actions[:, None])[:, 0]
            loss = -(chosen * (rewards - self.baseline)).mean() + self.entropy * (log.exp() * log).sum(1).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    agent = Agent()
    step = capture(agent.step)
    for call in range(CALLS):
        states, actions = batch(call)
        rewards = (actions.float() - 0.5) * states[:, 0]
        yield step(states, actions, rewards)
        agent.baseline = 0.9 * agent.baseline + 0.1 * float(rewards.mean())
        agent.entropy *= 0.97
    yield agent.policy.state_dict()


@program
def a_target_network_copied_each_fifth_call(capture: Capture) -> Iterator[Any]:
    """Q-learning: the step counts, and copies its network into the target by load_state_dict each fifth call."""

    class Agent:
        def __init__(self) -> None:
            self.online, self.target, self.updates = small_model(1), small_model(1), 0
            self.optimizer = torch.optim.RMSprop(self.online.parameters(), lr=0.01)

        def step(self, states: Tensor, actions: Tensor) -> Tensor:
            with torch.no_grad():
                goal = 0.9 * self.target(states.flip(0)).max(1).values + 1
            value = self.online(states).gather(1, actions[:, None])[:, 0]
            loss = F.smooth_l1_loss(value, goal)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.updates += 1
            if self.updates % 5 == 0:
                self.target.load_state_dict(self.online.state_dict())
            return loss.detach()

    agent = Agent()
    step = capture(agent.step)
    for call in range(24):
        yield step(*batch(call))
        yield agent.target[0].weight, agent.updates


@program
def a_forced_teacher(capture: Capture) -> Iterator[Any]:
    """A decoder is fed with its own choice or with the true token, by a list of the caller's flags; the list is another one each call."""
    torch.manual_seed(5)
    embedding, cell, out = nn.Embedding(5, 4).to("xla"), nn.GRUCell(4, 4).to("xla"), nn.Linear(4, 5).to("xla")
    optimizer = torch.optim.SGD([*embedding.parameters(), *cell.parameters(), *out.parameters()], lr=0.1)

    @capture
    def step(tokens: Tensor, forced: list[bool]) -> Tensor:
        hidden, token, loss = torch.zeros(2, 4, device="xla"), tokens[:, 0], torch.zeros((), device="xla")
        for position, force in enumerate(forced, 1):
            hidden = cell(embedding(token), hidden)
            logits = out(hidden)
            loss = loss + F.cross_entropy(logits, tokens[:, position])
            token = tokens[:, position] if force else logits.argmax(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(24):
        tokens = ((torch.arange(8).reshape(2, 4) * 3 + call) % 5).to("xla")
        yield step(tokens, [call % 2 == 0, call % 4 < 2, True])
    yield out.weight
