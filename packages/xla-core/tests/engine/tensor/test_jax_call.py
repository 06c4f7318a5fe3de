"""JAX functions as recorded operations: values, gradients, programs, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas

import torch_xla
from torch_xla.core.xla_builder import call_jax

Counts = Any
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def layer(x: jax.Array, weight: jax.Array, *, scale: float = 1.0) -> dict[str, jax.Array]:
    """Two results, one of them of whole numbers."""
    y = jnp.tanh(x @ weight) * scale
    return {"y": y, "best": jnp.argmax(y, -1)}


def torch_layer(x: torch.Tensor, weight: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return torch.tanh(x @ weight) * scale


@pytest.fixture
def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 4, generator=generator), torch.randn(4, 2, generator=generator)]


def on_xla(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.to("xla").requires_grad_() for tensor in tensors]


def test_results_come_in_the_functions_nesting(inputs: list[torch.Tensor], counts: Counts) -> None:
    x, weight = on_xla(inputs)
    out = call_jax(layer, (x, weight), {"scale": 3.0})
    assert counts.ExecuteComputation == 0, "recorded, not run"
    assert (out["y"].shape, out["y"].dtype, out["best"].dtype) == ((3, 2), torch.float32, torch.int32)
    expected = torch_layer(*inputs, scale=3.0)
    torch.testing.assert_close(out["y"].detach().cpu(), expected, **CLOSE)
    assert out["best"].tolist() == expected.argmax(-1).tolist()
    assert counts["xla::call_jax"] == 1


def test_gradients_are_those_of_jax(inputs: list[torch.Tensor]) -> None:
    mine, theirs = on_xla(inputs), [tensor.clone().requires_grad_() for tensor in inputs]
    for leaves, out in ((mine, call_jax(layer, tuple(mine))["y"]), (theirs, torch_layer(*theirs))):
        (out**2).sum().backward()
        assert all(leaf.grad is not None for leaf in leaves)
    for left, right in zip(mine, theirs, strict=True):
        torch.testing.assert_close(left.grad.cpu(), right.grad, **CLOSE)  # type: ignore[union-attr]


def test_only_the_gradients_that_are_wanted(inputs: list[torch.Tensor]) -> None:
    x, weight = inputs[0].to("xla"), inputs[1].to("xla").requires_grad_()
    call_jax(layer, (x, weight))["y"].sum().backward()
    assert x.grad is None and weight.grad is not None


def test_gradients_of_gradients() -> None:
    data = torch.linspace(-1, 1, 5)
    found = []
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "xla": lambda x: call_jax(lambda x: jnp.sin(x) ** 2, (x,)),
        "cpu": lambda x: x.sin() ** 2,
    }
    for device, function in functions.items():
        x = data.to(device).requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), x)[0].cpu())
    torch.testing.assert_close(*found, **CLOSE)


def test_complex_gradients_follow_torch() -> None:
    z = torch.tensor([1 + 2j, -0.5j])
    mine, theirs = z.to("xla").requires_grad_(), z.clone().requires_grad_()
    torch.view_as_real(call_jax(lambda z: z * z * 1j, (mine,))).sum().backward()
    torch.view_as_real(theirs * theirs * 1j).sum().backward()
    assert mine.grad is not None and theirs.grad is not None
    torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


def test_a_gradient_of_ones_own(inputs: list[torch.Tensor]) -> None:
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            return call_jax(jnp.round, (x,))

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
            return grad * 2

    x = torch.tensor([0.4, 1.6], device="xla", requires_grad=True)
    out = Straight.apply(x)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert (out.tolist(), x.grad.tolist()) == ([0.0, 2.0], [2.0, 2.0])


def test_a_loop_compiles_once(inputs: list[torch.Tensor], counts: Counts) -> None:
    x, weight = on_xla(inputs)
    for _ in range(4):
        call_jax(layer, (x, weight))["y"].sum().backward()
        torch_xla.sync()
        x.grad = weight.grad = None
    assert counts.UncachedCompile == 1


def test_the_same_program_from_another_function_compiles_nothing(counts: Counts) -> None:
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    counts.restart()
    for _ in range(3):
        assert call_jax(lambda x: x * 2 + jnp.arange(3), (x,)).tolist() == [2, 3, 4]
    assert counts.UncachedCompile == 1
    assert call_jax(lambda x: x * 3 + jnp.arange(3), (x,)).tolist() == [3, 4, 5]


def test_override_hash_stands_for_the_function() -> None:
    x, traced = torch.ones(2, device="xla"), []

    def make() -> Callable[..., Any]:
        def double(x: jax.Array) -> jax.Array:
            traced.append(1)
            return x * 2

        return double

    for _ in range(3):
        assert call_jax(make(), (x,), override_hash="double").tolist() == [2, 2]
    assert len(traced) == 1


def test_what_is_traced_again() -> None:
    traced = []

    def fn(x: jax.Array, beside: dict[str, jax.Array] | None = None, *, by: Any = 1, names: tuple[str, ...] = ()) -> Any:
        traced.append(1)
        return x * by if beside is None else {"sum": x * by + sum(beside.values())}

    x = torch.ones(2, 3, device="xla")
    calls: list[tuple[int, Callable[[], Any]]] = [
        (1, lambda: call_jax(fn, (x,))),
        (1, lambda: call_jax(fn, (x[0],))),
        (1, lambda: call_jax(fn, (x.int(),))),
        (1, lambda: call_jax(fn, (x,), {"by": 2})),
        (1, lambda: call_jax(fn, (x,), {"by": 2.0})),
        (1, lambda: call_jax(fn, (x,), {"by": 2, "names": ("a",)})),
        (0, lambda: call_jax(fn, (x,), {"names": ("a",), "by": 2})),
        (1, lambda: call_jax(fn, (x, {"a": x}))),
        (1, lambda: call_jax(fn, (x, {"a": x, "b": x}))),
        (0, lambda: call_jax(fn, (x, {"b": x, "a": x}))),
        (1, lambda: call_jax(fn, (x,), {"beside": {"a": x}})),
    ]
    for expected in (True, False):
        for times, call in calls:
            traced.clear()
            call()
            assert len(traced) == times * expected


@pytest.mark.parametrize(
    "setting",
    [
        lambda: jax.enable_x64(True),
        lambda: jax.default_matmul_precision("highest"),
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: jax.numpy_rank_promotion("raise"),
        lambda: jax.default_prng_impl("rbg"),
        lambda: jax.threefry_partitionable(False),
    ],
    ids=["x64", "precision", "dtypes", "ranks", "random numbers", "threefry"],
)
def test_settings_of_jax_are_traced_by_themselves(setting: Callable[[], Any]) -> None:
    traced = []

    def fn(x: jax.Array) -> jax.Array:
        traced.append(1)
        return x @ x + jnp.ones((2, 2), np.float32)

    x = torch.ones(2, 2, device="xla", requires_grad=True)
    for _ in range(2):
        plain = call_jax(fn, (x,))
        with setting():
            other = call_jax(fn, (x,))
    assert len(traced) == 2
    torch.testing.assert_close(plain.detach().cpu(), other.detach().cpu().float())


def test_gradients_are_traced_once() -> None:
    traced = []

    def fn(x: jax.Array, by: int) -> jax.Array:
        traced.append(1)
        return jnp.sin(x) * by

    x = torch.ones(2, device="xla", requires_grad=True)
    counts = []
    for by in (2, 2, 3):
        call_jax(fn, (x, by)).sum().backward()
        counts.append(len(traced))
    assert counts == [2, 2, 4]  # the function, and again for its gradient


def test_constants_are_told_apart_by_type(inputs: list[torch.Tensor]) -> None:
    x = torch.tensor([3], device="xla")
    results = [call_jax(lambda x, by: x * by, (x, by)) for by in (2, 2.0, True)]
    assert [result.tolist() for result in results] == [[6], [6.0], [3]]
    assert [result.dtype.is_floating_point for result in results] == [False, True, False]


def test_nested_arguments_views_and_wide_types() -> None:
    x = torch.arange(6.0, dtype=torch.float64, device="xla").view(2, 3)
    out = call_jax(lambda pair, table: (pair[0] + table["b"][1], pair[1]), ([x[1], 5], {"b": (x[0], x.flip(0)[1])}))
    assert (out[0].dtype, out[1].tolist()) == (torch.float64, 5)
    with pytest.raises(TypeError, match="incompatible shapes"):  # JAX's own word, when the function is called
        call_jax(lambda a, b: a + b, (x, x.t()))


def test_closed_over_arrays_count() -> None:
    x = torch.zeros(2, device="xla")
    for number in (1.0, 2.0):
        held = np.full(2, number, np.float32)
        assert call_jax(lambda x: x + held, (x,)).tolist() == [number, number]  # noqa: B023 - called at once


def test_the_users_jax_settings_count_and_stay() -> None:
    before = jax.config.jax_enable_x64
    out = call_jax(lambda x: jnp.arange(2) + x.astype(jnp.int32), (torch.zeros(2, device="xla"),))
    assert out.dtype is torch.int32
    assert jax.config.jax_enable_x64 == before


def test_what_cannot_be_is_refused() -> None:
    x = torch.ones(2, device="xla")
    with pytest.raises(RuntimeError, match="Input tensor is not an XLA tensor"):
        call_jax(lambda a, b: a + b, (x, torch.ones(2)))
    with pytest.raises(TypeError, match="call_jax cannot take a ndarray as a constant"):
        call_jax(lambda a, b: a + b, (x, np.ones(2)))
    with pytest.raises(ZeroDivisionError):
        call_jax(lambda a: a * (1 // 0), (x,))
    with pytest.raises(TypeError, match="not a dtype that torch has|UnsupportedDtype"):
        call_jax(lambda a: a.astype(jnp.int4), (x,))


def _in_a_nested_jit(held: Any) -> Callable[..., Any]:
    return lambda x: jax.jit(lambda y: y + held)(x)


def _in_a_callback(held: Any) -> Callable[..., Any]:
    return lambda x: jax.pure_callback(lambda y: np.asarray(y) + held, jax.ShapeDtypeStruct((2,), np.float32), x)


def _in_an_exported_module(held: Any) -> Callable[..., Any]:
    return jax.export.export(jax.jit(lambda x: x + held))(jax.ShapeDtypeStruct((2,), np.float32)).call


def _as_a_random_key(held: Any) -> Callable[..., Any]:
    key = jax.random.key(int(held[1]))
    return lambda x: x + jax.random.randint(key, (), 0, 1 << 30)


def _in_the_blocks_of_a_kernel(held: Any) -> Callable[..., Any]:
    def copy(source: Any, target: Any) -> None:
        target[...] = source[...]

    def call(x: jax.Array) -> jax.Array:
        place = pallas.BlockSpec((1,), lambda i: (i,) if held[0] else (1 - i,))
        options: Any = {"grid": (2,), "out_specs": pallas.BlockSpec((1,), lambda i: (i,)), "interpret": True}
        return pallas.pallas_call(copy, in_specs=[place], out_shape=jax.ShapeDtypeStruct((2,), np.float32), **options)(x)

    return call


@pytest.mark.parametrize("made", [_in_a_nested_jit, _in_a_callback, _in_an_exported_module, _as_a_random_key, _in_the_blocks_of_a_kernel])
def test_what_inner_functions_hold_counts(made: Callable[[Any], Callable[..., Any]]) -> None:
    """Functions that JAX writes in the same words, called one after the other."""
    x = np.array([1, 2], np.float32)
    for numbers in ([0, 5], [7, 9]):
        function = made(np.array(numbers, np.float32))
        found = call_jax(function, (torch.from_numpy(x).to("xla"),), name="held")
        np.testing.assert_array_equal(found.cpu().numpy(), function(jnp.asarray(x)))
