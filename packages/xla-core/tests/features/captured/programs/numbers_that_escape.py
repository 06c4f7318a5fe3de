"""Branches on numbers that change at each call, after Python's or NumPy's own functions in C have taken the number out."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import fractions
import json
import math
import numbers
import pickle
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from captured_programs import Capture, program
from torch import Tensor

CALLS = 22


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) * 3 + call).to("xla")


def branched(capture: Capture, condition: Callable[[float], Any], by: float = 0.1, calls: int = CALLS) -> Iterator[Any]:
    """Call a step that takes one of two branches by a function of its rate, which the caller lowers: 2.0, 1.9, 1.8 and so on."""

    class Trainer:
        rate = 2.0

        def step(self, x: Tensor) -> Tensor:
            return x * 2 if condition(self.rate) else x - 1

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(calls):
        yield step(batch(call))
        trainer.rate = 2.0 - (call + 1) * by


def counting(capture: Capture, function: Callable[[Tensor, int], Any], calls: int = CALLS) -> Iterator[Any]:
    """Call a step that gives a function its count, which it raises."""

    class Trainer:
        count = 0

        def step(self, x: Tensor) -> Any:
            self.count += 1
            return function(x, self.count)

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(calls):
        yield step(batch(call))
    yield trainer.count


@program
def a_branch_on_float_of_a_rate(capture: Capture) -> Iterator[Any]:
    """float() around the rate, as for values of configurations."""
    yield from branched(capture, lambda rate: float(rate) > 0.95)


@program(refused="another one at each call")
def a_branch_that_turns_late(capture: Capture) -> Iterator[Any]:
    """float() around a rate that crosses its limit at call 40, long after the step was captured."""
    yield from branched(capture, lambda rate: float(rate) > 1.19, 0.02, 60)


@program
def a_branch_on_isclose(capture: Capture) -> Iterator[Any]:
    """Whether the rate is near to a number."""
    yield from branched(capture, lambda rate: math.isclose(rate, 1.0, abs_tol=0.45))


@program
def a_branch_on_parts_of_a_float(capture: Capture) -> Iterator[Any]:
    """The exponent of the rate."""
    yield from branched(capture, lambda rate: math.frexp(rate)[1] > 0)


@program
def a_branch_on_exact_numbers(capture: Capture) -> Iterator[Any]:
    """The rate as a Decimal is compared."""
    yield from branched(capture, lambda rate: Decimal(rate) > Decimal("0.95"))


@program
def a_branch_on_a_fraction(capture: Capture) -> Iterator[Any]:
    """The rate as a Fraction is compared."""
    yield from branched(capture, lambda rate: fractions.Fraction(rate) > fractions.Fraction(19, 20))


@program
def a_branch_on_numpy_isclose(capture: Capture) -> Iterator[Any]:
    """NumPy says whether the rate is near to a number."""
    yield from branched(capture, lambda rate: np.isclose(rate, 1.0, atol=0.45))


@program
def a_branch_on_a_place_in_a_table(capture: Capture) -> Iterator[Any]:
    """searchsorted finds the place of the rate in a table."""
    table = np.array([0.35, 0.95, 1.55])
    yield from branched(capture, lambda rate: np.searchsorted(table, rate) > 1)


@program
def a_branch_on_an_array_of_the_rate(capture: Capture) -> Iterator[Any]:
    """The largest of an array with the rate and another number."""
    yield from branched(capture, lambda rate: np.argmax([rate, 0.95]) == 0)


@program
def a_branch_on_a_text_of_percent(capture: Capture) -> Iterator[Any]:
    """The text that % makes of the rate begins with a digit."""
    yield from branched(capture, lambda rate: ("%.1f" % rate).startswith("1"))  # noqa: UP031


@program
def a_branch_on_json(capture: Capture) -> Iterator[Any]:
    """A configuration goes through JSON."""
    yield from branched(capture, lambda rate: json.loads(json.dumps({"rate": rate}))["rate"] > 0.95)


@program
def a_branch_on_pickled_settings(capture: Capture) -> Iterator[Any]:
    """Settings go through pickle."""
    yield from branched(capture, lambda rate: pickle.loads(pickle.dumps({"rate": rate}))["rate"] > 0.95)


@program
def a_branch_on_packed_bytes(capture: Capture) -> Iterator[Any]:
    """The rate is packed into bytes and unpacked."""
    yield from branched(capture, lambda rate: struct.unpack("d", struct.pack("d", rate))[0] > 0.95)


@program
def a_branch_on_a_time_span(capture: Capture) -> Iterator[Any]:
    """The rate in seconds is compared with a time span."""
    yield from branched(capture, lambda rate: datetime.timedelta(seconds=rate) > datetime.timedelta(seconds=0.95))


@program
def a_branch_on_a_deep_copy(capture: Capture) -> Iterator[Any]:
    """A deep copy of a dict with the rate is compared."""
    yield from branched(capture, lambda rate: copy.deepcopy({"rate": rate})["rate"] > 0.95)


@program
def a_branch_on_a_dataclass_as_dict(capture: Capture) -> Iterator[Any]:
    """asdict of the configuration, which copies its values."""

    @dataclasses.dataclass
    class Config:
        rate: float = 2.0

    config = Config()
    step = capture(lambda x: x * 2 if dataclasses.asdict(config)["rate"] > 0.95 else x - 1)
    for call in range(CALLS):
        yield step(batch(call))
        config.rate = 1.9 - call / 10


@program
def a_branch_on_a_complex_number(capture: Capture) -> Iterator[Any]:
    """The rate becomes the real part of a complex number, which is compared."""
    yield from branched(capture, lambda rate: (complex(rate, 1.0) * 2).real > 1.9)


@program
def a_branch_on_a_tensor_of_the_cpu(capture: Capture) -> Iterator[Any]:
    """The rate becomes a tensor on the CPU, which is compared; and another one by item."""
    yield from branched(capture, lambda rate: bool(torch.tensor(rate) > 0.95) and torch.as_tensor([rate, 0.1]).max().item() > 0.5)


@program(refused="not followed")
def a_branch_on_the_class_of_a_count(capture: Capture) -> Iterator[Any]:
    """Integers are told from floats by isinstance and by type."""

    def of(x: Tensor, count: int) -> Tensor:
        scale = 2 if isinstance(count, int) else 3
        return x * scale + (1 if type(count) is int else 5) + (7 if isinstance(count, numbers.Integral) else 0)

    yield from counting(capture, of)


@program(refused="names json")
def integers_as_texts(capture: Capture) -> Iterator[Any]:
    """JSON, repr and % of a count are returned, each third value alike."""

    def of(x: Tensor, count: int) -> Any:
        n = count % 3
        return x * 2, json.dumps({"step": n}), repr(n), "%d" % n, f"{n:02d}"  # noqa: UP031

    yield from counting(capture, of)


@program(refused="not followed")
def methods_of_integers(capture: Capture) -> Iterator[Any]:
    """Numerators, bytes, bits and conjugates of a count; lists and texts as long as it."""

    def of(x: Tensor, count: int) -> Tensor:
        n = count % 4
        return x * n.numerator + n.to_bytes(1, "big")[0] + n.conjugate() + n.real + len([0] * n) + len("a" * n) + len(bytes(n)) + ~n

    yield from counting(capture, of, 30)


@program(refused="names numpy")
def integers_in_arrays(capture: Capture) -> Iterator[Any]:
    """NumPy arrays made with a count keep its kind: the result is a whole number divided by another."""

    def of(x: Tensor, count: int) -> Tensor:
        n = count % 4
        array = np.array([n, 7])
        return x * (int(array.sum()) // 2) + (1 if array.dtype.kind == "i" else 9) + int(np.arange(n).sum()) + int(np.int64(n))

    yield from counting(capture, of, 30)


@program(refused="names numpy.random")
def whole_numbers_of_a_generator(capture: Capture) -> Iterator[Any]:
    """A generator of NumPy's with the count as its seed gives a factor."""
    yield from counting(capture, lambda x, count: x * int(np.random.default_rng(count % 3).integers(1, 9)), 30)


@program
def a_count_that_is_kept_in_other_objects(capture: Capture) -> Iterator[Any]:
    """The step keeps its count in lists, tuples, arrays and copies, which the caller reads."""

    class Trainer:
        def __init__(self) -> None:
            self.count, self.pair, self.items, self.copied = 0, (0, 0), [0, 0], {"count": 0}
            self.array = np.zeros(2)

        def step(self, x: Tensor) -> Tensor:
            self.count += 1
            self.pair = (self.count, self.count * 2)
            self.items[1] = self.count + 1
            self.copied = copy.deepcopy({"count": self.count})
            return x * self.pair[1]

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
        yield trainer.pair, trainer.items, trainer.copied, type(trainer.copied["count"]).__name__, type(trainer.pair[0]).__name__
