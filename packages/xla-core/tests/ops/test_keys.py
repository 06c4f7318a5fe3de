"""No two calls that differ in an argument share a program unless they agree: the key of a call says all that its result depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import torch_xla
from xla_core.engine.graph.graph import inputs_of
from xla_core.engine.runtime.client import current_recorder

DIMS = st.integers(-2, 1)
NUMBERS = st.sampled_from([0, 1, 2, -1, True, False, 0.0, -0.0, 1.0, 0.5, -1.5, float("inf"), float("nan")])
FLOATS = st.sampled_from([0.25, 0.5, 1.0, 2.0])
DTYPES = st.sampled_from([None, torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
SHAPES = st.sampled_from([(4, 4), (16,), (2, 8), (1, 16), (2, 2, 4)])
FLAGS = st.booleans()
ORDERS = st.sampled_from([0, 1, 2, 2.5, float("inf"), float("-inf")])
SIDES = st.sampled_from(["left", "right"])
ENDS, STEPS = st.sampled_from([3, 4, 4.0, 5.5]), st.sampled_from([1, 2, 1.0])

CALLS: dict[str, tuple[Callable[..., Any], tuple[st.SearchStrategy[Any], ...]]] = {
    "add": (lambda x, other, alpha: torch.add(x, other, alpha=alpha), (NUMBERS, st.sampled_from([1, 2, 1.0, 0.5]))),
    "mul": (lambda x, other: x * other, (NUMBERS,)),
    "pow": (lambda x, exponent: x.abs().pow(exponent), (NUMBERS,)),
    "div": (lambda x, mode: torch.div(x, 0.3, rounding_mode=mode), (st.sampled_from([None, "floor", "trunc"]),)),
    "clamp": (lambda x, low, high: x.clamp(low, high), (st.sampled_from([None, 0, 0.0, -0.5]), st.sampled_from([None, 1, 1.0, 0.5]))),
    "sum": (lambda x, dim, keep, dtype: x.sum(dim, keepdim=keep, dtype=dtype), (DIMS, FLAGS, DTYPES)),
    "std": (lambda x, dim, correction: x.std(dim, correction=correction), (DIMS, st.sampled_from([0, 1, 2, 0.5]))),
    "norm": (
        lambda x, order, dim: torch.linalg.vector_norm(x, order, dim),
        (ORDERS, DIMS),
    ),
    "softmax": (lambda x, dim, dtype: x.softmax(dim, dtype), (DIMS, st.sampled_from([None, torch.float64]))),
    "cumsum": (lambda x, dim, dtype: x.cumsum(dim, dtype=dtype), (DIMS, DTYPES)),
    "roll": (lambda x, shift, dim: x.roll(shift, dim), (st.integers(-3, 3), DIMS)),
    "flip": (lambda x, dims: x.flip(dims), (st.sampled_from([(0,), (1,), (0, 1), ()]),)),
    "topk": (lambda x, k, dim, largest: x.topk(k, dim, largest), (st.integers(1, 3), DIMS, FLAGS)),
    "sort": (lambda x, dim, descending: x.sort(dim, descending), (DIMS, FLAGS)),
    "to": (lambda x, dtype: x.to(dtype or torch.float16), (DTYPES,)),
    "view": (lambda x, shape: x.view(shape) * 2, (SHAPES,)),
    "diagonal": (lambda x, offset: x.diagonal(offset).clone(), (st.integers(-3, 3),)),
    "slice": (lambda x, start, stop, step: x[start:stop:step] + 0.5, (st.integers(-4, 3), st.integers(-3, 4), st.integers(1, 3))),
    "select": (lambda x, dim, index: x.select(dim, index) + 0.5, (DIMS, st.integers(-4, 3))),
    "tril": (lambda x, k: x.tril(k), (st.integers(-3, 3),)),
    "pad": (
        lambda x, widths, mode, value: F.pad(x[None], widths, mode, value if mode == "constant" else None),
        (st.sampled_from([(1, 0), (0, 1), (1, 1), (2, 1)]), st.sampled_from(["constant", "reflect", "replicate", "circular"]), FLOATS),
    ),
    "pixel_shuffle": (lambda x, factor: F.pixel_shuffle(x.view(16, 1, 1), factor), (st.sampled_from([1, 2, 4]),)),
    "interpolate": (
        lambda x, scale, mode: F.interpolate(x[None, None], scale_factor=scale, mode=mode),
        (st.sampled_from([1.5, 1.7, 2.0, 2]), st.sampled_from(["nearest", "nearest-exact", "bilinear", "bicubic", "area"])),
    ),
    "pool": (
        lambda x, size, stride, ceil: F.max_pool2d(x[None], size, stride, ceil_mode=ceil),
        (st.integers(1, 3), st.integers(1, 3), FLAGS),
    ),
    "searchsorted": (
        lambda x, side: torch.searchsorted(x[0].sort()[0], x[1].contiguous(), side=side),
        (SIDES,),
    ),
    "eigvalsh": (lambda x, uplo: torch.linalg.eigvalsh(x, UPLO=uplo), (st.sampled_from(["L", "U"]),)),
    "cdist": (lambda x, p: torch.cdist(x, x * 0.5, p), (st.sampled_from([0.0, 1.0, 2.0, 3.0]),)),
    "full": (lambda x, shape, value, dtype: torch.full(shape, value, dtype=dtype, device=x.device), (SHAPES, FLOATS, DTYPES)),
    "arange": (
        lambda x, end, step: torch.arange(0, end, step, device=x.device),
        (ENDS, STEPS),
    ),
    "fill": (lambda x, value: x.clone().fill_(value), (NUMBERS,)),
    "nan_to_num": (lambda x, value: (x / 0 * 0).nan_to_num(value), (FLOATS,)),
    "embedding": (lambda x, norm: F.embedding(x.abs().long(), x.clone(), max_norm=norm), (st.sampled_from([None, 0.5, 1.0]),)),
    "exponential": (lambda x, shape: torch.empty(shape, device=x.device).exponential_().isfinite(), (SHAPES,)),
}
X = torch.linspace(-1.5, 1.5, 16).view(4, 4).roll(3, 0)


def key_of(call: Callable[[Tensor], Any], x: Tensor) -> Any:
    """All that decides what is run: operations, constants and numbers."""
    torch_xla.sync()
    results = call(x)
    recorder = current_recorder()
    pending_graph = recorder.pending_graph
    inputs = inputs_of(pending_graph.entries, pending_graph.input_data)
    numbers = [float(number).hex() for number in (*inputs.floats, *inputs.fixed_floats)]
    outs = tuple(leaf._storage.value.slot for leaf in tree_leaves(results))
    return tuple(pending_graph.entries), outs, tuple(map(id, inputs.buffers)), tuple(numbers), (*inputs.ints, *inputs.fixed_ints)


def same(left: Any, right: Any) -> bool:
    """Whether results agree in all that can be seen."""
    for one, other in zip(tree_leaves(left), tree_leaves(right), strict=True):
        if one.shape != other.shape or one.dtype != other.dtype or not torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)):
            return False
    return True


@given(st.data())
def test_calls_with_one_key_agree(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CALLS)), label="call")
    do, strategies = CALLS[name]
    first, second = (tuple(data.draw(strategy) for strategy in strategies) for _ in range(2))
    x = X.to("xla")
    torch_xla.sync()
    keys, results = [], []
    for arguments in (first, second):
        try:
            results.append(do(X, *arguments))
        except (RuntimeError, ValueError, IndexError, TypeError):
            return  # the CPU refuses it
        keys.append(key_of(lambda x, arguments=arguments: do(x, *arguments), x))
    if keys[0] == keys[1]:
        assert same(*results), (name, first, second)
