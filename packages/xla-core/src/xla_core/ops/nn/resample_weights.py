"""Which input positions each output position of an interpolation reads, and with what weights. NumPy only, known at compile time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Blend:
    """One tap per row: `index` (taps, out) and `weight` (taps, out), or no weight where the value is taken as it is."""

    index: np.ndarray
    weight: np.ndarray | None


def _ratio(size: int, out: int, scale: float | None, real: type[np.floating]) -> np.floating:
    """Input positions per output position, as torch's kernels round it."""
    if scale is not None and scale > 0:
        return real(1.0 / scale)
    return real(size) / real(out)


def _centres(size: int, out: int, align_corners: bool, scale: float | None, real: type[np.floating]) -> np.ndarray:
    """The input coordinate of each output position."""
    number = np.arange(out, dtype=real)
    if align_corners:
        step = real(size - 1) / real(out - 1) if out > 1 else real(0)
        centres: np.ndarray = number * step
    else:
        centres = _ratio(size, out, scale, real) * (number + real(0.5)) - real(0.5)
    return centres.astype(real)


def nearest(size: int, out: int, scale: float | None, exact: bool, real: type[np.floating]) -> Blend:
    """The one position below each output position, or, if `exact`, the nearest to its centre."""
    number = np.arange(out, dtype=real)
    if not exact and out in (size, 2 * size):
        index = np.arange(out) * size // out
    else:
        coordinate = (number + real(0.5) if exact else number) * _ratio(size, out, scale, real)
        index = np.floor(coordinate).astype(np.int64)
    return Blend(np.minimum(index, size - 1)[None], None)


def linear(size: int, out: int, align_corners: bool, scale: float | None, real: type[np.floating]) -> Blend:
    """The two neighbours of each output position."""
    if out == size:
        return Blend(np.arange(out)[None], None)
    centre = np.maximum(_centres(size, out, align_corners, scale, real), real(0))
    low = np.minimum(np.floor(centre).astype(np.int64), size - 1)
    upper = np.clip(centre - low.astype(real), real(0), real(1)).astype(real)
    return Blend(np.stack([low, np.minimum(low + 1, size - 1)]), np.stack([real(1) - upper, upper]))


def _cubic_filter(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' piecewise cubic of |x|."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def cubic(size: int, out: int, align_corners: bool, scale: float | None, real: type[np.floating]) -> Blend:
    """The four positions around each output position; those past the ends repeat the end."""
    centre = _centres(size, out, align_corners, scale, real)
    low = np.floor(centre).astype(np.int64)
    part = (centre - low).astype(real)
    offsets = range(-1, 3)
    index = np.stack([np.clip(low + k, 0, size - 1) for k in offsets])
    return Blend(index, np.stack([_cubic_filter(np.abs(part - k), -0.75) for k in offsets]).astype(real))


def _sinc(x: np.ndarray) -> np.ndarray:
    value: np.ndarray = np.sinc(x)
    return value


ANTIALIASED: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
    "bilinear": (1.0, lambda x: np.maximum(1 - np.abs(x), 0)),
    "bicubic": (2.0, lambda x: _cubic_filter(np.abs(x), -0.5)),
    "lanczos": (3.0, lambda x: np.where(np.abs(x) < 3, _sinc(x) * _sinc(x / 3), 0)),
}


def antialiased(size: int, out: int, align_corners: bool, scale: float | None, kind: str, real: type[np.floating]) -> Blend:
    """All positions under a filter that widens with the reduction, weights adding up to one."""
    reach, shape = ANTIALIASED[kind]
    if align_corners:
        step = float(real(size - 1) / real(out - 1)) if out > 1 else 0.0
    else:
        step = float(_ratio(size, out, scale, real))
    support, shrink = (reach * step, 1 / step) if step >= 1 else (reach, 1.0)
    centre = step * (np.arange(out) + 0.5)
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    count = np.minimum((centre + support + 0.5).astype(np.int64), size) - first
    width = min(max(int(count.max()), 1), 2 * math.ceil(support) + 1)
    number = np.arange(width)[:, None]
    weight = np.where(number < count, shape((number + first - centre + 0.5) * shrink), 0.0)
    total = weight.sum(0)
    weight = np.divide(weight, total, out=np.zeros_like(weight), where=total != 0)
    return Blend(np.minimum(number + first, size - 1), weight.astype(real))
