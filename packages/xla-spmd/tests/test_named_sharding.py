"""Shardings as programs hold them: the same shards on the same devices as JAX says, for meshes in any order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xla_spmd.named_sharding import _strides

FIRST = [3, 1, 2, 0, 7, 6, 5, 4]
BOTH = "{devices=[4,2]0,1,2,3,4,5,6,7}"


@pytest.mark.parametrize("name", ["order.as_jax_shards", "order.as_jax_shards_in_another_order"])
def test_shards_are_those_of_jax(report: Any, name: str) -> None:
    found = report(name)
    assert found["wrong"] == ""
    assert min(found["split"], found["impossible"]) > 20, "both outcomes were seen"


def test_the_first_mesh_chooses_the_order_of_devices(report: Any) -> None:
    assert report("order.as_jax_shards")["order"] == list(range(8))
    found = report("order.another_order")
    assert found["order"] == FIRST and found["text"] == "{devices=[2,4]3,1,2,0,7,6,5,4}" and found["errors"] == [0.0, 0.0]
    assert np.array(found["shard"]).shape == (4, 2)


def test_values_are_right_in_any_order(report: Any) -> None:
    found = report("order.several_orders")
    assert found["first"] == ["{devices=[2,4]3,1,2,0,7,6,5,4}", [6.0, 2.0, 4.0, 0.0, 38.0, 36.0, 34.0, 32.0]]
    assert found["other"] == [BOTH, [0.0, 4.0, 16.0, 20.0, 32.0, 36.0, 48.0, 52.0]], "as its text says"
    assert found["of each device"] == [[4, 2], [2, 4]], "each in its own order"
    assert found["replicas"] == [4, 8], "replicas have no order"
    assert found["errors"] == [0.0] * 3 and found["texts"] == [BOTH, "{devices=[8,1]0,4,1,5,2,6,3,7}"]


def test_meshes_of_any_order_are_divided(report: Any) -> None:
    found = report("order.any_orders")
    assert found["other orders"] >= 3 and found["order"] == [3, 1, 2, 0, 7, 6, 5, 4]


@st.composite
def boxes(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], bool]:
    """Places of a box, transposed and with neighbouring axes merged, or (False) in any order."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    places = np.arange(math.prod(sizes)).reshape(sizes).transpose(draw(st.permutations(range(len(sizes)))))
    cuts = sorted(draw(st.lists(st.integers(0, len(sizes)), max_size=3)))
    shape = [math.prod(places.shape[start:end]) for start, end in zip([0, *cuts], [*cuts, len(sizes)], strict=True)]
    transposed = draw(st.booleans())
    flat = places.ravel() if transposed else np.array(draw(st.permutations(range(places.size))))
    return flat.reshape(shape), transposed


@given(boxes())
def test_strides_are_those_of_a_box(box: tuple[np.ndarray[Any, Any], bool]) -> None:
    places, transposed = box
    found = _strides(places)
    assert found is not None or not transposed
    if found is None:
        return
    steps = [step for dim in found for step in dim]
    wanted = 1
    for size, stride in sorted(steps, key=lambda step: step[1]):
        assert stride == wanted
        wanted *= size
    assert wanted == places.size
    outermost_first = sorted(steps, key=lambda step: -step[1])
    box_of_steps = np.arange(places.size).reshape([size for size, _ in outermost_first])
    again = box_of_steps.transpose([outermost_first.index(step) for step in steps]).reshape(places.shape)
    assert np.array_equal(again, places)
