"""Calls as torch makes them: keywords, out=, in-place casts, numbers that change, torch's own errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_xla
from xla_core.base.errors import RegistrationError
from xla_core.engine.tensor.dispatch import add_handlers
from xla_core.engine.tensor.encode import remember

Tensor = torch.Tensor
Counts = Any
Make = Callable[[str], Any]


def ones(device: str, *shape: int, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    return torch.ones(*shape, device=device, dtype=dtype, **options)


def same(expected: Any, got: Any) -> None:
    """Equal values, shapes and dtypes of tensors, in any nesting."""
    if isinstance(expected, Tensor):
        assert got.device.type == "xla"
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), equal_nan=True)
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(got)
        for left, right in zip(expected, got, strict=True):
            same(left, right)
    else:
        assert expected == got


CALLS: dict[str, Make] = {
    "keywords": lambda d: torch.add(input=ones(d, 2), other=ones(d, 2), alpha=3),
    "keyword_tensors": lambda d: torch.addmm(input=ones(d, 2, 2), mat1=ones(d, 2, 3), mat2=ones(d, 3, 2), beta=0.5, alpha=2),
    "optional_arguments": lambda d: torch.clamp(torch.arange(6.0, device=d), max=3),
    "dtype_argument": lambda d: torch.sum(ones(d, 3, dtype=torch.int32), 0, dtype=torch.float64),
    "several_results": lambda d: tuple(torch.max(torch.tensor([[1.0, 5.0], [7.0, 2.0]], device=d), dim=1)),
    "named_results": lambda d: torch.sort(torch.tensor([3.0, 1.0, 2.0], device=d)).indices,
    "list_results": lambda d: torch.meshgrid(torch.arange(2, device=d), torch.arange(3, device=d), indexing="ij"),
    "list_arguments": lambda d: torch.cat([ones(d, 2, 1), ones(d, 2, 2) * 2], dim=1),
    "optional_tensors": lambda d: F.layer_norm(torch.arange(6.0, device=d).view(2, 3), [3], weight=None, bias=ones(d, 3)),
    "promotion": lambda d: ones(d, 2, dtype=torch.int64) + torch.tensor(1.5, device=d),
    "promotion_of_scalars": lambda d: [
        ones(d, 2, dtype=torch.uint8) + 1,
        ones(d, 2, dtype=torch.int32) * 1.5,
        ones(d, 2, dtype=torch.bool) + 1,
    ],
    "promotion_of_0d": lambda d: ones(d, 2, dtype=torch.float16) * torch.tensor(3.0, dtype=torch.float64),
    "complex_scalar": lambda d: ones(d, 2) * (1 + 2j),
    "scalar_tensors": lambda d: torch.tensor(3, device=d) // torch.tensor(2, device=d),
    "factories": lambda d: [
        torch.arange(1, 9, 3, device=d),
        torch.linspace(0, 1, 4, device=d),
        torch.eye(2, 3, device=d),
        torch.full((2,), 7, device=d),
    ],
    "like": lambda d: [
        torch.zeros_like(ones(d, 2, dtype=torch.int8)),
        torch.full_like(ones(d, 2), 3),
        ones(d, 2).new_ones(3, dtype=torch.bool),
    ],
    "out": lambda d: [torch.add(ones(d, 3), 2, out=o) is o and o for o in [torch.empty(3, device=d)]],
    "out_keywords": lambda d: [torch.mm(ones(d, 2, 3), ones(d, 3, 2), out=o) for o in [torch.empty(2, 2, device=d)]],
    "out_casts": lambda d: [torch.add(ones(d, 3, dtype=torch.int32), 2, out=o) for o in [torch.empty(3, dtype=torch.float64, device=d)]],
    "out_is_an_input": lambda d: [torch.mul(x, 3, out=x) for x in [ones(d, 3)]],
    "out_through_a_view": lambda d: [(torch.add(ones(d, 2), 1, out=x[1]), x) for x in [torch.zeros(2, 2, device=d)]],
    "out_of_several": lambda d: [
        torch.max(ones(d, 2, 3), 1, out=o) and o for o in [(torch.empty(2, device=d), torch.empty(2, dtype=torch.int64, device=d))]
    ],
    "out_of_factories": lambda d: torch.arange(3, out=torch.empty(3, dtype=torch.int64, device=d)),
    "in_place_keeps_dtype": lambda d: [
        ones(d, 2, dtype=torch.float16).add_(ones(d, 2, dtype=torch.float64)),
        ones(d, 2, dtype=torch.int8).mul_(3),
    ],
    "in_place_broadcasts": lambda d: torch.zeros(2, 3, device=d).add_(torch.arange(3, device=d)),
    "in_place_on_itself": lambda d: [x.mul_(x).add_(x.t().clone()) for x in [torch.arange(4.0, device=d).view(2, 2).clone()]],
    "in_place_operators": lambda d: [iadd(ones(d, 2)), ixor(ones(d, 2, dtype=torch.int32))],
    "in_place_returns_itself": lambda d: [x.add_(1) is x and x.unsqueeze_(0) is x for x in [ones(d, 2)]],
    "lists_in_place": lambda d: [torch._foreach_add_(xs, 2.0) or xs for xs in [[ones(d, 2), ones(d, 3, 1)]]],
    "lists": lambda d: torch._foreach_mul([ones(d, 2), ones(d, 3)], [2.0, 3.0]),
}


def iadd(x: Tensor) -> Tensor:
    x += 2
    x **= 2
    x /= 4
    return x


def ixor(x: Tensor) -> Tensor:
    x ^= 3
    x |= 4
    x <<= 1
    x //= 3
    return x


@pytest.mark.parametrize("make", list(CALLS.values()), ids=list(CALLS))
def test_calls_in_every_form(make: Make) -> None:
    same(make("cpu"), make("xla"))


OUTS: dict[str, Callable[..., object]] = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "diagonal_copy": lambda x, out: torch.diagonal_copy(x, out=out),
    "igammac": lambda x, out: torch.special.gammaincc(x, x, out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "sort": lambda x, out: torch.sort(x, out=(out, torch.empty(3, 3, dtype=torch.int64, device=x.device))),
    "nonzero": lambda x, out: torch.nonzero(x, out=out.to(torch.int64)),
}


@pytest.mark.filterwarnings("ignore:.* runs on the CPU")
@pytest.mark.parametrize("call", list(OUTS.values()), ids=list(OUTS))
def test_out_is_resized_with_torchs_warning_by_each_call(call: Callable[..., object]) -> None:
    shapes: list[list[tuple[int, ...]]] = []
    for device in ("cpu", "xla"):
        x = ones(device, 3, 3)
        shapes.append([])
        for _ in range(2):  # once inferred, once as inferred before
            empty, wrong = torch.empty(0, device=device), torch.empty(5, device=device)
            call(x, empty)
            with pytest.warns(UserWarning, match="An output with one or more elements was resized") as warned:
                call(x, wrong)
            assert [warning.filename for warning in warned] == [__file__]
            shapes[-1] += [tuple(empty.shape), tuple(wrong.shape)]
    assert shapes[0] == shapes[1]


def test_out_is_written_where_the_warning_is_an_error() -> None:
    for device in ("cpu", "xla"):
        out = torch.zeros(5, device=device)
        with pytest.raises(UserWarning, match="An output with one or more elements was resized"):
            torch.add(ones(device, 3), 1, out=out)
        assert out.tolist() == [2.0] * 3


# Each is wrong; the CPU says how.
WRONG: dict[str, Make] = {
    "mm": lambda d: ones(d, 2, 3) @ ones(d, 2, 3),
    "mm_dtype": lambda d: ones(d, 2, 3) @ ones(d, 3, 2, dtype=torch.float64),
    "bmm": lambda d: torch.bmm(ones(d, 2, 3, 4), ones(d, 3, 4, 5)),
    "mv": lambda d: torch.mv(ones(d, 2, 3), ones(d, 2)),
    "addmm": lambda d: torch.addmm(ones(d, 2), ones(d, 2, 3), ones(d, 4, 2)),
    "einsum": lambda d: torch.einsum("ij,jk->ik", ones(d, 2, 3), ones(d, 2, 3)),
    "tensordot": lambda d: torch.tensordot(ones(d, 2, 3), ones(d, 2, 3), 1),
    "inverse": lambda d: torch.linalg.inv(ones(d, 2, 3)),
    "broadcast": lambda d: ones(d, 2, 3) + ones(d, 2),
    "where_broadcast": lambda d: torch.where(ones(d, 3) > 0, ones(d, 2), ones(d, 3)),
    "where_condition": lambda d: torch.where(ones(d, 3), ones(d, 3), ones(d, 3)),
    "lerp_dtype": lambda d: torch.lerp(ones(d, 2), ones(d, 2, dtype=torch.float64), 0.5),
    "cat": lambda d: torch.cat([ones(d, 2, 3), ones(d, 3, 2)]),
    "cat_nothing": lambda d: torch.cat([]),
    "stack": lambda d: torch.stack([ones(d, 2), ones(d, 3)]),
    "view": lambda d: ones(d, 2, 3).view(5),
    "reshape": lambda d: ones(d, 2, 3).reshape(4, -1),
    "select": lambda d: ones(d, 2, 3).select(0, 5),
    "index": lambda d: ones(d, 2, 3)[5],
    "too_many_indices": lambda d: ones(d, 2)[0, 0],
    "float_index": lambda d: ones(d, 3)[ones(d, 2)],
    "mask_shape": lambda d: ones(d, 3)[ones(d, 2) > 0],
    "permute": lambda d: ones(d, 2, 3).permute(0),
    "transpose": lambda d: ones(d, 2).transpose(0, 3),
    "expand": lambda d: ones(d, 2, 3).expand(4, 3),
    "unsqueeze": lambda d: ones(d, 2).unsqueeze(5),
    "diagonal": lambda d: ones(d, 3).diagonal(),
    "unfold": lambda d: ones(d, 3).unfold(0, 5, 1),
    "split": lambda d: ones(d, 3).split([1, 1]),
    "chunk": lambda d: ones(d, 3).chunk(0),
    "as_strided": lambda d: ones(d, 2).as_strided((4,), (1,)),
    "as_strided_backwards": lambda d: ones(d, 2).as_strided((1,), (-1,)),
    "bits": lambda d: ones(d, 3).view(torch.float64),
    "bits_of_complex_view": lambda d: torch.view_as_real(ones(d, 2, dtype=torch.complex64).conj()),
    "flip": lambda d: ones(d, 3).flip(2),
    "repeat": lambda d: ones(d, 3, 2).repeat(2),
    "sum_dim": lambda d: ones(d, 2).sum(3),
    "mean_of_ints": lambda d: ones(d, 2, dtype=torch.int64).mean(),
    "max_of_nothing": lambda d: ones(d, 0).max(),
    "max_of_no_rows": lambda d: ones(d, 0, 3).max(0),
    "cumsum": lambda d: ones(d, 3).cumsum(1),
    "topk": lambda d: ones(d, 3).topk(5),
    "softmax_of_ints": lambda d: ones(d, 3, dtype=torch.int64).softmax(0),
    "in_place_broadcast": lambda d: ones(d, 2).add_(ones(d, 3, 2)),
    "in_place_cast": lambda d: ones(d, 2, dtype=torch.int64).add_(1.5),
    "in_place_cast_of_tensor": lambda d: ones(d, 2, dtype=torch.int64).mul_(ones(d, 2)),
    "in_place_cast_of_bool": lambda d: ones(d, 2, dtype=torch.bool).mul_(-1),
    "in_place_sqrt_of_ints": lambda d: ones(d, 3, dtype=torch.int64).sqrt_(),
    "in_place_on_a_leaf": lambda d: ones(d, 2, requires_grad=True).add_(1),
    "out_cast": lambda d: torch.add(ones(d, 3), 1, out=ones(d, 3, dtype=torch.int64)),
    "copy": lambda d: ones(d, 3).copy_(ones(d, 2)),
    "assign_shape": lambda d: ones(d, 3).__setitem__(slice(0, 2), ones(d, 3)),
    "assign_index_shape": lambda d: ones(d, 3).__setitem__(torch.tensor([0, 1], device=d), ones(d, 3)),
    "assign_mask_shape": lambda d: ones(d, 3).__setitem__(ones(d, 2) > 0, 1.0),
    "masked_fill": lambda d: ones(d, 3).masked_fill(ones(d, 3), 0),
    "masked_fill_shape": lambda d: ones(d, 3).masked_fill(ones(d, 2) > 0, 0),
    "bitwise_of_floats": lambda d: ones(d, 2) & ones(d, 2),
    "not_of_floats": lambda d: ~ones(d, 2),
    "minus_bools": lambda d: ones(d, 2, dtype=torch.bool) - ones(d, 2, dtype=torch.bool),
    "negative_bool": lambda d: -ones(d, 2, dtype=torch.bool),
    "alpha_of_ints": lambda d: torch.add(ones(d, 2, dtype=torch.int64), 1, alpha=1.5),
    "compare_complex": lambda d: ones(d, 2, dtype=torch.complex64) < 1,
    "clamp_complex": lambda d: ones(d, 2, dtype=torch.complex64).clamp(0),
    "maximum_of_complex": lambda d: ones(d, 2, dtype=torch.complex64).max(),
    "negative_power_of_ints": lambda d: ones(d, 2, dtype=torch.int64) ** -1,
    "huge_integer": lambda d: torch.arange(3, device=d) + (1 << 64),
    "rounding_mode": lambda d: torch.div(ones(d, 2), 2, rounding_mode="x"),
    "gather_dtype": lambda d: ones(d, 3).gather(0, ones(d, 3)),
    "gather_rank": lambda d: ones(d, 3, 3).gather(0, ones(d, 3, dtype=torch.int64)),
    "scatter_shape": lambda d: ones(d, 3).scatter(0, ones(d, 4, dtype=torch.int64), ones(d, 3)),
    "index_select": lambda d: ones(d, 3).index_select(0, ones(d, 3)),
    "index_add": lambda d: ones(d, 3, 3).index_add(0, ones(d, 2, dtype=torch.int64), ones(d, 3, 3)),
    "embedding": lambda d: F.embedding(ones(d, 3), ones(d, 5, 2)),
    "one_hot": lambda d: F.one_hot(ones(d, 2), 3),
    "linear": lambda d: F.linear(ones(d, 2, 3), ones(d, 4, 5)),
    "conv": lambda d: F.conv2d(ones(d, 1, 3, 8, 8), ones(d, 4, 5, 3, 3)),
    "conv_dtype": lambda d: F.conv2d(ones(d, 1, 3, 8, 8), ones(d, 4, 3, 3, 3, dtype=torch.float64)),
    "conv_kernel": lambda d: F.conv2d(ones(d, 1, 3, 2, 2), ones(d, 4, 3, 3, 3)),
    "pool": lambda d: F.max_pool2d(ones(d, 1, 1, 2, 2), 3),
    "pad": lambda d: F.pad(ones(d, 2), (1, 1), mode="reflect"),
    "layer_norm": lambda d: F.layer_norm(ones(d, 3, 4), [3]),
    "batch_norm": lambda d: F.batch_norm(ones(d, 3, 4), ones(d, 3), ones(d, 3)),
    "group_norm": lambda d: F.group_norm(ones(d, 3, 4), 3),
    "attention": lambda d: F.scaled_dot_product_attention(ones(d, 1, 2, 3), ones(d, 1, 2, 4), ones(d, 1, 2, 3)),
    "cross_entropy": lambda d: F.cross_entropy(ones(d, 3, 5), ones(d, 2, dtype=torch.int64)),
    "cross_entropy_dtype": lambda d: F.cross_entropy(ones(d, 3, 5), ones(d, 3, dtype=torch.int32)),
    "dropout": lambda d: F.dropout(ones(d, 2), 2.0),
    "multinomial": lambda d: torch.multinomial(ones(d, 3), 5),
    "randint": lambda d: torch.randint(5, 2, (2,), device=d),
    "normal": lambda d: torch.normal(0.0, -1.0, (2,), device=d),
    "arange": lambda d: torch.arange(0, 10, -1, device=d),
    "linspace": lambda d: torch.linspace(0, 1, -3, device=d),
    "zeros": lambda d: torch.zeros(-2, device=d),
    "full": lambda d: torch.full((2,), "a", device=d),
    "foreach": lambda d: torch._foreach_add([ones(d, 2)], [ones(d, 2), ones(d, 2)]),
    "requires_grad_of_ints": lambda d: ones(d, 2, dtype=torch.int64).requires_grad_(),
    "backward_of_many": lambda d: (ones(d, 2, requires_grad=True) * 2).backward(),
    "gradient_shape": lambda d: setattr(ones(d, 2, requires_grad=True), "grad", ones(d, 3)),
    "item": lambda d: ones(d, 2).item(),
}


# What has to read values anyway is checked by the CPU itself.
VALUE_READS = [WRONG["mask_shape"], WRONG["inverse"]]


@pytest.mark.parametrize("call", list(WRONG.values()), ids=list(WRONG))
def test_wrong_calls_fail_as_on_the_cpu_when_recorded(call: Make, counts: Counts) -> None:
    with pytest.raises(Exception) as expected:
        call("cpu")
    with pytest.raises(type(expected.value)) as got:
        call("xla")
    assert str(got.value) == str(expected.value)
    assert type(got.value) is type(expected.value)
    assert counts.ExecuteComputation == 0 or call in VALUE_READS


def test_a_refused_call_leaves_nothing_behind() -> None:
    tensor, other = ones("xla", 2), ones("xla", 3)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            tensor.add_(other)
        with pytest.raises(RuntimeError):
            tensor @ other
    torch_xla.sync()
    assert (tensor + 1).tolist() == [2, 2]


SCHEDULES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "multiply": lambda x, rate: x * rate,
    "add_with_alpha": lambda x, rate: torch.add(x, x, alpha=rate),
    "add_in_place": lambda x, rate: x.clone().add_(x, alpha=rate),
    "addcmul": lambda x, rate: torch.addcmul(x, x, x, value=rate),
    "lerp": lambda x, rate: torch.lerp(x, x * 2, rate),
    "power": lambda x, rate: x**rate,
    "clamp": lambda x, rate: x.clamp(rate, rate + 1),
    "fill": lambda x, rate: torch.full((3,), rate, device=x.device) + x,
    "masked_fill": lambda x, rate: x.masked_fill(x > 1, rate),
    "assign": lambda x, rate: [y.__setitem__(slice(0, 2), rate) or y for y in [x.clone()]][0],
    "0d_cpu_tensor": lambda x, rate: x * torch.tensor(rate),
    "compare": lambda x, rate: (x > rate).float(),
    "foreach": lambda x, rate: torch._foreach_mul([x], rate)[0],
    "foreach_list": lambda x, rate: torch._foreach_mul([x], [rate])[0],
}


@pytest.mark.parametrize("use", list(SCHEDULES.values()), ids=list(SCHEDULES))
def test_a_number_that_changes_costs_one_more_compile_at_most(use: Callable[[Tensor, float], Tensor], counts: Counts) -> None:
    data = torch.tensor([0.5, 1.0, 2.0])
    mine = data.to("xla")
    torch_xla.sync()
    seen = []
    for rate in (0.5, 0.25, 0.1, -3.0, 1e30, 0.1):
        result = use(mine, rate)
        torch_xla.sync()
        torch.testing.assert_close(result.cpu(), use(data, rate), equal_nan=True)
        seen.append(counts.UncachedCompile)
    assert seen[1] <= 2 and seen[-1] == seen[1], seen


def test_a_warm_up_from_zero_through_one_costs_one_more_compile(counts: Counts) -> None:
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]).to("xla"))
    optimizer = torch.optim.SGD([parameter], lr=1.0, foreach=False)
    torch_xla.sync()
    counts.restart()
    for rate in (0.0, 0.25, 0.5, 1.0, 0.5, 0.0):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        torch_xla.sync()
    assert parameter.tolist() == [-1.25, -0.25]
    assert counts.UncachedCompile <= 2


def test_numbers_that_shape_a_result_compile_anew(counts: Counts) -> None:
    data = torch.arange(6.0, device="xla")
    torch_xla.sync()
    counts.restart()
    for count in (1, 2, 3, 2, 1):
        part = data[:count] + 1
        torch_xla.sync()
        assert part.tolist() == [1.0, 2.0, 3.0][:count]
    assert counts.UncachedCompile == 3


def test_integers_as_values_do_not_recompile_for_ever(counts: Counts) -> None:
    data = torch.arange(3, device="xla")
    torch_xla.sync()
    counts.restart()
    for number in range(2, 9):
        result = data * number + number
        torch_xla.sync()
        assert result.tolist() == [number, 2 * number, 3 * number]
    assert counts.UncachedCompile <= 2
    for number in (1 << 62, 1 << 63, -(1 << 63)):
        assert (data + number).tolist() == (data.cpu() + number).tolist()
    assert (data.to(torch.uint8) + 300).tolist() == (data.cpu().to(torch.uint8) + 300).tolist()


def test_same_shapes_same_body_one_compile(counts: Counts) -> None:
    layer = nn.Linear(3, 3).to("xla")
    batches = [torch.randn(2, 3) for _ in range(4)]
    torch_xla.sync()
    counts.restart()
    for batch in batches:
        result = layer(batch.to("xla")).relu().sum()
        torch_xla.sync()
        torch.testing.assert_close(result.cpu(), nn.functional.linear(batch, layer.weight.cpu(), layer.bias.cpu()).relu().sum())
    assert (counts.UncachedCompile, counts.CachedCompile) == (1, 3)


def test_special_floats_are_told_apart(counts: Counts) -> None:
    data = torch.tensor([1.0, -1.0], device="xla")
    results = [torch.copysign(data, number) for number in (0.0, -0.0)]
    results += [data * number for number in (float("inf"), float("-inf"), float("nan"))]
    expected = [torch.copysign(data.cpu(), number) for number in (0.0, -0.0)]
    expected += [data.cpu() * number for number in (float("inf"), float("-inf"), float("nan"))]
    for mine, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, equal_nan=True)


def test_0d_cpu_tensors_keep_their_own_dtype_in_promotion() -> None:
    for number in (torch.tensor(3), torch.tensor(2.5), torch.tensor(2.5, dtype=torch.float64), torch.tensor(True), torch.tensor(1 + 1j)):
        for dtype in (torch.int32, torch.float32, torch.bool):
            cpu = torch.ones(2, dtype=dtype)
            same(cpu + number, cpu.to("xla") + number)
            same(number * cpu, number * cpu.to("xla"))
        same(torch.tensor(1.5) * number, torch.tensor(1.5, device="xla") * number)
    half = torch.ones(2, dtype=torch.float16)
    same(half * torch.tensor(2.5, dtype=torch.float64), half.to("xla") * torch.tensor(2.5, dtype=torch.float64))
    with pytest.raises(RuntimeError):
        torch.ones(2, dtype=torch.int32, device="xla").add_(torch.tensor(0.5))


def test_nothing_warns_on_the_way() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.ones(2, 2, device="xla", requires_grad=True)
        (x @ x.t() + x.sum()).softmax(-1).mean().backward()
        torch_xla.sync()
        assert x.grad is not None and x.grad.shape == (2, 2)


def test_what_two_threads_work_out_at_once_is_kept_once() -> None:
    """Programs compare by the identity of their operations: the second thread must use what the first has kept."""
    known: dict[str, object] = {}
    first, second = object(), object()
    assert remember(known, "key", first) is first
    assert remember(known, "key", second) is first


def test_an_overload_has_one_handler_of_its_own() -> None:
    with pytest.raises(RegistrationError, match="_ctc_loss, equal has a handler already"):
        add_handlers({"equal": lambda args, kwargs: None, "_ctc_loss": lambda args, kwargs: None})
