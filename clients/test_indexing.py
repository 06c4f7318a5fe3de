"""Tensors of xla indexed by permutations and masks of the CPU, as loops over data and losses of libraries do it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.model_selection import KFold, train_test_split
from transformers import BertConfig, BertForMaskedLM
from transformers.pytorch_utils import apply_chunking_to_forward, prune_linear_layer

ROWS = torch.arange(24.0).reshape(8, 3)


def test_a_permutation_of_the_cpu_shuffles_rows() -> None:
    order = torch.randperm(8)
    assert torch.equal(ROWS.to("xla")[order].cpu(), ROWS[order])


def test_mini_batches_of_a_permutation_cover_the_rows() -> None:
    order = torch.randperm(8)
    batches = [ROWS.to("xla")[order[start : start + 3]] for start in range(0, 8, 3)]
    assert torch.equal(torch.cat(batches).cpu(), ROWS[order])


def test_splits_of_sklearn_index_rows() -> None:
    data = ROWS.to("xla")
    for kept, held in KFold(4, shuffle=True, random_state=0).split(np.arange(8)):
        assert torch.equal(data[kept].cpu(), ROWS[kept])
        assert torch.equal(data[torch.as_tensor(held)].cpu(), ROWS[held])
    kept, _ = train_test_split(list(range(8)), random_state=0)
    assert torch.equal(data[kept].cpu(), ROWS[kept])


@pytest.mark.parametrize("mask", [ROWS[:, 0] > 5, ROWS > 5], ids=["of rows", "of elements"])
def test_a_mask_of_the_cpu_selects(mask: torch.Tensor) -> None:
    assert torch.equal(ROWS.to("xla")[mask].cpu(), ROWS[mask])


@pytest.mark.parametrize("value", [-100.0, torch.tensor(-1.0)], ids=["number", "tensor"])
def test_a_mask_of_the_cpu_writes(value: float | torch.Tensor) -> None:
    expected, found = ROWS.clone(), ROWS.to("xla")
    mask = ROWS % 2 == 0
    expected[mask] = value
    found[mask] = value
    assert torch.equal(found.cpu(), expected)


def test_masked_words_are_written_as_collators_do() -> None:
    """80 % of the chosen words become the mask's, as in DataCollatorForLanguageModeling, with masks drawn on the CPU."""
    torch.manual_seed(0)
    words = torch.randint(0, 50, (4, 6))
    chosen = torch.bernoulli(torch.full(words.shape, 0.5)).bool()
    replaced = torch.bernoulli(torch.full(words.shape, 0.8)).bool() & chosen
    found = []
    for device in ("cpu", "xla"):
        inputs, labels = words.to(device, copy=True), words.to(device, copy=True)
        labels[~chosen] = -100
        inputs[replaced] = 49
        found.append((inputs.cpu(), labels.cpu()))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_a_masked_language_model_scores_positions_of_the_cpu() -> None:
    torch.manual_seed(0)
    cpu = BertForMaskedLM(
        BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50, max_position_embeddings=16,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    ).eval()  # fmt: skip
    words = torch.randint(0, 50, (2, 6))
    places = torch.tensor([1, 4])
    with torch.no_grad():
        expected = cpu(input_ids=words).logits[torch.arange(2), places]
        found = cpu.to("xla")(input_ids=words.to("xla")).logits[torch.arange(2), places]
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_helpers_of_transformers_index_and_chunk() -> None:
    torch.manual_seed(0)
    cpu = torch.nn.Linear(3, 4)
    xla = torch.nn.Linear(3, 4).to("xla")
    xla.load_state_dict(cpu.state_dict())
    kept = torch.tensor([0, 3])
    assert torch.equal(prune_linear_layer(xla, kept.to("xla")).weight.detach().cpu(), prune_linear_layer(cpu, kept).weight.detach())
    chunked = apply_chunking_to_forward(xla.forward, 2, 0, ROWS.to("xla"))
    torch.testing.assert_close(chunked.detach().cpu(), cpu(ROWS).detach(), rtol=1e-5, atol=1e-5)
