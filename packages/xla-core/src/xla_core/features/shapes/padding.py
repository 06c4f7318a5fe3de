"""Pad batches to the sizes of buckets, so that data of many lengths makes few programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import default_collate

from xla_core.features.shapes.buckets import Buckets

Key = str | int | None
"""The name of an entry of a dict, the position in a tuple or list, None for a batch or sample that is one tensor."""
_IGNORED = -100
"""The class that torch's losses leave out."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Pads batches: `collate` makes them of samples, for a DataLoader; calling it pads those that are batches already.

    values: what is filled in; or that for each entry of a batch, by name or position: then only these entries have sequences.
    rows: pad the first dimension to so many rows, too, so that the last batch has the shape of the others. mask: add a bool tensor of
    shape (rows, size), True where the first sequence of the batch has data: under this name in a dict, else as a last entry. dim: the
    dimension of sequences in batches that are there already. side: where sequences are padded.
    """

    buckets: Buckets
    values: complex | Mapping[Any, complex] = 0
    rows: int | None = None
    mask: str | None = None
    dim: int = 1
    side: Literal["right", "left"] = "right"

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows is {self.rows}, must be at least 1")
        if self.dim < 1:
            raise ValueError(f"dim is {self.dim}: sequences stand in dimension 1 or a later one, rows in dimension 0")
        if self.side not in ("right", "left"):
            raise ValueError(f'side is {self.side!r}, must be "right" or "left"')

    @classmethod
    def for_tokenizer(cls, tokenizer: Any, buckets: Buckets, rows: int | None = None, labels: str = "labels") -> Padding:
        """Pads as a tokenizer of transformers: with its tokens, on its side, and `labels` with what losses leave out.

        Raises ValueError for a tokenizer without a padding token.
        """
        if tokenizer.pad_token_id is None:
            raise ValueError("the tokenizer has no padding token: set tokenizer.pad_token = tokenizer.eos_token, or another one")
        known = {"input_ids": tokenizer.pad_token_id, "token_type_ids": getattr(tokenizer, "pad_token_type_id", 0)}
        values = {name: known.get(name, 0) for name in ("input_ids", *tokenizer.model_input_names)}
        return cls(buckets, {**values, "special_tokens_mask": 1, labels: _IGNORED}, rows, side=tokenizer.padding_side)

    def collate(self, samples: Sequence[Any]) -> Any:
        """A batch of samples: sequences are padded to the bucket of the longest one, all else is stacked as torch does.

        Samples are sequences, or tuples, lists or dicts with some. Sequences are tensors and arrays whose first dimension is the length,
        and lists of numbers. Raises ValueError for a sequence that no bucket takes.
        """
        if not samples:
            raise ValueError("there are no samples to make a batch of")
        first = samples[0]
        lengths: list[int] = []  # of the first sequences
        if isinstance(first, Mapping):
            columns = {name: self._column(name, [sample[name] for sample in samples], lengths) for name in first}
            return self._finished(columns, lengths)
        if isinstance(first, (tuple, list)) and not _is_numbers(first):
            return self._finished(
                [self._column(place, list(items), lengths) for place, items in enumerate(zip(*samples, strict=True))], lengths
            )
        return self._finished(self._column(None, list(samples), lengths), lengths)

    def __call__(self, batch: Any) -> Any:
        """A batch whose sequences are padded: tensors with a dimension `dim`, or the entries that `values` names.

        Raises ValueError for a sequence that no bucket takes.
        """
        lengths: list[int] = []
        if isinstance(batch, Mapping):
            return self._finished({name: self._sequences(name, entry, lengths) for name, entry in batch.items()}, lengths)
        if isinstance(batch, (tuple, list)):
            return self._finished([self._sequences(place, entry, lengths) for place, entry in enumerate(batch)], lengths)
        return self._finished(self._sequences(None, batch, lengths), lengths)

    def _column(self, key: Key, items: list[Any], lengths: list[int]) -> Any:
        if not self._is_sequence(key) or not all(map(_is_sequence, items)):
            return default_collate(items)
        tensors = [torch.as_tensor(item) for item in items]
        size = self.buckets.of(max(map(len, tensors)))
        lengths[:] = lengths or map(len, tensors)
        return torch.stack([self._padded(tensor, 0, size, self._value(key)) for tensor in tensors])

    def _sequences(self, key: Key, entry: Any, lengths: list[int]) -> Any:
        if not isinstance(entry, torch.Tensor) or entry.dim() <= self.dim or not self._is_sequence(key):
            return entry
        length = entry.shape[self.dim]
        lengths[:] = lengths or [length] * len(entry)
        return self._padded(entry, self.dim, self.buckets.of(length), self._value(key))

    def _is_sequence(self, key: Key) -> bool:
        return key in self.values if isinstance(self.values, Mapping) else True

    def _value(self, key: Key) -> complex:
        return self.values.get(key, 0) if isinstance(self.values, Mapping) else self.values

    def _padded(self, tensor: torch.Tensor, dim: int, size: int, value: complex) -> torch.Tensor:
        more = size - tensor.shape[dim]
        if not more:
            return tensor
        shape = list(tensor.shape)
        shape[dim] = more
        parts = [tensor, tensor.new_full(shape, value)]
        return torch.cat(parts if self.side == "right" else parts[::-1], dim)

    def _finished(self, batch: Any, lengths: list[int]) -> Any:
        """The batch with its mask and with all its rows."""
        if self.mask is not None:
            mask = self._mask(lengths)
            if isinstance(batch, dict):
                batch[self.mask] = mask
            else:
                batch = [*batch, mask] if isinstance(batch, list) else [batch, mask]
        if self.rows is None:
            return batch
        if isinstance(batch, dict):
            return {name: self._with_rows(name, entry) for name, entry in batch.items()}
        if isinstance(batch, list):
            return [self._with_rows(place, entry) for place, entry in enumerate(batch)]
        return self._with_rows(None, batch)

    def _mask(self, lengths: list[int]) -> torch.Tensor:
        if not lengths:
            raise ValueError("there is no sequence in the batch, of which a mask could tell the data")
        places = torch.arange(self.buckets.of(max(lengths)), device="cpu")
        mask = places < torch.tensor([*lengths, *[0] * ((self.rows or 0) - len(lengths))], device="cpu")[:, None]
        return mask if self.side == "right" else mask.flip(1)

    def _with_rows(self, key: Key, entry: Any) -> Any:
        if not isinstance(entry, torch.Tensor) or not entry.dim() or self.rows is None:
            return entry
        if len(entry) > self.rows:
            raise ValueError(f"a batch has {len(entry)} rows, more than the {self.rows} that it is padded to")
        return replace(self, side="right")._padded(entry, 0, self.rows, self._value(key))


def _is_numbers(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(number, (int, float, complex)) for number in item)


def _is_sequence(item: Any) -> bool:
    return isinstance(item, (torch.Tensor, np.ndarray)) and item.ndim > 0 or _is_numbers(item)
