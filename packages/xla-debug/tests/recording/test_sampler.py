"""The paths by which the sampler tells what a thread does."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from xla_debug.recording import sampler


def test_files_that_events_time_exist() -> None:
    missing = [path for path in sampler._TIMED if not Path(path).exists()]
    assert missing == [], "the core's files have moved: name them anew, or their time counts twice"


def test_a_long_run_is_sampled_less_often_and_each_sample_counts_for_its_time() -> None:
    weights = [sampler.weight_of(number) for number in range(3_000)]
    assert weights[:128] == [1] * 128 and weights == sorted(weights) and weights[-1] == 16
    ends_s = [total * sampler.INTERVAL_S for total in accumulate(weights)]
    assert sum(end < 2 for end in ends_s) >= 99, "fifty a second at first"
    assert sum(60 < end <= 61 for end in ends_s) < 10
