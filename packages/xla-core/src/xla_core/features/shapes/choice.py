"""Choose sizes for lengths: the split of the sorted lengths into buckets that pads least.

A bucket holds the lengths between the size below it and its own, and pads them to that. What a bucket pads grows faster the wider it is
(the quadrangle inequality), so that the best begin of the last bucket never moves back when a length is added (F. F. Yao, Efficient
dynamic programming using quadrangle inequalities, 1980): a row of the table takes m log m steps, not m².
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Padding:
    """What buckets pad. sizes: possible ones, ascending. counts, work: how many lengths need each, and the work for them without padding,
    both summed up from 0. padded: the work for one length padded to each size.
    """

    sizes: Integers
    counts: Floats
    work: Floats
    padded: Floats

    def between(self, begins: Integers, ends: Integers) -> Floats:
        """The work that padding adds in the buckets of the sizes from each begin up to each end, exclusive."""
        lengths = self.counts[ends] - self.counts[begins]
        return lengths * self.padded[ends - 1] - (self.work[ends] - self.work[begins])


def padding_of(counted: dict[int, int], multiple: int, work: Callable[[int], float]) -> Padding:
    """Prepare a choice. counted: how often each length comes. Sizes are multiples of `multiple`. Raises ValueError if `work` decreases."""
    lengths = np.array(sorted(counted), np.int64)
    counts = np.array([counted[length] for length in lengths.tolist()], np.float64)
    alone = np.array([work(length) for length in lengths.tolist()], np.float64)
    sizes, places = np.unique(-(-lengths // multiple) * multiple, return_inverse=True)
    padded = np.array([work(size) for size in sizes.tolist()], np.float64)
    every = np.concatenate([alone, padded])[np.argsort(np.concatenate([lengths, sizes]), kind="stable")]
    if not np.isfinite(every).all() or (np.diff(every) < 0).any():
        raise ValueError(
            "work must be finite and may not decrease with the length: give it as a function of one length, such as lambda n: n * n"
        )
    of_sizes = np.zeros((2, len(sizes)), np.float64)
    np.add.at(of_sizes[0], places, counts)
    np.add.at(of_sizes[1], places, counts * alone)
    summed = np.concatenate([np.zeros((2, 1)), np.cumsum(of_sizes, axis=1)], axis=1)
    return Padding(sizes, summed[0], summed[1], padded)


def best_of_count(padding: Padding, count: int) -> list[int]:
    """The sizes of at most `count` buckets that pad least."""
    total = len(padding.sizes)
    if count >= total:
        return [int(size) for size in padding.sizes]
    ends = np.arange(1, total + 1)
    least = np.concatenate([[0.0], padding.between(np.zeros(total, np.int64), ends)])
    rows: list[Integers] = [np.zeros(total + 1, np.int64)]
    for _ in range(1, count):
        least, begins = _one_bucket_more(padding, least)
        rows.append(begins)
    return _ends(padding, rows)


def _one_bucket_more(padding: Padding, before: Floats) -> tuple[Floats, Integers]:
    """The least padding of the sizes up to each with one bucket more than `before`, and where the last bucket begins.

    Halves the ends: the best begin for the one in the middle bounds those of both halves. All middles of one depth are found at once.
    """
    total = len(padding.sizes)
    least, begins = np.zeros(total + 1), np.zeros(total + 1, np.int64)
    first, last, low, high = (np.array([bound]) for bound in (1, total, 0, total - 1))
    while len(first):
        middle = (first + last) // 2
        counts = np.minimum(high, middle - 1) - low + 1
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        choice = np.arange(counts.sum()) - np.repeat(starts - low, counts)
        values = before[choice] + padding.between(choice, np.repeat(middle, counts))
        minima = np.minimum.reduceat(values, starts)
        least[middle] = minima
        at_minimum = np.flatnonzero(values == np.repeat(minima, counts))
        begins[middle] = best = choice[at_minimum[np.searchsorted(at_minimum, starts)]]
        first, last, low, high = (np.concatenate(pair) for pair in ((first, middle + 1), (middle - 1, last), (low, best), (best, high)))
        left = first <= last
        first, last, low, high = first[left], last[left], low[left], high[left]
    return least, begins


def _ends(padding: Padding, rows: list[Integers]) -> list[int]:
    sizes, end = [], len(padding.sizes)
    for begins in reversed(rows):
        if end:
            sizes.append(int(padding.sizes[end - 1]))
            end = int(begins[end])
    return sizes[::-1]


def best_of_cost(padding: Padding, cost: float) -> list[int]:
    """The sizes for which padding and `cost` for each bucket are least together."""
    total = len(padding.sizes)
    least, begins = np.zeros(total + 1), np.zeros(total + 1, np.int64)
    for end in range(1, total + 1):
        choice = np.arange(end)
        values = least[:end] + padding.between(choice, np.full(end, end)) + cost
        begins[end] = int(np.argmin(values))
        least[end] = values[begins[end]]
    return _ends(padding, [begins] * total)
