"""What nearly everybody writes: steps that return losses and structures, in functions and methods, with batches of two sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 22


def small_model(seed: int = 17) -> nn.Sequential:
    """Two layers on the device, with the same weights each time."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).to("xla")


def batch(call: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 4, generator=generator).to("xla"), torch.randint(3, (rows,), generator=generator).to("xla")


@program
def the_loss_with_its_graph(capture: Capture) -> Iterator[Any]:
    """The shortest training step there is: backward, step, and the loss is returned as it is."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    criterion = nn.CrossEntropyLoss()

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    for call in range(CALLS):
        yield step(*batch(call)).item()
    yield model.state_dict(), optimizer.state_dict()["state"]


@program
def the_loss_kept_at_the_trainer(capture: Capture) -> Iterator[Any]:
    """The trainer puts each result into an attribute that the captured method never reads, and adds up numbers beside it."""

    class Trainer:
        def __init__(self) -> None:
            self.model = small_model()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            self.step = capture(self.training_step)
            self.loss: Tensor | None = None
            self.total, self.done = 0.0, 0

        def training_step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        def fit(self, call: int) -> None:
            self.loss = self.step(*batch(call))
            self.total += self.loss.item()
            self.done += 1

    trainer = Trainer()
    for call in range(CALLS):
        trainer.fit(call)
        yield trainer.loss, trainer.total
    yield trainer.model.state_dict()


@program
def results_kept_in_a_dataclass(capture: Capture) -> Iterator[Any]:
    """The caller keeps the last and all results in an object that the step's object holds, too."""

    @dataclass
    class History:
        last: Tensor | None = None
        losses: list[Tensor] = field(default_factory=list)
        best: float = float("inf")

    class Trainer:
        def __init__(self) -> None:
            self.model, self.history = small_model(), History()
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            return loss

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        loss = step(*batch(call))
        trainer.history.last = loss
        trainer.history.losses.append(loss.detach())
        if call % 4 == 3:
            trainer.history.best = min(trainer.history.best, loss.item())
        yield trainer.history.best
    yield trainer.history.losses
    yield trainer.history.last


@program
def a_dataclass_as_result(capture: Capture) -> Iterator[Any]:
    """The step returns an object with a loss, logits, and a number of Python."""

    @dataclass
    class Output:
        loss: Tensor
        logits: Tensor
        rows: int
        hidden: Tensor | None = None

    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @capture
    def step(x: Tensor, y: Tensor) -> Output:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return Output(loss.detach(), logits.detach(), rows=len(x))

    for call in range(CALLS):
        found = step(*batch(call, 3 if call % 6 == 5 else 5))
        yield type(found).__name__, found.rows, found.hidden
        yield found.loss, found.logits


@program
def a_named_tuple_as_result(capture: Capture) -> Iterator[Any]:
    """The step returns a NamedTuple whose fields the caller reads, and unpacks."""

    class Output(NamedTuple):
        loss: Tensor
        accuracy: Tensor

    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @capture
    def step(x: Tensor, y: Tensor) -> Output:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return Output(loss=loss.detach(), accuracy=(logits.argmax(1) == y).float().mean())

    for call in range(CALLS):
        found = step(*batch(call))
        loss, accuracy = found
        yield found._fields
        yield loss, accuracy, found.loss, found.accuracy


@program
def results_in_a_dict(capture: Capture) -> Iterator[Any]:
    """The step returns a nested dict, with None, texts and numbers in it; the caller adds to what it got."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)

    @capture
    def step(x: Tensor, y: Tensor, phase: str) -> dict[str, Any]:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        return {"loss": loss, "parts": {"logits": logits.detach(), "rows": x.shape[0]}, "phase": phase, "scores": [None, loss * 2]}

    for call in range(CALLS):
        found = step(*batch(call), phase="warm" if call < 7 else "main")
        found["call"] = call
        found["parts"]["seen"] = True
        found["scores"].append(call)
        yield found


@program
def results_that_are_read_at_the_end(capture: Capture) -> Iterator[Any]:
    """All results are held, and read after the last call only: none may be written over."""
    model = small_model()
    weight, *_, bias = model.parameters()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    @capture
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        assert bias.grad is not None
        return loss.detach(), weight.detach().clone(), bias.grad.norm()

    held = [step(*batch(call)) for call in range(CALLS)]
    yield from held


@program
def the_batch_at_the_trainer(capture: Capture) -> Iterator[Any]:
    """The step takes no arguments: the caller puts each batch into attributes of the object."""

    class Trainer:
        batch: dict[str, Tensor]

        def __init__(self) -> None:
            self.model = small_model()
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)

        def step(self) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(self.batch["x"]), self.batch["y"])
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        x, y = batch(call)
        trainer.batch = {"x": x, "y": y}
        yield step()
    yield trainer.model.state_dict()


@program
def a_smaller_last_batch(capture: Capture) -> Iterator[Any]:
    """Epochs of five batches whose last one has three rows instead of six; Adam counts all of them."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(25):
        yield step(*batch(call, 3 if call % 5 == 4 else 6))
        yield model[0].weight
    yield optimizer.state_dict()["state"]


@program
def training_and_evaluation_captured(capture: Capture) -> Iterator[Any]:
    """Two captured functions on one model: after each third training step the model is evaluated, in eval mode, and trains on."""
    torch.manual_seed(19)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)

    @capture
    def train(x: Tensor, y: Tensor) -> Tensor:
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    @capture
    @torch.no_grad()
    def evaluate(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        model.eval()
        logits = model(x)
        return F.cross_entropy(logits, y), (logits.argmax(-1) == y).sum()

    for call in range(CALLS):
        yield train(*batch(call)), model.training
        if call % 3 == 2:
            yield evaluate(*batch(100 + call)), model.training
    yield model.state_dict()


@program
def generator_and_discriminator(capture: Capture) -> Iterator[Any]:
    """Two captured steps train two models against each other; each second call trains the generator twice."""
    torch.manual_seed(23)
    generator = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)).to("xla")
    critic = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1)).to("xla")
    makes = torch.optim.Adam(generator.parameters(), lr=0.02, betas=(0.5, 0.9))
    judges = torch.optim.Adam(critic.parameters(), lr=0.02, betas=(0.5, 0.9))

    @capture
    def judge(real: Tensor) -> Tensor:
        judges.zero_grad()
        fake = generator(torch.randn(len(real), 3, device=real.device)).detach()
        loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()
        loss.backward()
        judges.step()
        return loss.detach()

    @capture
    def make(rows: int) -> Tensor:
        makes.zero_grad()
        loss = F.softplus(-critic(generator(torch.randn(rows, 3, device="xla")))).mean()
        loss.backward()
        makes.step()
        return loss.detach()

    for call in range(20):
        yield judge(batch(call)[0])
        for _ in range(1 + call % 2):
            yield make(5)
    yield generator.state_dict(), critic.state_dict()
    yield [parameter.grad for parameter in critic.parameters()]


@program
def a_captured_model_in_an_evaluation_loop(capture: Capture) -> Iterator[Any]:
    """The model itself is captured, called under no_grad; its weights are moved at call 9, it stands in train mode from 15 on."""
    torch.manual_seed(29)
    last = nn.Linear(5, 3)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), last).to("xla").eval()
    run = capture(model)
    for call in range(CALLS):
        with torch.no_grad():
            if call == 9:
                last.weight.mul_(-2)
            if call == 15:
                model.train()
            yield run(batch(call)[0])
    yield model.state_dict()


@program(refused="grad|backward")
def a_captured_model_in_a_training_loop(capture: Capture) -> Iterator[Any]:
    """Only the model is captured; loss, backward pass and optimizer are outside."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = capture(model)
    for call in range(CALLS):
        x, y = batch(call)
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        yield loss
    yield model.state_dict()


@program
def a_method_decorated_in_its_class(capture: Capture) -> Iterator[Any]:
    """The decorator stands in the class, and two objects train in turn, with rates of their own."""

    class Trainer:
        def __init__(self, seed: int, rate: float) -> None:
            self.model, self.rate = small_model(seed), rate
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.5)

        @capture
        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y) * (1 + self.rate)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    trainers = [Trainer(1, 0.1), Trainer(2, 0.3)]
    for call in range(CALLS):
        yield trainers[call % 2].step(*batch(call))
        if call == 12:
            trainers[0].rate = 0.7
    yield [trainer.model.state_dict() for trainer in trainers]
