"""List operations, fused optimizer steps and the gradient scaler's helpers against CPU torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch

import xla_core.ops.optim.foreach as foreach
import xla_core.ops.optim.fused  # noqa: F401
from xla_core.ops import families
from xla_core.testing.lowering import check_lowering, lower_once

families.load()  # the rows of single tensors that the lists map to
aten = torch.ops.aten
SHAPES = ((2, 3), (), (4,), (0,))
FACTORS = [0.1, 2.0, 0.7, 1.0]
Tensors = list[torch.Tensor]


def listed(dtype: torch.dtype = torch.float32, count: int = 4) -> Tensors:
    return [(torch.rand(shape) * 2 + 0.1).to(dtype) for shape in SHAPES[:count]]


def listed_op(name: str) -> torch._ops.OpOverloadPacket:
    found: torch._ops.OpOverloadPacket = getattr(aten, f"_foreach_{name}")
    return found


@pytest.mark.parametrize("name", foreach.UNARY)
def test_unary(name: str, needs: Callable[[str], None]) -> None:
    needs(f"_foreach_{name}")
    lists = listed(count=3) if name == "max" else listed()
    check_lowering(listed_op(name).default, lists)
    check_lowering(listed_op(name).default, [x.to(torch.bfloat16) for x in lists])


@pytest.mark.parametrize("name", ["abs", "neg", "sqrt", "exp", "sign"])
def test_unary_of_integers(name: str) -> None:
    check_lowering(listed_op(name).default, [torch.tensor([1, 4, 9]), torch.tensor(2, dtype=torch.int32)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", sorted(foreach.BINARY))
def test_binary(name: str, dtype: torch.dtype) -> None:
    op = listed_op(name)
    check_lowering(op.Scalar, listed(dtype), 1.3)
    check_lowering(op.ScalarList, listed(dtype), FACTORS)
    check_lowering(op.List, listed(dtype), listed(dtype))


@pytest.mark.parametrize("number", [2, 2.5])
def test_integers_promote(number: float) -> None:
    lists = [torch.tensor([1, 2, 3]), torch.tensor(4)]
    for name in ("add", "sub", "mul", "div"):
        check_lowering(listed_op(name).Scalar, lists, number)


def test_tensor_operand_and_alpha() -> None:
    for func in (aten._foreach_add.List, aten._foreach_sub.List):
        check_lowering(func, listed(), listed(), alpha=0.3)
    check_lowering(aten._foreach_add.Tensor, listed(), torch.tensor(0.3), alpha=2.0)
    check_lowering(aten._foreach_mul.Tensor, listed(), torch.tensor(0.3))
    check_lowering(aten._foreach_div.Tensor, listed(), torch.tensor(0.3))
    check_lowering(aten._foreach_pow.ScalarAndTensor, 0.9, listed())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ternary(dtype: torch.dtype) -> None:
    x, y, z = listed(dtype), listed(dtype), listed(dtype)
    for name in ("addcmul", "addcdiv"):
        check_lowering(listed_op(name).Scalar, x, y, z, 0.3)
        check_lowering(listed_op(name).ScalarList, x, y, z, FACTORS)
        check_lowering(listed_op(name).Tensor, x, y, z, torch.tensor(FACTORS))
    check_lowering(aten._foreach_lerp.Scalar, x, y, 0.3)
    check_lowering(aten._foreach_lerp.ScalarList, x, y, FACTORS)
    check_lowering(aten._foreach_lerp.List, x, y, z)


def test_copy() -> None:
    check_lowering(aten._foreach_copy.default, listed(), listed(torch.float64))


@pytest.mark.parametrize("order", [0, 1, 2, 3, math.inf])
def test_norm(order: float) -> None:
    check_lowering(aten._foreach_norm.Scalar, listed(count=3), order)
    check_lowering(aten._foreach_norm.Scalar, listed(torch.bfloat16, count=3), order)
    check_lowering(aten._foreach_norm.Scalar, listed(count=3), order, dtype=torch.float64)


def test_powsum(needs: Callable[[str], None]) -> None:
    needs("_foreach_powsum.Scalar")
    check_lowering(aten._foreach_powsum.Scalar, listed(), 2)
    check_lowering(aten._foreach_powsum.Scalar, listed(), 3)


def test_numbers_that_arrive_as_inputs() -> None:
    x, y = listed(), listed()
    given = [torch.tensor(value, dtype=torch.float64) for value in FACTORS]
    cases = [
        (aten._foreach_mul.Scalar, (x, FACTORS[0]), (x, given[0])),
        (aten._foreach_mul.ScalarList, (x, FACTORS), (x, given)),
        (aten._foreach_addcdiv.ScalarList, (x, y, y, FACTORS), (x, y, y, given)),
        (aten._foreach_lerp.Scalar, (x, y, FACTORS[0]), (x, y, given[0])),
        (aten._foreach_pow.ScalarAndTensor, (FACTORS[0], x), (given[0], x)),
    ]
    for func, numbers, inputs in cases:
        expected = func(*numbers)
        for got, wanted in zip(lower_once(func, expected, *inputs), expected, strict=True):
            torch.testing.assert_close(got, wanted)


SCALING = {
    "plain": {},
    "scaled": {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(0.0)},
    "skipped": {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(1.0)},
}
STEPS = [torch.tensor(3.0), torch.tensor(1.0), torch.tensor(1000.0)]


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("scaling", SCALING)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
def test_adam(name: str, amsgrad: bool, scaling: str, platform: str) -> None:
    params, grads, means, squares, largest = (listed(count=3) for _ in range(5))
    hyper = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": amsgrad, **SCALING[scaling]}
    lists = (params, grads, means, squares, largest if amsgrad else [], STEPS)
    op = getattr(aten, name)
    check_lowering(op.default, *lists, lr=0.01, weight_decay=0.1, maximize=False, platform=platform, **hyper)
    check_lowering(op.default, *lists, lr=0.01, weight_decay=0.0, maximize=True, platform=platform, **hyper)
    check_lowering(op.tensor_lr, *lists, lr=torch.tensor(0.01), weight_decay=0.1, maximize=False, platform=platform, **hyper)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_adam_of_other_dtypes(dtype: torch.dtype) -> None:
    lists = [listed(dtype, count=3) for _ in range(4)]
    hyper = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False, "maximize": False}
    check_lowering(aten._fused_adamw.default, *lists, [], STEPS, **hyper)


@pytest.mark.parametrize("scaling", SCALING)
@pytest.mark.parametrize(
    ("momentum", "nesterov", "first"), [(0.0, False, True), (0.9, False, True), (0.9, False, False), (0.9, True, False)]
)
def test_sgd(momentum: float, nesterov: bool, first: bool, scaling: str) -> None:
    lists = (listed(count=3), listed(count=3), listed(count=3) if momentum else [])
    hyper = {"weight_decay": 0.1, "momentum": momentum, "nesterov": nesterov, "is_first_step": first, **SCALING[scaling]}
    dampening = 0.0 if nesterov else 0.2
    check_lowering(aten._fused_sgd.default, *lists, lr=0.1, dampening=dampening, maximize=False, **hyper)
    check_lowering(aten._fused_sgd.tensor_lr, *lists, lr=torch.tensor(0.1), dampening=dampening, maximize=True, **hyper)


@pytest.mark.parametrize("scaling", SCALING)
def test_adagrad(scaling: str) -> None:
    lists = (listed(count=3), listed(count=3), listed(count=3), STEPS)
    hyper = {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, **SCALING[scaling]}
    check_lowering(aten._fused_adagrad.default, *lists, lr=0.1, maximize=False, **hyper)
    check_lowering(aten._fused_adagrad.tensor_lr, *lists, lr=torch.tensor(0.1), maximize=True, **hyper)


@pytest.mark.parametrize("value", [2.0, math.inf, math.nan])
def test_unscaling_of_gradients(value: float) -> None:
    grads = [torch.tensor([1.0, value]), torch.tensor(3.0)]
    check_lowering(aten._amp_foreach_non_finite_check_and_unscale.default, grads, torch.zeros(1), torch.tensor([0.5]))


@pytest.mark.parametrize(("found", "tracker"), [(0.0, 0), (0.0, 3), (1.0, 2)])
def test_scale_update(found: float, tracker: int) -> None:
    streak = torch.tensor(tracker, dtype=torch.int32)
    check_lowering(aten._amp_update_scale.default, torch.tensor(1024.0), streak, torch.tensor(found), 2.0, 0.5, 4)


def test_scale_never_overflows() -> None:
    streak, largest = torch.tensor(3, dtype=torch.int32), torch.tensor(3e38)
    check_lowering(aten._amp_update_scale.default, largest, streak, torch.tensor(0.0), 2.0, 0.5, 4)


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_factors_in_a_vector_on_the_cpu(name: str) -> None:
    """Where torch wants them on every device; here they may be on the device, too."""
    in_place, out_of_place = getattr(torch, f"_foreach_{name}_"), getattr(torch, f"_foreach_{name}")
    lists = [[torch.randn(size, dtype=torch.float64) for size in (3, 0, 4)] for _ in range(3)]
    on_device = [[tensor.to("xla") for tensor in tensors] for tensors in lists]
    factors = torch.tensor([0.5, 2.0, -1.5], dtype=torch.float64)
    expected = out_of_place(*lists, factors)
    for given in (factors, factors.to("xla")):
        torch.testing.assert_close([tensor.cpu() for tensor in out_of_place(*on_device, given)], expected)
    in_place(*on_device, factors)
    torch.testing.assert_close([tensor.cpu() for tensor in on_device[0]], expected)
    for wrong in (factors[:2], factors[0], factors[:, None], factors.repeat(2)[::2]):
        with pytest.raises(RuntimeError, match="Expected") as torch_says:
            out_of_place(*lists, wrong)
        for call in (in_place, out_of_place):
            with pytest.raises(RuntimeError, match=f"^{re.escape(str(torch_says.value))}$"):
                call(*on_device, wrong)
