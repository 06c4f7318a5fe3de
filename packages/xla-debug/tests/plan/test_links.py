"""How long collectives take on a torus, and what other work covers, beside sums by hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from xla_debug.plan.hardware import HOP_SECONDS, SPEEDS
from xla_debug.plan.links import Background, Way, way
from xla_debug.plan.traffic import Collective

V6E, H100 = SPEEDS["TPU v6 lite"], SPEEDS["NVIDIA H100 80GB HBM3"]


@dataclass(frozen=True)
class Chip:
    coords: tuple[int, ...]


def slice_of(*sizes: int) -> list[Chip]:
    return [Chip((*place, 0)) for place in product(*map(range, sizes))]


def gathered(group: list[int], nbytes: int = 90_000_000) -> Collective:
    return Collective("all-gather", len(group), tuple(group), nbytes)


@pytest.mark.parametrize(
    ("shape", "group", "axes", "directions", "hops"),
    [
        ((16, 16), list(range(256)), (0, 1), 4, 16),  # a torus: both ways around along both axes
        ((16, 16), list(range(16)), (1,), 2, 8),
        ((2, 4), list(range(8)), (0, 1), 2, 4),  # two lines: the last one has a link on one side
        ((2, 4), [0, 4], (0,), 1, 1),
        ((4, 16), list(range(64)), (0, 1), 3, 11),
    ],
)
def test_bytes_go_both_ways_around_a_ring_and_one_way_along_a_line(
    shape: tuple[int, ...], group: list[int], axes: tuple[int, ...], directions: int, hops: int
) -> None:
    found = way(gathered(group), slice_of(*shape), V6E)
    sent = 90_000_000 * (len(group) - 1) / len(group)
    assert found.axes == axes
    assert found.seconds == pytest.approx(sent / (90e9 * directions) + hops * HOP_SECONDS)


def test_devices_without_places_have_one_link() -> None:
    assert way(gathered([0, 1]), [object(), object()], H100) == Way((0,), 45_000_000 / 450e9)


def test_other_work_covers_a_collective_as_far_as_it_goes() -> None:
    background = Background()
    background.begin(1, Way((0,), 5.0), 1)
    background.beside(2.0, 1)
    assert background.end(1) == 3.0
    assert background.end(1) == 0.0, "it is done"


def test_collectives_on_the_same_links_follow_each_other() -> None:
    background = Background()
    background.begin(1, Way((0,), 5.0), 1)
    background.begin(2, Way((0,), 4.0), 1)
    background.begin(3, Way((1,), 4.0), 1)
    background.beside(6.0, 1)
    assert (background.end(3), background.end(1), background.end(2)) == (0.0, 0.0, 3.0)


def test_who_waits_for_a_collective_waits_for_those_before_it() -> None:
    background = Background()
    background.begin(1, Way((0, 1), 5.0), 1)
    background.begin(2, Way((1,), 4.0), 1)
    background.beside(2.0, 1)
    assert background.end(2) == 7.0
    assert background.end(1) == 0.0


def test_all_turns_of_a_loop_cover_a_collective_that_began_before_it() -> None:
    background = Background()
    background.begin(1, Way((0,), 5.0), 1)
    background.beside(0.1, 32)
    assert background.end(1) == pytest.approx(5.0 - 3.2)
