"""Kernels as the compilers of TPUs and GPUs take them: by Pallas, forward and backward, and not by the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_programs import compiled_for, kernels_in, products_in

import torch_xla
from torch_xla.experimental import custom_kernel as kernels
from torch_xla.experimental.splash_attention import SplashAttentionConfig, splash_attention

pytestmark = [pytest.mark.targets]

Operands = list[torch.Tensor]
Call = Callable[[torch.dtype], tuple[torch.Tensor, Operands]]
FLOAT, HALF = torch.float32, torch.bfloat16


def made(*shapes: tuple[int, ...], dtype: torch.dtype) -> Operands:
    """Leaves with gradients."""
    return [torch.zeros(shape, dtype=dtype, device="xla", requires_grad=True) for shape in shapes]


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32).to("xla")


def flash(length: int = 256, head: int = 128, **options: Any) -> Call:
    def call(dtype: torch.dtype) -> tuple[torch.Tensor, Operands]:
        q, k, v = made(*[(2, 4, length, head)] * 3, dtype=dtype)
        return kernels.flash_attention(q, k, v, True, sm_scale=0.1, **options), [q, k, v]

    return call


def flash_by_segments(dtype: torch.dtype) -> tuple[torch.Tensor, Operands]:
    q, k, v = made(*[(2, 4, 256, 128)] * 3, dtype=dtype)
    ids = torch.zeros(2, 256, dtype=torch.int64, device="xla")
    return kernels.flash_attention(q, k, v, True, ids, ids), [q, k, v]


def flash_with_bias(dtype: torch.dtype) -> tuple[torch.Tensor, Operands]:
    q, k, v, bias = made(*[(2, 4, 256, 128)] * 3, (1, 4, 256, 256), dtype=dtype)
    return kernels.flash_attention(q, k, v, ab=bias), [q, k, v, bias]


def flash_function(dtype: torch.dtype) -> tuple[torch.Tensor, Operands]:
    q, k, v = made(*[(2, 4, 256, 128)] * 3, dtype=dtype)
    return kernels.FlashAttention.apply(q, k, v, True, None, None, 0.1, None, None, None), [q, k, v]


def splash(length: int = 256, head: int = 128, soft_cap: float | None = None, causal: bool = True, **config: Any) -> Call:
    def call(dtype: torch.dtype) -> tuple[torch.Tensor, Operands]:
        q, k, v = made((2, 8, length, head), *[(2, 2, length, head)] * 2, dtype=dtype)
        ids = torch.zeros(2, length, dtype=torch.int32, device="xla")
        return splash_attention(q, k, v, SplashAttentionConfig(**config), ids, causal, soft_cap), [q, k, v]

    return call


def grouped(**options: Any) -> Call:
    def call(dtype: torch.dtype) -> tuple[torch.Tensor, Operands]:
        lhs, rhs = made((256, 128), (4, 128, 256), dtype=dtype)
        return kernels.gmm(lhs, rhs, integers(64, 0, 128, 64), **options), [lhs, rhs]

    return call


def grouped_from_an_offset(dtype: torch.dtype) -> tuple[torch.Tensor, Operands]:
    lhs, rhs = made((256, 128), (2, 256, 128), dtype=dtype)
    return kernels.gmm(lhs, rhs, integers(64, 0, 128, 64), group_offset=1, transpose_rhs=True), [lhs, rhs]


def grouped_function(dtype: torch.dtype) -> tuple[torch.Tensor, Operands]:
    lhs, rhs = made((256, 128), (4, 128, 256), dtype=dtype)
    return kernels.GMM.apply(lhs, rhs, integers(64, 0, 128, 64), (128, 128, 128)), [lhs, rhs]


def products_by_group(dtype: torch.dtype) -> tuple[torch.Tensor, Operands]:
    lhs, rhs = made((128, 256), (256, 128), dtype=dtype)
    return kernels.tgmm(lhs, rhs, integers(64, 0, 128, 64)), [lhs, rhs]


DERIVED: dict[str, tuple[Call, int]] = {  # what is called, and the kernels of its forward and backward pass together
    "flash": (flash(), 3),
    "flash, head of 64": (flash(head=64), 3),
    "flash, 4,096 tokens": (flash(4096), 3),
    "flash, 8,192 tokens": (flash(8192), 3),
    "flash, 8,192 tokens, head of 256": (flash(8192, head=256), 3),
    "flash, segments": (flash_by_segments, 3),
    "flash, bias": (flash_with_bias, 3),
    "flash as a function": (flash_function, 3),
    "splash": (splash(), 2),
    "splash, head of 80": (splash(head=80), 2),
    "splash, 4,096 tokens": (splash(4096), 2),
    "splash, two backward kernels": (splash(sa_use_fused_bwd_kernel=False), 3),
    "splash, window": (splash(attentiontype_local_sliding=True, slide_window_size=64), 2),
    "splash, soft cap": (splash(soft_cap=30.0, causal=False), 2),
    "gmm": (grouped(), 3),
    "gmm, tiles": (grouped(tiling=(64, 128, 128)), 3),
    "gmm, offset": (grouped_from_an_offset, 3),
    "gmm as a function": (grouped_function, 3),
    "tgmm": (products_by_group, 3),
}
ON_GPU = {
    "flash": 3,
    "flash, head of 64": 3,
    "flash, 4,096 tokens": 3,
    "flash, segments": 3,
    "flash as a function": 3,
    "splash": 3,
    "splash, head of 80": 3,
    "splash, 4,096 tokens": 3,
}


def trained(call: Call, dtype: torch.dtype) -> list[torch.Tensor]:
    """The result of a call and the gradients of its operands, recorded."""
    result, operands = call(dtype)
    return [result.detach(), *torch.autograd.grad(result.float().square().sum(), operands)]


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
@pytest.mark.parametrize("name", DERIVED)
@pytest.mark.parametrize("target", ["v4", "v5e", "v6e"])
def test_tpus_get_mosaic_kernels_forward_and_backward(target: str, name: str, dtype: torch.dtype) -> None:
    """In one program, in which the forward kernel is not called twice."""
    call, count = DERIVED[name]
    with compiled_for(target) as programs:
        kept = trained(call, dtype)
        torch_xla.sync()
        assert kept and len(kernels_in(programs[-1])) == count and not products_in(programs[-1])


@pytest.mark.parametrize("dtype", [torch.float16, HALF], ids=str)
@pytest.mark.parametrize("name", ON_GPU)
def test_gpus_get_triton_kernels_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    with compiled_for("h100") as programs:
        kept = trained(DERIVED[name][0], dtype)
        torch_xla.sync()
        assert kept and len(kernels_in(programs[-1])) == ON_GPU[name] and not products_in(programs[-1])


@pytest.mark.parametrize("target", ["v5e", "h100"])
@pytest.mark.parametrize("name", ["flash", "splash"])
def test_without_gradients_nothing_is_kept_for_them(target: str, name: str) -> None:
    with compiled_for(target) as programs, torch.no_grad():
        kept = DERIVED[name][0](HALF)[0]
        torch_xla.sync()
        (kernel,) = kernels_in(programs[-1])
        assert kept.shape and "jvp" not in kernel


def paged(heads: int = 8) -> Callable[[torch.dtype], torch.Tensor]:
    def call(dtype: torch.dtype) -> torch.Tensor:
        q, k, v = (part.detach() for part in made((2, 8, 128), *[(heads, 16, 16, 128)] * 2, dtype=dtype))
        return kernels.paged_attention(q, k, v, integers(20, 9), torch.zeros(2, 4, dtype=torch.int32, device="xla"), 4)

    return call


def several_queries(dtype: torch.dtype) -> torch.Tensor:
    q, k, v = (part.detach() for part in made((2, 4, 8, 128), *[(2, 16, 16, 128)] * 2, dtype=dtype))
    tables = integers(20, 9), torch.zeros(2, 4, dtype=torch.int32, device="xla"), integers(4, 3)
    return kernels.multi_queries_paged_attention(q, k, v, *tables, 4, 4)


def ragged(tokens: int, page: int, pages: int, heads: int) -> Callable[[torch.dtype], torch.Tensor]:
    def call(dtype: torch.dtype) -> torch.Tensor:
        q, kv = (part.detach() for part in made((tokens, 4 * heads, 128), (64, page, 2 * heads, 128), dtype=dtype))
        table = torch.zeros(2, pages, dtype=torch.int32, device="xla")
        return kernels.ragged_paged_attention(q, kv, integers(20, 9), table, integers(0, 4, 9), integers(2))

    return call


READ: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "paged": paged(2),
    "paged, a key head for each query head": paged(),
    "several queries": several_queries,
    "ragged": ragged(16, 16, 4, 2),
    "ragged, large": ragged(1024, 128, 128, 8),  # blocks of 128 pages would not fit
}


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("target", ["v4", "v5e", "v6e"])
def test_tpus_read_pages_by_mosaic_kernels(target: str, name: str, dtype: torch.dtype) -> None:
    with compiled_for(target) as programs:
        kept = READ[name](dtype)
        torch_xla.sync()
        assert kept.shape and len(kernels_in(programs[-1])) == 1 and not products_in(programs[-1])


@pytest.mark.parametrize("name", ["paged", "paged, a key head for each query head"])
def test_gpus_read_pages_by_triton_kernels(name: str) -> None:
    with compiled_for("h100") as programs:
        kept = READ[name](HALF)
        torch_xla.sync()
        assert kept.shape and len(kernels_in(programs[-1])) == 1 and not products_in(programs[-1])


@pytest.mark.parametrize("target", ["v5e", "h100"])
def test_quantized_products_multiply_in_eight_bits(target: str) -> None:
    """There is no kernel for them: the compiler's own product takes integers, and a weight is widened where it is multiplied."""
    with compiled_for(target) as programs:
        x, weight = torch.zeros(128, 512, dtype=HALF, device="xla"), torch.zeros(256, 512, dtype=torch.int8, device="xla")
        kept = kernels.quantized_matmul_int8(x, weight, torch.ones(256, device="xla"), quantize_activation=True)
        torch_xla.sync()
        text = programs[-1].as_text()
        assert kept.shape == (128, 256) and products_in(programs[-1]) == 1 and "s32[128,256]" in text


def by_a_users_kernel(x: Any) -> Any:
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu as pallas_tpu

    lanes = pallas_tpu.get_tpu_info().num_lanes  # of the target: this process has no TPU

    def double(source: Any, target: Any) -> None:
        target[...] = source[...] * 2

    block = pallas.BlockSpec((8, lanes), lambda row, column: (row, column))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas.pallas_call(double, out_shape=shape, grid=(2, x.shape[1] // lanes), in_specs=[block], out_specs=block)(x)


def test_a_users_kernel_knows_the_target() -> None:
    with compiled_for("v5e") as programs:
        call = kernels.make_kernel_from_pallas(by_a_users_kernel, lambda x: [(x.shape, x.dtype)])
        kept = call(torch.zeros(16, 256, device="xla"))
        torch_xla.sync()
        assert kept.shape == (16, 256) and len(kernels_in(programs[-1])) == 1
