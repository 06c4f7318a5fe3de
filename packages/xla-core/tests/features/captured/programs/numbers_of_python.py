"""What a step does with Python numbers that change at each call: functions and methods that take them apart, in C and in Python."""

from __future__ import annotations

import bisect
import fractions
import itertools
import json
import math
import statistics
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor

CALLS = 22


def batch(call: int, size: int = 4) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) * 3 + call).to("xla")


def counted(capture: Capture, function: Callable[[Tensor, int, float], Any], calls: int = CALLS) -> Iterator[Any]:
    """Call a function of a tensor, of a count that the step raises, and of a rate that the caller lowers at each call."""

    class Trainer:
        def __init__(self) -> None:
            self.count, self.rate = 0, 1.0

        def step(self, x: Tensor) -> Any:
            self.count += 1
            return function(x, self.count, self.rate)

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(calls):
        yield step(batch(call))
        trainer.rate *= 0.9
    yield trainer.count


@program
def digits_of_a_count(capture: Capture) -> Iterator[Any]:
    """Bits and digits of the count choose what is added."""
    yield from counted(capture, lambda x, count, rate: x * (count & 3) + (count >> 2) + count.bit_length() + len(str(count)))


@program
def the_largest_of_numbers(capture: Capture) -> Iterator[Any]:
    """min, max, sum, sorted, abs and round of the count and the rate."""

    def of(x: Tensor, count: int, rate: float) -> Tensor:
        ordered = sorted([rate, 0.5, count / 10])
        return x * max(rate, 0.3) + min(count, 8) + sum([rate, count, 1]) + ordered[1] + round(rate, 1) + abs(rate - 0.5)

    yield from counted(capture, of)


@program(refused="names math.fsum")
def functions_of_math_and_numpy(capture: Capture) -> Iterator[Any]:
    """math, numpy and operators on the rate, some of them only in C."""

    def of(x: Tensor, count: int, rate: float) -> Tensor:
        a = math.sqrt(rate) + math.exp(-rate) + math.cos(math.pi * count / 20) + math.hypot(rate, count) + math.fsum([rate, 0.5])
        b = (
            float(np.sqrt(rate))
            + float(np.clip(rate, 0.4, 0.8))
            + float(np.interp(count, [0, 10, 20], [0.0, 1.0, 0.5]))
            + float(np.float32(rate))
        )
        return x * a + b

    yield from counted(capture, of)


@program(refused="names Decimal")
def numbers_from_other_modules(capture: Capture) -> Iterator[Any]:
    """statistics, fractions, decimal, bisect, struct and json on the rate."""

    def of(x: Tensor, count: int, rate: float) -> Tensor:
        mean = statistics.fmean([rate, 2.0, 0.25]) + float(fractions.Fraction(rate).limit_denominator(7))
        exact = float(Decimal(rate) * 2) + bisect.bisect([0.2, 0.4, 0.6, 0.8], rate)
        return x * mean + exact + struct.unpack("f", struct.pack("f", rate))[0] + json.loads(json.dumps({"rate": rate}))["rate"]

    yield from counted(capture, of)


@program(refused="something else at each call")
def combinations_of_integers(capture: Capture) -> Iterator[Any]:
    """divmod, gcd, comb, powers and shifts of the count; ranges and slices of Python's up to it."""

    def of(x: Tensor, count: int, rate: float) -> Tensor:
        quotient, rest = divmod(count, 4)
        return (
            x * (quotient - rest)
            + math.gcd(count, 6)
            + math.comb(6, count % 5)
            + (-1) ** count
            + sum(range(count))
            + sum([1, 2, 3, 4][:count])
        )

    yield from counted(capture, of)


@program
def items_by_a_count(capture: Capture) -> Iterator[Any]:
    """The count is an index into a list, a key of a dict, and member of a set; and part of a text that is a key."""
    table, names, odd = [1.0, 3.0, -2.0], {0: "a", 1: "b"}, {1, 4, 9}
    values = {"a1": 1.0, "b0": 2.0, "a2": 3.0, "b2": 4.0, "a0": 5.0, "b1": 6.0}

    def of(x: Tensor, count: int, rate: float) -> Tensor:
        return x * table[count % 3] + (count in odd) + values[f"{names[count % 2]}{count % 3}"]

    yield from counted(capture, of, 30)


@program
def a_match_of_a_count(capture: Capture) -> Iterator[Any]:
    """match with numbers, ranges by guards, and a tuple."""

    def of(x: Tensor, count: int, rate: float) -> Tensor:
        match (count % 4, count > 12):
            case (0, _):
                return x * 2
            case (1, True):
                return x - 1
            case (n, False) if n == 2:
                return x + count
            case _:
                return -x

    yield from counted(capture, of, 30)


@program(refused="something else at each call")
def a_rate_inside_of_functions_of_torch(capture: Capture) -> Iterator[Any]:
    """Functions that take the rate as a plain number: slopes, thresholds, powers, norms, smoothing."""

    def of(x: Tensor, count: int, rate: float) -> Tensor:
        a = F.leaky_relu(x, rate) + F.elu(x, alpha=rate) + F.hardtanh(x, -rate, rate) + F.softplus(x, beta=rate)
        b = torch.pow(x.abs() + 1, rate) + torch.clamp(x, max=rate) + x.norm(p=1 + rate) + F.threshold(x, rate, -rate)
        return a + b + torch.lerp(x, -x, rate) + torch.where(x > rate, x, rate) + F.smooth_l1_loss(x, -x, beta=rate)

    yield from counted(capture, of)


@program(refused="something else at each call")
def tensors_made_of_a_rate(capture: Capture) -> Iterator[Any]:
    """full, full_like, fill_, new_full, linspace, arange and eye with the rate and the count."""

    def of(x: Tensor, count: int, rate: float) -> Tensor:
        a = torch.full((4,), rate, device="xla") + torch.full_like(x, rate * 2) + torch.empty_like(x).fill_(rate) + x.new_full((4,), count)
        return a * x + torch.linspace(0, rate, 4, device="xla") + torch.arange(4, device="xla") * rate

    yield from counted(capture, of)


@program(refused="uploads|host|CPU")
def a_tensor_of_a_rate(capture: Capture) -> Iterator[Any]:
    """torch.tensor of the rate, on the device at once."""
    yield from counted(
        capture, lambda x, count, rate: x * torch.tensor(rate, device="xla") + torch.tensor([1.0, 2.0, 3.0, rate], device="xla")
    )


@program(refused="uploads|host|CPU")
def a_zero_that_losses_are_added_to(capture: Capture) -> Iterator[Any]:
    """The total begins as torch.tensor(0.0) on the device."""

    def of(x: Tensor, count: int, rate: float) -> Tensor:
        total = torch.tensor(0.0, device=x.device)
        for part in x.split(2):
            total = total + part.square().sum()
        return total

    yield from counted(capture, of)


@program
def shifts_and_slices_by_a_count(capture: Capture) -> Iterator[Any]:
    """roll, narrow, slices, repeats and views by the count, which takes few values."""

    def of(x: Tensor, count: int, rate: float) -> Tensor:
        n = count % 3
        return (
            torch.roll(x, n) + x.narrow(0, n, 1) + x[n : n + 1] + x[n] + torch.cat([x[n:], x[:n]]) + x.repeat(n + 1).sum() + x[-count % 4]
        )

    yield from counted(capture, of, 30)


@program
def dropout_with_a_rate_that_falls(capture: Capture) -> Iterator[Any]:
    """Dropout with the rate as its probability, until it is off."""
    yield from counted(capture, lambda x, count, rate: F.dropout(x, max(0.0, rate - 0.5), training=count % 5 != 0))


@program
def numbers_that_are_not_numbers(capture: Capture) -> Iterator[Any]:
    """Infinity and nan among the values of a limit, and zeros with signs."""
    limits = [1.0, 2.0, math.inf, math.nan, 0.0, -0.0, -math.inf, 3.0]

    class Trainer:
        limit = 1.0

        def step(self, x: Tensor) -> Tensor:
            if math.isnan(self.limit):
                return x - 1
            return torch.clamp(x, max=self.limit) + math.copysign(1.0, self.limit)

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(32):
        trainer.limit = limits[call % 8]
        yield step(batch(call))


@program
def an_integer_that_becomes_a_float(capture: Capture) -> Iterator[Any]:
    """A factor is an int for some calls and a float for others; integers stay integers in the result."""

    class Trainer:
        factor: Any = 1

        def step(self, x: Tensor) -> tuple[Tensor, Tensor, Any]:
            return x * self.factor, torch.arange(3, device="xla") * self.factor, self.factor * 2

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(30):
        trainer.factor = call if call % 6 < 3 else call / 2
        floats, others, number = step(batch(call))
        yield floats, others, number, type(number).__name__


@program(refused="something else at each call")
def large_integers(capture: Capture) -> Iterator[Any]:
    """A hash that grows beyond what a float can hold; its last bits choose and shift."""

    class Trainer:
        state = 1

        def step(self, x: Tensor) -> Tensor:
            self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
            return x * (self.state % 7) if self.state & 8 else x - self.state % 5

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
        yield trainer.state


@program(refused="names complex")
def complex_numbers(capture: Capture) -> Iterator[Any]:
    """A phase in a complex number that turns at each call; its real part is a factor."""

    class Trainer:
        phase = 1 + 0j

        def step(self, x: Tensor) -> Tensor:
            self.phase *= complex(0.8, 0.6)
            return x * self.phase.real + abs(self.phase.imag)

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
        yield trainer.phase.real


@program
def averages_and_the_best(capture: Capture) -> Iterator[Any]:
    """The caller measures; the step keeps a running average, the best, and how long there was nothing better."""

    class Trainer:
        def __init__(self) -> None:
            self.average, self.best, self.bad, self.measured, self.scale = None, math.inf, 0, 1.0, 1.0

        def step(self, x: Tensor) -> Tensor:
            self.average = self.measured if self.average is None else 0.9 * self.average + 0.1 * self.measured
            if self.average < self.best:
                self.best, self.bad = self.average, 0
            else:
                self.bad += 1
            if self.bad > 2:
                self.scale, self.bad = self.scale * 0.5, 0
            return x * self.scale

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(40):
        trainer.measured = 1 + math.sin(call / 3)
        yield step(batch(call))
        yield trainer.average, trainer.best, trainer.bad, trainer.scale


@program
def numbers_in_formatted_texts(capture: Capture) -> Iterator[Any]:
    """The step returns and keeps texts with the count and the rate."""

    class Trainer:
        def __init__(self) -> None:
            self.count, self.rate, self.line = 0, 1.0, ""

        def step(self, x: Tensor) -> tuple[Tensor, str]:
            self.count += 1
            self.line = f"step {self.count % 2}: rate {self.rate:.1f}"
            return x * self.rate, self.line

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(40):
        yield step(batch(call))
        yield trainer.line
        if call % 10 == 9:
            trainer.rate /= 2


@program
def loops_as_long_as_a_count(capture: Capture) -> Iterator[Any]:
    """The number of inner rounds rises each fifth call; itertools and zip make the rounds."""

    class Trainer:
        rounds = 1

        def step(self, x: Tensor) -> Tensor:
            for index, weight in zip(range(self.rounds), itertools.cycle([1.0, -0.5]), strict=False):
                x = torch.tanh(x * weight + index)
            return x

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        trainer.rounds = 1 + call // 5
        yield step(batch(call))
