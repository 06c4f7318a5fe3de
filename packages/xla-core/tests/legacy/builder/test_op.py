"""`Op` beside NumPy: numbers in the places of operations, types, nested computations, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch

import torch_xla.core.xla_builder as xb
from torch_xla import _XLAC
from torch_xla.core import xla_op_registry
from xla_core.legacy.builder.table import _UNARY

F = np.array([[0.5, -2.0, 1.5], [4.0, 0.25, -1.0]], np.float32)
I = np.array([[5, 3, 9], [1, 8, 2]], np.int32)  # noqa: E741 - integers
ROWS = {"update_window_dims": [1], "inserted_window_dims": [0], "scatter_dims_to_operand_dims": [0], "index_vector_dim": 1}


def run(function: Callable[..., Any], *arrays: Any) -> list[np.ndarray[Any, Any]]:
    tensors = [torch.from_numpy(np.array(one)).to("xla") for one in arrays]
    computation = xb.create_computation("tested", function, [xb.tensor_shape(one) for one in tensors])
    return [one.cpu().numpy() for one in _XLAC._xla_user_computation("tested", tensors, computation)]


def scalars(function: Callable[..., Any], count: int = 2, dtype: str = "f32") -> Any:
    return xb.create_computation("scalars", function, [xb.mkshape(dtype, ())] * count)


ADD = scalars(lambda x, y: x + y)
# Of x, f32, and i, s32: what the builder makes, and what NumPy.
WITH_NUMBERS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (lambda x, i: 1 - x, lambda x, i: 1 - x),
    (lambda x, i: 2 / x, lambda x, i: 2 / x),
    (lambda x, i: 2**x, lambda x, i: 2**x),
    (lambda x, i: np.float64(3) % x, lambda x, i: np.fmod(np.float32(3), x)),
    (lambda x, i: torch.tensor(2) * x + np.array(1), lambda x, i: 2 * x + 1),
    (lambda x, i: 0.5 < x, lambda x, i: x > 0.5),
    (lambda x, i: x != 0.5, lambda x, i: x != 0.5),
    (lambda x, i: 1 << i, lambda x, i: 1 << i),
    (lambda x, i: 4096 >> i, lambda x, i: 4096 >> i),
    (lambda x, i: (6 & i) | (1 ^ i), lambda x, i: (6 & i) | (1 ^ i)),
    (lambda x, i: ~i, lambda x, i: ~i),
    (lambda x, i: i**3, lambda x, i: i**3),
    (lambda x, i: abs(x), lambda x, i: abs(x)),
    (lambda x, i: x.max(1).atan2(2), lambda x, i: np.arctan2(np.maximum(x, 1), np.float32(2))),
    (lambda x, i: x.clamp(-1, 2), lambda x, i: x.clip(-1, 2)),
    (lambda x, i: (x > 0).select(x, 7), lambda x, i: np.where(x > 0, x, np.float32(7))),
    (lambda x, i: (x > 0).select(3, i), lambda x, i: np.where(x > 0, np.int32(3), i)),
    (lambda x, i: x.pad(9, ((1, 0, 0), (0, 0, 0))), lambda x, i: np.concatenate([np.full((1, 3), 9, np.float32), x])),
    (lambda x, i: x.reduce(1, ADD, (0,)), lambda x, i: x.sum(0) + 1),
    (lambda x, i: x.dynamic_slice((1, 1), (1, 2)), lambda x, i: x[1:, 1:]),
    (lambda x, i: x.dynamic_slice((0, i.reduce_all(0, scalars(lambda a, b: a.max(b), 2, "s32"))), (2, 2)), lambda x, i: x[:, 1:]),
    (lambda x, i: x.dynamic_update_slice(x.slice((1, 1), (2, 3)), (0, 0)), lambda x, i: np.array([[*x[1, 1:], x[0, 2]], x[1]])),
    (lambda x, i: x.set_dimension_size(x.get_dimension_size(1), 1).set_dimension_size(2, 0), lambda x, i: x),
    (lambda x, i: xb.Op.call(ADD, (x.reduce_all(0, ADD), 2)), lambda x, i: x.sum() + np.float32(2)),
    (lambda x, i: xb.Op.map((x, 2), scalars(lambda a, b: a - b), (0, 1)), lambda x, i: x - 2),
    (
        lambda x, i: (x.reduce_all(0, ADD) > 99).conditional(1, 5, *[scalars(lambda a, by=by: a * by, 1) for by in (2, 3)]),
        lambda x, i: np.float32(15),
    ),
]


def test_numbers_in_the_places_of_operations() -> None:
    found = run(lambda x, i: [mine(x, i) for mine, _ in WITH_NUMBERS], F, I)
    for place, (one, (_, expected)) in enumerate(zip(found, WITH_NUMBERS, strict=True)):
        other = np.asarray(expected(F, I))
        assert one.dtype == other.dtype, place
        np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=str(place))


def test_scalars_have_the_types_of_2_9() -> None:
    builder = xb.create_builder("b")
    assert [one.shape().dtype for one in (xb.Op.scalar(builder, 3), xb.Op.zero(builder), xb.Op.one(builder, "u8"))] == ["f32", "f32", "u8"]
    assert xb.Op.scalar(builder, 1j).shape().dtype == "c64"
    assert xb.Op.constant(builder, 3).shape().dtype == "s64"
    (wide,) = _XLAC._xla_user_computation("wide", [], xb.Op.constant(builder, [2**40, 1]).build("wide"))
    assert wide.dtype is torch.int64 and wide.tolist() == [2**40, 1]


TYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
)


def test_types_of_parameters_and_constants() -> None:
    values = [torch.tensor([[1, 0, 1], [1, 1, 0]]).to(dtype) for dtype in TYPES]

    def function(*ops: Any) -> list[Any]:
        made = []
        for x, value in zip(ops, values, strict=True):
            constant = xb.Op.constant(x.builder(), value)
            made += [constant, x == constant, x.zeros_like(), x.ones_like(), x.cast("f32").cast(x.shape().dtype)]
        return made

    computation = xb.create_computation("typed", function, [xb.tensor_shape(value) for value in values])
    found = iter(_XLAC._xla_user_computation("typed", [value.to("xla") for value in values], computation))
    for value in values:
        constant, same, zeros, ones, there_and_back = (next(found) for _ in range(5))
        assert {one.dtype for one in (constant, zeros, ones, there_and_back)} == {value.dtype}
        assert same.all()
        for one, other in ((constant, value), (there_and_back, value), (zeros, torch.zeros(2, 3)), (ones, torch.ones(2, 3))):
            np.testing.assert_array_equal(_numbers(one), _numbers(other), err_msg=str(value.dtype))


def _numbers(tensor: torch.Tensor) -> Any:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).cpu().numpy()


def test_constants_of_other_makers() -> None:
    import ml_dtypes

    builder = xb.create_builder("constants")
    given = [
        torch.tensor([1j]).conj(),
        torch.ones(2, device="xla"),
        np.ones(2, ml_dtypes.bfloat16),
        torch.arange(4.0)[::2].flip(0),
        [1.5, 2],
    ]
    root = xb.Op.tuple([xb.Op.constant(builder, one) for one in given])
    found = _XLAC._xla_user_computation("constants", [], root.build("constants"))
    assert [one.tolist() for one in found] == [[-1j], [1, 1], [1, 1], [2, 0], [1.5, 2]]
    assert found[2].dtype is torch.bfloat16


def test_nested_computations() -> None:
    def chosen(p: Any, q: Any, x: Any) -> Any:
        inner = [lambda x, by=by: (x + by, x) for by in (1, 2)]
        return p.mkconditional((q, x), lambda q, x: q.mkconditional((x,), *inner), lambda q, x: xb.Op.tuple((x + 3, x))).get_tuple_element(
            0
        )

    def counted(x: Any, limit: int) -> Any:
        state = xb.Op.zero(x.builder(), "s32"), xb.Op.tuple((x, x * 2))
        both = [
            lambda i, pair, n: i < n,
            lambda i, pair, n: (i + 1, xb.Op.tuple((pair.get_tuple_element(1), pair.get_tuple_element(0) + n))),
        ]
        pair = x.mkwhile(state, *both, n=limit).get_tuple_element(1)
        return [pair.get_tuple_element(0), pair.get_tuple_element(1)]

    swapped = xb.create_computation(
        "swap", lambda pair: (pair.get_tuple_element(1), pair.get_tuple_element(0)), [xb.Shape([{"type": "f32", "sizes": ()}] * 2)]
    )

    def everything(yes: Any, no: Any, x: Any) -> list[Any]:
        choices = [chosen(p, q, x) for p in (yes, no) for q in (yes, no)]
        exchanged = xb.Op.call(swapped, (xb.Op.tuple((x, x + 1)),))
        doubling = x.while_loop(scalars(lambda x: x < 100, 1), scalars(lambda x: x * 2, 1))
        return [*choices, *counted(x, 3), exchanged, doubling]

    found = run(everything, np.array(True), np.array(False), np.float32(7))
    assert [float(one) for one in found] == [8, 9, 10, 10, 17, 13, 8, 7, 112]


def test_computations_of_other_builders_and_modules() -> None:
    module = xb.computation_from_module_proto("m", jax.jit(lambda a, b: a * 2 + b).lower(np.float32(0), np.float32(0)).as_text())
    function = lambda x: [x.reduce(0, module, (1,)), xb.Op.map((x, x), module, (0, 1)), xb.Op.call(module, (x.reduce_all(0, ADD), 1))]  # noqa: E731
    reduced, mapped, called = run(function, F)
    np.testing.assert_allclose(reduced, jax.lax.reduce(F, np.float32(0), lambda a, b: a * 2 + b, (1,)))
    np.testing.assert_allclose(mapped, F * 3)
    np.testing.assert_allclose(called, F.sum() * 2 + 1)
    leaf = torch.ones((), device="xla", requires_grad=True)
    result = xb.xla_computation_as_func(module)(leaf, leaf)
    with pytest.raises(NotImplementedError, match="'m' is of a module, which has no gradient"):
        result.backward()


def test_no_parameters() -> None:
    computation = xb.create_computation("three", lambda by: xb.Op.iota(xb.create_builder("own"), xb.mkshape("s64", (3,)), 0) * by, (), by=2)
    assert "s64[3]" in xb.get_computation_hlo(computation)
    assert xb.xla_computation_as_func(computation)().tolist() == [0, 2, 4]
    assert xb.XlaCallable(lambda by: xb.Op.scalar(xb.create_builder("own"), by))(5).item() == 5


def test_programs_as_text_come_back() -> None:
    """XLA reads what it wrote; the two run in one program each for all operators that take x alone."""

    def everything(x: Any) -> list[Any]:
        i = x.cast("s32")
        at = xb.Op.constant(x.builder(), torch.tensor([1, 0]))
        updates = x.scatter(at, x, ADD, **ROWS)
        image = x.reshape((1, 1, 2, 3))
        windows = [image.conv(image, (1, 1)), image.max_pool((1, 2), (1, 1), 0, 1, (2, 3)), x.reduce_window(0, ADD, (1, 2), (1, 1), "same")]
        loops = [
            xb.Op.mkwhile((x,), lambda x: x.reduce_all(0, ADD) < 50, lambda x: (x * 2,)),
            (i.reduce_all(0, scalars(lambda a, b: a + b, 2, "s32")) > 3).mkconditional((x,), lambda x: (x,), lambda x: (-x,)),
        ]
        sorts = [xb.Op.sort((x,), scalars(lambda a, b: a > b)), xb.Op.sort((x,), scalars(lambda a, b: abs(a) < abs(b)))]
        rest = [x.erf(), x @ x.transpose((1, 0)), x.gather(at, [1], [0], [0], 1), i.clz(), x.cast("c64") * 1j, x.cast("bf16").cast("f64")]
        return [updates, *windows, *[loop.get_tuple_element(0) for loop in loops], *sorts, *rest]

    tensor = torch.from_numpy(F).to("xla")
    computation = xb.create_computation("whole", everything, [xb.tensor_shape(tensor)])
    text = xb.get_computation_hlo(computation)
    again = xb.computation_from_module_proto("again", text)
    mine, theirs = (_XLAC._xla_user_computation("whole", [tensor], one) for one in (computation, again))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu())
    with pytest.raises(ValueError, match="neither HLO"):
        xb.computation_from_module_proto("bad", text.replace("ENTRY", "ENTER"))


def test_registered_operations_tell_large_constants_apart() -> None:
    operation = xla_op_registry.register("offset", lambda x, by: x + xb.Op.constant(x.builder(), by))
    x, offset = torch.zeros(2000, device="xla"), torch.zeros(2000)
    assert operation(x, by=offset).sum().item() == 0
    offset[1000] = 3  # in the middle, which no text of it shows
    assert operation(x, by=offset).sum().item() == 3
    with pytest.raises(TypeError, match="offset takes xla tensors, not a float"):
        operation(1.0)  # type: ignore[arg-type]


def test_torch_compile_calls_them_between_its_graphs() -> None:
    double = xla_op_registry.register("double", lambda x: x * 2)
    function = xb.xla_computation_as_func(scalars(lambda x: x - 1, 1))

    def step(x: torch.Tensor) -> Any:
        return function(double(x) + 1) * 3

    x = torch.tensor(4.0, device="xla")
    assert torch.compile(step, backend="openxla")(x).item() == 24
    with pytest.raises(torch._dynamo.exc.Unsupported, match="it calls JAX"):
        torch.compile(lambda x: double(x) + 2, backend="openxla", fullgraph=True)(x)


def _parameters() -> tuple[Any, Any]:
    builder = xb.create_builder("one")
    return xb.mkparam(builder, 0, xb.mkshape("f32", (2, 3))), xb.mkparam(builder, 1, xb.mkshape("s32", (2, 3)))


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda x, i: i + 1.5, ValueError, "Add of s32 and the number 1.5: cast"),
        (lambda x, i: x * 1j, ValueError, "Mul of f32 and the number 1j"),
        (lambda x, i: (x > 0) & 1, ValueError, "And of pred and the number 1"),
        (lambda x, i: i.cast("u8") + 300, ValueError, "300 is no u8"),
        (lambda x, i: x + [1.0], TypeError, "Add takes operations and numbers, not a list"),
        (lambda x, i: x == None, TypeError, "not a NoneType"),  # noqa: E711 - as users write it
        (lambda x, i: x if x > 0 else i, TypeError, "use select"),
        (lambda x, i: (x > 0).select(1, 2), TypeError, "Select between two numbers"),
        (lambda x, i: xb.Op.tuple((x, 2)), TypeError, "an operand is an Op, not a int"),
        (lambda x, i: xb.mkop("Add", (x, x), axis=1), ValueError, "Add does not fit.*unexpected keyword argument 'axis'"),
        (lambda x, i: xb.mkop("Add", (x,)), ValueError, "missing a required argument"),
        (lambda x, i: x.reshape((4,)), ValueError, r"6 elements do not fill the sizes \(4,\)"),
        (lambda x, i: x.reshape(), TypeError, r"reshape\(\): missing a required argument: .sizes."),
        (lambda x, i: xb.Op.call(ADD, (x, x)), ValueError, r"'scalars' takes \(f32\[\], f32\[\]\), not \(f32\[2,3\], f32\[2,3\]\)"),
        (lambda x, i: i.reduce(0, ADD, (0,)), ValueError, r"Reduce.*not \(s32\[\], s32\[\]\)"),
        (lambda x, i: x.reduce(0, lambda a, b: a + b, (0,)), TypeError, "make one with create_computation"),
        (lambda x, i: xb.Op.call(lambda a: a, (x,)), TypeError, "computation of Call is a computation, not <function"),  # type: ignore[arg-type]
        (lambda x, i: xb.Op.sort((x,), scalars(lambda a, b: a)), ValueError, "gives no pred"),
        (lambda x, i: xb.Op.sort((i,), scalars(lambda a, b: a < b)), ValueError, r"not \(s32\[\], s32\[\]\)"),
        (lambda x, i: x.reduce_all(0, ADD).mkconditional((x,), lambda x: x, lambda x: x), ValueError, "the predicate is no pred"),
        (lambda x, i: xb.mkop("Dot", (x, x.transpose((1, 0))), precision_config="best"), ValueError, "one of default, high, highest"),
        (lambda x, i: xb.Op.scalar(x.builder(), torch.ones(2)), TypeError, "without dimensions"),
        (lambda x, i: x.get_dimension_size(2), ValueError, "dimension 2 is out of range"),
        (lambda x, i: xb.create_computation("bad", lambda x: x, [(2, 3)]), TypeError, "parameter 0 is a Shape, not a tuple"),  # type: ignore[list-item]
    ],
)
def test_wrong_operands_are_refused(wrong: Callable[..., Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        wrong(*_parameters())


def test_methods_are_the_operators_of_their_names() -> None:
    real, _ = _parameters()
    whole, number = real.cast("s32"), real.cast("c64")
    others = {"Clz": whole, "Conj": number, "Imag": number, "Real": number}
    names = {**{name: name.lower() for name in _UNARY}, "ErfInv": "erfinf"}
    for name in set(names) - {
        "Cbrt",
        "IsFinite",
        "Neg",
        "Not",
        "PopulationCount",
        "Round",
        "Sign",
    }:  # by operators, or not at all
        assert getattr(others.get(name, real), names[name])().op.name == name


def test_shapes_are_equal_whatever_holds_their_sizes() -> None:
    assert xb.Shape({"type": "f32", "sizes": (2, 3)}) == xb.mkshape("f32", [2, 3]) != xb.mkshape("f32", (3, 2))
    assert len({xb.Shape([{"type": "f32", "sizes": (2,)}]), xb.Shape([{"type": "f32", "sizes": [2]}])}) == 1
    assert xb.mkshape("f32", (2,), (False,)) == xb.mkshape("f32", (2,), [False])
