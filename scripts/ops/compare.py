"""Whether results of the device are those of CPU torch: shapes and dtypes exactly, values within what the dtype allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

# (relative, absolute); absolute ones grow with the largest value expected, as rounding errors of sums do.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-2, 2e-3),
    torch.bfloat16: (3.2e-2, 1.6e-2),
    torch.float32: (1e-4, 1e-5),
    torch.complex64: (1e-4, 1e-5),
    torch.float64: (1e-7, 1e-8),
    torch.complex128: (1e-7, 1e-8),
}
# The content of these is whatever memory held.
UNINITIALISED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
# These project on random vectors: another seed gives nearly the same values, up to signs and beyond our tolerance.
RANDOM_INSIDE = ("svd_lowrank", "pca_lowrank")
# Which of several equal values is named by these is up to the implementation: what they point to is compared instead.
# Beside it the place of `dim` among the arguments after the input.
INDEXED = {"argsort": 0, "sort": 0, "mode": 0, "topk": 1, "kthvalue": 1}


class Difference(Exception):
    """What is not as on the CPU."""


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested results."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Values alone, on the CPU."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.cpu().resolve_conj().resolve_neg()


def check(mine: Any, expected: Any, device: str, values: bool) -> None:
    """Raise Difference unless nested results agree; `values` False: in shape, dtype and device only."""
    left, left_tree = pytree.tree_flatten(mine)
    right, right_tree = pytree.tree_flatten(expected)
    if len(left) != len(right):
        raise Difference(f"{len(left)} results, expected {len(right)}: {left_tree} and {right_tree}")
    for one, other in zip(left, right, strict=True):
        if isinstance(other, torch.Tensor):
            _check_tensor(one, other, device, values)
        elif isinstance(other, float) and isinstance(one, float):
            if values and not (math.isclose(one, other, rel_tol=1e-5) or (math.isnan(one) and math.isnan(other))):
                raise Difference(f"{one}, expected {other}")
        elif isinstance(other, torch.device) or (values and not _equal(one, other)):
            raise Difference(f"{one!r}, expected {other!r}")


def with_picked(name: str, given: tuple[Any, tuple[Any, ...], dict[str, Any]], result: Any) -> Any:
    """(values, indices) of a selection along a dimension, the indices replaced by what they point to unless a stable sort fixes them."""
    x, args, kwargs = given
    if kwargs.get("stable"):
        return result
    *values, indices = (result,) if isinstance(result, torch.Tensor) else result
    dim = kwargs.get("dim", args[INDEXED[name]] if len(args) > INDEXED[name] else -1)
    if not x.dim():
        return values, x.reshape(1).take_along_dim(indices.reshape(1), 0)
    return values, x.take_along_dim(indices if indices.dim() == x.dim() else indices.unsqueeze(dim), dim)


def no_worse(mine: Any, expected: Any, truth: Any) -> bool:
    """Whether results are as near to those computed in double precision as the CPU's are: it rounds too, and overflows."""
    for one, other, exact in zip(tensors_of(mine), tensors_of(expected), tensors_of(truth), strict=True):
        one, other, exact = plain(one), plain(other), plain(exact)
        if one.shape != exact.shape or one.dtype != other.dtype:
            return False
        if one.dtype not in TOLERANCES:
            if not torch.equal(one, other):
                return False
            continue
        relative, absolute = TOLERANCES[one.dtype]
        wide = torch.complex128 if exact.is_complex() else torch.float64
        one, other, exact = one.to(wide), other.to(wide), exact.to(one.dtype).to(wide)  # rounded: it may overflow
        sizes = exact.abs()
        finite = sizes[torch.isfinite(sizes)]
        allowed = relative * sizes + absolute * max(1.0, float(finite.max()) if finite.numel() else 1.0)
        off = (other - exact).abs()
        good = ((one - exact).abs() <= allowed + 2 * off.nan_to_num(0.0)) | torch.isclose(one, exact, rtol=relative, equal_nan=True)
        if not bool(good.all()):
            return False
    return True


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _check_tensor(mine: Any, expected: torch.Tensor, device: str, values: bool) -> None:
    if not isinstance(mine, torch.Tensor):
        raise Difference(f"{mine!r}, expected a tensor of shape {tuple(expected.shape)}")
    if mine.shape != expected.shape or mine.dtype != expected.dtype:
        raise Difference(f"{mine.dtype} {tuple(mine.shape)}, expected {expected.dtype} {tuple(expected.shape)}")
    if mine.device.type != device and expected.device.type == "cpu" and device != "cpu":
        raise Difference(f"the result is on {mine.device}")
    if values:
        check_values(plain(mine), plain(expected))


def check_values(mine: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise Difference unless two CPU tensors of one shape and dtype are close."""
    if not expected.numel():
        return
    if expected.dtype not in TOLERANCES:
        if not torch.equal(mine, expected):
            raise Difference(_largest(mine.double(), expected.double()))
        return
    relative, absolute = TOLERANCES[expected.dtype]
    wide = torch.complex128 if expected.is_complex() else torch.float64
    mine, expected = mine.to(wide), expected.to(wide)
    sizes = expected.abs()
    finite = sizes[torch.isfinite(sizes)]
    absolute *= max(1.0, float(finite.max()) if finite.numel() else 1.0)
    if not torch.allclose(mine, expected, rtol=relative, atol=absolute, equal_nan=True):
        raise Difference(_largest(mine, expected))


def _largest(mine: torch.Tensor, expected: torch.Tensor) -> str:
    off = ~torch.isclose(mine, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    place = int(off.flatten().nonzero()[0]) if bool(off.any()) else 0
    return f"{int(off.sum())} of {off.numel()} differ, first {mine.flatten()[place].item()}, expected {expected.flatten()[place].item()}"


def damaged(tree: Any) -> Any:
    """Nested results with every value changed."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            leaf = plain(leaf)
            return leaf.logical_not() if leaf.dtype is torch.bool else leaf * 1.1 + 0.1 if leaf.dtype in TOLERANCES else leaf + 1
        return not leaf if isinstance(leaf, bool) else leaf + 1 if isinstance(leaf, (int, float)) else leaf

    return pytree.tree_map(change, tree)


def _svd(result: Any) -> Any:
    u, s, v = result
    k = s.shape[-1]
    return s, (u[..., :k] * s.unsqueeze(-2).to(u.dtype)) @ v[..., :k, :]


def _old_svd(result: Any) -> Any:
    u, s, v = result
    return _svd((u, s, v.mH)) if bool(u.numel()) else (s,)


def _eigh(result: Any) -> Any:
    values, vectors = result
    return values, (vectors * values.unsqueeze(-2).to(vectors.dtype)) @ vectors.mH


def _eig(result: Any) -> Any:
    values, vectors = result
    return values, vectors @ torch.diag_embed(values) @ torch.linalg.inv(vectors)


# What is unique of results that are not: bases up to signs and phases.
UNIQUE: dict[str, Callable[[Any], Any]] = {"linalg.svd": _svd, "svd": _old_svd, "linalg.eigh": _eigh, "linalg.eig": _eig}


def unique_part(name: str, result: Any) -> Any:
    """CPU results, reduced to what every right answer shares."""
    reduce = UNIQUE.get(name)
    return result if reduce is None else reduce([plain(leaf) for leaf in result])
