"""Lay out an acyclic graph in layers: arrows go down, few cross, none runs through a box.

The usual method (Sugiyama's) in four steps: layers by longest path, positions for long arrows in the layers that they pass, an order
within each layer by the mean position of neighbours, and coordinates as near to neighbours as that order allows.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Boxes in a layer, beyond which further boxes go to another layer if they can.
_WIDEST = 12
_SWEEPS = 4

# A box, or the place that the arrows of a box take in a layer that they pass: (box, layer).
_Key = int | tuple[int, int]
_Rows = list[list[_Key]]
_Neighbours = Mapping[_Key, list[_Key]]


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a box or an arrow. layer: from the top, 0 first. x: its middle, from the left edge of the picture."""

    x: float
    layer: int


@dataclass(frozen=True, slots=True)
class Layered:
    """A layout. boxes: their positions. passed: where arrows go straight through a layer. lines: from each layer to the next."""

    width: float
    layers: int
    boxes: dict[int, Position]
    passed: list[Position]
    lines: list[tuple[Position, Position]]


def layered(boxes: Sequence[int], arrows: Sequence[tuple[int, int]], box_width: float, line_width: float) -> Layered:
    """Lay out `boxes`, ordered so that arrows go to later ones. box_width, line_width: of a box, and of an arrow that passes a layer."""
    layer_of = _layers(boxes, arrows)
    lines = _lines(arrows, layer_of)
    rows = _rows(boxes, lines, layer_of)
    above: defaultdict[_Key, list[_Key]] = defaultdict(list)
    below: defaultdict[_Key, list[_Key]] = defaultdict(list)
    for upper, lower in lines:
        above[lower].append(upper)
        below[upper].append(lower)
    for _ in range(_SWEEPS):
        _reorder(rows, above)
        _reorder(rows[::-1], below)
    widths = {key: box_width if isinstance(key, int) else line_width for row in rows for key in row}
    x = _coordinates(rows, above, below, widths)
    left = min((x[key] - widths[key] / 2 for key in x), default=0.0)
    positions = {key: Position(x[key] - left, layer) for layer, row in enumerate(rows) for key in row}
    return Layered(
        width=max((positions[key].x + widths[key] / 2 for key in x), default=0.0),
        layers=len(rows),
        boxes={box: positions[box] for box in boxes},
        passed=[position for key, position in positions.items() if not isinstance(key, int)],
        lines=[(positions[upper], positions[lower]) for upper, lower in lines],
    )


def _layers(boxes: Sequence[int], arrows: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Choose the layer of each box: below its sources and just above its targets, or further up where there is room."""
    sources: defaultdict[int, list[int]] = defaultdict(list)
    targets: defaultdict[int, list[int]] = defaultdict(list)
    for source, target in arrows:
        sources[target].append(source)
        targets[source].append(target)
    highest: dict[int, int] = {}
    for box in boxes:
        highest[box] = 1 + max((highest[source] for source in sources[box]), default=-1)
    layer_of: dict[int, int] = {}
    taken: Counter[int] = Counter()
    for box in reversed(boxes):
        lowest = min((layer_of[target] for target in targets[box]), default=highest[box] + 1) - 1
        free = range(lowest, highest[box] - 1, -1) if sources[box] else itertools.count(lowest, -1)
        layer_of[box] = next((layer for layer in free if taken[layer] < _WIDEST), lowest)
        taken[layer_of[box]] += 1
    top = min(layer_of.values(), default=0)
    return {box: layer - top for box, layer in layer_of.items()}


def _lines(arrows: Sequence[tuple[int, int]], layer_of: Mapping[int, int]) -> list[tuple[_Key, _Key]]:
    """Cut arrows into lines from one layer to the next; the arrows of one box share lines."""
    lines: dict[tuple[_Key, _Key], None] = {}
    for source, target in arrows:
        passed: list[_Key] = [(source, layer) for layer in range(layer_of[source] + 1, layer_of[target])]
        for line in zip([source, *passed], [*passed, target], strict=True):
            lines[line] = None
    return list(lines)


def _rows(boxes: Sequence[int], lines: Sequence[tuple[_Key, _Key]], layer_of: Mapping[int, int]) -> _Rows:
    rows: _Rows = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for box in boxes:
        rows[layer_of[box]].append(box)
    for key in dict.fromkeys(upper for upper, _ in lines if not isinstance(upper, int)):
        rows[key[1]].append(key)
    return rows


def _reorder(rows: _Rows, neighbours: _Neighbours) -> None:
    """Sort each row by the mean position of each key's neighbours in the row before."""
    position: dict[_Key, float] = {key: index for row in rows for index, key in enumerate(row)}
    for row in rows:
        desired = {key: _mean(position, neighbours, key) for key in row}
        row.sort(key=desired.__getitem__)
        position.update((key, index) for index, key in enumerate(row))


def _mean(position: Mapping[_Key, float], neighbours: _Neighbours, key: _Key) -> float:
    """Average the positions of a key's neighbours; its own position if it has none."""
    near = neighbours.get(key)
    return sum(position[other] for other in near) / len(near) if near else position[key]


def _coordinates(rows: _Rows, above: _Neighbours, below: _Neighbours, widths: Mapping[_Key, float]) -> dict[_Key, float]:
    x: dict[_Key, float] = {}
    for row in rows:
        _settle(row, dict.fromkeys(row, 0.0), widths, x)
    for _ in range(_SWEEPS):
        for order, neighbours in ((rows, above), (rows[::-1], below)):
            for row in order:
                _settle(row, {key: _mean(x, neighbours, key) for key in row}, widths, x)
    return x


def _settle(row: Sequence[_Key], desired: Mapping[_Key, float], widths: Mapping[_Key, float], x: dict[_Key, float]) -> None:
    """Put a row as near to `desired` (least squares) as its order and widths allow: neighbours that collide move as one block."""
    offsets: list[float] = []
    width = 0.0
    blocks: list[tuple[float, int]] = []  # (mean desired position minus offset, number of keys)
    for key in row:
        offsets.append(width + widths[key] / 2)
        width += widths[key]
        mean, count = desired[key] - offsets[-1], 1
        while blocks and blocks[-1][0] > mean:
            other_mean, other_count = blocks.pop()
            mean, count = (mean * count + other_mean * other_count) / (count + other_count), count + other_count
        blocks.append((mean, count))
    starts = [mean for mean, count in blocks for _ in range(count)]
    x.update((key, start + offset) for key, start, offset in zip(row, starts, offsets, strict=True))
