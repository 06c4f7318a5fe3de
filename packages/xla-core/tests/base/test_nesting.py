"""Walking and rebuilding nestings."""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_xla.utils import utils as xu
from xla_core.api.arena import ToXlaTensorArena
from xla_core.base.nesting import Survey

Pair = namedtuple("Pair", "left right")


class Batch:
    x: Any
    me: Any
    value: Any

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


class Wrapped(xu.DataWrapper):
    def __init__(self, tensors: Any, tag: str) -> None:
        self.tensors = tensors
        self.tag = tag

    def get_tensors(self) -> Any:
        return (self.tensors,)

    def from_tensors(self, tensors: Any) -> Wrapped:
        return Wrapped(tensors[0], self.tag)


def is_int(value: Any) -> bool:
    return type(value) is int


def double_all(nesting: Any) -> Any:
    arena = ToXlaTensorArena(lambda found: [value * 2 for value in found], is_int)
    return arena.transform(nesting)


@pytest.mark.parametrize(
    ("nesting", "expected"),
    [
        (3, 6),
        ("text", "text"),
        ([1, (2, [3])], [2, (4, [6])]),
        ({"a": 1, 5: "b"}, {"a": 2, 10: "b"}),
        ({(1, "k"): {2}}, {(2, "k"): {4}}),
        (frozenset({7}), frozenset({14})),
        (Pair(1, [2]), Pair(2, [4])),
        (deque([1, 2], maxlen=5), deque([2, 4], maxlen=5)),
        (OrderedDict(b=1, a=2), OrderedDict(b=2, a=4)),
        ((), ()),
        (None, None),
    ],
)
def test_keeps_nesting_and_types(nesting: Any, expected: Any) -> None:
    result = double_all(nesting)
    assert result == expected and type(result) is type(expected)


def test_keeps_what_makes_a_container_special() -> None:
    source: defaultdict[str, list[int]] = defaultdict(list, a=[1])
    result = double_all(source)
    assert result == {"a": [2]} and result["missing"] == [] and source == {"a": [1]}
    assert double_all(deque([1], maxlen=3)).maxlen == 3


def test_converts_in_one_call_each_object_once() -> None:
    calls: list[list[torch.Tensor]] = []

    def convert(found: list[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(found)
        return [value + 1 for value in found]

    arena = ToXlaTensorArena(convert, lambda value: isinstance(value, torch.Tensor))
    a, b = torch.tensor(1.0), torch.tensor(2.0)
    result = arena.transform({"x": a, "y": [b, a, 3]})
    assert len(calls) == 1 and calls[0][0] is a and calls[0][1] is b
    assert result["x"].item() == 2.0 and result["y"][0].item() == 3.0
    assert result["x"] is result["y"][1]


def test_does_not_call_for_an_empty_list() -> None:
    def never(found: list[Any]) -> list[Any]:
        raise AssertionError(found)

    source = [{"a": "b"}]
    result = ToXlaTensorArena(never, is_int).transform(source)
    assert result == source and result is not source


def test_wrong_number_of_results() -> None:
    arena = ToXlaTensorArena(lambda found: found[:1], is_int)
    with pytest.raises(ValueError, match="convert_fn got 2 tensors and returned 1"):
        arena.transform([1, 2])


def test_inputs_are_not_modified() -> None:
    inner = Batch(x=1, names=["n"])
    source: dict[str, Any] = {"a": [1, inner], "b": inner}
    result = double_all(source)
    assert source["a"][0] == 1 and inner.x == 1
    assert result["b"].x == 2 and result["b"] is result["a"][1] and type(result["b"]) is Batch


def test_cycles_close_on_the_copy() -> None:
    loop: list[Any] = [1]
    pair = (loop, 2)
    loop.append(pair)
    result = double_all(pair)
    assert result[0][0] == 2 and result[1] == 4
    assert result[0][1][0] is result[0]
    node = Batch(value=3)
    node.me = node
    copied = double_all(node)
    assert copied.me is copied and copied.value == 6 and node.value == 3
    table: dict[str, Any] = {"v": 4}
    table["self"] = table
    assert double_all(table)["self"]["self"]["v"] == 8


def test_data_wrappers() -> None:
    wrapped = Wrapped({"t": 1}, "tag")
    result = double_all([wrapped, wrapped])
    assert result[0] is result[1] and type(result[0]) is Wrapped
    assert result[0].tensors == {"t": 2} and result[0].tag == "tag" and wrapped.tensors == {"t": 1}


def test_data_wrapper_must_be_subclassed() -> None:
    with pytest.raises(NotImplementedError, match="get_tensors"):
        double_all(xu.DataWrapper())


def test_objects_that_hold_nothing_pass_through() -> None:
    class Color(enum.Enum):
        RED = "red"

    lock, thread, closed = threading.Lock(), threading.Thread(), Batch(name="n")
    source = [lock, thread, closed, Color.RED, torch.nn, is_int, torch.ones(1)]
    result = double_all(source)
    assert all(new is old for new, old in zip(result, source, strict=True))


def test_tensors_are_never_opened() -> None:
    tensor: Any = torch.ones(2)
    tensor.note = 3
    assert double_all({"t": tensor})["t"] is tensor and tensor.note == 3


def test_modules_come_out_as_copies() -> None:
    module = torch.nn.Linear(2, 2)
    arena = ToXlaTensorArena(lambda found: [t.detach() + 1 for t in found], lambda value: isinstance(value, torch.Tensor))
    copied = arena.transform(module)
    torch.testing.assert_close(copied._parameters["weight"], module.weight.detach() + 1)
    assert copied is not module and copied._parameters is not module._parameters


def test_packed_sequences_are_rebuilt() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    arena = ToXlaTensorArena(
        lambda found: [t * 3 for t in found], lambda value: isinstance(value, torch.Tensor) and value.is_floating_point()
    )
    result = arena.transform((packed,))[0]
    assert type(result) is type(packed) and result.data.tolist() == [3.0, 3.0, 3.0] and result.batch_sizes is packed.batch_sizes


def test_fn_runs_once_per_object_in_order() -> None:
    seen: list[int] = []
    xu.for_each_instance({"a": [1, 2], "b": (2, {"c": 3})}, is_int, seen.append)
    assert seen == [1, 2, 3]


leaves = st.one_of(st.integers(0, 5), st.text(max_size=2), st.none())
keys = st.one_of(st.integers(0, 5), st.text(max_size=2), st.tuples(st.integers(0, 3)))
nestings = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(lambda x, y: Batch(x=x, y=y), inner, inner),
        st.builds(lambda x: Wrapped(x, "w"), inner),
        st.frozensets(st.integers(0, 5), max_size=3),
    ),
    max_leaves=12,
)


@given(nestings)
def test_both_walkers_visit_the_same_leaves_in_the_same_order(nesting: Any) -> None:
    walked: list[int] = []
    rewritten: list[int] = []
    xu.for_each_instance(nesting, is_int, walked.append)

    def note(value: int) -> int:
        rewritten.append(value)
        return -value

    result = xu.for_each_instance_rewrite(nesting, is_int, note)
    assert walked == rewritten
    negated: list[int] = []
    xu.for_each_instance(result, is_int, negated.append)
    assert sorted(negated) == sorted(-value for value in set(walked))


def test_paths_lead_to_what_they_name() -> None:
    target = torch.ones(1)
    survey = Survey({"m": [0, Batch(part=(target,))]}, lambda value: value is target)
    assert survey.path(target) == "obj['m'][1].part[0]"
    assert Survey(Wrapped([target], "w"), lambda value: value is target).path(target) == "obj.get_tensors()[0][0]"
    assert Survey({(target,): 1}, lambda value: value is target).path(target).startswith("obj.key(")
    assert Survey({target}, lambda value: value is target).path(target) == "obj.item(0)"
