"""Values of the host that a step reads: tensors on the CPU, NumPy arrays and scalars, and random numbers of the host."""

from __future__ import annotations

import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from captured_programs import Capture, program
from torch import Tensor, nn

UPLOADS = r"uploads|host|CPU|reads a value|was .* in call"
DRAWS = r"random|generator|uploads|host|reads a value|was .* in call"


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(size, dtype=torch.float32) * 2 + call).to("xla")


@program
def a_factor_on_the_cpu(capture: Capture) -> Iterator[Any]:
    """A tensor of no dimensions on the CPU is a factor; it is filled anew, multiplied in place and replaced."""
    shared = types.SimpleNamespace(factor=torch.tensor(2.0))
    step = capture(lambda x: x * shared.factor)
    for call in range(24):
        if call == 2:
            shared.factor.fill_(3.0)
        if call in (7, 8, 11):
            shared.factor *= 0.5
        if call == 15:
            shared.factor = torch.tensor(-4.0)
        if call == 20:
            shared.factor.copy_(torch.tensor(0.125))
        yield step(batch(call))


@program
def a_factor_that_has_other_data(capture: Capture) -> Iterator[Any]:
    """The data of a factor on the CPU is replaced and written to, which counts no versions."""
    factor = torch.tensor(1.5)
    step = capture(lambda x: x + factor)
    for call in range(22):
        if call == 4:
            factor.data = torch.tensor(2.5)
        if call == 9:
            factor.data.fill_(-1.0)
        if call == 13:
            factor.data.add_(0.5)
        if call == 18:
            factor.detach()[()] = 7.0
        yield step(batch(call))


@program
def a_factor_in_the_memory_of_numpy(capture: Capture) -> Iterator[Any]:
    """A factor on the CPU shares memory with a NumPy array, into which the caller writes at each third call."""
    memory = np.ones((), dtype=np.float32)
    factor = torch.from_numpy(memory)
    step = capture(lambda x: x / factor)
    for call in range(22):
        if call % 3 == 2:
            memory[...] = 1 + call / 4
        yield step(batch(call))


@program(refused="on the host|CPU|in call")
def a_count_in_a_tensor_of_the_cpu(capture: Capture) -> Iterator[Any]:
    """The step raises a count in a tensor of the CPU in place and uses it as a factor and by item; the caller sets it back."""

    class Trainer:
        def __init__(self) -> None:
            self.count = torch.tensor(0.0)

        def step(self, x: Tensor) -> Tensor:
            self.count += 1
            return x * self.count + 0.9 ** self.count.item()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        yield step(batch(call))
        yield trainer.count
        if call == 10:
            trainer.count.zero_()


@program(refused="on the host")
def batches_that_a_norm_has_seen(capture: Capture) -> Iterator[Any]:
    """The number of batches of a batch norm stays on the CPU, and its momentum is None: the mean over all batches."""
    norm = nn.BatchNorm1d(3, momentum=None)
    norm.weight.data, norm.bias.data = norm.weight.data.to("xla"), norm.bias.data.to("xla")
    norm.running_mean, norm.running_var = torch.zeros(3).to("xla"), torch.ones(3).to("xla")
    step = capture(lambda x: norm(x).detach())
    for call in range(20):
        yield step(batch(call, 12).reshape(4, 3))
        yield norm.running_mean
        yield norm.num_batches_tracked
        if call == 12:
            norm.reset_running_stats()


@program
def a_condition_on_the_cpu(capture: Capture) -> Iterator[Any]:
    """A truth value in a tensor of the CPU decides which of two sums is computed; it is written to in place."""
    done = torch.tensor(False)

    @capture
    def step(x: Tensor) -> Tensor:
        return x.sum() if done else x.cumsum(0)

    for call in range(22):
        if call in (3, 7, 20):
            done.logical_not_()
        yield step(batch(call))


@program
def a_buffer_left_on_the_cpu(capture: Capture) -> Iterator[Any]:
    """A module whose buffer of numbers never went to the device reads single ones of them as numbers."""

    class Scaled(nn.Module):
        table: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.tensor([1.0, 2.0, 4.0]), persistent=False)
            self.index = 0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.table[self.index].item() + float(self.table.sum())

    module = Scaled()
    step = capture(module)
    for call in range(24):
        if call % 4 == 3:
            module.index = (module.index + 1) % 3
        if call == 9:
            module.table[1] = -5.0
        if call == 16:
            module.table = torch.tensor([0.5, 0.25, 0.0])
        yield step(batch(call))


@program(refused=UPLOADS)
def a_buffer_that_goes_up_at_each_call(capture: Capture) -> Iterator[Any]:
    """A row of weights on the CPU goes to the device inside the step, and changes in place between calls."""
    weights = torch.tensor([1.0, 2.0, 3.0])
    step = capture(lambda x: x * weights.to(x.device))
    for call in range(20):
        if call in (2, 9):
            weights.mul_(-0.5)
        if call == 15:
            weights[0] = 10.0
        yield step(batch(call))


@program(refused=UPLOADS)
def a_list_that_becomes_a_tensor(capture: Capture) -> Iterator[Any]:
    """A list of numbers of Python is made a tensor on the device inside, as inputs of constants often are."""
    weights = [0.5, 1.0, 1.5]

    @capture
    def step(x: Tensor) -> Tensor:
        return x * torch.tensor(weights, device=x.device)

    for call in range(20):
        if call == 7:
            weights[1] = -1.0
        if call == 13:
            weights[:] = [2.0, 2.0, 3.0]
        yield step(batch(call))


@program
def scalars_of_numpy(capture: Capture) -> Iterator[Any]:
    """Factors are NumPy scalars of both precisions and an integer, replaced at different calls."""
    shared = types.SimpleNamespace(single=np.float32(0.1), double=np.float64(0.1), whole=np.int64(3))
    step = capture(lambda x: x * float(shared.single) + shared.double * int(shared.whole))
    for call in range(24):
        if call == 2:
            shared.single = np.float32(1.1)
        if call == 7:
            shared.double = np.float64(-2.3)
        if call == 12:
            shared.whole += 1
        if call == 20:
            shared.single, shared.double = shared.single * 2, shared.double**2
        yield step(batch(call))


@program
def a_table_of_numpy(capture: Capture) -> Iterator[Any]:
    """Rates were computed beforehand with NumPy; the step takes the one of its number, and counts."""

    class Trainer:
        def __init__(self) -> None:
            self.rates = np.concatenate([np.linspace(0, 1, 5), 0.5 * (1 + np.cos(np.linspace(0, np.pi, 19)))])
            self.number = 0

        def step(self, x: Tensor) -> Tensor:
            rate = float(self.rates[self.number])
            self.number += 1
            return x * rate

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(22):
        yield step(batch(call))
    yield trainer.number


@program
def an_array_that_is_replaced(capture: Capture) -> Iterator[Any]:
    """The mean and the deviation for normalizing are elements of arrays, which the caller replaces by others."""
    statistics = {"mean": np.array([0.5, 0.25]), "std": np.array([2.0, 4.0])}

    @capture
    def step(x: Tensor) -> Tensor:
        parts = [(x - float(m)) / float(s) for m, s in zip(statistics["mean"], statistics["std"], strict=True)]
        return torch.stack(parts)

    for call in range(22):
        if call == 2:
            statistics["mean"] = np.array([1.0, -1.0])
        if call == 8:
            statistics["std"] = statistics["std"] * 2
        yield step(batch(call))


@program
def an_array_that_is_written_to(capture: Capture) -> Iterator[Any]:
    """The caller writes into elements of an array of class weights that the step reads one by one."""
    weights = np.array([1.0, 2.0, 0.5])

    @capture
    def step(x: Tensor) -> Any:
        return x[0] * weights[0].item() + x[1] * weights[1].item() + x[2] * float(weights.max())

    for call in range(22):
        if call == 3:
            weights[0] = 4.0
        if call in (7, 14):
            weights += 1
        if call == 19:
            weights[:] = 0
        yield step(batch(call))


@program(refused="on the host")
def counts_in_an_array(capture: Capture) -> Iterator[Any]:
    """The step counts the kinds of its batches in an array of the host, which only the caller reads."""
    counts = np.zeros(3, dtype=np.int64)

    @capture
    def step(x: Tensor, kind: int) -> Tensor:
        counts[kind] += 1
        return x * (kind + 1)

    for call in range(24):
        yield step(batch(call), call % 3 if call % 5 else 0)
        if call % 6 == 5:
            yield counts.tolist()


@program(refused=DRAWS)
def a_choice_of_python(capture: Capture) -> Iterator[Any]:
    """With a probability of one half the step flips its input, as Python's random decides."""
    before = random.getstate()

    @capture
    def step(x: Tensor) -> Tensor:
        return x.flip(0) if random.random() < 0.5 else x * 1.0

    try:
        random.seed(11)
        for call in range(24):
            yield step(batch(call))
        yield random.random()
    finally:
        random.setstate(before)


@program(refused=DRAWS)
def a_coefficient_of_numpy(capture: Capture) -> Iterator[Any]:
    """Mixup: the coefficient is drawn inside by a generator of NumPy."""
    generator = np.random.default_rng(5)

    @capture
    def step(x: Tensor) -> Tensor:
        mixed = float(generator.beta(0.4, 0.4))
        return mixed * x + (1 - mixed) * x.flip(0)

    for call in range(20):
        yield step(batch(call))
    yield float(generator.random())


@program(refused=DRAWS)
def a_permutation_of_numpy(capture: Capture) -> Iterator[Any]:
    """The order of two layers is drawn by the global generator of NumPy, three times out of four the same."""
    before = np.random.get_state()

    @capture
    def step(x: Tensor) -> Tensor:
        y = x
        for index in (1, 0) if np.random.randint(4) == 0 else (0, 1):
            y = y * 2 if index else y + 1
        return y

    try:
        np.random.seed(3)
        for call in range(24):
            yield step(batch(call))
        yield np.random.randint(1000)
    finally:
        np.random.set_state(before)


@program(refused=DRAWS)
def a_layer_dropped_by_the_generator_of_the_cpu(capture: Capture) -> Iterator[Any]:
    """torch.rand on the CPU decides inside whether a layer is used, as stochastic depth does it."""

    class Depth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Any:
            y: Tensor = self.first(x)
            if torch.rand(1).item() < 0.3:
                return y
            return y + self.second(y)

    torch.manual_seed(0)
    model = Depth().to("xla")
    torch.manual_seed(2)
    step = capture(lambda x: model(x).detach())
    for call in range(24):
        yield step(batch(call))
    yield torch.rand(2)


@program(refused=DRAWS)
def noise_of_a_generator_of_the_cpu(capture: Capture) -> Iterator[Any]:
    """A generator on the CPU draws a factor of no dimensions inside the step."""
    generator = torch.Generator().manual_seed(9)

    @capture
    def step(x: Tensor) -> Tensor:
        return x * torch.rand((), generator=generator)

    for call in range(20):
        yield step(batch(call))
    yield torch.rand((), generator=generator)


@program
def a_choice_that_the_caller_draws(capture: Capture) -> Iterator[Any]:
    """The caller draws one of four augmentations before each call and says it by an attribute; the step only reads it."""
    chooser = random.Random(7)
    augment = types.SimpleNamespace(kind="none", strength=1)

    @capture
    def step(x: Tensor) -> Any:
        match augment.kind:
            case "flip":
                return x.flip(0)
            case "shift":
                return x.roll(augment.strength)
            case "noise":
                return x + 0.1 * torch.rand(3, device=x.device)
        return x * augment.strength

    for call in range(24):
        augment.kind = chooser.choice(["none", "flip", "shift", "noise"])
        augment.strength = chooser.randint(1, 2)
        yield step(batch(call))


@program
def a_copy_of_the_loss_of_the_call_before(capture: Capture) -> Iterator[Any]:
    """The caller reads the loss after each call and puts it, rounded, where the next call compares with it."""
    history = {"last": 10.0, "worse": 0}

    @capture
    def step(x: Tensor) -> Tensor:
        loss = x.square().sum()
        return loss * 0.5 if history["worse"] > 1 else loss

    for call in range(22):
        loss = step(batch(call))
        yield loss
        value = round(loss.item(), 3)
        history["worse"] = history["worse"] + 1 if value > history["last"] else 0
        history["last"] = value
