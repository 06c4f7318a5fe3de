"""Nestings of arguments and results of exported programs: as tuples, lists and dicts, the same before a save and behind a load."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree

from torch_xla import stablehlo
from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import tree_flatten
from xla_core.features.export.torch_export import pytree_text
from xla_core.features.export.torch_export.folder_index import INDEX


class Point(NamedTuple):
    """As many models return it."""

    x: Any
    y: Any


@dataclass
class Output:
    """As others do."""

    logits: Any
    loss: Any = None
    count: int = 3


class Color(enum.Enum):
    """A key."""

    RED = 1


class Box:
    """A container that says of itself only how it is taken apart."""

    def __init__(self, content: Any) -> None:
        self.content = content


torch.export.register_dataclass(Output, serialized_type_name="xla_core.tests.Output")
_pytree.register_pytree_node(
    Box, lambda box: ([box.content], None), lambda children, _: Box(*children), serialized_type_name="xla_core.tests.Box"
)


class Returns(nn.Module):
    """What a function makes of its argument."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


RESULTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "tensor": (lambda x: x + 1, 2.0),
    "tuple": (lambda x: (x + 1, [x], {"a": x, 1: (x,)}, ()), (2.0, [1.0], {"a": 1.0, 1: (1.0,)}, ())),
    "constants": (lambda x: {"a": None, "b": [x, 3, "text"]}, {"a": None, "b": [1.0, 3, "text"]}),
    "namedtuple": (lambda x: Point(x, (x + 1,)), (1.0, (2.0,))),
    "torch.return_types": (lambda x: x.expand(2).max(0).values[None].topk(1), ([1.0], [0])),
    "OrderedDict": (lambda x: OrderedDict(b=x, a=x + 1), {"b": 1.0, "a": 2.0}),
    "defaultdict": (lambda x: defaultdict(list, a=x), {"a": 1.0}),
    "deque": (lambda x: deque([x, x + 1]), [1.0, 2.0]),
    "size": (lambda x: (x, x.expand(2, 3).shape), (1.0, (2, 3))),
    "dataclass": (lambda x: Output(x + 1), {"logits": 2.0, "count": 3}),
}


def plain_values(item: Any) -> Any:
    """Numbers in the place of tensors; containers must be the plain ones."""
    if isinstance(item, torch.Tensor):
        return item.tolist()
    if type(item) is dict:
        return {key: plain_values(each) for key, each in item.items()}
    return type(item)(map(plain_values, item)) if type(item) in (tuple, list) else item


@pytest.mark.parametrize("case", RESULTS)
def test_results_are_the_same_before_and_behind_a_folder(tmp_path: Path, case: str) -> None:
    function, expected = RESULTS[case]
    x = torch.tensor(1.0)
    exported = stablehlo.exported_program_to_stablehlo(torch.export.export(Returns(function), (x,)))
    exported.save(str(tmp_path))
    results = exported(x), stablehlo.StableHLOGraphModule.load(str(tmp_path))(x)
    for result in map(plain_values, results):
        assert result == expected and type(result) is type(expected)


@pytest.mark.parametrize("argument", [Point(torch.ones(2), torch.ones(2)), Output(torch.ones(2)), OrderedDict(a=torch.ones(2), b=3)])
def test_arguments_may_be_the_same_or_plain(tmp_path: Path, argument: Any) -> None:
    function: Callable[[Any], Any] = lambda given: [item * 2 for item in (given.values() if isinstance(given, dict) else [given[0]])]  # noqa: E731
    if isinstance(argument, Output):
        function = lambda given: given.logits * 2  # noqa: E731
    elif isinstance(argument, OrderedDict):
        function = lambda given: given["a"] * given["b"]  # noqa: E731
    stablehlo.save_as_stablehlo(torch.export.export(Returns(function), (argument,)), str(tmp_path))
    loaded = stablehlo.StableHLOGraphModule.load(str(tmp_path))
    given = {"logits": torch.ones(2), "count": 3} if isinstance(argument, Output) else argument
    given = dict(given) if isinstance(given, dict) else tuple(given)
    expected = torch.utils._pytree.tree_leaves(function(argument))
    for each in (argument, given):
        assert [leaf.tolist() for leaf in _pytree.tree_leaves(loaded(each))] == [leaf.tolist() for leaf in expected]
    with pytest.raises(ValueError, match="arguments are nested as"):
        loaded([torch.ones(2)])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: {Color.RED: x}, "a result of an exported program: a dict has the key <Color.RED: 1>: take texts or numbers"),
        (lambda x: {(1, 2): x}, r"a dict has the key \(1, 2\)"),
        (lambda x: Box(x), "a result of an exported program: Box holds tensors there.*take tuples, lists and dicts"),
        (lambda x: {float("nan"): x}, "NaN is no key"),
    ],
)
def test_what_no_folder_can_say_is_refused_when_it_is_exported(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=message):
        stablehlo.exported_program_to_stablehlo(torch.export.export(Returns(function), (torch.tensor(1.0),)))


def test_texts_are_those_of_torch() -> None:
    """Of plain nestings: other readers of metas have torch's."""
    nestings: list[Any] = [(1,), [1, (2, {"a": 3, 4: [], None: 5, 1.5: 6})], {}, 1, ((), {"x": 1})]
    for nesting in nestings:
        structure = tree_flatten(nesting)[1]
        text = pytree_text.dumps(structure, "a result")
        assert text == _pytree.treespec_dumps(structure)
        assert pytree_text.loads(text) == structure == _pytree.treespec_loads(text)


def test_texts_of_earlier_releases() -> None:
    """With containers by their names."""
    for nesting, plain in ((OrderedDict(a=1), {"a": 1}), (deque([1]), [1]), (torch.Size([2]), (2,)), ((OrderedDict(),), ({},))):
        assert pytree_text.loads(_pytree.treespec_dumps(tree_flatten(nesting)[1])) == tree_flatten(plain)[1]


def test_a_folder_of_the_first_form_without_index(tmp_path: Path) -> None:
    """As PyTorch/XLA writes it."""
    model, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(1, 3)
    stablehlo.save_as_stablehlo(torch.export.export(model, (x,)), str(tmp_path))
    (tmp_path / INDEX).unlink()
    (tmp_path / "constants").rmdir()
    torch.testing.assert_close(stablehlo.StableHLOGraphModule.load(str(tmp_path))(x).cpu(), model(x).detach())
