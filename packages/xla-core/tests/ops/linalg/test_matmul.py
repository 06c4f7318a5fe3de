"""Matrix product lowerings against CPU torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

import torch_xla
from torch_xla import backends
from xla_core.ops import precision
from xla_core.ops.linalg.matmul import sum_of_products, trilinear
from xla_core.ops.table import TABLE, Context
from xla_core.testing.lowering import check_lowering

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.complex64]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random values; integers over the whole range, so that products wrap."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype)


def close(dtype: torch.dtype) -> dict[str, float]:
    """Tolerances: products of half precision are rounded once, at the end."""
    return {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products(dtype: torch.dtype) -> None:
    check_lowering(aten.mm.default, sample(3, 4, dtype=dtype), sample(4, 5, dtype=dtype), **close(dtype))
    check_lowering(aten.bmm.default, sample(2, 3, 4, dtype=dtype), sample(2, 4, 5, dtype=dtype), **close(dtype))
    check_lowering(aten.mv.default, sample(3, 4, dtype=dtype), sample(4, dtype=dtype), **close(dtype))
    check_lowering(aten.dot.default, sample(9, dtype=dtype), sample(9, dtype=dtype), **close(dtype))
    check_lowering(aten.vdot.default, sample(9, dtype=dtype), sample(9, dtype=dtype), **close(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 2), (3, 1), (2, -1)])
def test_accumulating_products(dtype: torch.dtype, beta: int, alpha: int) -> None:
    factors: dict[str, Any] = {"beta": beta, "alpha": alpha, **close(dtype)}
    for base in (sample(5, dtype=dtype), sample(3, 5, dtype=dtype), sample(3, 1, dtype=dtype)):
        check_lowering(aten.addmm.default, base, sample(3, 4, dtype=dtype), sample(4, 5, dtype=dtype), **factors)
    check_lowering(
        aten.baddbmm.default, sample(2, 3, 5, dtype=dtype), sample(2, 3, 4, dtype=dtype), sample(2, 4, 5, dtype=dtype), **factors
    )
    check_lowering(aten.addbmm.default, sample(3, 5, dtype=dtype), sample(2, 3, 4, dtype=dtype), sample(2, 4, 5, dtype=dtype), **factors)
    check_lowering(aten.addmv.default, sample(3, dtype=dtype), sample(3, 4, dtype=dtype), sample(4, dtype=dtype), **factors)
    check_lowering(aten.addr.default, sample(3, 4, dtype=dtype), sample(3, dtype=dtype), sample(4, dtype=dtype), **factors)


@pytest.mark.parametrize("beta", [0, 0.0])
def test_beta_zero_ignores_nan(beta: float) -> None:
    nan = torch.full((3, 5), float("nan"))
    check_lowering(aten.addmm.default, nan, sample(3, 4), sample(4, 5), beta=beta, **close(torch.float32))
    spec = TABLE["aten::addmm"]
    context = Context((jax.ShapeDtypeStruct((3, 5), np.dtype(np.float32)),))
    a, b = sample(3, 4), sample(4, 5)
    got = spec.lower(
        context, jnp.asarray(nan.numpy()), jnp.asarray(a.numpy()), jnp.asarray(b.numpy()), beta=jnp.zeros(()), alpha=jnp.ones(())
    )
    np.testing.assert_allclose(np.asarray(got), (a @ b).numpy(), rtol=1e-5, atol=1e-5)


def test_empty_products() -> None:
    check_lowering(aten.mm.default, torch.empty(3, 0), torch.empty(0, 5))
    check_lowering(aten.mm.default, torch.empty(0, 4), torch.empty(4, 5))
    check_lowering(aten.bmm.default, torch.empty(0, 3, 4), torch.empty(0, 4, 5))
    check_lowering(aten.addbmm.default, torch.ones(3, 5), torch.empty(0, 3, 4), torch.empty(0, 4, 5))
    check_lowering(aten.dot.default, torch.empty(0), torch.empty(0))


def test_addr_of_bool() -> None:
    base, a, b = torch.tensor([[True, False, False], [False, False, True]]), torch.tensor([True, False]), torch.tensor([True, False, True])
    for beta, alpha in ((True, True), (False, True), (True, False)):
        check_lowering(aten.addr.default, base, a, b, beta=beta, alpha=alpha)


def test_precise_float32() -> None:
    """A product with cancellation keeps float32 accuracy: no bfloat16 passes."""
    a = torch.cat([torch.full((1, 64), 1.0 + 2**-12), torch.full((1, 64), 1.0)], 1)
    b = torch.cat([torch.ones(64, 1), -torch.ones(64, 1)])
    check_lowering(aten.mm.default, a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("left", "right"),
    [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 1, 2, 3), (4, 3, 2)), ((2, 2, 3), (3, 4)), ((3,), (2, 3, 4)), ((2, 4, 3), (3,))],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check_lowering(aten.matmul.default, sample(*left), sample(*right), **close(torch.float32))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_linear(lead: tuple[int, ...], bias: bool) -> None:
    check_lowering(aten.linear.default, sample(*lead, 4), sample(5, 4), sample(5) if bias else None, **close(torch.float32))


def test_linear_backward() -> None:
    x, weight, grad = sample(2, 3, 4), sample(5, 4), sample(2, 3, 5)
    spec = TABLE["aten::linear_backward"]
    got = spec.lower(Context(()), *(jnp.asarray(v.numpy()) for v in (x, grad, weight)), [True, True, True])
    x.requires_grad_()
    weight.requires_grad_()
    bias = torch.zeros(5, requires_grad=True)
    expected = torch.autograd.grad(torch.nn.functional.linear(x, weight, bias), (x, weight, bias), grad)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(mine), theirs.numpy(), rtol=1e-5, atol=1e-5)


def test_trilinear() -> None:
    x, weight, y = sample(6, 3), sample(5, 3, 4), sample(6, 4)
    check_lowering(aten._trilinear.default, x, weight, y, [1, 3], [0], [1, 2], [2, 3], **close(torch.float32))


def test_addmm_activation() -> None:
    for use_gelu in (False, True):
        check_lowering(aten._addmm_activation.default, sample(5), sample(3, 4), sample(4, 5), use_gelu=use_gelu, rtol=1e-3, atol=1e-3)


@pytest.fixture
def unset() -> Iterator[None]:
    """The precision as at the start of a process."""
    before, precision._setting = precision._setting, precision._Setting()
    yield
    precision._setting = before


def test_precision_setting(unset: None, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("default", "high", "highest"):
        backends.set_mat_mul_precision(name)
        assert backends.get_mat_mul_precision() == torch_xla._XLAC._xla_get_mat_mul_precision() == name
    with pytest.raises(ValueError, match="'fast', must be one of 'default', 'high', 'highest'"):
        torch_xla._XLAC._xla_set_mat_mul_precision("fast")
    assert backends.get_mat_mul_precision() == "highest"
    # The first choice is none that changes anything.
    assert [record.name for record in caplog.records] == [backends.logger.name] * 2
    assert "from 'default' to 'high'" in caplog.messages[0]


PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mm": lambda x: x @ x,
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "linear": lambda x: torch.nn.functional.linear(x, x, x[0]),
    "conv2d": lambda x: torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3]),
    "conv_transpose1d": lambda x: torch.nn.functional.conv_transpose1d(x[None], x[:, :, None]),
    "cdist": lambda x: torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist"),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_precision_is_in_the_program(name: str, unset: None) -> None:
    x = sample(8, 8).to("xla")
    for wanted, written in (("high", "operand_precision={high,high}"), ("default", None)):
        backends.set_mat_mul_precision(wanted)
        text = torch_xla._XLAC._get_xla_tensors_hlo([PRODUCTS[name](x)])
        products = [line for line in text.splitlines() if " dot(" in line or " convolution(" in line]
        assert products
        for line in products:
            assert (written in line) if written else "operand_precision" not in line


@pytest.mark.parametrize(
    ("left", "right", "numbers"),
    [
        ((3, 4), (4, 5), (((1,), (0,)), ((), ()))),
        ((2, 3, 4), (2, 4, 5), (((2,), (1,)), ((0,), (0,)))),
        ((4, 2, 3), (5, 3, 2, 4), (((0, 2), (3, 1)), ((1,), (2,)))),
        ((4,), (4,), (((0,), (0,)), ((), ()))),
    ],
)
def test_sums_of_products_are_products_of_integers(left: tuple[int, ...], right: tuple[int, ...], numbers: Any) -> None:
    """What stands for a product of 64-bit integers on TPUs, overflow included."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-(2**62), 2**62, shape) for shape in (left, right))
    with jax.enable_x64(True):
        assert (np.asarray(sum_of_products(a, b, numbers)) == np.asarray(lax.dot_general(a, b, numbers))).all()


@pytest.mark.parametrize(("expand1", "expand2", "expand3", "sumdim"), [((1,), (0,), (1,), (2,)), ((), (), (), (0, 2)), ((), (), (), ())])
def test_products_of_three_integers_on_tpus(expand1: list[int], expand2: list[int], expand3: list[int], sumdim: list[int]) -> None:
    """As the product of matrices elsewhere, overflow included."""
    shapes = [tuple(size for dim, size in enumerate((3, 4, 5)) if dim not in expanded) for expanded in (expand1, expand2, expand3)]
    first, second, third = (torch.randint(-(2**40), 2**40, shape) for shape in shapes)
    expected = torch.ops.aten._trilinear(first, second, third, expand1, expand2, expand3, sumdim)
    with jax.enable_x64(True):
        context = Context((jax.ShapeDtypeStruct(tuple(expected.shape), np.dtype(np.int64)),), platform="tpu")
        product = trilinear(context, first.numpy(), second.numpy(), third.numpy(), expand1, expand2, expand3, sumdim)  # type: ignore[arg-type]
        assert np.asarray(product).tolist() == expected.tolist()
