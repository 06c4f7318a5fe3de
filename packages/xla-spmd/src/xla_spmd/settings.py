"""Every environment variable that this package reads, beside those of the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xla_core.abi.settings import Setting


def _sizes(text: str) -> Mapping[str, int]:
    """Sizes by name from `data=4,tensor=2`. Raises ValueError for other texts."""
    pairs = [part.strip().partition("=") for part in text.split(",")]
    sizes = {name: int(size) for name, _, size in pairs}
    if len(sizes) < len(pairs) or not all(sizes) or min(sizes.values()) < 1:
        raise ValueError(text)
    return sizes


PLANNED_MESH: Setting[Mapping[str, int] | None] = Setting(
    "XLA_PLANNED_MESH",
    None,
    "Sizes of mesh axes, as in data=4,tensor=2, in place of the script's, for a target that is not there: `xla-debug plan --search`.",
    _sizes,
    "NAME=SIZE for each axis, separated by commas",
)

SETTINGS: tuple[Setting[Any], ...] = (PLANNED_MESH,)
