"""What the compilers of platforms cannot take, in one table: recording asks it for each new signature, compiling for each program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

import torch


class Instead(Enum):
    """What becomes of an operation that a platform cannot take."""

    REFUSED = "refused when it is recorded"
    ON_HOST = "runs on the host, counted as a fallback"


@dataclass(frozen=True, slots=True)
class Limit:
    """Operations that the compiler of a platform cannot take, or would end the process at.

    operators: rows of the op table; empty for all operations. dtypes: of operands, results or `dtype=` arguments; empty for all.
    results: of results only; empty for all.
    reason: what the platform lacks, as a sentence without its end. advice: what to do instead, likewise.
    """

    instead: Instead
    reason: str
    advice: str
    operators: frozenset[str] = frozenset()
    dtypes: frozenset[torch.dtype] = frozenset()
    results: frozenset[torch.dtype] = frozenset()

    def holds(self, operator: str, operands: Collection[torch.dtype], results: Collection[torch.dtype]) -> bool:
        """Whether it is about an operation with this row, operands and results of these dtypes."""
        return (
            (not self.operators or operator in self.operators)
            and (not self.dtypes or not self.dtypes.isdisjoint((*operands, *results)))
            and (not self.results or not self.results.isdisjoint(results))
        )


_LU = ("_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "linalg_inv_ex", "linalg_lu", "linalg_lu_factor_ex")
_SVD = ("_linalg_svd", "linalg_pinv.atol_rtol_tensor")
_BITS = ("frexp.Tensor", "nextafter")


def _aten(*names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names)


# By platform, as `Context.platform`.
LIMITS: Mapping[str, tuple[Limit, ...]] = {
    "tpu": (
        Limit(
            Instead.REFUSED,
            "TPUs have no complex numbers of 128 bits",
            "use torch.complex64, or move the tensors with .cpu()",
            dtypes=frozenset({torch.complex128}),
        ),
        Limit(
            Instead.ON_HOST,
            "JAX has no eigenvalues of general matrices for TPUs",
            "use torch.linalg.eigh if the matrix is symmetric",
            _aten("linalg_eig", "_linalg_eigvals"),
        ),
        Limit(
            Instead.ON_HOST,
            "XLA:TPU has LU and singular value decompositions in 32 bits only",
            "use torch.float32",
            _aten(*_LU, *_SVD),
            results=frozenset({torch.float64}),
        ),
        Limit(
            Instead.ON_HOST,
            "XLA:TPU does not take the bits of float64 apart",
            "use torch.float32",
            _aten(*_BITS),
            results=frozenset({torch.float64}),
        ),
    ),
}


def limit_of(platform: str, operator: str, operands: Collection[torch.dtype], results: Collection[torch.dtype]) -> Limit | None:
    """The limit of a platform that holds for an operation; None if it can be compiled.

    operator: its row of the op table, or empty. operands: the dtypes of its tensors and of its `dtype=` arguments.
    results: those of its results.
    """
    return next((limit for limit in LIMITS.get(platform, ()) if limit.holds(operator, operands, results)), None)
