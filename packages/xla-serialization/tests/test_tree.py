"""Nestings of every kind come back as they were, and what has no place in a checkpoint is refused with its place (FORMAT.md §5)."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import xla_serialization as checkpoint
from xla_serialization.checkpoint.state import flatten
from xla_serialization.errors import DamagedCheckpointError, MismatchError, UnsavableError
from xla_serialization.format.manifest import TensorEntry
from xla_serialization.format.matching import matched
from xla_serialization.format.tree import check, decode

_INTEGERS = st.integers() | st.integers(-(1 << 300), 1 << 300) | st.sampled_from([1 << 64, -(1 << 64)])
_TEXTS = st.text() | st.text(st.characters(categories=["Cs", "L"]))  # surrogates, as in names of files that are no UTF-8
_HASHABLE = (
    st.none()
    | st.booleans()
    | _INTEGERS
    | st.floats()
    | _TEXTS
    | st.binary(max_size=20)
    | st.complex_numbers()
    | st.sampled_from([torch.float8_e5m2, torch.bool, torch.strided, torch.sparse_coo, torch.device("cpu"), torch.device("xla:1")])
    | st.builds(torch.Size, st.lists(st.integers(0, 1 << 62), max_size=3))
    | st.builds(range, _INTEGERS, _INTEGERS, st.integers(1, 5))
    | st.builds(PurePosixPath, st.text(st.characters(codec="utf-8", exclude_characters="\0")))
)
_KEYS = _HASHABLE | st.tuples(_HASHABLE, _HASHABLE) | st.frozensets(_HASHABLE, max_size=2)
_TENSORS = st.lists(st.floats(width=32), max_size=4).map(torch.tensor)
_SLICES = st.builds(slice, st.none() | _INTEGERS, st.none() | _INTEGERS, st.none() | st.integers(1, 3))
_ARRAYS = npst.arrays(
    st.sampled_from(["<f4", ">f8", "<i2", ">u4", "?", "<c8", "<c16"]), npst.array_shapes(min_dims=0, max_dims=3, min_side=0)
)
_LEAVES = (
    _HASHABLE
    | _TENSORS
    | _TENSORS.map(lambda tensor: tensor.requires_grad_())
    | st.builds(torch.nn.Parameter, _TENSORS, st.booleans())
    | _ARRAYS
    | _ARRAYS.filter(lambda array: array.size > 0).map(lambda array: array.ravel()[0])
    | st.binary(max_size=20).map(bytearray)
    | _SLICES
)


def _containers(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inside, max_size=4)
    dicts = st.dictionaries(_KEYS, inside, max_size=4)
    return (
        lists
        | lists.map(tuple)
        | st.builds(deque, lists, st.none() | st.integers(4, 9))
        | dicts
        | dicts.map(OrderedDict)
        | dicts.map(lambda pairs: defaultdict(list, pairs))
        | dicts.map(lambda pairs: defaultdict(None, pairs))
        | st.sets(_KEYS, max_size=3)
        | st.builds(Counter, st.lists(_KEYS, max_size=4))
    )


def _same(one: Any, other: Any) -> bool:
    """Equal, of the same classes, in the same order; nan is nan, and -0.0 is not 0.0."""
    if isinstance(one, PurePosixPath):
        return isinstance(other, Path) and other == Path(one)
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad) and _same_bytes(
            one.detach().numpy(), other.detach().numpy()
        )
    if isinstance(one, (np.ndarray, np.generic)):
        return one.shape == other.shape and one.dtype.newbyteorder("=") == other.dtype and _same_bytes(one, other)
    if isinstance(one, dict):
        if isinstance(one, defaultdict) and one.default_factory is not other.default_factory:
            return False
        return _same_all(one.keys(), other.keys()) and _same_all(one.values(), other.values())
    if isinstance(one, deque) and one.maxlen != other.maxlen:
        return False
    if isinstance(one, (list, tuple, deque)):
        return _same_all(one, other)
    if isinstance(one, (set, frozenset)):
        return len(one) == len(other) and all(any(_same(left, right) for right in other) for left in one)
    if isinstance(one, complex):
        return _same(one.real, other.real) and _same(one.imag, other.imag)
    if isinstance(one, float):
        return math.isnan(one) and math.isnan(other) or (one, math.copysign(1, one)) == (other, math.copysign(1, other))
    return bool(one == other)


def _same_bytes(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind in "fc"))


def _same_all(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(_same(left, right) for left, right in zip(one, other, strict=True))


def _back(data: Any) -> Any:
    """Through the format, without the files."""
    state = flatten(data)
    copies = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
    return decode(state.tree, copies.__getitem__, "index")


@given(st.recursive(_LEAVES, _containers, max_leaves=12))
def test_a_nesting_comes_back(data: Any) -> None:
    assert _same(data, _back(data))


@given(st.recursive(_LEAVES, _containers, max_leaves=12))
def test_a_nesting_comes_back_from_files(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("nesting")
    checkpoint.save(data, folder)
    assert _same(data, checkpoint.load(folder))


def test_integers_of_more_digits_than_python_prints(tmp_path: Path) -> None:
    checkpoint.save({10**5000: -(10**5000), "range": range(0, 10**5000)}, tmp_path)
    assert checkpoint.load(tmp_path) == {10**5000: -(10**5000), "range": range(0, 10**5000)}


def test_a_tensor_saved_twice_is_one_object() -> None:
    tensor, parameter = torch.ones(2), torch.nn.Parameter(torch.zeros(3))
    found = _back({"a": tensor, "b": [tensor], "c": parameter, "d": (parameter, parameter.data)})
    assert found["a"] is found["b"][0] and found["c"] is found["d"][0]
    assert found["c"].data_ptr() == found["d"][1].data_ptr() and not found["d"][1].requires_grad


def test_the_same_data_with_and_without_gradient() -> None:
    tensor = torch.ones(2, requires_grad=True)
    for data in ([tensor, tensor.detach()], [tensor.detach(), tensor]):
        found = _back(data)
        assert [one.requires_grad for one in found] == [one.requires_grad for one in data]
        assert found[0].data_ptr() == found[1].data_ptr()


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"a": {"b": 1}, "a.b": 2}, ["a.b", "a.b~2"]),
        ({"a.b": 1, "a": {"b": 2}, "a.b~2": 3}, ["a.b", "a.b~2", "a.b~2~2"]),
        ([1, [2]], ["0", "1.0"]),
        (1, ["tensor"]),
        ({"": 1, "__metadata__": 2, None: 3, 0: 4, "0": 5}, ["tensor", "__metadata__~2", "None", "0", "0~2"]),
        ({"w@0,4": 1, "w": 2}, ["w@0,4~2", "w"]),  # the first would look like a piece of the second
        ({"\udc80": 1, 10**5000: 2}, ["�", "int"]),
        ({("a", 1): 1, True: 2}, ["('a', 1)", "True"]),
    ],
)
def test_names(data: Any, names: list[str]) -> None:
    def tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: tensors(inside) for key, inside in value.items()}
        return [tensors(one) for one in value] if isinstance(value, list) else torch.tensor(value)

    filled = tensors(data)
    assert list(flatten(filled).tensors) == names
    assert _same(filled, _back(filled))


def test_the_state_dict_of_a_module_keeps_its_versions(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    checkpoint.save(model.state_dict(), tmp_path)
    found = checkpoint.load(tmp_path)
    assert type(found) is OrderedDict and found._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    assert torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)).load_state_dict(found)


Pair = namedtuple("Pair", "left right")


@dataclass
class Fields:
    left: int = 1


class Text(str):
    __slots__ = ()


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    return cycle


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"in": value}
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (_cycle(), "contains itself"),
        (_deep(200), "100 containers in each other"),
        (len, "builtin_function_or_method"),
        (lambda: 1, "function"),
        (Pair(1, 2), "Pair"),
        (Fields(), "state_dict"),
        (Text("text"), "Text"),
        (Fields, "type"),
        (defaultdict(lambda: 1), "defaultdict"),
        (np.array(["a"]), "NumPy array of <U1"),
        (np.array([object()]), "NumPy array of object"),
        (np.ma.masked_array([1, 2], [True, False]), "MaskedArray"),
        (slice("a"), "slice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_saved_is_refused_with_its_place(tmp_path: Path, value: Any, said: str) -> None:
    with pytest.raises(UnsavableError, match=said) as caught:
        checkpoint.save({"model": [0, value]}, tmp_path / "new")
    assert "model → 1" in str(caught.value) or "100 containers" in said
    assert isinstance(caught.value, TypeError) and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.zeros(2).to_sparse(), "sparse"),
        (lambda: torch.zeros(2, device="meta"), "meta"),
        (lambda: torch.zeros(2, dtype=torch.complex32), "complex32"),
        (lambda: torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8), "quantized"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of torch, about its own tensors
def test_tensors_that_cannot_be_saved_are_refused_with_their_place(tmp_path: Path, make: Callable[[], torch.Tensor], said: str) -> None:
    with pytest.raises(UnsavableError, match=f"model → 0: .*{said}"):
        checkpoint.save({"model": [make()]}, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nestings_up_to_the_limit_come_back(tmp_path: Path) -> None:
    checkpoint.save(_deep(100), tmp_path)
    assert checkpoint.load(tmp_path) == _deep(100)


@pytest.mark.parametrize(
    "tree",
    [
        [],
        {},
        {"list": 1},
        {"list": {}},
        {"tensor": "none of that name"},
        {"tensor": []},
        {"parameter": "whole numbers"},
        {"tensor, requires grad": "whole numbers"},
        {"array": "brain"},
        {"scalar": "whole numbers"},
        {"set": [{"list": []}]},
        {"set": [{"array": "whole numbers"}]},
        {"dict": [[1]]},
        {"dict": [[{"dict": []}, 1]]},
        {"default dict": {"items": [], "factory": "eval"}},
        {"deque": {"items": [], "maxlen": -1}},
        {"deque": {"items": [], "maxlen": 1 << 80}},
        {"dtype": "load"},
        {"dtype": "_inductor"},
        {"layout": "float32"},
        {"device": "no device"},
        {"device": 3},
        {"size": [1.5]},
        {"range": [1, 2, 0]},
        {"range": [True, 2, 1]},
        {"slice": [1]},
        {"range": [1]},
        {"bytes": "not base 64!"},
        {"integer": "twelve"},
        {"surrogates": "/w=="},
        {"float": "1"},
        {"complex": [1]},
        {"path": None},
        {"pickle": "gASVCAAAAAAAAACMBHRleHSULg=="},
        {"list": [], "tuple": []},
    ],
    ids=str,
)
def test_what_is_no_tree_is_refused_before_tensors_are_read(tree: Any) -> None:
    entries = {"whole numbers": TensorEntry("int64", (2,), ()), "brain": TensorEntry("bfloat16", (2,), ())}
    with pytest.raises(DamagedCheckpointError, match="index: the tree"):
        check({"list": [{"tensor": "whole numbers"}, tree]}, entries, "index")


def test_a_tree_deeper_than_any_that_is_saved_is_refused() -> None:
    tree: Any = 1
    for _ in range(150):
        tree = {"list": [tree]}
    with pytest.raises(DamagedCheckpointError, match="100 containers"):
        check(tree, {}, "index")


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        ({"a": {"b": torch.ones(1)}}, {"a": {"c": torch.ones(1)}}, 'a: other keys; only in the checkpoint: "c"; only in what .*: "b"'),
        ([torch.ones(1)], [torch.ones(1), 2], "2 items in the checkpoint, 1 in"),
        ({"a": 1}, {"a": torch.ones(1)}, "a: a tensor in the checkpoint, a plain value in"),
        ({"a": torch.ones(1)}, {"a": 1}, "a: a plain value in the checkpoint, a tensor in"),
        ({"a": None}, {"a": {"b": torch.ones(1)}}, "a: a mapping in the checkpoint, a plain value in"),
        ([[torch.ones(1)]], [{0: torch.ones(1)}], "0: a mapping in the checkpoint, a sequence in"),
    ],
)
def test_nestings_that_differ(mine: Any, theirs: Any, said: str) -> None:
    with pytest.raises(MismatchError, match=said):
        list(matched(flatten(mine).tree, flatten(theirs).tree))


def test_kinds_of_mappings_and_sequences_match_each_other() -> None:
    mine = {"a": [torch.ones(1)], "b": 2, "c": torch.zeros(1)}
    theirs = OrderedDict(c=torch.ones(1), b=3, a=deque([torch.zeros(1)]))
    assert list(matched(flatten(mine).tree, flatten(theirs).tree)) == [("a.0", "a.0"), ("c", "c")]
