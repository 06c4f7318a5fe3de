"""Padded batches have the data of their samples, masks that tell it, and few shapes."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch.utils.data import DataLoader

import torch_xla
from torch_xla.shapes import Buckets, Padding

BUCKETS = Buckets((4, 8, 32))
SEQUENCES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=32), min_size=1, max_size=5)


@given(SEQUENCES, st.sampled_from(["right", "left"]), st.sampled_from([None, 5, 7]))
def test_a_batch_has_its_sequences_where_the_mask_says(sequences: list[list[int]], side: Any, rows: int | None) -> None:
    batch, mask = Padding(BUCKETS, -1, rows, "mask", side=side).collate([torch.tensor(each) for each in sequences])
    size = next(size for size in BUCKETS.sizes if size >= max(map(len, sequences)))
    assert batch.shape == mask.shape == (rows or len(sequences), size)
    assert [row[kept].tolist() for row, kept in zip(batch, mask, strict=True)] == [*sequences, *[[]] * (len(batch) - len(sequences))]
    assert (batch[~mask] == -1).all()
    assert [row.nonzero().flatten().tolist() for row in mask[: len(sequences)]] == [
        list(range(len(each)) if side == "right" else range(size - len(each), size)) for each in sequences
    ]


@given(SEQUENCES, st.sampled_from([None, 6]))
def test_batches_that_are_there_are_padded_alike(sequences: list[list[int]], rows: int | None) -> None:
    longest = max(map(len, sequences))
    batch = torch.tensor([[*each, *[0] * (longest - len(each))] for each in sequences])
    padding = Padding(BUCKETS, rows=rows)
    assert torch.equal(padding(batch), padding.collate([torch.tensor(each) for each in sequences]))
    assert padding(padding(batch)).shape == padding(batch).shape


def test_entries_of_samples_are_padded_each_to_its_bucket() -> None:
    samples = [
        {"words": [1, 2, 3], "sounds": np.ones((9, 2), np.float32), "label": 1, "name": "a"},
        {"words": [4], "sounds": np.ones((2, 2), np.float32), "label": 0, "name": "b"},
    ]
    batch = Padding(BUCKETS, {"words": 7, "sounds": 0.5, "label": -100}, rows=3, mask="mask").collate(samples)
    assert batch["words"].tolist() == [[1, 2, 3, 7], [4, 7, 7, 7], [7, 7, 7, 7]]
    assert batch["sounds"].shape == (3, 32, 2) and batch["sounds"][1, 2:].eq(0.5).all() and batch["sounds"][1, :2].eq(1).all()
    assert batch["label"].tolist() == [1, 0, -100] and batch["name"] == ["a", "b"]
    assert batch["mask"].tolist() == [[True, True, True, False], [True, False, False, False], [False] * 4]


def test_only_named_entries_are_sequences() -> None:
    tokens, vector = torch.ones(3, dtype=torch.int64), torch.ones(5)
    batch = Padding(BUCKETS, {0: 9}).collate([(tokens, vector), (tokens[:1], vector)])
    assert [tuple(entry.shape) for entry in batch] == [(2, 4), (2, 5)]
    batch = Padding(BUCKETS, {"tokens": 9})({"tokens": torch.ones(2, 3), "vector": torch.ones(2, 5), "image": torch.ones(2, 3, 4)})
    assert [tuple(entry.shape) for entry in batch.values()] == [(2, 4), (2, 5), (2, 3, 4)]
    assert Padding(BUCKETS, dim=2)(torch.ones(2, 3, 5)).shape == (2, 3, 8)


def test_the_last_batch_of_a_loader_has_the_shape_of_the_others() -> None:
    data = [torch.arange(1, length + 1) for length in (3, 9, 2, 5, 7, 1, 4)]
    padding = pickle.loads(pickle.dumps(Padding(BUCKETS, rows=3, mask="mask")))
    batches = list(DataLoader(data, batch_size=3, collate_fn=padding.collate))  # type: ignore[arg-type]
    assert [tuple(batch.shape) for batch, _ in batches] == [(3, 32), (3, 8), (3, 4)]
    assert sum(int(mask.sum()) for _, mask in batches) == sum(map(len, data))
    assert sum(int(batch.sum()) for batch, _ in batches) == sum(int(each.sum()) for each in data)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_tokenizer_is_followed(side: str) -> None:
    tokenizer = SimpleNamespace(pad_token_id=5, padding_side=side, model_input_names=["input_ids", "attention_mask"])
    samples = [
        {"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "labels": [1, 2, 3]},
        {"input_ids": [1], "attention_mask": [1], "labels": [2]},
    ]
    batch = Padding.for_tokenizer(tokenizer, BUCKETS, rows=3).collate(samples)
    expected = {
        "input_ids": [[1, 2, 3, 5], [1, 5, 5, 5], [5] * 4],
        "attention_mask": [[1, 1, 1, 0], [1, 0, 0, 0], [0] * 4],
        "labels": [[1, 2, 3, -100], [2, -100, -100, -100], [-100] * 4],
    }
    if side == "left":
        expected = {name: [[5, 1, 2, 3], [5, 5, 5, 1], [5] * 4] if name == "input_ids" else rows for name, rows in expected.items()}
        expected["attention_mask"] = [[0, 1, 1, 1], [0, 0, 0, 1], [0] * 4]
        expected["labels"] = [[-100, 1, 2, 3], [-100, -100, -100, 2], [-100] * 4]
    assert {name: entry.tolist() for name, entry in batch.items()} == expected
    single = Padding.for_tokenizer(tokenizer, BUCKETS, rows=3).collate([{**each, "labels": 1} for each in samples])
    assert single["labels"].tolist() == [1, 1, -100]
    tokenizer.pad_token_id = None
    with pytest.raises(ValueError, match="no padding token: set tokenizer.pad_token"):
        Padding.for_tokenizer(tokenizer, BUCKETS)


def test_all_lengths_make_as_many_programs_as_there_are_buckets(counts: Any) -> None:
    padding = Padding(BUCKETS, rows=2, mask="mask")
    results, expected = [], []
    for length in range(1, 33):
        data = [torch.arange(float(length)), torch.ones(1)]
        batch, mask = (entry.to("xla") for entry in padding.collate(data))
        total = torch.where(mask, batch * 2 + 1, 0).sum(1)
        torch_xla.sync()
        results.append(total.tolist())
        expected.append([*[float((each * 2 + 1).sum()) for each in data]])
    assert results == expected
    assert counts.UncachedCompile <= len(BUCKETS.sizes)


def test_what_cannot_be_padded_is_refused() -> None:
    padding = Padding(BUCKETS, rows=1, mask="mask")
    for refused, text in (
        (lambda: padding.collate([torch.ones(33)]), "no bucket takes a length of 33"),
        (lambda: padding(torch.ones(1, 33)), "no bucket takes a length of 33"),
        (lambda: padding.collate([torch.ones(2), torch.ones(3)]), "2 rows, more than the 1"),
        (lambda: padding.collate([1.0]), "no sequence in the batch"),
        (lambda: padding.collate([]), "no samples"),
        (lambda: Padding(BUCKETS, rows=0), "rows is 0"),
        (lambda: Padding(BUCKETS, dim=0), "dim is 0"),
        (lambda: Padding(BUCKETS, side="top"), "side is 'top'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=text):
            refused()
