"""What the processor of this machine can do."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def instruction_sets(described: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Names of its instruction sets, as Linux calls them (`avx512_bf16`); none on other systems. described: the kernel's file about it."""
    try:
        rows = described.read_text().splitlines()
    except OSError:
        return frozenset()
    row = next((row for row in rows if row.startswith(("flags", "Features"))), "")
    return frozenset(row.partition(":")[2].split())


def multiplies_bfloat16() -> bool:
    """Whether it has instructions for sums of products of bfloat16 numbers: without, they are converted to float32 first."""
    return not instruction_sets().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})
