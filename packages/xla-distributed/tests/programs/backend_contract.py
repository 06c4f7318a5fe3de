"""The contract of collectives, among real replicas."""

from __future__ import annotations

from typing import Any

import harness
from xla_core.testing import check_collective_backend
from xla_distributed.collectives import backend


def work(rank: int, folder: str) -> dict[str, Any]:
    check_collective_backend(backend)
    return {"checked": True}


if __name__ == "__main__":
    harness.main(work)
