"""Tensors of other wrapper classes on device xla: they get the calls that they know about, and views that torch makes below all classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal import composite_compliance
from torch.utils import _pytree

from xla_core.base.errors import DeviceMismatchError


class Counted(torch.Tensor):
    """Holds a tensor, and counts the operations on it."""

    inner: torch.Tensor
    operations: list[str] = []

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Counted:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.operations.append(func.overloadpacket.__name__)
        plain = _pytree.tree_map_only(Counted, lambda item: item.inner, (args, kwargs or {}))
        return _pytree.tree_map_only(torch.Tensor, Counted, func(*plain[0], **plain[1]))


@pytest.mark.parametrize("on_device_first", [False, True])
def test_an_operand_of_another_class_gets_the_call(on_device_first: bool) -> None:
    Counted.operations.clear()
    x, other = torch.arange(3.0, device="xla"), Counted(torch.ones(3, device="xla"))
    result = x - other if on_device_first else other - x
    assert type(result) is Counted and Counted.operations == ["sub"]
    assert result.inner.tolist() == [-1.0, 0.0, 1.0] if on_device_first else [1.0, 0.0, -1.0]
    lists = torch.cat([x, other.inner, other])
    assert type(lists) is Counted and lists.inner.tolist() == [0.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_a_class_that_does_not_know_the_other_is_named() -> None:
    class Alone(Counted):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return NotImplemented

    with pytest.raises(TypeError, match="Alone"):
        torch.ones(3, device="xla") + Alone(torch.ones(3, device="xla"))
    with pytest.raises(DeviceMismatchError, match="is not an XLA tensor"):
        torch.ones(3, device="xla") + torch.ones(3)


VIEWS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "as_strided": (torch.as_strided, ((2, 2), (1, 2), 1)),
    "diagonal": (torch.diagonal, ()),
    "expand": (torch.Tensor.expand, (3, 4, 2)),
    "movedim": (torch.movedim, (0, 1)),
    "select": (torch.select, (0, 1)),
    "slice": (torch.narrow, (0, 1, 2)),
    "split": (torch.split, (2,)),
    "squeeze": (torch.squeeze, ()),
    "transpose": (torch.t, ()),
    "unbind": (torch.unbind, ()),
    "unfold": (torch.Tensor.unfold, (0, 2, 1)),
    "unsqueeze": (torch.unsqueeze, (1,)),
    "view": (torch.Tensor.view, (8,)),
    "view_as_complex": (torch.view_as_complex, ()),
}


@pytest.mark.parametrize("plain", [False, True], ids=["alone", "after plain tensors"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_below_all_classes(name: str, plain: bool) -> None:
    """PyTorch's own check of an operator: each mix of wrapped and plain arguments, with views made below the wrapper's class.

    plain: whether torch.Tensor itself has been on the device in this process, from when on more kernels are ours.
    """
    if plain:
        torch.nn.Linear(2, 2).to("xla")
    view, arguments = VIEWS[name]
    x = torch.arange(8.0, device="xla").view(4, 2)

    def close(there: Any, here: Any) -> None:
        torch.testing.assert_close(there, here)

    composite_compliance.check_with_mode(view, (x, *arguments), {}, close)
    composite_compliance.check_all_permutations(view, (x, *arguments), {}, close)
