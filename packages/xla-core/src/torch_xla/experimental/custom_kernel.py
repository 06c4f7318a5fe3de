"""Attention, grouped and quantized products that have hand-written kernels, and any Pallas kernel."""

from xla_core.features.kernels.flash_attention import FlashAttention as FlashAttention
from xla_core.features.kernels.flash_attention import flash_attention as flash_attention
from xla_core.features.kernels.flash_attention import flash_attention_non_xla as flash_attention_non_xla
from xla_core.features.kernels.flash_attention import flash_attention_xla as flash_attention_xla
from xla_core.features.kernels.flash_attention import generate_ctx_need_grad as generate_ctx_need_grad
from xla_core.features.kernels.flash_attention import non_xla_attetion as non_xla_attetion
from xla_core.features.kernels.flash_attention import safe_empty_like as safe_empty_like
from xla_core.features.kernels.grouped import GMM as GMM
from xla_core.features.kernels.grouped import gmm as gmm
from xla_core.features.kernels.grouped import gmm_backward as gmm_backward
from xla_core.features.kernels.grouped import gmm_non_xla as gmm_non_xla
from xla_core.features.kernels.grouped import gmm_xla as gmm_xla
from xla_core.features.kernels.grouped import repeat_with_fixed_output_size as repeat_with_fixed_output_size
from xla_core.features.kernels.grouped import tgmm as tgmm
from xla_core.features.kernels.paged_attention import multi_queries_paged_attention as multi_queries_paged_attention
from xla_core.features.kernels.paged_attention import multi_queries_paged_attention_non_xla as multi_queries_paged_attention_non_xla
from xla_core.features.kernels.paged_attention import multi_queries_paged_attention_xla as multi_queries_paged_attention_xla
from xla_core.features.kernels.paged_attention import non_xla_ragged_paged_attention as non_xla_ragged_paged_attention
from xla_core.features.kernels.paged_attention import paged_attention as paged_attention
from xla_core.features.kernels.paged_attention import paged_attention_non_xla as paged_attention_non_xla
from xla_core.features.kernels.paged_attention import paged_attention_xla as paged_attention_xla
from xla_core.features.kernels.paged_attention import ragged_paged_attention as ragged_paged_attention
from xla_core.features.kernels.paged_attention import ragged_paged_attention_non_xla as ragged_paged_attention_non_xla
from xla_core.features.kernels.paged_attention import ragged_paged_attention_xla as ragged_paged_attention_xla
from xla_core.features.kernels.pallas import convert_torch_dtype_to_jax as convert_torch_dtype_to_jax
from xla_core.features.kernels.pallas import jax_import_guard as jax_import_guard
from xla_core.features.kernels.pallas import make_kernel_from_pallas as make_kernel_from_pallas
from xla_core.features.kernels.pallas import to_jax_shape_dtype_struct as to_jax_shape_dtype_struct
from xla_core.features.kernels.pallas import trace_pallas as trace_pallas
from xla_core.features.kernels.pallas import trace_pallas_arg_to_payload as trace_pallas_arg_to_payload
from xla_core.features.kernels.quantized_matmul import quantized_matmul_int8 as quantized_matmul_int8
from xla_core.features.kernels.quantized_matmul import quantized_matmul_int8_non_xla as quantized_matmul_int8_non_xla
from xla_core.features.kernels.quantized_matmul import quantized_matmul_int8_xla as quantized_matmul_int8_xla
from xla_core.ops.nn.attention.flash_kernel import fa_custom_backward_fake as fa_custom_backward_fake
from xla_core.ops.nn.attention.flash_kernel import fa_custom_forward_fake as fa_custom_forward_fake
from xla_core.ops.nn.attention.scores import DEFAULT_MASK_VALUE as DEFAULT_MASK_VALUE

__all__ = [name for name in dir() if not name.startswith("__")]
