"""A mixture of experts of transformers: routing counts integers with histc on any device but the CPU; results and gradients equal it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "output_router_logits": True,
}


def mixtral(implementation: str) -> MixtralForCausalLM:
    return MixtralForCausalLM(MixtralConfig(**SIZES, intermediate_size=64, num_local_experts=4, experts_implementation=implementation))


def qwen(implementation: str) -> Qwen3MoeForCausalLM:
    config = Qwen3MoeConfig(
        **SIZES, intermediate_size=64, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, head_dim=16,
        experts_implementation=implementation,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config)


@pytest.mark.parametrize(
    ("make", "implementation"), [(mixtral, "grouped_mm"), (mixtral, "batched_mm"), (mixtral, "eager"), (qwen, "grouped_mm")]
)
def test_loss_and_gradients_equal_the_cpu(make: Callable[[str], PreTrainedModel], implementation: str) -> None:
    torch.manual_seed(0)
    cpu = make(implementation)
    xla = copy.deepcopy(cpu).to("xla")
    words = torch.randint(0, 64, (2, 5))
    expected = cpu(input_ids=words, labels=words)
    found = xla(input_ids=words.to("xla"), labels=words.to("xla"))
    expected.loss.backward()
    found.loss.backward()
    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    assert found.aux_loss.item() == pytest.approx(expected.aux_loss.item(), rel=1e-5)
    for ours, theirs in zip(xla.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_histc_of_integers_counts_as_the_cpu_counts_the_same_floats(dtype: torch.dtype) -> None:
    experts = torch.tensor([0, 3, 3, 1, 7, 0, 8])
    expected = torch.histc(experts.float(), bins=8, min=0, max=7)
    counted = torch.histc(experts.to("xla", dtype), bins=8, min=0, max=7)
    assert counted.dtype == dtype
    assert counted.tolist() == expected.tolist()
