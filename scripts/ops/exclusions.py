"""Entries that are not expected to be right, with the reason. They count as not right all the same."""

from __future__ import annotations

from entries import Suite

_SPARSE = "xla tensors are dense; sparse layouts stay on the CPU"
_RANGE = "an index out of range is known on the device only, which cannot raise"

EXCLUSIONS: dict[Suite, dict[str, str]] = {
    Suite.OPS: {
        "to_sparse": _SPARSE,
        "sparse.mm.reduce": _SPARSE,
        "sparse.sampled_addmm": _SPARSE,
        "_batch_norm_with_update": "statistics saved for the gradient are float32 for inputs of half precision too, on the CPU half",
        "_native_batch_norm_legit": "as _batch_norm_with_update",
        "native_batch_norm": "as _batch_norm_with_update",
        "chalf": "complex32 has no counterpart in XLA",
    },
    Suite.ERRORS: {
        **dict.fromkeys(("gather", "scatter", "scatter_add", "take", "index_select", "index_add", "index_copy"), _RANGE),
        "multinomial": "more than 2**24 categories are drawn from, the CPU refuses them",
    },
    Suite.MODULES: {},
    Suite.OPTIMIZERS: {"SparseAdam": _SPARSE},
}
