"""Lengths of time, bytes, shares and counts as texts."""

from __future__ import annotations

import pytest

from xla_debug.rendering.formatting import counted, duration, number, percent, ranges, size


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0.0, "0 ms"),
        (0.0421, "0.042 ms"),
        (0.5, "0.50 ms"),
        (9.994, "9.99 ms"),
        (9.996, "10.0 ms"),
        (99.96, "100 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (9_994.0, "9.99 s"),
        (9_996.0, "10.0 s"),
        (59_940.0, "59.9 s"),
        (59_960.0, "1 min 0 s"),
        (200_400.0, "3 min 20 s"),
    ],
)
def test_durations(ms: float, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (1 << 52, "4096.0 TiB"),
    ],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_shares_and_counts() -> None:
    assert [percent(share) for share in (0.0, 0.624, 1.0)] == ["0 %", "62 %", "100 %"]
    assert [number(value) for value in (0, 0.25, 2.5, 100.4, 12_000)] == ["0", "0.25", "2.5", "100", "12,000"]
    assert [counted(count, "step") for count in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_ranges_of_ordinals() -> None:
    assert [ranges(ordinals) for ordinals in ([], [3], [1, 0], [7, 0, 1, 2, 5, 6])] == ["", "3", "0-1", "0-2, 5-7"]
