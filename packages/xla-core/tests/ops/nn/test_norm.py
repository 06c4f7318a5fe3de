"""Normalisation lowerings against CPU torch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import xla_core.ops.nn.batch_norm
import xla_core.ops.nn.norm  # noqa: F401 - registers the family
from xla_core.ops.table import TABLE, Context
from xla_core.testing.lowering import check_lowering, lower_once

aten = torch.ops.aten
SHAPES = [(4, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 3)]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


def close(dtype: torch.dtype) -> dict[str, float]:
    """Tolerances after one rounding to `dtype`."""
    return {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}


def statistics(channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A running mean and variance."""
    return torch.randn(channels), torch.rand(channels) + 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape: tuple[int, ...], training: bool, dtype: torch.dtype) -> None:
    x, weight, bias = (torch.randn(shape) * 3 + 5).to(dtype), torch.rand(3).to(dtype), torch.rand(3).to(dtype)
    mean, var = (v.to(dtype) for v in statistics(3))
    check_lowering(aten.native_batch_norm.default, x, weight, bias, mean, var, training, 0.1, 1e-5, **close(dtype))
    check_lowering(aten.native_batch_norm.default, x, None, None, mean, var, training, 0.1, 1e-5, **close(dtype))
    check_lowering(aten._native_batch_norm_legit_functional.default, x, weight, bias, mean, var, training, 0.1, 1e-5, **close(dtype))
    _, save_mean, save_inverse = aten.native_batch_norm(x, weight, bias, mean.clone(), var.clone(), training, 0.1, 1e-5)
    saved = (save_mean, save_inverse) if training else (None, None)
    for mask in ([True, True, True], [True, False, False], [False, True, True]):
        arguments = (torch.randn(shape).to(dtype), x, weight, mean, var, *saved, training, 1e-5, mask)
        check_lowering(aten.native_batch_norm_backward.default, *arguments, **close(dtype))


def test_batch_norm_mixed_precision() -> None:
    x, weight, bias = torch.randn(4, 3, 5).bfloat16(), torch.rand(3), torch.rand(3)
    mean, var = statistics(3)
    check_lowering(aten.native_batch_norm.default, x, weight, bias, mean, var, True, 0.1, 1e-5, **close(torch.bfloat16))


def test_batch_norm_other_forms() -> None:
    x, weight, bias = torch.randn(4, 3, 5), torch.rand(3), torch.rand(3)
    mean, var = statistics(3)
    check_lowering(aten._native_batch_norm_legit.no_stats, x, weight, bias, True, 0.1, 1e-5, **close(x.dtype))
    check_lowering(aten._native_batch_norm_legit_no_training.default, x, weight, bias, mean, var, 0.1, 1e-5, **close(x.dtype))
    check_lowering(aten._batch_norm_no_update.default, x, weight, bias, mean, var, 0.1, 1e-5, **close(x.dtype))
    check_lowering(aten._batch_norm_with_update_functional.default, x, weight, bias, mean, var, 0.1, 1e-5, **close(x.dtype))
    _, save_mean, save_inverse, reserve, *_ = aten._batch_norm_with_update_functional(x, weight, bias, mean, var, 0.1, 1e-5)
    arguments = (torch.randn_like(x), x, weight, mean, var, save_mean, save_inverse, True, 1e-5, [True] * 3, reserve)
    check_lowering(aten.batch_norm_backward.default, *arguments, **close(x.dtype))


def test_batch_norm_far_from_zero() -> None:
    """A large mean must not eat the variance."""
    x = torch.randn(64, 2, 8) + 1000
    check_lowering(aten.native_batch_norm.default, x, None, None, None, None, True, 0.1, 1e-5, rtol=1e-3, atol=1e-3)


def test_pieces_of_synchronised_batch_norm() -> None:
    """Forward and backward from their pieces equal batch normalisation itself; CPU torch has no kernels for the pieces."""
    x, grad, weight, bias = torch.randn(6, 3, 4), torch.randn(6, 3, 4), torch.rand(3), torch.rand(3)
    expected, mean, inverse = aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    found_mean, found_inverse = lower_once(aten.batch_norm_stats.default, (mean, inverse), x, 1e-5)
    torch.testing.assert_close((found_mean, found_inverse), (mean, inverse), rtol=1e-4, atol=1e-5)
    (output,) = lower_once(aten.batch_norm_elemt.default, expected, x, weight, bias, mean, inverse, 1e-5)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    to_x, to_weight, to_bias = aten.native_batch_norm_backward(grad, x, weight, None, None, mean, inverse, True, 1e-5, [True] * 3)
    inferred = (mean, mean, to_weight, to_bias)
    dy, dy_xmu, *parameters = lower_once(
        aten.batch_norm_backward_reduce.default, inferred, grad, x, mean, inverse, weight, True, True, True
    )
    torch.testing.assert_close(tuple(parameters), (to_weight, to_bias), rtol=1e-4, atol=1e-5)
    count = torch.tensor([16, 8], dtype=torch.int32)
    arguments = (grad, x, mean, inverse, weight, dy, dy_xmu, count)
    (found,) = lower_once(aten.batch_norm_backward_elemt.default, to_x, *arguments)
    torch.testing.assert_close(found, to_x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "last"), [((4, 6), 1), ((2, 3, 4), 2), ((2, 3, 4), 1), ((5,), 1), ((0, 4), 1)], ids=str)
def test_layer_norm(shape: tuple[int, ...], last: int, dtype: torch.dtype) -> None:
    normalized = list(shape[-last:])
    x, weight, bias = (torch.randn(s).to(dtype) for s in (shape, normalized, normalized))
    check_lowering(aten.native_layer_norm.default, x, normalized, weight, bias, 1e-5, **close(dtype))
    check_lowering(aten.native_layer_norm.default, x, normalized, None, None, 1e-5, **close(dtype))
    _, mean, rstd = aten.native_layer_norm(x, normalized, weight, bias, 1e-5)
    for mask in ([True, True, True], [False, True, False]):
        arguments = (torch.randn(shape).to(dtype), x, normalized, mean, rstd, weight, bias, mask)
        check_lowering(aten.native_layer_norm_backward.default, *arguments, **close(dtype))


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups: int) -> None:
    x, weight, bias = torch.randn(2, 6, 4, 3), torch.rand(6), torch.rand(6)
    check_lowering(aten.native_group_norm.default, x, weight, bias, 2, 6, 12, groups, 1e-5, **close(x.dtype))
    check_lowering(aten.native_group_norm.default, x, None, None, 2, 6, 12, groups, 1e-5, **close(x.dtype))
    _, mean, rstd = aten.native_group_norm(x, weight, bias, 2, 6, 12, groups, 1e-5)
    for scale in (weight, None):
        arguments = (torch.randn_like(x), x, mean, rstd, scale, 2, 6, 12, groups, [True, scale is not None, scale is not None])
        check_lowering(aten.native_group_norm_backward.default, *arguments, **close(x.dtype))


@pytest.mark.parametrize(("n", "c", "hxw", "groups"), [(4, 32, 256, 8), (2, 6, 12, 1), (3, 4, 49, 4)])
def test_the_gradients_of_group_norm_sum_two_arrays_over_the_maps(n: int, c: int, hxw: int, groups: int) -> None:
    """Each sum over whole maps is several kernels to compile: the gradients of input, weight and bias share two."""
    wide = jax.ShapeDtypeStruct((n, c, hxw), np.float32)
    channels, group = jax.ShapeDtypeStruct((c,), np.float32), jax.ShapeDtypeStruct((n, groups), np.float32)
    context = Context((wide, channels, channels))

    def gradients(grad: jax.Array, x: jax.Array, mean: jax.Array, rstd: jax.Array, weight: jax.Array) -> object:
        return TABLE["aten::native_group_norm_backward"].lower(context, grad, x, mean, rstd, weight, n, c, hxw, groups, [True] * 3)

    equations = jax.make_jaxpr(gradients)(wide, wide, group, group, channels).eqns
    sums = [each for each in equations if each.primitive.name == "reduce_sum" and each.invars[0].aval.size == n * c * hxw]
    assert len(sums) == 2


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm(eps: float | None) -> None:
    x, weight = torch.randn(3, 4, 5), torch.rand(5)
    check_lowering(aten._fused_rms_norm.default, x, [5], weight, eps, **close(x.dtype))
    x.requires_grad_()
    weight.requires_grad_()
    output = torch.nn.functional.rms_norm(x, [5], weight, eps)
    grad = torch.randn_like(output)
    expected = torch.autograd.grad(output, (x, weight), grad)
    rstd = torch.rsqrt(x.detach().square().mean(-1, keepdim=True) + (torch.finfo(torch.float32).eps if eps is None else eps))
    got = lower_once(aten._fused_rms_norm_backward.default, expected, grad, x, [5], rstd, weight, [True, True])
    torch.testing.assert_close(tuple(got), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim: int) -> None:
    v = torch.randn(3, 4, 5)
    g = torch.rand([n if i == dim else 1 for i, n in enumerate(v.shape)])
    check_lowering(aten._weight_norm_interface.default, v, g, dim, **close(v.dtype))
    _, norms = aten._weight_norm_interface(v, g, dim)
    check_lowering(aten._weight_norm_interface_backward.default, torch.randn_like(v), v, g, norms, dim, **close(v.dtype))


def test_scalars_may_be_arrays() -> None:
    """Momentum and eps reach the lowering as 0-d arrays when they change from step to step."""
    x = torch.randn(4, 3, 5)
    mean, var = statistics(3)
    expected = aten._native_batch_norm_legit_functional(x, None, None, mean, var, True, 0.3, 1e-2)
    spec = TABLE["aten::_native_batch_norm_legit_functional"]
    assert spec.scalars == {"momentum", "eps"}

    inferred = tuple(jax.ShapeDtypeStruct(tuple(v.shape), np.float32) for v in expected)
    arrays = [jnp.asarray(v.numpy()) for v in (x, mean, var)]
    got = spec.lower(Context(inferred), arrays[0], None, None, arrays[1], arrays[2], True, jnp.asarray(0.3), jnp.asarray(1e-2))
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(mine), theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_rows_take_every_schema_argument() -> None:
    for name in ("aten::native_batch_norm", "aten::native_layer_norm", "aten::native_group_norm"):
        overload = getattr(aten, name.partition("::")[2]).default
        assert len(inspect.signature(TABLE[name].lower).parameters) == len(overload._schema.arguments) + 1


def test_batch_norm_in_eval_mode_saves_nothing_and_changes_nothing() -> None:
    x, mean, variance = torch.randn(4, 3), torch.randn(3), torch.rand(3)
    found = []
    for device in ("cpu", "xla"):
        given = [each.clone().to(device) for each in (x, mean, variance)]
        results = torch.ops.aten._native_batch_norm_legit(given[0], None, None, given[1], given[2], False, 0.1, 1e-5)
        found.append([each.cpu() for each in (*results, *given)])
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("wanted", ["input", "parameters", "both"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "module",
    [torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3, track_running_stats=False), torch.nn.GroupNorm(1, 3), torch.nn.LayerNorm(3)],
    ids=["batch", "batch without statistics", "group", "layer"],
)
def test_only_the_gradients_that_are_wanted(module: torch.nn.Module, training: bool, wanted: str) -> None:
    found = []
    for device in ("cpu", "xla"):
        moved = copy.deepcopy(module).to(device).train(training).requires_grad_(wanted != "input")
        x = torch.linspace(-1, 1, 12).view(4, 3).to(device).requires_grad_(wanted != "parameters")
        (moved(x) ** 3).sum().backward()
        found.append([None if leaf.grad is None else leaf.grad.cpu() for leaf in (x, *moved.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


NORMS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "batch": (lambda: torch.nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "group": (lambda: torch.nn.GroupNorm(1, 3), (2, 3, 4, 4)),
    "instance": (lambda: torch.nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 4)),
    "layer": (lambda: torch.nn.LayerNorm(4), (2, 4)),
    "rms": (lambda: torch.nn.RMSNorm(4), (2, 4)),
    "weight": (lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4)), (2, 4)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_a_whole_module_in_half_precision_trains(name: str, dtype: torch.dtype) -> None:
    make, shape = NORMS[name]
    gradients = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        module = make().to(dtype).to(device)
        x = torch.randn(shape).to(dtype).to(device).requires_grad_()
        (module(x).float() * torch.arange(4.0, device=device)).square().mean().backward()
        gradients.append([x.grad, *(parameter.grad for parameter in module.parameters())])
    for expected, found in zip(*gradients, strict=True):
        assert expected is not None and found is not None and found.dtype is expected.dtype
        torch.testing.assert_close(found.cpu(), expected, rtol=5e-2, atol=5e-2)
