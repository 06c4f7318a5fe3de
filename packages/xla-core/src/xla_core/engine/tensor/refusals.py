"""Raise torch's own errors: the CPU runs each new signature on stand-ins for its arguments, and may refuse them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from xla_core.base.private_torch import OpOverload, infer_before_dynamo, tree_leaves, tree_map
from xla_core.engine.tensor.tensor import XLATensor


def meta_of(item: Any) -> Any:
    """The meta tensor that stands for an xla tensor, the meta device for a device; anything else as it is."""
    if type(item) is XLATensor:
        spec = item._view
        return (item._storage.value.aval if spec is None else spec.shown).meta
    if isinstance(item, torch.device):
        return torch.device("meta")
    return item


def host_stand_in(item: Any) -> Any:
    """The CPU tensor of zeros that stands for an xla tensor, the CPU for a device; anything else as it is."""
    if type(item) is XLATensor:
        return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="cpu").zero_()
    if isinstance(item, torch.device):
        return torch.device("cpu")
    return item


def _host_ones(item: Any) -> Any:
    return torch.ones_like(host_stand_in(item)) if type(item) is XLATensor else host_stand_in(item)


def _host_real_ones(item: Any) -> Any:
    """Ones for floating tensors, zeros for others, which may be positions."""
    return _host_ones(item) if type(item) is XLATensor and item.dtype.is_floating_point else host_stand_in(item)


def _shrunk(sizes: dict[int, int], item: Any) -> Any:
    """Zeros whose shape has, for each size of the tensor, the one that stands for it."""
    if type(item) is XLATensor:
        return torch.zeros([sizes.get(size, size) for size in item.shape], dtype=item.dtype, device="cpu")
    return host_stand_in(item)


def _shrunk_meta(sizes: dict[int, int], item: Any) -> Any:
    return _shrunk(sizes, item).to("meta") if type(item) is XLATensor else meta_of(item)


# The CPU sees calls of up to so many elements, results included, in their own shapes.
_SMALL = 1 << 16
_FEW = 4  # sizes up to this stand for themselves
# Errors about the stand-ins' values or strides, not about the call.
_ABOUT_VALUES = (
    "segment_reduce(): Expected all rows of lengths",
    "allocated size does not match required size",
    "strides should be multiple of 16 bytes",
)
# Errors about dtypes and numbers of dimensions, whatever the sizes, and about sizes that have to be equal.
_ABOUT_KINDS = re.compile(
    r"not implemented for|type|integral|floating|boolean|complex|must be 1 dimension|Dimension out of range|Number of indices",
    re.IGNORECASE,
)
# Errors about shapes that are not broadcast as they have to be. They name the shapes, in brackets.
_ABOUT_BROADCASTS = re.compile(r"doesn't match the broadcast shape|^expand\(")
# Errors where stock torch has no CPU kernel for a dtype although the meaning is clear, or no CPU kernel at all. Half precision that torch's
# accelerators compute and its CPU does not is among the facts of a row: `beyond_cpu`.
_UNWRITTEN = re.compile(r"not implemented for '(ComplexHalf|Float8\w*|UInt(16|32|64))'|^Could not run '")


def ask_cpu(func: OpOverload, beyond_cpu: frozenset[torch.dtype], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Raise what the CPU raises for a call that meta tensors let pass: they check less, dtypes in particular.

    beyond_cpu: as in the row of `func`. For a call with many elements the CPU sees smaller shapes, and only errors about dtypes and
    dimensions, and about what is broadcast, count.
    """
    sizes = [item.numel() for item in tree_leaves((args, kwargs, result)) if isinstance(item, torch.Tensor)]
    if not sizes or _beyond_the_cpu(func, beyond_cpu, args):
        return
    if sum(sizes) > _SMALL:
        _ask_about_kinds(func, args, kwargs)
        return
    refused = _refusal(func, args, kwargs, host_stand_in)
    if refused is None or (_has_masks(args) and str(refused).startswith("shape mismatch")):
        return
    # Two more tries: the first error may be about the zeros (a singular matrix, a division), not about the call.
    if all(_refusal(func, args, kwargs, other) for other in (_host_real_ones, _host_ones)):
        raise refused


def _ask_about_kinds(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    large = {size for item in tree_leaves((args, kwargs)) if type(item) is XLATensor for size in item.shape if size > _FEW}
    sizes = {size: _FEW + 1 + index for index, size in enumerate(sorted(large))}  # equal sizes stay equal, larger ones larger
    try:
        on_meta(func, args, kwargs, partial(_shrunk_meta, sizes))
    except Exception:
        return  # a number among the arguments depends on the sizes
    refused = _refusal(func, args, kwargs, partial(_shrunk, sizes))
    if refused is not None and _ABOUT_KINDS.search(str(refused)):
        raise refused
    if refused is not None and _ABOUT_BROADCASTS.search(str(refused)):
        raise type(refused)(_in_own_sizes(str(refused), {stand_in: size for size, stand_in in sizes.items()}))


def _in_own_sizes(text: str, sizes: dict[int, int]) -> str:
    """`text` with each shape in it as the call has it. sizes: of the call, by the size that stands for it."""
    return re.sub(r"\[[\d, ]+\]", lambda shape: re.sub(r"\d+", lambda size: str(sizes.get(int(size[0]), int(size[0]))), shape[0]), text)


def _beyond_the_cpu(func: OpOverload, dtypes: frozenset[torch.dtype], args: tuple[Any, ...]) -> bool:
    if func.namespace == "xla":  # our own: kernels for the CPU, where there are any, ask the device
        return True
    if not dtypes:
        return False
    tensors = args[0] if isinstance(args[0], (list, tuple)) else args[:1]
    return any(isinstance(tensor, torch.Tensor) and tensor.dtype in dtypes for tensor in tensors)


def _has_masks(args: tuple[Any, ...]) -> bool:
    """Whether there is a list of indices with a mask in it: how many places such a call means depends on data (ops/index/index_put.py)."""
    lists = [arg for arg in args if isinstance(arg, (list, tuple))]
    return any(isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8) for items in lists for item in items)


_ends: list[Callable[[], None]] = []


@cache
def _infer_before_dynamo() -> None:
    if "torch._dynamo" not in sys.modules:
        _ends.append(infer_before_dynamo())


def dynamo_is_imported() -> None:
    """Let decompositions ask dynamo from now on."""
    for end in _ends:
        end()


def on_meta(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], stand_in: Callable[[Any], Any]) -> Any:
    """`func` on meta tensors in place of xla ones. Does not import dynamo."""
    _infer_before_dynamo()
    return func(*tree_map(stand_in, args), **_placed(func, tree_map(stand_in, kwargs), "meta"))


def on_cpu(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], stand_in: Callable[[Any], Any] = host_stand_in) -> Any:
    """`func` on CPU tensors (zeros) in place of xla ones; random operations leave the CPU's own state alone."""
    with torch.random.fork_rng(devices=[]):
        return func(*tree_map(stand_in, args), **_placed(func, tree_map(stand_in, kwargs), "cpu"))


def _refusal(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], stand_in: Callable[[Any], Any]) -> Exception | None:
    try:
        on_cpu(func, args, kwargs, stand_in)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None  # as _ABOUT_VALUES
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if _UNWRITTEN.search(str(error)) or str(error).startswith(_ABOUT_VALUES):
            return None
        # Its frames hold the tensors of the call, in a reference cycle with whoever keeps the error: they would be results of the step.
        return error.with_traceback(None)
    return None


def _placed(func: OpOverload, kwargs: dict[str, Any], device: str) -> dict[str, Any]:
    """`kwargs` with `device` where the schema takes one: factories and `*_like` must not come back to xla."""
    kwargs.pop("device", None)
    if any(argument.name == "generator" and argument.kwarg_only for argument in func._schema.arguments):
        kwargs["generator"] = None  # some overloads must be given one
    if any(argument.name == "device" for argument in func._schema.arguments):
        kwargs["device"] = torch.device(device)
    return kwargs
