"""transformers' generate on xla gives the tokens of the CPU, and a second call of the same shapes compiles nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import torch_xla
import torch_xla.debug.metrics as met
from xla_core.abi.events import Cause, SyncEvent, subscribe

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


def test_generate_launches_a_captured_forward_pass(cpu: LlamaForCausalLM, prompt: torch.Tensor) -> None:
    fresh, new = copy.deepcopy(cpu).to("xla"), 10
    fresh.forward = torch_xla.compile(fresh.forward, capture=True, verify_every=None)  # a call that is verified is recorded
    chosen = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "cache_implementation": "static"}
    expected = cpu.generate(prompt, **chosen)
    launched: list[SyncEvent] = []
    end = subscribe(lambda event: launched.append(event) if event.cause is Cause.CAPTURED else None, SyncEvent)
    try:
        for _ in range(2):
            assert torch.equal(fresh.generate(prompt.to("xla"), **chosen).cpu(), expected)
    finally:
        end()
    assert len(launched) > new  # those of the second call, and some of the first


@torch.inference_mode()
def decoded(model: LlamaForCausalLM, prompt: torch.Tensor, new: int) -> torch.Tensor:
    """Greedy decoding whose shapes stay the same from token to token."""
    cache = StaticCache(config=model.config, max_cache_len=prompt.shape[1] + new)
    positions = torch.arange(prompt.shape[1], device=prompt.device)[None]
    tokens, token = [], prompt
    for _ in range(new):
        token = model(token, past_key_values=cache, position_ids=positions).logits[:, -1:].argmax(-1)
        positions = positions[:, -1:] + 1
        tokens.append(token)
        torch_xla.sync()
    return torch.cat([prompt, *tokens], 1)


def test_a_loop_over_a_static_cache_compiles_one_program_for_the_prompt_and_one_for_all_tokens(cpu: LlamaForCausalLM) -> None:
    fresh, new = copy.deepcopy(cpu).to("xla"), 20
    prompt = torch.randint(2, 64, (1, 7), generator=torch.Generator().manual_seed(1))
    expected = cpu.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False)
    on_device = prompt.to("xla")
    before = compiled()
    assert torch.equal(decoded(fresh, on_device, new).cpu(), expected)
    assert compiled() - before == 3  # the last one puts the tokens together


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
