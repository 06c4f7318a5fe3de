"""Gradients are reduced while backward goes on, where the backend allows it: what the program makes wait for what."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

LAYERS = 6
WEIGHT = "f32[360,360]"


@pytest.fixture(scope="module")
def reports(start: Callable[..., Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = start("overlap", 2).reports()
    return found


def instructions(hlo: str) -> dict[str, tuple[str, list[str]]]:
    """Name → opcode with the type of the result, and names of the operands, of the computation that holds the collectives."""
    body = next(part for part in hlo.split("\n}\n") if " all-reduce(" in part)
    lines = re.findall(r"^  (?:ROOT )?(\S+) = (\S+?)(?:\{[\d,]*\})? ([\w-]+)\(([^)]*)\)", body, re.M)
    return {name: (f"{opcode} {kind}", re.findall(r"[\w.-]+", operands)) for name, kind, opcode, operands in lines}


def awaited(program: dict[str, tuple[str, list[str]]], name: str) -> set[str]:
    """All instructions whose results one depends on."""
    found: set[str] = set()
    queue = [name]
    while queue:
        new = [operand for operand in program[queue.pop()][1] if operand in program and operand not in found]
        found.update(new)
        queue.extend(new)
    return found


def weight_gradients(program: dict[str, tuple[str, list[str]]]) -> set[str]:
    return {name for name, (kind, _) in program.items() if kind == f"dot {WEIGHT}"}


def collectives(program: dict[str, tuple[str, list[str]]]) -> list[str]:
    return [name for name, (kind, _) in program.items() if kind.startswith("all-reduce ")]


def test_a_bucket_waits_for_the_gradients_in_it_alone(reports: list[dict[str, Any]]) -> None:
    program = instructions(reports[0]["1"]["hlo"])
    gradients = weight_gradients(program)
    assert len(gradients) == LAYERS
    waits = [awaited(program, name) for name in collectives(program)]
    assert [len(wait & gradients) for wait in waits] == [2, 4, 6], "two layers more for each bucket, which waits for those before"
    forward_and_own = LAYERS + 2 + 2  # each backward matrix product makes the gradient of a weight, or that of a layer's input
    assert sum(program[name][0].startswith("dot ") for name in waits[0]) == forward_and_own


def test_backward_waits_for_no_bucket(reports: list[dict[str, Any]]) -> None:
    program = instructions(reports[0]["1"]["hlo"])
    reduced = set(collectives(program))
    for name in weight_gradients(program):
        assert not awaited(program, name) & reduced


def test_collectives_keep_their_order(reports: list[dict[str, Any]]) -> None:
    program = instructions(reports[0]["1"]["hlo"])
    first, second, third = collectives(program)
    assert first in awaited(program, second) and second in awaited(program, third)


def test_without_buckets_all_gradients_are_awaited(reports: list[dict[str, Any]]) -> None:
    program = instructions(reports[0]["0"]["hlo"])
    (only,) = collectives(program)
    assert weight_gradients(program) <= awaited(program, only) and len(weight_gradients(program)) == LAYERS


def test_both_make_the_step_of_the_whole_batch(reports: list[dict[str, Any]]) -> None:
    assert all(report[cap]["off"] < 1e-4 for report in reports for cap in ("1", "0"))
