"""Sizes for data of many lengths: chosen from the lengths, kept in a file, with a report of what they waste."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from xla_core.base.files import atomic_write_bytes, read_small_file
from xla_core.features.shapes.choice import best_of_cost, best_of_count, padding_of

Lengths = Iterable[int] | Mapping[int, int]
"""Lengths one by one, or how often each length comes."""
_FORMAT = "xla-buckets"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Bucket:
    """What one size takes. examples: the lengths that are padded to it; elements: their sum; padding: the elements added to them."""

    size: int
    examples: int
    elements: int
    padding: int


@dataclass(frozen=True, slots=True)
class Waste:
    """What sizes pad: a row for each size. Its text is a table."""

    buckets: tuple[Bucket, ...]

    @property
    def padding(self) -> int:
        """The elements that padding adds."""
        return sum(bucket.padding for bucket in self.buckets)

    @property
    def share(self) -> float:
        """The part of all elements that is padding, from 0 to 1."""
        elements = sum(bucket.elements for bucket in self.buckets)
        return self.padding / max(elements + self.padding, 1)

    def __str__(self) -> str:
        lines = [f"{'size':>10}  {'examples':>10}  {'padding':>8}"]
        for bucket in self.buckets:
            share = bucket.padding / max(bucket.elements + bucket.padding, 1)
            lines.append(f"{bucket.size:>10,}  {bucket.examples:>10,}  {share:>8.1%}")
        lines.append(f"{'all':>10}  {sum(bucket.examples for bucket in self.buckets):>10,}  {self.share:>8.1%}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Sizes to which lengths are padded, ascending. Raises ValueError for sizes that are not."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        sizes = tuple(self.sizes)
        if (
            not sizes
            or any(not _is_length(size) for size in sizes)
            or any(after <= before for before, after in zip(sizes, sizes[1:], strict=False))
        ):
            raise ValueError(f"sizes of buckets are whole numbers above 0, each larger than the one before, got {list(sizes)}")
        object.__setattr__(self, "sizes", tuple(map(int, sizes)))

    def of(self, length: int) -> int:
        """The smallest size that takes `length`. Raises ValueError for one that none takes."""
        if not 0 <= length <= self.sizes[-1]:
            raise ValueError(
                f"no bucket takes a length of {length}: the largest is {self.sizes[-1]}. Cut it, or choose buckets with such lengths"
            )
        return self.sizes[bisect_left(self.sizes, length)]

    def waste(self, lengths: Lengths) -> Waste:
        """What these sizes pad for lengths. Raises ValueError for a length that no bucket takes."""
        counted = _counted(lengths)
        examples, elements, padding = Counter[int](), Counter[int](), Counter[int]()
        for length, count in counted.items():
            size = self.of(length)
            examples[size] += count
            elements[size] += count * length
            padding[size] += count * (size - length)
        return Waste(tuple(Bucket(size, examples[size], elements[size], padding[size]) for size in self.sizes))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sizes to a JSON file, which is replaced at once. Raises OSError."""
        text = json.dumps({"format": _FORMAT, "version": _VERSION, "sizes": list(self.sizes)})
        atomic_write_bytes(path, f"{text}\n".encode())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Buckets:
        """Read a file of `save`. Raises OSError, or ValueError for a file that is damaged or another program's."""
        try:
            content: Any = json.loads(read_small_file(path, _LARGEST_FILE))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} has no buckets: {error}. Write it with Buckets.save") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f'{path} has no buckets: "format" is not "{_FORMAT}". Write it with Buckets.save')
        if content.get("version") != _VERSION:
            raise ValueError(f"{path} is of version {content.get('version')!r}, this release reads {_VERSION}: choose the buckets anew")
        sizes = content.get("sizes")
        if not isinstance(sizes, list):
            raise ValueError(f'{path} has no list of "sizes", but {sizes!r}')
        try:
            return Buckets(tuple(sizes))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


_LARGEST_FILE = 1 << 24
"""Bytes."""


def choose_buckets(
    lengths: Lengths,
    count: int | None = None,
    *,
    cost: float | None = None,
    multiple_of: int = 1,
    work: Callable[[int], float] = float,
) -> Buckets:
    """The sizes that pad lengths least: of at most `count` buckets, or of as many as pay for themselves.

    lengths: of the data, or a sample of it; the largest size takes the longest. cost: of one more bucket, which is one more program to
    compile, in the unit of `work`: the seconds of a compile divided by the seconds that an element takes, say. work: for one example of a
    length; by default its elements, `lambda n: n * n` for attention. Sizes are multiples of `multiple_of`.
    Raises ValueError for lengths below 1 or none at all, and unless one of `count` and `cost` is given.
    """
    if (count is None) == (cost is None):
        raise ValueError("choose_buckets takes either count=, the most buckets, or cost=, of one more bucket in the unit of work")
    if count is not None and count < 1:
        raise ValueError(f"count is {count}, must be at least 1")
    if cost is not None and not 0 <= cost < float("inf"):
        raise ValueError(f"cost is {cost}, must be a number from 0 on")
    if multiple_of < 1:
        raise ValueError(f"multiple_of is {multiple_of}, must be at least 1")
    padding = padding_of(_counted(lengths), multiple_of, work)
    return Buckets(tuple(best_of_cost(padding, cost) if cost is not None else best_of_count(padding, count or 1)))


def _is_length(length: Any) -> bool:
    return isinstance(length, (int, np.integer)) and not isinstance(length, bool) and int(length) > 0


def _counted(lengths: Lengths) -> dict[int, int]:
    counted = Counter(dict(lengths)) if isinstance(lengths, Mapping) else Counter(_plain(lengths))
    wrong = [length for length, count in counted.items() if not _is_length(length) or not isinstance(count, (int, np.integer)) or count < 0]
    if wrong:
        raise ValueError(f"lengths are whole numbers above 0, got {wrong[:3]}")
    kept = {int(length): int(count) for length, count in counted.items() if count}
    if not kept:
        raise ValueError("there are no lengths: give those of the data, or of a sample of it")
    return kept


def _plain(lengths: Iterable[Any]) -> Iterable[Any]:
    tolist = getattr(lengths, "tolist", None)
    return lengths if tolist is None else tolist()  # of a tensor or an array
