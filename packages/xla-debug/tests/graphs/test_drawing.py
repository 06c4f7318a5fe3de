"""Drawn programs: every operation and arrow is there, nothing overlaps, nothing breaks the formats."""

from __future__ import annotations

import random
import re
from xml.etree import ElementTree

import pytest

from xla_debug.graphs.drawing import dot, svg
from xla_debug.graphs.graph_text import parse
from xla_debug.graphs.layering import layered

TEXT = """\
%0 = input : f32[2,3]
%1 = aten.einsum('ij,kj->"ik"', [%0, %0]) : f32[2,2]  # <train> & "co".py:3
%2 = aten.max.dim(%1, -1) : 2 results
%3 = result : f32[2]
%4 = result : i64[2]
%5 = aten.relu(%3) : f32[2]  # train.py:5
return %5, %4
"""
SVG = "{http://www.w3.org/2000/svg}"


def titles(drawing: str) -> dict[str, str]:
    """What pointing at each box shows, by its id."""
    found = ElementTree.fromstring(drawing).iter(f"{SVG}g")
    return {group.attrib["id"]: group.findtext(f"{SVG}title") or "" for group in found if "id" in group.attrib}


def test_dot_has_a_box_for_each_operation_and_an_arrow_for_each_use() -> None:
    drawn = dot(parse(TEXT))
    assert re.findall(r"^  (n\d+) \[label=\"([^\\\"]*)", drawn, re.M) == [
        ("n0", "input"),
        ("n1", "aten.einsum"),
        ("n2", "aten.max.dim"),
        ("n5", "aten.relu"),
    ]
    assert re.findall(r"n\d+ -> n\d+", drawn) == ["n0 -> n1", "n1 -> n2", "n2 -> n5"]
    assert r"""tooltip="%1 = aten.einsum('ij,kj->\"ik\"', [%0, %0]) : f32[2,2]\n<train> & \"co\".py:3",""" in drawn
    assert [slot for slot, rest in re.findall(r"^  (n\d+) \[(.*)\];", drawn, re.M) if "penwidth=2" in rest] == ["n2", "n5"]


def test_pointing_at_a_box_shows_the_operation_and_the_line() -> None:
    found = titles(svg(parse(TEXT)))
    assert found == {
        "n0": "%0 = input : f32[2,3]",
        "n1": """%1 = aten.einsum('ij,kj->"ik"', [%0, %0]) : f32[2,2]\n<train> & "co".py:3""",
        "n2": "%2 = aten.max.dim(%1, -1) : 2 results\n%3 = result : f32[2]\n%4 = result : i64[2]",
        "n5": "%5 = aten.relu(%3) : f32[2]\ntrain.py:5",
    }


def test_long_names_fit_their_boxes() -> None:
    name = "aten." + "very_" * 20 + "long"
    shown = ElementTree.fromstring(svg(parse(f"%0 = {name}() : f32[2]\nreturn %0"))).findtext(f".//{SVG}text") or ""
    assert len(shown) == 25 and name.startswith(shown[:-1])


def test_an_empty_program_is_drawn_too() -> None:
    drawn = svg(parse("return "))
    assert titles(drawn) == {}
    assert all(int(number) >= 0 for number in ElementTree.fromstring(drawn).attrib["viewBox"].split())


def training_like(inputs: int, operations: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Boxes and arrows: a long chain, uses far back, and inputs that come in late."""
    draw = random.Random(0)
    boxes = list(range(inputs + operations))
    arrows = {(box - 1, box) for box in boxes[inputs:]} | {(draw.randrange(box), box) for box in boxes[inputs:]}
    return boxes, sorted(arrows, key=lambda arrow: arrow[::-1])


@pytest.mark.parametrize(("inputs", "operations"), [(1, 1), (40, 5), (30, 300)])
def test_layers_are_in_order_and_nothing_overlaps(inputs: int, operations: int) -> None:
    boxes, arrows = training_like(inputs, operations)
    found = layered(boxes, arrows, box_width=100, line_width=10)
    assert set(found.boxes) == set(boxes)
    assert all(found.boxes[source].layer < found.boxes[target].layer for source, target in arrows)
    rows: dict[int, list[tuple[float, float]]] = {}
    for places, width in ((found.boxes.values(), 100), (found.passed, 10)):
        for place in places:
            rows.setdefault(place.layer, []).append((place.x - width / 2, place.x + width / 2))
    assert set(rows) == set(range(found.layers))
    for row in rows.values():
        row.sort()
        assert all(one[1] <= other[0] + 1e-6 for one, other in zip(row, row[1:], strict=False))
        assert row[0][0] >= -1e-6 and row[-1][1] <= found.width + 1e-6


def test_every_arrow_can_be_followed_from_layer_to_layer() -> None:
    boxes, arrows = training_like(10, 60)
    found = layered(boxes, arrows, box_width=100, line_width=10)
    box_at = {place: box for box, place in found.boxes.items()}
    below = {upper: [lower for start, lower in found.lines if start == upper] for upper, _ in found.lines}
    assert all(lower.layer == upper.layer + 1 for upper, lower in found.lines)
    reached = set()
    for box in boxes:
        waiting = list(below.get(found.boxes[box], ()))
        while waiting:
            place = waiting.pop()
            if place in box_at:
                reached.add((box, box_at[place]))
            else:
                waiting += below[place]
    assert reached == set(arrows)


def test_a_chain_is_drawn_straight_and_a_diamond_even() -> None:
    chain = layered([0, 1, 2], [(0, 1), (1, 2)], 100, 10)
    assert {place.x for place in chain.boxes.values()} == {50.0}
    diamond = layered([0, 1, 2, 3], [(0, 1), (0, 2), (1, 3), (2, 3)], 100, 10)
    assert [diamond.boxes[box].x for box in range(4)] == pytest.approx([100, 50, 150, 100])


def test_what_is_needed_late_stands_late() -> None:
    found = layered([0, 1, 2, 3, 4, 5], [(0, 1), (1, 2), (2, 3), (0, 4), (3, 5), (4, 5)], 100, 10)
    assert [found.boxes[box].layer for box in range(6)] == [0, 1, 2, 3, 3, 4]


def test_many_inputs_of_one_operation_take_several_layers() -> None:
    boxes = list(range(31))
    found = layered(boxes, [(box, 30) for box in boxes[:-1]], 100, 10)
    assert sorted(sum(place.layer == layer for place in found.boxes.values()) for layer in range(found.layers)) == [1, 6, 12, 12]
