"""What a step returns in containers and objects of all kinds, and what cannot be returned."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor

CALLS = 22


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(size, dtype=torch.float32) * 2 + call).to("xla")


@program
def metrics_of_the_trainer_that_the_caller_extends(capture: Capture) -> Iterator[Any]:
    """The step fills a dict that it keeps and returns; the caller adds the epoch to it, which the trainer sees."""

    class Trainer:
        def __init__(self) -> None:
            self.metrics: dict[str, Any] = {"loss": 0.0, "epoch": -1}

        def step(self, x: Tensor) -> dict[str, Any]:
            self.metrics["loss"] = x.square().mean()
            return self.metrics

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        metrics = step(batch(call))
        metrics["epoch"] = call // 10
        yield metrics
        yield metrics is trainer.metrics, trainer.metrics["epoch"]


@program
def a_list_that_is_kept_and_returned(capture: Capture) -> Iterator[Any]:
    """The step makes a list, keeps it at the trainer and returns it; the caller replaces its first item."""

    class Trainer:
        outputs: list[Any] | None = None

        def step(self, x: Tensor) -> list[Any]:
            self.outputs = [x * 2, x.sum()]
            return self.outputs

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        outputs = step(batch(call))
        outputs[0] = "seen"
        yield trainer.outputs


@program
def an_output_that_is_a_dict_and_a_dataclass(capture: Capture) -> Iterator[Any]:
    """Outputs as libraries of models make them: read as attributes, by key and by index."""

    @dataclass
    class Output(OrderedDict[str, Any]):
        loss: Any = None
        logits: Any = None

        def __post_init__(self) -> None:
            for each in fields(self):
                OrderedDict.__setitem__(self, each.name, getattr(self, each.name))

        def __getitem__(self, key: Any) -> Any:
            return OrderedDict.__getitem__(self, key) if isinstance(key, str) else tuple(self.values())[key]

    step = capture(lambda x: Output(loss=x.square().mean(), logits=x * 2))
    for call in range(CALLS):
        output = step(batch(call))
        yield output.loss, output.logits
        yield list(output), output["loss"], output[1]


@program(refused="returns")
def a_dict_whose_items_are_attributes(capture: Capture) -> Iterator[Any]:
    """The usual class of a dict that is its own `__dict__`."""

    class Record(dict[str, Any]):
        def __init__(self, **items: Any) -> None:
            super().__init__(**items)
            self.__dict__ = self

    step = capture(lambda x: Record(loss=x.sum(), rows=len(x)))
    for call in range(CALLS):
        record = step(batch(call))
        yield record.loss, record["loss"], len(record), record.rows


@program(refused="returns")
def containers_of_derived_classes(capture: Capture) -> Iterator[Any]:
    """A list and a dict with an attribute of their own."""

    class Named(list[Any]):
        name = ""

    class Scored(dict[str, Any]):
        score: Any = 0

    @capture
    def step(x: Tensor) -> Any:
        named, scored = Named([x + 1, x.sum()]), Scored(a=x * 2)
        named.name, scored.score = "outputs", x.max()
        return named, scored

    for call in range(CALLS):
        named, scored = step(batch(call))
        yield named.name, len(named), list(named), scored.score, dict(scored)


@program(refused="returns")
def containers_of_collections(capture: Capture) -> Iterator[Any]:
    """A deque with a limit, a defaultdict and an OrderedDict; the caller goes on with them."""

    @capture
    def step(x: Tensor) -> Any:
        sums: defaultdict[str, Any] = defaultdict(int)
        sums["x"] += x.sum()
        return deque([x, x * 2], maxlen=2), sums, OrderedDict(b=x, a=x + 1)

    for call in range(CALLS):
        last, sums, ordered = step(batch(call))
        last.append("new")
        sums["y"] += 3
        ordered.move_to_end("b")
        yield list(last), dict(sums), dict(ordered)


@program(refused="returns")
def a_counter_as_result(capture: Capture) -> Iterator[Any]:
    """Counts of kinds of arguments."""
    step = capture(lambda x: (x * 2, Counter(["a", "b", "a", *["c"] * len(x)])))
    for call in range(CALLS):
        y, counts = step(batch(call))
        yield y, dict(counts), counts["nothing"]


@program(refused="returns")
def an_object_that_knows_its_parent(capture: Capture) -> Iterator[Any]:
    """Results of which one refers back to the other."""

    class Node:
        def __init__(self, value: Tensor, parent: Any = None) -> None:
            self.value, self.parent, self.children = value, parent, []
            if parent is not None:
                parent.children.append(self)

    @capture
    def step(x: Tensor) -> Node:
        root = Node(x * 2)
        Node(x + 1, root)
        return root

    for call in range(CALLS):
        root = step(batch(call))
        yield root.value, root.children[0].value, root.children[0].parent is root


@program(refused="returns")
def a_function_as_result(capture: Capture) -> Iterator[Any]:
    """The step returns a function over a tensor that it computed."""

    @capture
    def step(x: Tensor) -> Any:
        scale = x.abs().max()
        return lambda y: y / scale

    for call in range(CALLS):
        yield step(batch(call))(batch(call + 1))


@program(refused="returns|generator")
def a_step_that_is_a_generator(capture: Capture) -> Iterator[Any]:
    """The step yields a result for each part of its argument."""

    @capture
    def step(x: Tensor) -> Iterator[Tensor]:
        for part in x.split(1):
            yield part * 2

    for call in range(CALLS):
        yield list(step(batch(call)))


@program(refused="returns|coroutine|async")
def a_step_that_is_a_coroutine(capture: Capture) -> Iterator[Any]:
    """The step is an async function."""

    @capture
    async def step(x: Tensor) -> Tensor:
        return x * 2

    for call in range(CALLS):
        coroutine = step(batch(call))
        try:
            coroutine.send(None)
        except StopIteration as end:
            yield end.value


@dataclass(frozen=True, slots=True)
class Metrics:
    """Frozen, with slots and a list."""

    loss: Tensor
    rows: int
    parts: list[Tensor] = field(default_factory=list)


@program
def a_frozen_dataclass_with_slots_as_result(capture: Capture) -> Iterator[Any]:
    """A running sum of such results, made with `+` by the caller."""
    step = capture(lambda x: Metrics(x.mean(), len(x), [x, x * 2]))
    for call in range(CALLS):
        metrics = step(batch(call))
        metrics.parts.append(metrics.loss)
        yield metrics.loss, metrics.rows, metrics.parts, isinstance(metrics, Metrics)


@program(refused="returns")
def a_set_and_a_range_as_results(capture: Capture) -> Iterator[Any]:
    """Plain objects that are new at each call, but equal."""
    step = capture(lambda x: (x + 1, {"a", "b"}, range(len(x)), slice(0, 2)))
    for call in range(CALLS):
        y, names, order, columns = step(batch(call))
        names.add("c")
        yield y[columns], sorted(names), list(order)
