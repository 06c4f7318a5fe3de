"""Tied weights of transformers stay tied on xla, and train as on the CPU, under an optimizer made before the move."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import torch_xla

WORDS = 64


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_head=2, n_embd=32, vocab_size=WORDS, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip


def t5() -> PreTrainedModel:
    return T5ForConditionalGeneration(
        T5Config(
            num_layers=2, num_heads=2, d_model=32, d_kv=16, d_ff=64, vocab_size=WORDS, dropout_rate=0.0, decoder_start_token_id=0,
            tie_word_embeddings=True,
        )
    )  # fmt: skip


def whisper() -> PreTrainedModel:
    return WhisperForConditionalGeneration(
        WhisperConfig(
            encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, d_model=32, encoder_ffn_dim=64,
            decoder_ffn_dim=64, vocab_size=WORDS, num_mel_bins=8, max_source_positions=16, max_target_positions=32, dropout=0.0,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None,
        )
    )  # fmt: skip


def mamba() -> PreTrainedModel:
    return MambaForCausalLM(
        MambaConfig(num_hidden_layers=1, hidden_size=32, state_size=8, vocab_size=WORDS, pad_token_id=0, bos_token_id=0, eos_token_id=1)
    )


def words(seed: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (2, 6), generator=torch.Generator().manual_seed(seed))


def batch(model: PreTrainedModel, seed: int) -> dict[str, torch.Tensor]:
    if isinstance(model, WhisperForConditionalGeneration):
        return {"input_features": torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(seed)), "labels": words(seed)}
    return {"input_ids": words(seed), "labels": words(seed + 100 if isinstance(model, T5ForConditionalGeneration) else seed)}


def tied(model: PreTrainedModel) -> set[frozenset[str]]:
    """The names of each parameter that has several."""
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}


def trained(model: PreTrainedModel, optimizer: torch.optim.Optimizer, device: str) -> list[float]:
    """The loss of each of ten steps."""
    model.train()
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        loss = model(**{name: value.to(device) for name, value in batch(model, step).items()}).loss
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss)
    return [loss.item() for loss in losses]


@pytest.fixture(params=[gpt2, t5, whisper, mamba], ids=lambda make: make.__name__)
def model(request: pytest.FixtureRequest) -> Iterator[Any]:
    torch.manual_seed(0)
    yield request.param()


def test_moving_keeps_ties(model: PreTrainedModel) -> None:
    before = tied(model)
    assert before
    assert tied(model.to("xla")) == before


def test_moving_keeps_the_parameter_objects(model: PreTrainedModel) -> None:
    before = [id(parameter) for parameter in model.parameters()]
    assert [id(parameter) for parameter in model.to("xla").parameters()] == before
    assert {parameter.device.type for parameter in model.parameters()} == {"xla"}


def test_an_optimizer_made_before_the_move_trains_tied_weights(model: PreTrainedModel, assert_same_weights: Callable[..., None]) -> None:
    cpu = copy.deepcopy(model)
    expected = trained(cpu, torch.optim.SGD(cpu.parameters(), lr=0.1, momentum=0.9), "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = trained(model.to("xla"), optimizer, "xla")
    assert losses == pytest.approx(expected, rel=1e-5)
    assert_same_weights(model, cpu)
