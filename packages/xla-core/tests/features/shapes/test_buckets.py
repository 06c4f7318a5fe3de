"""Chosen sizes pad no more than any others, and less than powers of two and equal steps."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from torch_xla.shapes import Buckets, choose_buckets

WORK: dict[str, Callable[[int], float]] = {"elements": float, "attention": lambda n: n * n, "steps": lambda n: n // 4}
COUNTED = st.dictionaries(st.integers(1, 40), st.integers(1, 9), min_size=1, max_size=8)


def padding(counted: dict[int, int], sizes: tuple[int, ...], work: Callable[[int], float]) -> float:
    """The work that padding adds, by the definition."""
    return sum(count * (work(min(size for size in sizes if size >= length)) - work(length)) for length, count in counted.items())


def least(counted: dict[int, int], multiple: int, work: Callable[[int], float]) -> dict[int, float]:
    """The least padding for each number of buckets, over all sets of sizes."""
    possible = sorted({math.ceil(length / multiple) * multiple for length in counted})
    sets = [(*chosen, possible[-1]) for count in range(len(possible)) for chosen in itertools.combinations(possible[:-1], count)]
    best: dict[int, float] = {}
    for sizes in sets:
        best[len(sizes)] = min(best.get(len(sizes), math.inf), padding(counted, sizes, work))
    return best


@given(COUNTED, st.integers(1, 9), st.integers(1, 5), st.sampled_from(sorted(WORK)))
def test_no_other_sizes_pad_less(counted: dict[int, int], count: int, multiple: int, work: str) -> None:
    buckets = choose_buckets(counted, count, multiple_of=multiple, work=WORK[work])
    assert len(buckets.sizes) <= count and all(size % multiple == 0 for size in buckets.sizes)
    best = min(value for number, value in least(counted, multiple, WORK[work]).items() if number <= count)
    assert padding(counted, buckets.sizes, WORK[work]) == pytest.approx(best)


@given(COUNTED, st.floats(0, 200), st.integers(1, 5), st.sampled_from(sorted(WORK)))
def test_no_other_number_of_buckets_is_cheaper(counted: dict[int, int], cost: float, multiple: int, work: str) -> None:
    buckets = choose_buckets(counted, cost=cost, multiple_of=multiple, work=WORK[work])
    best = min(value + cost * number for number, value in least(counted, multiple, WORK[work]).items())
    assert padding(counted, buckets.sizes, WORK[work]) + cost * len(buckets.sizes) == pytest.approx(best)


def lengths_of(kind: str) -> list[int]:
    """Ten thousand lengths from 1 to 4,096."""
    generator = np.random.default_rng(0)
    drawn = {
        "sentences": lambda: generator.lognormal(3.2, 0.7, 10_000),
        "chats": lambda: np.concatenate([generator.normal(60, 20, 7_000), generator.normal(1_500, 300, 3_000)]),
        "documents": lambda: generator.pareto(1.1, 10_000) * 100,
    }[kind]()
    return np.clip(drawn, 1, 4_096).astype(int).tolist()


@pytest.mark.parametrize("kind", ["sentences", "chats", "documents"])
def test_chosen_sizes_beat_powers_of_two_and_equal_steps(kind: str) -> None:
    lengths = lengths_of(kind)
    longest = max(lengths)
    doubled = Buckets(tuple(2**power for power in range(math.ceil(math.log2(longest)) + 1)))
    count = len(doubled.sizes)
    equal = Buckets(tuple(sorted({math.ceil(longest * (part + 1) / count) for part in range(count)})))
    chosen = choose_buckets(lengths, count)
    waste = [sizes.waste(lengths).padding for sizes in (chosen, doubled, equal)]
    assert waste[0] < 0.7 * min(waste[1:]), waste


def test_many_distinct_lengths_in_many_buckets() -> None:
    lengths = range(1, 4_097)
    sizes = choose_buckets(lengths, 64).sizes
    assert sizes == tuple(range(64, 4_097, 64))
    assert choose_buckets(lengths, 10_000).sizes == tuple(lengths)


@pytest.mark.parametrize(
    "lengths", [[3, 5, 3], np.array([3, 5, 3]), torch.tensor([3, 5, 3]), (length for length in (3, 5, 3)), {3: 2, 5: 1}]
)
def test_lengths_come_one_by_one_or_counted(lengths: object) -> None:
    assert choose_buckets(lengths, 2).sizes == (3, 5)  # type: ignore[arg-type]


def test_a_length_goes_to_the_smallest_bucket_that_takes_it() -> None:
    buckets = Buckets((4, 8, 32))
    assert [buckets.of(length) for length in (0, 1, 4, 5, 8, 9, 32)] == [4, 4, 4, 8, 8, 32, 32]
    with pytest.raises(ValueError, match="no bucket takes a length of 33: the largest is 32"):
        buckets.of(33)


@given(st.dictionaries(st.integers(1, 32), st.integers(1, 9), min_size=1))
def test_the_report_counts_what_is_padded(counted: dict[int, int]) -> None:
    buckets = Buckets((4, 8, 32))
    waste = buckets.waste(counted)
    assert waste.padding == padding(counted, buckets.sizes, float)
    real = sum(length * count for length, count in counted.items())
    assert waste.share == pytest.approx(waste.padding / (waste.padding + real))
    assert {bucket.size: bucket.examples for bucket in waste.buckets if bucket.examples} == Counter(
        {size: count for size in buckets.sizes if (count := sum(n for length, n in counted.items() if buckets.of(length) == size))}
    )


def test_the_text_of_a_report() -> None:
    assert str(Buckets((4, 8)).waste({2: 1_000, 8: 1})).splitlines() == [
        "      size    examples   padding",
        "         4       1,000     50.0%",
        "         8           1      0.0%",
        "       all       1,001     49.9%",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], 2), "there are no lengths"),
        (([3, 0], 2), "whole numbers above 0"),
        (([3, 2.5], 2), "whole numbers above 0"),
        (([True], 2), "whole numbers above 0"),
        (({3: -1}, 2), "whole numbers above 0"),
        (([3],), "either count=, the most buckets, or cost="),
        (([3], 0), "count is 0, must be at least 1"),
    ],
)
def test_what_is_no_choice_is_refused(arguments: tuple[object, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        choose_buckets(*arguments)  # type: ignore[arg-type]


def test_other_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="either"):
        choose_buckets([3], 2, cost=1.0)
    for cost in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="cost is"):
            choose_buckets([3], cost=cost)
    with pytest.raises(ValueError, match="multiple_of is 0"):
        choose_buckets([3], 2, multiple_of=0)
    for work in (lambda n: -n, lambda n: math.nan):
        with pytest.raises(ValueError, match="work must be finite and may not decrease"):
            choose_buckets([3, 5], 2, work=work)
    for sizes in ((), (0, 3), (3, 3), (5, 3), (2.5,)):
        with pytest.raises(ValueError, match="sizes of buckets"):
            Buckets(sizes)  # type: ignore[arg-type]


def test_buckets_are_read_as_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "buckets.json"
    buckets = choose_buckets(range(1, 100), 7, multiple_of=8)
    buckets.save(path)
    assert Buckets.load(path) == buckets
    buckets = Buckets((1,))
    buckets.save(path)
    assert Buckets.load(path) == buckets and [each.name for each in tmp_path.iterdir()] == ["buckets.json"]


DAMAGED = {
    "cut off": '{"format": "xla-buckets", "version": 1, "siz',
    "another program's": "[1, 2]",
    "of another format": '{"format": "other", "version": 1, "sizes": [1]}',
    "newer": '{"format": "xla-buckets", "version": 2, "sizes": [1]}',
    "without sizes": '{"format": "xla-buckets", "version": 1}',
    "no sizes": '{"format": "xla-buckets", "version": 1, "sizes": []}',
    "not ascending": '{"format": "xla-buckets", "version": 1, "sizes": [8, 4]}',
    "not whole": '{"format": "xla-buckets", "version": 1, "sizes": [1.5]}',
    "deeply nested": "[" * 100_000,
    "long numbers": f'{{"format": "xla-buckets", "version": 1, "sizes": [{"9" * 10_000}]}}',
    "not text": "\udcff",
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "buckets.json"
    path.write_bytes(DAMAGED[kind].encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"buckets\.json"):
        Buckets.load(path)


def test_a_pipe_a_folder_and_nothing_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, tmp_path / "absent", Path("/dev/zero")):
        with pytest.raises(OSError, match=path.name):
            Buckets.load(path)
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ValueError, match=r"large\.json"):
        Buckets.load(large)
    assert json.loads('{"a": 1}') == {"a": 1}
