"""Numbers of a launch in 32-bit words: a program reads what was written."""

from __future__ import annotations

import struct
from typing import Any

import jax
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_xla
from xla_core.abi.graph import register_wrapper
from xla_core.engine.compile.words import FloatForm, rows_of_words, words_of
from xla_core.engine.graph.entries import ScalarKind

FLOATS = st.lists(st.floats(width=64), max_size=4)
INTS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
SEEDS = st.lists(st.integers(0, 2**64 - 1), max_size=4)


def _read(floats: list[float], ints: list[int], seeds: list[int], form: FloatForm) -> dict[ScalarKind, list[Any]]:
    counts = {ScalarKind.FLOAT: len(floats), ScalarKind.INT: len(ints), ScalarKind.SEED: len(seeds)}
    with jax.enable_x64(True):
        packed = words_of(floats, ints, seeds, form)
        assert len(packed) == bool(floats or ints or seeds)
        return rows_of_words(form, [jax.numpy.asarray(words) for words in packed], counts)


def _bits(number: float) -> bytes:
    return struct.pack("d", number)


@given(FLOATS, INTS, SEEDS)
def test_a_program_reads_what_was_written(floats: list[float], ints: list[int], seeds: list[int]) -> None:
    rows = _read(floats, ints, seeds, FloatForm.DOUBLE)
    assert [_bits(float(row)) for row in rows[ScalarKind.FLOAT]] == [_bits(number) for number in floats]
    assert [int(row) for row in rows[ScalarKind.INT]] == ints
    assert [int(np.asarray(row).view(np.uint64)[0]) for row in rows[ScalarKind.SEED]] == seeds


@given(FLOATS, SEEDS)
def test_single_floats_are_rounded_once(floats: list[float], seeds: list[int]) -> None:
    rows = _read(floats, [], seeds, FloatForm.SINGLE)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(np.array(rows[ScalarKind.FLOAT], np.float32), np.array(floats).astype(np.float32))
    assert [int(np.asarray(row).view(np.uint64)[0]) for row in rows[ScalarKind.SEED]] == seeds


@given(st.lists(st.floats(-1e30, 1e30).filter(lambda number: number == 0 or abs(number) > 1e-20), max_size=4), INTS)
def test_pairs_keep_48_bits(floats: list[float], ints: list[int]) -> None:
    rows = _read(floats, ints, [], FloatForm.PAIR)
    np.testing.assert_allclose(np.array(rows[ScalarKind.FLOAT], np.float64), np.array(floats), rtol=2.0**-47, atol=0)
    assert [int(row) for row in rows[ScalarKind.INT]] == ints


def test_infinite_floats_stay_infinite_in_pairs() -> None:
    rows = _read([np.inf, -np.inf, np.nan, 1e300], [], [], FloatForm.PAIR)
    np.testing.assert_array_equal(np.array(rows[ScalarKind.FLOAT]), [np.inf, -np.inf, np.nan, np.inf])


def test_a_step_uploads_one_array() -> None:
    weight = torch.nn.Parameter(torch.ones(8, 8, device="xla"))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    seen: list[Any] = []

    def note(graph: object, program: Any) -> Any:
        def run(*arguments: Any) -> Any:
            seen.append([argument for argument in arguments if isinstance(argument, np.ndarray)])
            return program(*arguments)

        return run

    stop = register_wrapper(note)
    try:
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.dropout(weight, 0.5).sum().backward()
            optimizer.step()
            torch_xla.sync()
    finally:
        stop()
    assert seen and all(len(arrays) == 1 for arrays in seen), [len(arrays) for arrays in seen]
