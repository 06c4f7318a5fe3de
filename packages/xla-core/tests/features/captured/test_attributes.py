"""Attributes of objects that a captured function reads: if one is another, a call is recorded again, or says why it cannot be."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import os
import random
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from captured_programs import Unseen
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torch_xla
from xla_core.base.errors import CaptureError
from xla_core.features.captured.guards import Guards
from xla_core.features.captured.reads import Reads

ONES = torch.ones(3).to("xla")


class Way(enum.Enum):
    UP = 2.0
    DOWN = -2.0


@dataclasses.dataclass
class Config:
    k: float = 2.0
    way: Way = Way.UP
    sizes: tuple[float, ...] = (1.0, 2.0)
    inner: Any = None

    @property
    def doubled(self) -> float:
        return self.k * 2

    def tripled(self) -> float:
        return self.k * 3


@dataclasses.dataclass(slots=True)
class Slotted:
    k: float = 2.0


class Slots:
    __slots__ = ("k",)

    def __init__(self, k: float = 2.0) -> None:
        self.k = k


class Shared:
    """Its number is in the class."""

    k = 2.0


class Forwarding:
    """Has no attribute of that name itself."""

    def __init__(self) -> None:
        self._held = {"k": 2.0}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_held"][name]
        except KeyError:
            raise AttributeError(name) from None


class Called:
    def __init__(self) -> None:
        self.k = 2.0

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.k


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(inner=Config())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.config.inner.k


class Optional:
    """May get an attribute later."""


class Parent:
    def __init__(self) -> None:
        self.k = 2.0
        self.child = Optional()
        self.child.parent = self


def helper(x: Tensor, config: Any) -> Tensor:
    return x * config.k


@functools.wraps(helper)
def wrapped(*args: Any) -> Tensor:
    return helper(*args)


@functools.lru_cache
def cached() -> Config:
    return at_module


at_module = Config()
flags = Optional()
flags.k = 2.0


def setting(target: Any, **values: Any) -> Callable[[], None]:
    def change() -> None:
        for key, value in values.items():
            setattr(target, key, value)

    return change


def case(name: str) -> tuple[Callable[[Tensor], Tensor], Callable[[], None]]:
    """A function, and a change of what it reads from 2 to 5."""
    config, namespace, parent = Config(inner=Config(inner={"deep": [Config()]})), argparse.Namespace(k=2.0), Parent()
    simple, slots, slotted, forwarding, called = types.SimpleNamespace(k=2.0), Slots(), Slotted(), Forwarding(), Called()
    module, optional, shared, computed = Module(), Optional(), Shared(), ["k"]

    class Trainer:
        rate = 2.0

        def __init__(self) -> None:
            self.scale, self.cfg, self.step_count = 2.0, config, 0

        def step(self, x: Tensor) -> Tensor:
            return x * self.scale

        def deep(self, x: Tensor) -> Tensor:
            return self.multiplied(x)

        def multiplied(self, x: Tensor) -> Tensor:
            return x * self.cfg.inner.k

        def by_class(self, x: Tensor) -> Tensor:
            return x * self.rate

    trainer = Trainer()

    class Owner:
        pass

    holder = Owner()
    holder.trainer = trainer
    cases: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], None]]] = {
        "self": (trainer.step, setting(trainer, scale=5.0)),
        "two levels, in a method of a method": (trainer.deep, setting(config.inner, k=5.0)),
        "another object at a level": (trainer.deep, setting(trainer, cfg=Config(inner=Config(k=5.0)))),
        "class, replaced in the class": (trainer.by_class, setting(Trainer, rate=5.0)),
        "class, hidden by an attribute": (trainer.by_class, setting(trainer, rate=5.0)),
        "class of an object": (lambda x: x * shared.k, setting(shared, k=5.0)),
        "class itself": (lambda x: x * Trainer.rate, setting(Trainer, rate=5.0)),
        "three levels of a closure": (lambda x: x * holder.trainer.cfg.k, setting(config, k=5.0)),
        "dataclass": (lambda x: x * config.k, setting(config, k=5.0)),
        "property": (lambda x: x * config.doubled / 2, setting(config, k=5.0)),
        "method": (lambda x: x * config.tripled() / 3, setting(config, k=5.0)),
        "dataclass in a list in a dict": (lambda x: x * config.inner.inner["deep"][0].k, setting(config.inner.inner["deep"][0], k=5.0)),
        "enum": (lambda x: x * (2 if config.way is Way.UP else 5), setting(config, way=Way.DOWN)),
        "tuple": (lambda x: x * config.sizes[-1], setting(config, sizes=(1.0, 5.0))),
        "None": (lambda x: x * (2 if config.inner is not None else 5), setting(config, inner=None)),
        "namespace": (lambda x: x * namespace.k, setting(namespace, k=5.0)),
        "simple namespace": (lambda x: x * simple.k, setting(simple, k=5.0)),
        "slots": (lambda x: x * slots.k, setting(slots, k=5.0)),
        "dataclass with slots": (lambda x: x * slotted.k, setting(slotted, k=5.0)),
        "helper": (lambda x: helper(x, config), setting(config, k=5.0)),
        "wrapped helper": (lambda x: wrapped(x, config), setting(config, k=5.0)),
        "no_grad helper": (torch.no_grad()(lambda x: x * config.k), setting(config, k=5.0)),
        "partial": (functools.partial(helper, config=config), setting(config, k=5.0)),
        "callable": (called, setting(called, k=5.0)),
        "config of a module": (module, setting(module.config.inner, k=5.0)),
        "getattr of a constant": (lambda x: x * getattr(config, "k"), setting(config, k=5.0)),  # noqa: B009
        "getattr with a default": (lambda x: x * getattr(optional, "k", 2.0), setting(optional, k=5.0)),
        "hasattr": (lambda x: x * (5 if hasattr(optional, "k") else 2), setting(optional, k=5.0)),
        "getattr of a computed name": (lambda x: x * getattr(config, computed[0]), setting(config, k=5.0)),
        "vars": (lambda x: x * vars(config)["k"], setting(config, k=5.0)),
        "__dict__": (lambda x: x * config.__dict__["k"], setting(config, k=5.0)),
        "asdict": (lambda x: x * dataclasses.asdict(config)["k"], setting(config, k=5.0)),
        "__getattr__": (lambda x: x * forwarding.k, lambda: forwarding._held.update(k=5.0)),
        "match": (lambda x: x * matched(config), setting(config, k=5.0)),
        "a circle of objects": (lambda x: x * parent.child.parent.k, setting(parent, k=5.0)),
        "global": (lambda x: x * flags.k, setting(flags, k=5.0)),
        "result of a cached function": (lambda x: x * cached().k, setting(at_module, k=5.0)),
        "attribute of a function": (lambda x: x * helper.k, setting(helper, k=5.0)),
        "environment": (lambda x: x * float(os.environ["OF_TEST_ATTRIBUTES"]), lambda: os.environ.update(OF_TEST_ATTRIBUTES="5.0")),
        "getenv": (lambda x: x * float(os.getenv("OF_TEST_ATTRIBUTES") or 0), lambda: os.environ.update(OF_TEST_ATTRIBUTES="5.0")),
        "bool": (lambda x: x * (2 if config.k else 5), setting(config, k=0)),
    }
    return cases[name] if name else (cases, lambda: None)  # type: ignore[return-value]


def matched(config: Any) -> float:
    match config:
        case Config(k=value):
            return value
    return 0.0


NAMES = list(case(""))[0]  # type: ignore[call-overload]


@pytest.mark.parametrize("name", NAMES)
def test_a_change_from_outside_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_TEST_ATTRIBUTES", "2.0")
    monkeypatch.setattr(at_module, "k", 2.0)
    monkeypatch.setattr(flags, "k", 2.0)
    monkeypatch.setattr(helper, "k", 2.0, raising=False)
    function, change = case(name)
    step = torch_xla.compile(function, capture=True, verify_every=None)
    for _ in range(4):
        assert step(ONES).tolist() == [2.0] * 3
    change()
    for _ in range(4):
        assert step(ONES).tolist() == [5.0] * 3


def test_an_object_that_is_an_argument() -> None:
    config = types.SimpleNamespace(model=Config())
    step = torch_xla.compile(lambda x, config: x * config.model.k, capture=True, verify_every=None)
    for factor in (2.0, 3.0, 4.0):
        config.model.k = factor
        for _ in range(4):
            assert step(ONES, config).tolist() == [factor] * 3


def test_equal_values_that_are_set_anew_are_no_change() -> None:
    config, calls = Config(), Unseen()
    step = torch_xla.compile(lambda x: (next(calls), x * config.k + config.sizes[0])[1], capture=True, verify_every=None)
    for _ in range(20):
        config.k, config.sizes = float("2.0"), tuple([1.0, 2.0])
        assert step(ONES).tolist() == [3.0] * 3
    assert next(calls) == 2


def test_zeros_of_another_sign_are_a_change() -> None:
    config = Config(k=0.0)
    step = torch_xla.compile(lambda x: torch.copysign(x, x * config.k), capture=True, verify_every=None)
    for zero in (0.0, -0.0, 0.0):
        config.k = zero
        for _ in range(4):
            assert step(ONES).tolist() == [1.0 if str(zero) == "0.0" else -1.0] * 3


def test_what_moves_from_one_container_to_the_next_is_a_change() -> None:
    """All that is held is the same, in the same order."""
    first, second = [1.0, 2.0], [3.0]
    names: dict[str, float] = {"a": 1.0, "b": 2.0}
    step = torch_xla.compile(lambda x: x * len(first) + len(second) * 10 + names.get("b", 7.0) * 100, capture=True, verify_every=None)
    for _ in range(4):
        assert step(ONES).tolist() == [212.0] * 3
    second.insert(0, first.pop())
    for _ in range(4):
        assert step(ONES).tolist() == [221.0] * 3
    del names["b"]
    names["c"] = 2.0
    for _ in range(4):
        assert step(ONES).tolist() == [721.0] * 3


def test_a_counter_that_the_function_raises_goes_on() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.global_step = 0

        @torch_xla.compile(capture=True, verify_every=None)
        def train(self, x: Tensor) -> Tensor:
            self.global_step += 1
            return x / self.global_step

    trainer = Trainer()
    for number in range(1, 21):
        assert trainer.train(ONES * 840).tolist() == [pytest.approx(840 / number)] * 3
        assert trainer.global_step == number
        assert type(trainer.global_step) is int


def test_a_number_that_is_another_one_at_each_call_becomes_an_input() -> None:
    config, calls = Config(), Unseen()
    step = torch_xla.compile(lambda x: (next(calls), x * config.k)[1], capture=True, verify_every=None)
    for number in range(30):
        config.k = float(number)
        assert step(ONES).tolist() == [number] * 3
    assert next(calls) == 4  # two as it is, two as an input


def test_a_number_that_decides_is_compared_at_each_call() -> None:
    config, calls = Config(), Unseen()
    step = torch_xla.compile(lambda x: (next(calls), x * (1 if config.k < 20 else 2))[1], capture=True, verify_every=None)
    for number in range(30):
        config.k = float(number)
        assert step(ONES).tolist() == [1.0 if number < 20 else 2.0] * 3
    assert next(calls) == 6


def test_an_object_that_is_another_one_at_each_call_is_named() -> None:
    config = Config()
    step = torch_xla.compile(lambda x: x * len([config.inner]), capture=True, verify_every=None)
    with pytest.raises(CaptureError, match=r"config\.inner is another one at each call"):
        for _ in range(60):
            config.inner = object()
            step(ONES)


def test_attributes_that_are_not_looked_up_may_change() -> None:
    """A count of the caller's, also if it is named like a method that is called."""

    class Trainer:
        def __init__(self) -> None:
            self.step, self.epoch = 0, 0
            self.weight = nn.Parameter(torch.ones(3).to("xla"))
            self.optimizer = torch.optim.SGD([self.weight], lr=0.5)

        def train(self, x: Tensor) -> None:
            self.optimizer.zero_grad()
            (self.weight * x).sum().backward()
            self.optimizer.step()

    trainer = Trainer()
    step = torch_xla.compile(trainer.train, capture=True, verify_every=None)
    for _ in range(20):
        trainer.step += 1
        trainer.epoch += 2
        step(ONES)
    assert trainer.weight.tolist() == [-9.0] * 3


def test_rates_of_an_optimizer_of_the_users_stay_inputs() -> None:
    class Descent(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 1.0})
            self.factor = 1.0

        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-group["lr"] * self.factor)

    weight, calls = nn.Parameter(torch.zeros(3).to("xla")), Unseen()
    optimizer = Descent([weight])

    def train(x: Tensor) -> None:
        next(calls)
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    step, expected = torch_xla.compile(train, capture=True, verify_every=None), 0.0
    for number in range(12):
        optimizer.param_groups[0]["lr"] = 1.0 / 2**number
        optimizer.factor = 1.0 if number < 8 else 4.0
        expected -= optimizer.param_groups[0]["lr"] * optimizer.factor
        step(ONES)
    assert weight.tolist() == [expected] * 3
    assert next(calls) == 6  # of the first, only the third has found gradients as the second left them; the factor is an input


# Objects of all sorts, one in another, and the way to a number in them.
WRAPPERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "namespace": (lambda value: types.SimpleNamespace(inner=value, other=1), "{}.inner"),
    "argparse": (lambda value: argparse.Namespace(inner=value, other=1), "{}.inner"),
    "dataclass": (lambda value: Config(inner=value), "{}.inner"),
    "slots": (Slots, "{}.k"),
    "dict": (lambda value: {"a": 1, "b": value}, "{}['b']"),
    "list": (lambda value: [0, value], "{}[1]"),
    "tuple": (lambda value: (value, 0), "{}[0]"),
    "asked": (lambda value: types.SimpleNamespace(inner=value), "getattr({}, 'inner', None)"),
    "computed": (lambda value: types.SimpleNamespace(inner=value), "getattr({}, 'in' + 'ner'[0:])"),
    "vars": (lambda value: types.SimpleNamespace(inner=value), "vars({})['inner']"),
    "class": (lambda value: type("Made", (), {"inner": value, "__module__": __name__}), "{}.inner"),
    "instance": (lambda value: type("Made", (), {"inner": value, "__module__": __name__})(), "{}.inner"),
}
VALUES = st.one_of(st.integers(-4, 4), st.sampled_from([0.5, -2.5, True, False]))


def reach(found: Any, path: list[str]) -> Any:
    for template in path:
        found = eval(template.format("found"), {"found": found, "getattr": getattr, "vars": vars})
    return found


def replace(found: Any, path: list[str], value: Any) -> bool:
    """Put a value in the place that the path leads to; False for tuples."""
    owner, last = reach(found, path[:-1]), path[-1]
    if isinstance(owner, dict):
        owner["b"] = value
    elif isinstance(owner, list):
        owner[1] = value
    elif isinstance(owner, tuple):
        return False
    else:
        setattr(owner, "k" if last == "{}.k" else "inner", value)
    return True


@settings(max_examples=25)
@given(st.lists(st.sampled_from(sorted(WRAPPERS)), min_size=1, max_size=5), VALUES, VALUES, st.data())
def test_a_number_anywhere_in_objects_of_any_kind(kinds: list[str], first: float, second: float, data: st.DataObject) -> None:
    """Found from a function's closure, and looked up by its code: that it is another one is noticed, and that it is not, too."""
    root: Any = first
    for kind in reversed(kinds):
        root = WRAPPERS[kind][0](root)
    path = [WRAPPERS[kind][1] for kind in kinds]
    expression = functools.reduce(lambda text, template: template.format(text), path, "root")
    # As a user's file would have it.
    made: dict[str, Any] = {"root": root, "__name__": __name__}
    exec(compile(f"def function():\n    return {expression}\n", __file__, "exec"), made)  # noqa: S102
    reads = Reads((), (), lambda tensor: None)
    assert reads.start()
    try:
        reads.observe_roots([("function", made["function"])])
        assert made["function"]() == first
    finally:
        reads.stop()
    state = Guards([read for read in reads.objects.reads.values() if read.read], [], [], [])
    assert state.unchanged()
    depth = data.draw(st.integers(1, len(path)))
    value = second
    for kind in reversed(kinds[depth:]):
        value = WRAPPERS[kind][0](value)
    if replace(root, path[:depth], value):
        assert made["function"]() == second
        equal = type(first) is type(second) and first == second
        changes = not equal or any(kind != "tuple" for kind in kinds[depth:])
        if changes:
            assert state.changed()
            assert not state.unchanged()
        elif kinds[depth - 1] != "instance":  # which has got an attribute
            assert not state.changed()
            assert state.unchanged()


class Lazy(OrderedDict[str, float]):
    """Shows what is elsewhere, as mappings do that import what is asked for."""

    def __init__(self, factors: dict[str, float]) -> None:
        self.factors = factors

    def __getitem__(self, key: str) -> float:
        return self.factors[key]

    def __len__(self) -> int:
        return len(self.factors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.factors)

    def items(self) -> Any:
        raise AssertionError("nobody has asked for that")


class Shown(list[float]):
    """Has other items than it shows."""

    def __iter__(self) -> Iterator[float]:
        return iter([0.0, 0.0, 0.0])


def test_containers_that_show_something_else_than_they_hold() -> None:
    lazy, shown, x = Lazy({"a": 2.0, "b": 3.0}), Shown([5.0]), torch.ones(2).to("xla")

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * lazy["a"] + shown[0]

    captured = torch_xla.compile(step, capture=True, verify_every=None)
    for _ in range(4):
        assert captured(x).tolist() == [7.0, 7.0]
    lazy.factors["a"] = 4.0
    assert [captured(x).tolist() for _ in range(3)] == [[9.0, 9.0]] * 3
    shown[0] = 6.0
    assert [captured(x).tolist() for _ in range(3)] == [[10.0, 10.0]] * 3


def test_what_objects_of_any_kind_hold_is_what_the_device_computes_with() -> None:
    order = random.Random(5)
    for _ in range(6):
        kinds = [order.choice(sorted(WRAPPERS)) for _ in range(order.randrange(1, 4))]
        root: Any = 2.0
        for kind in reversed(kinds):
            root = WRAPPERS[kind][0](root)
        path = [WRAPPERS[kind][1] for kind in kinds]
        expression = functools.reduce(lambda text, template: template.format(text), path, "root")
        made: dict[str, Any] = {"root": root, "__name__": __name__}
        exec(compile(f"def function(x):\n    return x * {expression}\n", __file__, "exec"), made)  # noqa: S102
        step = torch_xla.compile(made["function"], capture=True, verify_every=None)
        for factor in (2.0, 3.0):
            if factor == 2.0 or replace(root, path, factor):
                for _ in range(3):
                    assert step(ONES).tolist() == [factor] * 3
