"""What is refused on device xla, with the reason and what to do instead. No test of a right refusal counts as passed."""

from __future__ import annotations

import re
from dataclasses import dataclass

REFUSALS = frozenset({"UnsupportedOperationError", "UnsupportedDtypeError", "UnsupportedStorageError"})
"""Errors of this project that say what cannot be done, and what to do instead."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A kind of tensors that is refused. words: that a refusal of it has."""

    kind: str
    words: re.Pattern[str]
    reason: str
    remedy: str


EXCLUSIONS = (
    Exclusion("complex32", re.compile(r"complex32"), "XLA has no complex numbers of half precision", "compute in complex64"),
    Exclusion("sparse", re.compile("sparse", re.IGNORECASE), "xla tensors are dense", "keep them on the CPU, or `to_dense()`"),
    Exclusion("quantized", re.compile(r"quantized|qu?int\d", re.IGNORECASE), "XLA has no dtypes of quantized tensors",
              "the quantized products of `torch_xla.experimental`"),
    Exclusion("nested", re.compile(r"nested|jagged", re.IGNORECASE), "xla tensors have one shape", "pad, and mask"),
)  # fmt: skip


def exclusion_of(error: str, text: str) -> Exclusion | None:
    """The exclusion that a refusal belongs to; None for any other error."""
    if error not in REFUSALS:
        return None
    return next((exclusion for exclusion in EXCLUSIONS if exclusion.words.search(text)), None)
