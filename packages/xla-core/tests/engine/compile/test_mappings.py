"""Processes with many programs keep within the memory mappings that Linux allows them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from xla_core.engine.compile.cache import ProgramCache
from xla_core.engine.compile.mappings import Mappings, count_mappings, most_mappings
from xla_core.engine.graph.graph import Inputs

NO_NUMBERS = Inputs([], [], [], [], [], [])
Run = Callable[..., str]


class Process:
    """A process of which each program takes so many mappings."""

    def __init__(self, each: int, most: int, kept: int = 0) -> None:
        self.each, self.most, self.kept = each, most, kept
        self.programs = self.counts = self.forgotten = 0
        self.mappings = Mappings(most, self.count)

    def count(self) -> int:
        self.counts += 1
        return 500 + self.kept + self.programs * self.each

    def forget(self) -> None:
        self.forgotten += 1
        self.programs //= 2

    def compile(self, operations: int) -> None:
        self.mappings.make_room(operations, self.forget)
        self.programs += 1
        assert self.count() <= self.most


@pytest.mark.parametrize(("operations", "each"), [(1, 6), (20, 100), (80, 200), (500, 2_000)])
def test_programs_are_forgotten_in_time_and_mappings_seldom_read(operations: int, each: int) -> None:
    process = Process(each, most=65_530)
    for _ in range(3_000):
        process.compile(operations)
    read = process.counts - 3_000
    assert read < 3_000 / 4 or operations == 500
    assert process.forgotten == 0 if 3_000 * each < 40_000 else process.forgotten > 0


def test_what_cannot_be_forgotten_is_said_once() -> None:
    process = Process(each=1, most=65_530, kept=50_000)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2_000):
            process.compile(3)
    assert [("vm.max_map_count" in str(warning.message), warning.category) for warning in seen] == [(True, RuntimeWarning)]
    assert process.counts - 2_000 < 100


def test_without_a_limit_nothing_is_read() -> None:
    def count() -> int:
        raise AssertionError("read")

    Mappings(None, count).make_room(10**9, count)


def test_the_half_that_was_used_least_recently_goes() -> None:
    cache = ProgramCache(100)
    for key in (*range(9), *range(4)):
        cache.program(key, NO_NUMBERS)
    cache.forget_half()
    assert len(cache) == 4 and all(cache.program(key, NO_NUMBERS).last_use > 13 for key in range(4)) and len(cache) == 4


def test_a_process_with_many_programs_goes_on(run: Run) -> None:
    if most_mappings() is None:
        pytest.skip("no limit of mappings here")
    assert count_mappings() > 100
    code = (
        "import torch, torch_xla\n"
        "from xla_core.engine.compile import mappings\n"
        "x = torch.ones(3, device='xla'); x.sum().item()\n"
        "most = mappings.count_mappings() + 900\n"
        "mappings.mappings._most, mappings.mappings._room = most, 0\n"
        "for size in range(1, 260):\n"
        "    x = torch.arange(float(size), device='xla')\n"
        "    assert (x.cumsum(0) * 2).flip(0)[0].item() == size * (size - 1), size\n"
        "    assert mappings.count_mappings() < most, size\n"
        "import torch_xla.debug.metrics\n"
        "print(torch_xla.debug.metrics.metric_data('CompileTime')[0])\n"
    )
    assert int(run(code)) >= 259
