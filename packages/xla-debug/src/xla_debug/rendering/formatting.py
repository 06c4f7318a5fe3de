"""Format durations, bytes, shares and counts for people."""

from __future__ import annotations

from collections.abc import Sequence


def duration(ms: float) -> str:
    """Format milliseconds to about three digits: `0.042 ms`, `12.3 ms`, `1.25 s`, `3 min 20 s`."""
    size = abs(ms)
    if size >= 59_950:
        minutes, seconds = divmod(round(ms / 1000), 60)
        return f"{minutes} min {seconds} s"
    if size >= 999.5:
        return f"{ms / 1000:.{2 if size < 9_995 else 1}f} s"
    return f"{milliseconds(ms)} ms"


def milliseconds(ms: float) -> str:
    """Format milliseconds as a plain number, to about three digits."""
    size = abs(ms)
    return f"{ms:.{0 if size >= 99.95 or size == 0 else 1 if size >= 9.995 else 2 if size >= 0.1 else 3}f}"


def size(nbytes: float) -> str:
    """Format bytes in steps of 1024: `512 B`, `1.5 KiB`, `2.0 GiB`."""
    if abs(nbytes) < 1024:
        return f"{nbytes:.0f} B"
    for power, unit in enumerate(("KiB", "MiB", "GiB"), 1):
        if abs(nbytes) < 1023.95 * 1024**power:
            return f"{nbytes / 1024**power:.1f} {unit}"
    return f"{nbytes / 1024**4:.1f} TiB"


def percent(share: float) -> str:
    """Format a share of 0 to 1 as `62 %`."""
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    """Format a count, which may be an average: `1,200`, `2.5`."""
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.{1 if value >= 1 else 2}f}"


def counted(count: float, noun: str) -> str:
    """Format a count with its noun: `1 step`, `2 steps`."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def ranges(ordinals: Sequence[int]) -> str:
    """Format whole numbers as ranges: `0-3, 7`."""
    parts: list[list[int]] = []
    for ordinal in sorted(ordinals):
        if parts and ordinal == parts[-1][-1] + 1:
            parts[-1].append(ordinal)
        else:
            parts.append([ordinal])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
