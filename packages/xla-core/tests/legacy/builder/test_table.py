"""Every operator of the builder's table against JAX and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import lax

import torch_xla.core.xla_builder as xb
from xla_core.legacy.builder.table import _BINARY, _UNARY, OPERATORS

F = np.array([[0.1, 0.9, 0.5], [0.3, 0.7, 0.2]], np.float32)
G = np.array([[0.4, 0.5, 0.5], [0.8, 0.1, 0.6]], np.float32)
I = np.array([[5, 3, 9], [1, 8, 2]], np.int32)  # noqa: E741 - integers
J = np.array([[1, 3, 2], [4, 2, 1]], np.int32)
Z = (F + 1j * G).astype(np.complex64)
B = np.array([[True, False, True], [False, True, True]])
SQUARE = np.array([[2.0, 0.0], [1.0, 3.0]], np.float32)


def run(function: Callable[..., Any], *arrays: Any) -> Any:
    """The results, as NumPy arrays, of a builder function on xla tensors."""
    tensors = [torch.from_numpy(np.array(one)).to("xla") for one in arrays]
    computation = xb.create_computation("tested", function, [xb.tensor_shape(one) for one in tensors])
    results = xb.xla_computation_as_func(computation)(*tensors)
    return [one.cpu().numpy() for one in results] if isinstance(results, list) else results.cpu().numpy()


def scalars(function: Callable[..., Any], count: int = 2, dtype: str = "f32") -> Any:
    return xb.create_computation("scalars", function, [xb.mkshape(dtype, ())] * count)


def add(dtype: str = "f32") -> Any:
    return scalars(lambda x, y: x + y, dtype=dtype)


NUMPY_UNARY: dict[str, tuple[Any, Any]] = {
    **{
        name: (F, getattr(np, name.lower()))
        for name in ("Abs", "Cbrt", "Ceil", "Cos", "Cosh", "Exp", "Expm1", "Floor", "Log", "Log1p", "Sign", "Sin", "Sinh", "Sqrt", "Tan")
    },
    "Tanh": (F, np.tanh),
    "Acos": (F, np.arccos),
    "Asin": (F, np.arcsin),
    "Atan": (F, np.arctan),
    "Clz": (I, lambda x: 32 - np.frexp(x)[1].astype(np.int32)),
    "Conj": (Z, np.conj),
    "Erf": (F, lambda x: torch.erf(torch.from_numpy(x)).numpy()),
    "ErfInv": (F, lambda x: torch.erfinv(torch.from_numpy(x)).numpy()),
    "Erfc": (F, lambda x: torch.erfc(torch.from_numpy(x)).numpy()),
    "Imag": (Z, np.imag),
    "IsFinite": (np.array([[1, np.inf], [np.nan, 0]], np.float32), np.isfinite),
    "Neg": (F, np.negative),
    "Not": (B, np.logical_not),
    "PopulationCount": (J, lambda x: np.array([[1, 2, 1], [1, 1, 1]], np.int32)),
    "Real": (Z, np.real),
    "Round": (F * 9, lambda x: np.floor(x + 0.5)),
    "Rsqrt": (F, lambda x: 1 / np.sqrt(x)),
}
NUMPY_BINARY: dict[str, tuple[Any, Any, Any]] = {
    "Add": (F, G, np.add),
    "And": (I, J, np.bitwise_and),
    "Atan2": (F, G, np.arctan2),
    "Complex": (F, G, lambda x, y: (x + 1j * y).astype(np.complex64)),
    "Div": (F, G, np.divide),
    "Eq": (F, G, np.equal),
    "Ge": (F, G, np.greater_equal),
    "Gt": (F, G, np.greater),
    "Le": (F, G, np.less_equal),
    "Lt": (F, G, np.less),
    "Max": (F, G, np.maximum),
    "Min": (F, G, np.minimum),
    "Mul": (F, G, np.multiply),
    "Ne": (F, G, np.not_equal),
    "Or": (I, J, np.bitwise_or),
    "Pow": (F, G, np.power),
    "Rem": (-I, J, np.fmod),
    "ShiftLeft": (I, J, np.left_shift),
    "ShiftRight": (-I, J, np.right_shift),
    "Sub": (F, G, np.subtract),
    "Xor": (B, ~B, np.logical_xor),
}
IMAGE = np.random.default_rng(0).normal(size=(1, 2, 5, 5)).astype(np.float32)
KERNEL = np.random.default_rng(1).normal(size=(3, 2, 3, 3)).astype(np.float32)
GATHER = {"offset_dims": [1], "collapsed_slice_dims": [0], "start_index_map": [0], "index_vector_dim": 1}
SCATTER = {"update_window_dims": [1], "inserted_window_dims": [0], "scatter_dims_to_operand_dims": [0], "index_vector_dim": 1}
WINDOW = {"window_dimensions": [1, 1, 2, 2], "window_strides": [1, 1, 2, 2]}


def _pool(x: Any) -> Any:
    return torch.nn.functional.max_pool2d(torch.from_numpy(x), 2).numpy()


def _unpool(x: Any) -> Any:
    leaf = torch.from_numpy(x).requires_grad_()
    torch.nn.functional.max_pool2d(leaf, 2).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.numpy() + 1


def _select_and_scatter(x: Any) -> Any:
    ge = scalars(lambda x, y: x >= y)
    ones = xb.Op.one(x.builder(), "f32").broadcast((1, 2, 2, 2))
    return x.select_and_scatter(ones, x.scalar_like(1), select_computation=ge, scatter_computation=add(), **WINDOW)


def _while(x: Any) -> Any:
    zero = xb.Op.scalar(x.builder(), 0, "s32")
    return xb.Op.mkwhile((zero, x), lambda i, x: i < 3, lambda i, x: (i + 1, x * 2)).get_tuple_element(1)


# name: the builder's function, its arguments, and what gives the expected value.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Callable[..., Any]]] = {
    "BitcastConvert": (lambda x: x.bitcast("s32"), (F,), lambda x: x.view(np.int32)),
    "Broadcast": (lambda x: x.broadcast((4,)), (F,), lambda x: np.broadcast_to(x, (4, 2, 3))),
    "BroadcastInDim": (lambda x: x.broadcast_in_dim((2, 4, 3), (0, 2)), (F,), lambda x: np.repeat(x[:, None], 4, 1)),
    "Call": (lambda x: xb.Op.call(scalars(lambda x, y: x - y), (x, x * 3)), (F[0, 0],), lambda x: x - x * 3),
    "Clamp": (lambda x: x.clamp(x.scalar_like(0.2), x.scalar_like(0.6)), (F,), lambda x: np.clip(x, 0.2, 0.6)),
    "ConcatInDim": (lambda x, y: xb.Op.concat_in_dim((x, y), 1), (F, G), lambda x, y: np.concatenate((x, y), 1)),
    "Conditional": (
        lambda p, x: p.mkconditional((x,), lambda x: x + 1, lambda x: x - 1),
        (np.array(True), F),
        lambda p, x: x + 1,
    ),
    "Constant": (lambda x: x + xb.Op.constant(x.builder(), torch.from_numpy(G)), (F,), lambda x: x + G),
    "Conv": (
        lambda x, k: x.conv(k, (2, 2), padding="same"),
        (IMAGE, KERNEL),
        lambda x, k: lax.conv_general_dilated(x, k, (2, 2), "SAME"),
    ),
    "Convert": (lambda x: x.cast("s32"), (F * 9,), lambda x: x.astype(np.int32)),
    "Dot": (lambda x, y: x @ y, (F, G.T), np.matmul),
    "DotGeneral": (
        lambda x, y: xb.mkop("DotGeneral", (x, y), dimension_numbers=(((1,), (1,)), ((0,), (0,)))),
        (F, G),
        lambda x, y: np.einsum("bi,bi->b", x, y),
    ),
    "DynamicReshape": (lambda x: x.dynamic_reshape((3, 2)), (F,), lambda x: x.reshape(3, 2)),
    "DynamicSlice": (lambda x, at: x.dynamic_slice(at, (1, 2)), (F, np.array([1, 1], np.int32)), lambda x, at: x[1:, 1:]),
    "DynamicUpdateSlice": (
        lambda x, y, i, j: x.dynamic_update_slice(y, (i, j)),
        (F, np.zeros((1, 2), np.float32), np.array(1, np.int32), np.array(0, np.int32)),
        lambda x, y, i, j: np.array([x[0], [0, 0, x[1, 2]]], np.float32),
    ),
    "Gather": (lambda x, at: x.gather(at, **GATHER), (F, np.array([1, 0, 1], np.int32)), lambda x, at: x[at]),
    "GetDimensionSize": (lambda x: x.get_dimension_size(1), (F,), lambda x: np.array(3, np.int32)),
    "GetTupleElement": (lambda x: xb.Op.tuple((x, x * 2)).get_tuple_element(1), (F,), lambda x: x * 2),
    "Iota": (lambda x: x + xb.Op.iota(x.builder(), xb.mkshape("f32", (2, 3)), 1), (F,), lambda x: x + np.arange(3, dtype=np.float32)),
    "Map": (lambda x, y: xb.Op.map((x, y), scalars(lambda x, y: x - y * 2), (0, 1)), (F, G), lambda x, y: x - y * 2),
    "MaxPool": (lambda x: x.max_pool((2, 2), (2, 2), 0, 1, (2, 3)), (IMAGE,), _pool),
    "OptimizationBarrier": (lambda x: xb.mkop("OptimizationBarrier", (x,)), (F,), lambda x: x),
    "Pad": (lambda x: x.pad(x.scalar_like(7), ((1, 0, 0), (0, 0, 1))), (F,), lambda x: lax.pad(x, np.float32(7), ((1, 0, 0), (0, 0, 1)))),
    "Reduce": (
        lambda x: x.reduce(x.scalar_like(1), scalars(lambda x, y: x * y * 2), (1,)),
        (F,),
        lambda x: lax.reduce(x, np.float32(1), lambda x, y: x * y * 2, (1,)),
    ),
    "ReduceAll": (lambda x: x.reduce_all(x.scalar_like(0), add()), (F,), np.sum),
    "ReduceWindow": (
        lambda x: x.reduce_window(x.scalar_like(0), add(), **WINDOW),
        (IMAGE,),
        lambda x: torch.nn.functional.avg_pool2d(torch.from_numpy(x), 2).numpy() * 4,
    ),
    "Reshape": (lambda x: x.reshape((6,), (1, 0)), (F,), lambda x: x.T.reshape(6)),
    "Rev": (lambda x: x.rev((1,)), (F,), lambda x: x[:, ::-1]),
    "Scatter": (
        lambda x, at, y: x.scatter(at, y, add(), **SCATTER),
        (F, np.array([1, 1], np.int32), G),
        lambda x, at, y: np.stack([x[0], x[1] + y[0] + y[1]]),
    ),
    "Select": (lambda p, x, y: p.select(x, y), (B, F, G), np.where),
    "SelectAndScatter": (_select_and_scatter, (IMAGE,), _unpool),
    "SetDimensionSize": (lambda x: x.set_dimension_size(xb.Op.scalar(x.builder(), 3, "s32"), 1), (F,), lambda x: x),
    "Slice": (lambda x: x.slice((0, 0), (2, 3), (1, 2)), (F,), lambda x: x[:, ::2]),
    "SliceInDim": (lambda x: x.slice_in_dim(1, 3, 1), (F,), lambda x: x[:, 1:3]),
    "Sort": (lambda x: xb.Op.sort((x,), scalars(lambda x, y: x < y), 1), (F,), np.sort),
    "Transpose": (lambda x: x.transpose((1, 0)), (F,), np.transpose),
    "TriangularSolve": (lambda a, b: a.triangualr_solve(b, True, True, False, False), (SQUARE, G[:, :2]), np.linalg.solve),
    "Tuple": (lambda x, y: xb.Op.tuple((y, x)), (F, G), lambda x, y: [y, x]),
    "While": (_while, (F,), lambda x: x * 8),
}


def _check(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True) if isinstance(found, list) else ((found, expected),):
        np.testing.assert_allclose(one, np.asarray(other), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_operator_of_arrays(name: str) -> None:
    function, arrays, expected = CASES[name]
    _check(run(function, *arrays), expected(*arrays))


def test_elementwise_operators_agree_with_numpy() -> None:
    """In one program for all of them, so that this compiles once."""
    unary, binary = list(NUMPY_UNARY), list(NUMPY_BINARY)
    operands = [NUMPY_UNARY[name][0] for name in unary] + [one for name in binary for one in NUMPY_BINARY[name][:2]]

    def everything(*ops: Any) -> Any:
        rest = iter(ops[len(unary) :])
        results = [xb.mkop(name, (op,)) for name, op in zip(unary, ops, strict=False)]
        return results + [xb.mkop(name, (next(rest), next(rest))) for name in binary]

    with np.errstate(all="ignore"):
        expected = [NUMPY_UNARY[name][1](NUMPY_UNARY[name][0]) for name in unary]
        expected += [NUMPY_BINARY[name][2](*NUMPY_BINARY[name][:2]) for name in binary]
    for name, one, other in zip(unary + binary, run(everything, *operands), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6, err_msg=name)


def test_all_operators_are_tested() -> None:
    assert set(NUMPY_UNARY) == set(_UNARY) and set(NUMPY_BINARY) == set(_BINARY)
    assert set(CASES) == set(OPERATORS) - set(_UNARY) - set(_BINARY)


@pytest.mark.parametrize(
    ("comparator", "expected"),
    [
        (lambda x, y: x > y, lambda x: -np.sort(-x)),
        (lambda x, y: (x % 0.5) < (y % 0.5), lambda x: np.take_along_axis(x, (x % 0.5).argsort(1), 1)),
    ],
    ids=["descending", "remainders"],
)
def test_sorts_by_any_comparator(comparator: Any, expected: Any) -> None:
    _check(run(lambda x: xb.Op.sort((x,), scalars(comparator), 1, True), F), expected(F))


def test_sorts_operands_together() -> None:
    keys, places = np.array([2, 1, 2, 0], np.float32), np.arange(4, dtype=np.float32)
    found = run(lambda k, v: xb.Op.sort((k, v), scalars(lambda k, other, v, w: k > other, 4), 0, True), keys, places)
    _check(found, [[2, 2, 1, 0], [0, 2, 1, 3]])


def test_convolutions_in_other_orders() -> None:
    def conv(x: Any, k: Any) -> Any:
        return x.conv_general_dilated(k, (1, 1), ((1, 1), (0, 0)), (1, 1), (2, 1), 0, 3, 2, 3, 0, 3, (1, 2), (0, 1), (1, 2))

    x, k = IMAGE.transpose(0, 2, 3, 1), KERNEL.transpose(2, 3, 1, 0)
    expected = torch.nn.functional.conv2d(torch.from_numpy(IMAGE), torch.from_numpy(KERNEL), padding=(1, 0), dilation=(2, 1))
    _check(run(conv, x, k), expected.permute(0, 2, 3, 1).numpy())


def test_wrong_use_is_refused() -> None:
    builder, other = xb.create_builder("one"), xb.create_builder("other")
    x = xb.mkparam(builder, 0, xb.mkshape("f32", (2, 3)))
    y = xb.mkparam(other, 0, xb.mkshape("f32", (2, 3)))
    with pytest.raises(ValueError, match="operations of one builder"):
        x + y
    with pytest.raises(ValueError, match="'Plus' is no operator.*Add"):
        xb.mkop("Plus", (x, x))
    with pytest.raises(ValueError, match="Dot does not fit"):
        x @ x
    with pytest.raises(ValueError, match="Add does not fit.*ranks"):
        x + xb.mkparam(builder, 1, xb.mkshape("f32", (3,)))
    with pytest.raises(ValueError, match="parameter 0 already"):
        xb.mkparam(builder, 0, xb.mkshape("f32", ()))
    with pytest.raises(NotImplementedError, match="mask the rest"):
        x.set_dimension_size(xb.Op.scalar(builder, 2, "s32"), 1)
    with pytest.raises(NotImplementedError, match="Scatter cannot combine"):
        x.scatter(xb.Op.constant(builder, torch.tensor([1])), x.slice((0, 0), (1, 3)), scalars(lambda x, y: x - y), **SCATTER)
    with pytest.raises(ValueError, match="dynamic dimensions"):
        xb.mkparam(builder, 2, xb.mkshape("f32", (2,), (True,)))
    assert jax.tree.leaves(x.op.structs)[0].shape == (2, 3)


def test_gradients_through_windows_and_reductions() -> None:
    def pooled(x: Any) -> Any:
        largest = x.reduce_window(x.scalar_like(-np.inf), scalars(lambda x, y: x.max(y)), **WINDOW)
        return largest.reduce_all(x.scalar_like(0), add())

    mine, theirs = torch.from_numpy(IMAGE).to("xla").requires_grad_(), torch.from_numpy(IMAGE.copy()).requires_grad_()
    xb.xla_computation_as_func(xb.create_computation("pooled", pooled, [xb.tensor_shape(mine)]))(mine).backward()
    torch.nn.functional.max_pool2d(theirs, 2).sum().backward()
    assert mine.grad is not None
    torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
