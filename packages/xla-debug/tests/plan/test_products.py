"""Operations of products and convolutions, by hand and in programs for GPUs, where libraries compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import handmade_hlo
import jax
import jax.numpy as jnp
import pytest
import torch
from compiled_programs import compiled_for
from handmade_hlo import computation, op, target

import torch_xla
from xla_debug.plan.hlo import Program
from xla_debug.plan.products import products
from xla_debug.plan.work import steps
from xla_debug.profiling.wire_format import text_field

GEMM = b'{"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]}}}'


@pytest.mark.parametrize("name", ["__cublas$gemm", "__cublas$lt$matmul$f8"])
def test_a_product_of_cublas_counts_as_one(name: str) -> None:
    left, right, result = (handmade_hlo.array(*dims) for dims in ((4, 6), (6, 5), (4, 5)))
    workspace = handmade_hlo.tuple_of(result, handmade_hlo.array(1024))
    call = op(13, "custom-call", workspace, 11, 12, more=target(name) + text_field(43, GEMM))
    module = handmade_hlo.module(1, computation(1, 13, op(11, "parameter", left), op(12, "parameter", right), call))
    program = Program(module)
    assert list(products(program, program.by_id[13])) == [(program.by_id[13], 2 * 4 * 5 * 6)]


@pytest.mark.parametrize(
    ("dtype", "precision", "wide"),
    [("float64", "default", True), ("float32", "highest", True), ("float32", "default", False), ("bfloat16", "default", False)],
)
def test_products_in_float64_and_in_all_of_float32_are_wide(dtype: str, precision: str, wide: bool) -> None:
    with jax.enable_x64(True):
        arguments = [jax.ShapeDtypeStruct((64, 64), dtype)] * 2
        compiled: Any = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision)).lower(*arguments).compile()
    taken = list(steps(Program(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())))
    total = sum(step.flops for step in taken)
    assert total == 2 * 64**3 and sum(step.wide for step in taken) == (total if wide else 0)


def convolved(x: torch.Tensor) -> list[torch.Tensor]:
    """A convolution and both gradients."""
    layer = torch.nn.Conv2d(8, 12, 3, device="xla")
    result = layer(x)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), [x, layer.weight])]


def multiplied(x: torch.Tensor) -> list[torch.Tensor]:
    """A product that XLA gives to cuBLAS."""
    matrix = x.detach()[:, 0].to(torch.complex64)
    return [matrix @ matrix.mT]


@pytest.mark.targets
@pytest.mark.parametrize(
    ("work", "library", "expected"),
    [(convolved, "__cudnn$conv", 3 * 2 * 32 * 14 * 14 * 12 * 8 * 3 * 3), (multiplied, "__cublas$", 2 * 32 * 16 * 16 * 16)],
)
def test_libraries_of_gpus_have_the_operations_of_what_they_compute(
    work: Callable[[torch.Tensor], list[torch.Tensor]], library: str, expected: int
) -> None:
    with compiled_for("h100") as programs:
        kept = work(torch.zeros(32, 8, 16, 16, device="xla", requires_grad=True))
        torch_xla.sync()
        program = Program(programs[-1].runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
        taken = list(steps(program))
        assert kept and any(step.instruction.target.startswith(library) for step in taken)
        assert sum(step.flops for step in taken) == expected
