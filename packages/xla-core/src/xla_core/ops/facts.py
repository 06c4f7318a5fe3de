"""The facts of an operator that the engine goes by beside its lowering, what each may be, and the check of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, TypedDict

import torch

from xla_core.base.errors import RegistrationError
from xla_core.base.private_torch import OpOverload


class Autocast(Enum):
    """The precision in which autocast runs an operator. One that has none runs in the dtypes it is given."""

    LOWER = "in the dtype of autocast"
    FLOAT32 = "in float32"
    WIDEST = "in the widest dtype of its operands"


class TorchKernel(Enum):
    """How torch's own kernels serve an operator that has no lowering here."""

    OF_PARTS = "torch makes it of other operators, which are recorded"
    KEPT = "torch's kernel also serves tensors of torch's own types that are on the device"
    REPLACED = "torch calls the kernel of the device itself, below the tensors' dispatch"


HALF = frozenset({torch.bfloat16, torch.float16})
"""The dtypes of half precision, for `beyond_cpu`."""


class Facts(TypedDict, total=False):
    """The facts that `op` takes for all its names; the fields of `OpSpec` of these names describe them."""

    autocast: Autocast | None
    shapes: Callable[..., Any] | None
    beyond_cpu: frozenset[torch.dtype]
    overlapping_writes: bool
    fills: Callable[[tuple[Any, ...]], Any] | None
    keeps_sharding: bool
    adds_gradients: bool
    on_lists: bool
    only_casts: bool
    shown_as: str
    faults: tuple[str, ...]


_FLAGS = ("overlapping_writes", "keeps_sharding", "adds_gradients", "on_lists", "only_casts")


def check_facts(func: OpOverload, facts: Facts) -> None:
    """Raise RegistrationError for facts that cannot be those of `func`, saying what is allowed."""
    wrong = next(_problems(func, facts), None)
    if wrong is not None:
        raise RegistrationError(f"{func.name()}: {wrong}")


def check_autocast(name: str, autocast: object) -> None:
    """Raise RegistrationError for what is no choice of autocast, or is one for an operator `namespace::op` outside of aten."""
    if not isinstance(autocast, Autocast):
        allowed = ", ".join(f"Autocast.{member.name}" for member in Autocast)
        raise RegistrationError(f"{name}: autocast is one of {allowed}, got {autocast!r}")
    if not name.startswith("aten::"):
        raise RegistrationError(f"{name}: autocast is for operators of aten; give others a kernel by torch.library.register_autocast")


def _problems(func: OpOverload, facts: Facts) -> Iterator[str]:
    """What is wrong with facts of an operator, in words."""
    arguments = [str(argument.type) for argument in func._schema.arguments]
    results = [str(result.type) for result in func._schema.returns]
    takes_tensor = arguments[:1] == ["Tensor"]
    flags = {name: facts.get(name, False) for name in _FLAGS}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            yield f"{name} is True or False, got {flag!r}"
    for name, what in (("shapes", "meta tensors"), ("fills", "the call's arguments")):
        if not (facts.get(name) is None or callable(facts[name])):  # type: ignore[literal-required]
            yield f"{name} is a function of {what}, got {facts[name]!r}"  # type: ignore[literal-required]
    if facts.get("fills") is not None and results != ["Tensor"]:
        yield f"fills is for an operator with one tensor as its result, this one gives {results}"
    dtypes = facts.get("beyond_cpu", frozenset())
    if not _are_dtypes(dtypes):
        yield f"beyond_cpu is a frozenset of torch dtypes, got {dtypes!r}"
    if dtypes and arguments[:1] not in (["Tensor"], ["List[Tensor]"]):
        yield "beyond_cpu is about the dtype of a tensor, or of a list of tensors, that is the first argument, here there is none"
    for name in ("keeps_sharding", "only_casts"):
        if flags[name] and not takes_tensor:
            yield f"{name} is for an operator whose first argument is a tensor"
    if flags["on_lists"] and "List[Tensor]" not in arguments:
        yield "on_lists is for an operator that takes a list of tensors"
    for name in ("overlapping_writes", "adds_gradients"):
        if flags[name] and not _is_in_place_too(func):
            yield f"{name} is about an in-place form, and torch has none"
    shown = facts.get("shown_as", "")
    if shown != "" and (not isinstance(shown, str) or "::" not in shown):
        yield f"shown_as is a name as namespace::op, got {shown!r}"


def _are_dtypes(dtypes: object) -> bool:
    return isinstance(dtypes, frozenset) and all(isinstance(dtype, torch.dtype) for dtype in dtypes)


def _is_in_place_too(func: OpOverload) -> bool:
    namespace, _, op = func._schema.name.partition("::")
    return hasattr(getattr(torch.ops, namespace), f"{op}_")
