"""transformers' generate on xla gives the tokens of the CPU, and a second call of the same shapes compiles nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import torch_xla.debug.metrics as met

NEW = 4
SET_UP = 5  # right padding? any padding? equal special tokens (twice)? encoder's tokens?


@pytest.fixture(scope="module")
def cpu() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=64,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def xla(cpu: LlamaForCausalLM) -> LlamaForCausalLM:
    return copy.deepcopy(cpu).to("xla")


@pytest.fixture
def prompt() -> torch.Tensor:
    return torch.randint(2, 64, (2, 5), generator=torch.Generator().manual_seed(0))


def compiled() -> int:
    """Programs compiled so far."""
    return met.counter_value("UncachedCompile") or 0


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_tokens_equal_the_cpu(cpu: LlamaForCausalLM, xla: LlamaForCausalLM, prompt: torch.Tensor, cache: str) -> None:
    chosen = {"max_new_tokens": NEW, "do_sample": False, "cache_implementation": cache}
    assert torch.equal(xla.generate(prompt.to("xla"), **chosen).cpu(), cpu.generate(prompt, **chosen))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_second_call_compiles_nothing(xla: LlamaForCausalLM, prompt: torch.Tensor, cache: str) -> None:
    chosen = {"max_new_tokens": NEW, "do_sample": False, "cache_implementation": cache}
    xla.generate(prompt.to("xla"), **chosen)
    before = compiled()
    xla.generate(prompt.to("xla"), **chosen)
    assert compiled() == before


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_first_call_compiles_one_program_for_each_token_beside_the_set_up(cpu: LlamaForCausalLM, cache: str) -> None:
    fresh = copy.deepcopy(cpu).to("xla")
    prompt = torch.randint(2, 64, (1, 3), generator=torch.Generator().manual_seed(0)).to("xla")  # of a shape of its own
    longer = 2 if cache == "dynamic" else 3
    before = compiled()
    fresh.generate(prompt, max_new_tokens=longer, do_sample=False, cache_implementation=cache)
    assert compiled() - before <= SET_UP + longer


def test_an_attention_mask_with_left_padding_equals_the_cpu(cpu: LlamaForCausalLM, xla: LlamaForCausalLM, prompt: torch.Tensor) -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    expected = cpu.generate(prompt, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(xla.generate(prompt.to("xla"), attention_mask=mask.to("xla"), max_new_tokens=NEW, do_sample=False).cpu(), expected)


def test_the_same_seed_samples_the_same_tokens(xla: LlamaForCausalLM, prompt: torch.Tensor) -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(xla.generate(prompt.to("xla"), max_new_tokens=NEW, do_sample=True).cpu())
    assert torch.equal(*drawn)
