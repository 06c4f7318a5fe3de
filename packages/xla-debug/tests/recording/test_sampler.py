"""The paths by which the sampler tells what a thread does."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset

from xla_debug.recording import sampler
from xla_debug.run_report.schema import Phase


def test_files_that_events_time_exist() -> None:
    missing = [path for path in sampler._TIMED if not Path(path).exists()]
    assert missing == [], "the core's files have moved: name them anew, or their time counts twice"


def test_a_long_run_is_sampled_less_often_and_each_sample_counts_for_its_time() -> None:
    weights = [sampler.weight_of(number) for number in range(3_000)]
    assert weights[:128] == [1] * 128 and weights == sorted(weights) and weights[-1] == 16
    ends_s = [total * sampler.INTERVAL_S for total in accumulate(weights)]
    assert sum(end < 2 for end in ends_s) >= 99, "fifty a second at first"
    assert sum(60 < end <= 61 for end in ends_s) < 10


class Held(IterableDataset[torch.Tensor]):
    """Batches that do not come before they may."""

    def __init__(self) -> None:
        self.asked, self.free = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.asked.set()
        self.free.wait()  # batches are made here
        yield torch.ones(1)


def test_a_loader_s_thread_says_where_batches_are_made() -> None:
    data = Held()
    reader = threading.Thread(target=lambda: next(iter(DataLoader(data))))
    reader.start()
    data.asked.wait()
    frames = sys._current_frames()
    here = sampler.classify(frames[threading.get_ident()])
    made = sampler.classify_with_loaders(frames, reader.ident or 0)
    waits = frames[reader.ident or 0]
    while not sampler._in_loader(waits):
        assert waits.f_back is not None
        waits = waits.f_back
    # A thread that is in the loader itself, beside the one that makes batches for it.
    beside = sampler.classify_with_loaders({1: waits, **frames}, 1)
    data.free.set()
    reader.join()
    number = next(
        number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# batches are made here")
    )
    assert made == beside == (Phase.LOADER, f"{__file__}:{number}")
    assert here is not None and here[0] is Phase.PYTHON
