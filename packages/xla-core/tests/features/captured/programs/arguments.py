"""Arguments of a step: what it does to them, kinds that are new at each call, and tensors that share memory with others or with state."""

from __future__ import annotations

import enum
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 22


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(size, dtype=torch.float32) * 2 + call).to("xla")


@program
def numbers_noted_in_a_dict_of_the_caller(capture: Capture) -> Iterator[Any]:
    """The caller gives an empty dict, in which the step notes how many rows it had and with which factor."""

    @capture
    def step(x: Tensor, logs: dict[str, float]) -> Tensor:
        logs["rows"] = len(x)
        logs["factor"] = 0.5
        return x * 0.5

    for call in range(CALLS):
        logs: dict[str, float] = {}
        yield step(batch(call), logs)
        yield logs


@program(refused="kept|changes|returns|argument")
def losses_noted_in_a_dict_of_the_caller(capture: Capture) -> Iterator[Any]:
    """The step puts its losses into the caller's dict instead of returning them."""

    @capture
    def step(x: Tensor, logs: dict[str, Tensor]) -> None:
        logs["loss"] = x.square().mean()
        logs["largest"] = x.abs().max()

    for call in range(CALLS):
        logs: dict[str, Tensor] = {}
        step(batch(call), logs)
        yield logs


@program
def labels_that_are_popped(capture: Capture) -> Iterator[Any]:
    """The step takes the labels out of the dict with the batch; the caller looks at what is left."""

    @capture
    def step(inputs: dict[str, Tensor]) -> Tensor:
        labels = inputs.pop("labels")
        return (inputs["x"] - labels).square().mean()

    for call in range(CALLS):
        inputs = {"x": batch(call), "labels": batch(call + 50)}
        yield step(inputs)
        yield list(inputs)


@program(refused="list|argument|changes")
def a_list_of_the_caller_that_is_reversed(capture: Capture) -> Iterator[Any]:
    """The step reverses the list of layers' inputs that it is given, in place."""

    @capture
    def step(parts: list[Tensor]) -> Tensor:
        parts.reverse()
        return parts[0] * 2 + parts[1]

    for call in range(CALLS):
        parts = [batch(call), batch(call + 7)]
        yield step(parts)
        yield parts


@dataclass
class Batch:
    """What a loader of the user's gives."""

    x: Tensor
    y: Tensor
    weight: float = 1.0


@program
def batches_as_dataclasses(capture: Capture) -> Iterator[Any]:
    """Each call gets a new object with tensors and a number."""

    @capture
    def step(data: Batch) -> Tensor:
        return ((data.x - data.y).square() * data.weight).mean()

    for call in range(CALLS):
        yield step(Batch(batch(call), batch(call + 9), 0.5))


class Pair(NamedTuple):
    """Inputs and targets."""

    x: Tensor
    y: Tensor


@program
def batches_as_named_tuples(capture: Capture) -> Iterator[Any]:
    """Each call gets a named tuple of two tensors; its fields are read by name."""
    step = capture(lambda pair: pair.x * 2 - pair.y)
    for call in range(CALLS):
        yield step(Pair(batch(call), batch(call + 9)))


@program
def batches_as_user_dicts(capture: Capture) -> Iterator[Any]:
    """Each call gets a new UserDict, as tokenizers make them."""

    class Encoding(UserDict[str, Tensor]):
        def __getattr__(self, name: str) -> Tensor:
            try:
                return self.data[name]
            except KeyError:
                raise AttributeError(name) from None

    @capture
    def step(encoding: Encoding) -> Tensor:
        return encoding.ids * encoding["mask"]

    for call in range(CALLS):
        yield step(Encoding(ids=batch(call), mask=batch(call + 3).sign()))


@program
def scalars_of_numpy_as_arguments(capture: Capture) -> Iterator[Any]:
    """Indices and weights that NumPy's arrays give: np.int64 and np.float32, of a few values."""
    weights = np.array([0.5, 1.5], dtype=np.float32)
    step = capture(lambda x, index, weight: x[int(index)] * float(weight))
    for call in range(CALLS):
        yield step(batch(call), np.int64(call % 2), weights[call % 2])


@program
def keys_in_another_order(capture: Capture) -> Iterator[Any]:
    """The features come in a dict whose order of keys changes, and are joined in that order."""
    step = capture(lambda features: torch.cat(list(features.values())) * torch.arange(6, device="xla"))
    for call in range(CALLS):
        features = {"a": batch(call), "b": batch(call + 5)}
        yield step(features if call % 4 < 3 else dict(reversed(features.items())))


@program(refused="argument|requires")
def inputs_that_begin_to_require_gradients(capture: Capture) -> Iterator[Any]:
    """An attack on a model: the step lets its input require a gradient, and the caller sees that afterwards."""
    torch.manual_seed(3)
    model = nn.Linear(3, 1).to("xla")

    @capture
    def step(x: Tensor) -> Tensor:
        x.requires_grad_(True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x)
        return (x + 0.1 * gradient.sign()).detach()

    for call in range(CALLS):
        x = batch(call)
        yield step(x), x.requires_grad


@program(refused="argument|shape")
def labels_that_lose_a_dimension_in_place(capture: Capture) -> Iterator[Any]:
    """The step calls squeeze_ on its labels; the caller looks at their shape."""

    @capture
    def step(x: Tensor, labels: Tensor) -> Tensor:
        labels.squeeze_(1)
        return x * labels

    for call in range(CALLS):
        labels = batch(call + 1).unsqueeze(1)
        yield step(batch(call), labels)
        yield tuple(labels.shape)


@program
def an_argument_that_is_a_weight_in_the_first_calls(capture: Capture) -> Iterator[Any]:
    """A penalty on any tensor: first it is given the model's own weight, later others."""
    torch.manual_seed(3)
    model = nn.Linear(3, 3).to("xla")
    step = capture(lambda x, weight: (model(x) * weight.sum(0)).detach())
    for call in range(CALLS):
        weight = model.weight.detach() if call < 8 else torch.full((3, 3), call / 10, device="xla")
        yield step(batch(call), weight)


@program
def an_argument_that_is_the_state_in_some_calls(capture: Capture) -> Iterator[Any]:
    """The step writes to a memory at the trainer; in some calls that memory is its argument."""

    class Trainer:
        def __init__(self) -> None:
            self.memory = batch(0, 6)

        def step(self, x: Tensor) -> Tensor:
            self.memory.mul_(0.5)
            self.memory[:3] += 1
            return x * 2

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        part = call in (0, 1, 2, 9, 20)
        yield step(trainer.memory if part else batch(call, 6))
        yield trainer.memory


@program
def one_tensor_as_both_arguments(capture: Capture) -> Iterator[Any]:
    """The step adds its second argument to the first in place; each third call gives one tensor twice."""

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        x += y
        return x * y

    for call in range(24):
        x = batch(call)
        y = x if call % 3 == 2 else batch(call + 30)
        yield step(x, y)
        yield x, y


@program
def arguments_that_overlap(capture: Capture) -> Iterator[Any]:
    """Both arguments are parts of one tensor in some calls, and of other ones in others; the step writes to the first."""

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2).add_(1)
        return y - x

    for call in range(24):
        whole = batch(call, 5)
        yield step(whole[:3], whole[2:] if call % 4 else batch(call + 40))
        yield whole


@program
def any_number_of_tensors(capture: Capture) -> Iterator[Any]:
    """The step takes two, three or four tensors and options by name, in any order."""

    @capture
    def step(*tensors: Tensor, **options: float) -> Tensor:
        return sum(tensors[1:], tensors[0] * options.get("first", 1.0)) * options["scale"]

    for call in range(40):
        tensors = [batch(call + each) for each in range(2 + call % 3)]
        yield step(*tensors, scale=2.0, first=0.5) if call % 2 else step(*tensors, first=0.5, scale=2.0)


@program
def a_new_lambda_at_each_call(capture: Capture) -> Iterator[Any]:
    """The caller gives a function that it writes down in the call itself."""
    step = capture(lambda x, activation: activation(x) + 1)
    for call in range(CALLS):
        yield step(batch(call), lambda x: x.tanh() * 2)


class Part(enum.Enum):
    """What is trained."""

    BODY = 1
    HEAD = 2


@program
def modes_as_arguments(capture: Capture) -> Iterator[Any]:
    """Enums, texts and None say what to compute."""

    @capture
    def step(x: Tensor, part: Part, reduction: str | None = None) -> Tensor:
        y = x * 3 if part is Part.BODY else x - 1
        return y if reduction is None else getattr(y, reduction)()

    for call in range(40):
        yield step(batch(call), Part(1 + call % 2), (None, "sum", "mean")[call // 2 % 3])


@program
def numbers_with_a_class_of_their_own(capture: Capture) -> Iterator[Any]:
    """A factor is a float, or a float of a class that knows its unit: equal numbers, but not the same results."""

    class Percent(float):
        def of(self, x: Tensor) -> Tensor:
            return x * (float(self) / 100)

    @capture
    def step(x: Tensor, factor: float) -> Tensor:
        return factor.of(x) if isinstance(factor, Percent) else x * factor

    for call in range(24):
        yield step(batch(call), Percent(50.0) if call % 6 > 3 else 50.0)


@program
def true_and_one(capture: Capture) -> Iterator[Any]:
    """An option is True in some calls and 1 in others; the step tells them apart."""
    step = capture(lambda x, option: x * 2 if option is True else x * option + 5)
    for call in range(24):
        yield step(batch(call), True if call % 4 < 2 else 1)


@program
def gradients_as_an_argument(capture: Capture) -> Iterator[Any]:
    """A step of descent by hand takes a weight and its gradient; later another tensor than the gradient."""
    weight = batch(1).requires_grad_()

    @capture
    def step(parameter: Tensor, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            parameter -= 0.1 * gradient
        return gradient.abs().sum()

    for call in range(24):
        weight.grad = None
        (weight * batch(call)).square().sum().backward()
        yield step(weight, weight.grad if call % 8 < 6 else batch(call + 1))
        yield weight


@program
def an_attribute_of_an_argument(capture: Capture) -> Iterator[Any]:
    """A loader leaves a weight at the tensor itself."""
    step = capture(lambda x: x * x.weight)
    for call in range(CALLS):
        x = batch(call)
        x.weight = 1.0 if call < 8 else 3.0
        yield step(x)


@program
def a_default_that_lives_on(capture: Capture) -> Iterator[Any]:
    """The well-known trap: a default of a dict, which counts the calls."""

    @capture
    def step(x: Tensor, seen: dict[str, int] = {}, *, scale: float = 2.0) -> Tensor:  # noqa: B006
        seen["calls"] = seen.get("calls", 0) + 1
        return x * seen["calls"] / scale

    for call in range(CALLS):
        yield step(batch(call))


@program
def a_slice_as_argument(capture: Capture) -> Iterator[Any]:
    """The caller says with a slice or a range which columns to take."""
    step = capture(lambda x, columns, order: x[columns] + x[list(order)])
    for call in range(CALLS):
        yield step(batch(call, 6), slice(1, 4), range(3))


@program
def the_number_of_the_step_as_argument(capture: Capture) -> Iterator[Any]:
    """The caller gives the number of the step, of which the step makes a warm-up."""

    @capture
    def step(x: Tensor, number: int) -> Tensor:
        return x * min(1.0, (number + 1) / 10)

    for call in range(40):
        yield step(batch(call), call)


@program
def a_callback_as_argument(capture: Capture) -> Iterator[Any]:
    """The step calls what the caller gives with its number of rows; the callback adds them up."""
    total = 0

    def on_end(rows: int) -> None:
        nonlocal total
        total += rows

    @capture
    def step(x: Tensor, callback: Callable[[int], None]) -> Tensor:
        callback(len(x))
        return x.sum()

    for call in range(CALLS):
        yield step(batch(call), on_end)
        yield total
