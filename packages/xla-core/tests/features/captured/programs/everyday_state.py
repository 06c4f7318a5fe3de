"""What nearly everybody writes: state at the trainer that goes from call to call, such as counts, modes, caches and averages."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 22


def small_model(seed: int = 31) -> nn.Sequential:
    """Two layers on the device, with the same weights each time."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).to("xla")


def batch(call: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 4, generator=generator).to("xla"), torch.randint(3, (rows,), generator=generator).to("xla")


def gradients(model: nn.Module) -> list[Tensor | None]:
    """What the parameters of a model have as gradients."""
    return [parameter.grad for parameter in model.parameters()]


@program
def gradients_of_three_calls_by_a_counter(capture: Capture) -> Iterator[Any]:
    """The step counts its calls and steps the optimizer in each third, where it also clears gradients."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.micro_step = small_model(), 0
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(self.model(x), y)
            (loss / 3).backward()
            self.micro_step += 1
            if self.micro_step % 3 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(*batch(call)), trainer.micro_step
        yield gradients(trainer.model)
    yield trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]


@program
def gradients_of_two_calls_by_an_argument(capture: Capture) -> Iterator[Any]:
    """The caller says in each second call that the optimizer is to step."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    @capture
    def step(x: Tensor, y: Tensor, update: bool = False) -> Tensor:
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    for call in range(CALLS):
        yield step(*batch(call), update=True) if call % 2 else step(*batch(call))
        yield gradients(model)
    yield model.state_dict(), optimizer.state_dict()["state"]


@program
def gradients_of_four_calls_by_an_attribute(capture: Capture) -> Iterator[Any]:
    """The caller sets an attribute before each call; from call 12 on gradients of two calls are enough."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.sync_gradients, self.accumulated = small_model(), False, 4
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(self.model(x), y)
            (loss / self.accumulated).backward()
            if self.sync_gradients:
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        trainer.accumulated = 4 if call < 12 else 2
        trainer.sync_gradients = (call + 1) % trainer.accumulated == 0
        yield step(*batch(call))
        yield gradients(trainer.model)
    yield trainer.model.state_dict()


@program
def train_and_eval_by_turns(capture: Capture) -> Iterator[Any]:
    """One captured step for both: the caller calls train() or eval() before each call; dropout and batch norm show which."""
    torch.manual_seed(37)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Linear(6, 3)).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        if model.training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        model.train(call % 2 == 0)
        yield step(*batch(call))
    yield model.state_dict(), optimizer.state_dict()["state"]


@program
def eval_in_each_third_call(capture: Capture) -> Iterator[Any]:
    """The step itself switches the mode by an argument, and the caller looks at statistics and modes."""

    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(41)
            self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=0.3), nn.Dropout(0.2), nn.Linear(6, 3)).to("xla")
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def step(self, x: Tensor, y: Tensor, training: bool) -> Tensor:
            self.model.train(training)
            with torch.set_grad_enabled(training):
                loss = F.cross_entropy(self.model(x), y)
            if training:
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            return loss

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(*batch(call), call % 3 != 2)
        yield trainer.model.training, trainer.model[1].running_mean, trainer.model[1].num_batches_tracked


@program
def a_hidden_state_at_the_trainer(capture: Capture) -> Iterator[Any]:
    """Truncated backpropagation: the hidden state of a GRU goes from call to call, and starts anew each eighth call."""

    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(43)
            self.cell, self.out = nn.GRUCell(4, 5).to("xla"), nn.Linear(5, 3).to("xla")
            self.optimizer = torch.optim.SGD([*self.cell.parameters(), *self.out.parameters()], lr=0.1)
            self.h: Tensor | None = None

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            h = self.cell(x, self.h)
            loss = F.cross_entropy(self.out(h), y)
            loss.backward()
            self.optimizer.step()
            self.h = h.detach()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        if call % 8 == 0:
            trainer.h = None
        yield step(*batch(call))
        yield trainer.h
    yield trainer.cell.state_dict()


@program
def a_search_for_the_rate(capture: Capture) -> Iterator[Any]:
    """The rate grows at each call; then model and optimizer are put back, and train with a tenth of the last rate."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = []
    for call in range(14):
        optimizer.param_groups[0]["lr"] *= 1.6
        losses.append(step(*batch(call)).item())
        yield losses[-1]
    best = optimizer.param_groups[0]["lr"] / 10
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    for group in optimizer.param_groups:
        group["lr"] = best
    for call in range(8):
        yield step(*batch(call))
    yield model.state_dict()


@program
def a_running_average_of_the_loss(capture: Capture) -> Iterator[Any]:
    """The average begins as a Python float and is a tensor after the first call; the caller resets it at call 10."""

    class Trainer:
        def __init__(self) -> None:
            self.model = small_model()
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
            self.average: Tensor | float = 0.0

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            average: Tensor = 0.9 * self.average + 0.1 * loss.detach()
            self.average = average
            return average

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        if call == 10:
            trainer.average = 0.0
        yield step(*batch(call))
        yield trainer.average


@program
def metrics_that_add_up_on_the_device(capture: Capture) -> Iterator[Any]:
    """Counts are tensors changed in place; they are zeroed in place each sixth call, and replaced at call 15."""

    class Evaluator:
        def __init__(self) -> None:
            self.model = small_model()
            self.correct, self.seen = torch.zeros((), device="xla"), torch.zeros((), dtype=torch.int64, device="xla")
            self.confusion = torch.zeros(3, 3, device="xla")

        @torch.no_grad()
        def step(self, x: Tensor, y: Tensor) -> None:
            guess = self.model(x).argmax(1)
            self.correct += (guess == y).sum()
            self.seen.add_(y.numel())
            self.confusion.index_put_((y, guess), torch.ones(len(y), device=x.device), accumulate=True)

    evaluator = Evaluator()
    step = capture(evaluator.step)
    for call in range(CALLS):
        if call % 6 == 5:
            evaluator.correct.zero_()
            evaluator.seen.zero_()
        if call == 15:
            evaluator.confusion = torch.full((3, 3), 0.5, device="xla")
        yield step(*batch(call, 4 if call % 4 == 3 else 5))
        yield evaluator.correct, evaluator.seen, evaluator.confusion


@program
def a_teacher_that_follows_its_student(capture: Capture) -> Iterator[Any]:
    """Targets come from a slow copy of the model, whose momentum the caller raises at each call."""

    class Trainer:
        def __init__(self) -> None:
            self.student = small_model()
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
            self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=0.05)
            self.center = torch.zeros(3, device="xla")
            self.momentum = 0.5

        def step(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                targets = ((self.teacher(x) - self.center) / 0.5).softmax(-1)
                self.center = self.center * 0.9 + targets.mean(0) * 0.1
            loss: Tensor = -(targets * self.student(x + 0.1).log_softmax(-1)).sum(-1).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    slow.data.mul_(self.momentum).add_((1 - self.momentum) * fast.detach().data)
            return loss

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        trainer.momentum = 1 - 0.5 * (1 - call / CALLS)
        yield step(batch(call)[0])
        yield trainer.center
        yield list(trainer.teacher.parameters())


class Memory(nn.Module):
    """A queue of keys that the last batches gave, for contrastive learning."""

    queue: Tensor
    pointer: Tensor

    def __init__(self, counts_on_device: bool) -> None:
        super().__init__()
        torch.manual_seed(47)
        self.encoder = nn.Linear(4, 3)
        self.register_buffer("queue", F.normalize(torch.randn(3, 8), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.int64))
        self.counts_on_device, self.position = counts_on_device, 0

    def forward(self, x: Tensor, keys: Tensor) -> Tensor:
        query, key = F.normalize(self.encoder(x), dim=1), F.normalize(self.encoder(keys), dim=1).detach()
        positive, negative = (query * key).sum(1, keepdim=True), query @ self.queue.clone().detach()
        self._enqueue(key)
        return torch.cat([positive, negative], 1) / 0.2

    @torch.no_grad()
    def _enqueue(self, key: Tensor) -> None:
        start = int(self.pointer) if self.counts_on_device else self.position
        self.queue[:, start : start + len(key)] = key.T
        start = (start + len(key)) % self.queue.shape[1]
        if self.counts_on_device:
            self.pointer[0] = start
        else:
            self.position = start


def contrast(capture: Capture, model: Memory) -> Iterator[Any]:
    """Train with a memory of keys."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    @capture
    def step(x: Tensor, keys: Tensor) -> Tensor:
        logits = model(x, keys)
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long, device=x.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for call in range(CALLS):
        yield step(batch(call, 2)[0], batch(call + 100, 2)[0])
        yield model.queue
        yield model.position


@program
def a_queue_of_keys_with_a_pointer_in_python(capture: Capture) -> Iterator[Any]:
    """Each call writes its keys behind those of the call before; the pointer is an attribute that goes round."""
    yield from contrast(capture, Memory(False).to("xla"))


@program(refused="read|value|int")
def a_queue_of_keys_with_a_pointer_on_the_device(capture: Capture) -> Iterator[Any]:
    """The pointer is a buffer on the device that Python reads as a number."""
    yield from contrast(capture, Memory(True).to("xla"))
