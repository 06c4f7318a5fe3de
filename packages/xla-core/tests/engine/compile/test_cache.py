"""Programs in memory: constants that vary once become inputs for good, and the least recently used program goes first."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import torch_xla
from xla_core.engine.compile.cache import Program, ProgramCache, programs
from xla_core.engine.compile.emit import Constants
from xla_core.engine.graph.graph import Inputs

Counts = Any


def inputs(
    floats: list[float] | None = None, fixed: list[float] | None = None, ints: list[int] | None = None, fixed_ints: list[int] | None = None
) -> Inputs:
    return Inputs([], floats or [], fixed or [], ints or [], fixed_ints or [], [])


def made(cache: ProgramCache, given: Inputs, key: object = "key") -> Program:
    """The program of `given`, as if compiled."""
    program = cache.program(key, given)
    program.adapt(given)
    if program.executable is None:
        program.executable = lambda *arguments: program.constants
    return program


def test_the_same_numbers_need_no_other_program() -> None:
    cache = ProgramCache(4)
    first = made(cache, inputs(fixed=[1.5], fixed_ints=[3]))
    again = cache.program("key", inputs(fixed=[1.5], fixed_ints=[3]))
    assert again is first and again.matches(inputs(fixed=[1.5], fixed_ints=[3])) and again.executable is not None
    assert first.constants == Constants((1.5,), (3,))
    assert first.numbers(inputs(floats=[9.0], fixed=[1.5], ints=[8], fixed_ints=[3])) == ([9.0], [8])


def test_a_number_that_varies_becomes_an_input_for_good() -> None:
    cache = ProgramCache(4)
    program = made(cache, inputs(fixed=[1.0, 2.0, 3.0], fixed_ints=[7, 8]))
    changed = inputs(floats=[0.5], fixed=[1.0, 5.0, 3.0], fixed_ints=[7, 9])
    assert not program.matches(changed) and program.executable is not None
    program.adapt(changed)
    assert program.matches(changed) and program.executable is None
    assert program.constants == Constants((1.0, None, 3.0), (7, None))
    assert program.numbers(changed) == ([0.5, 5.0], [9])
    program.executable = lambda: None
    for other in (inputs(fixed=[1.0, 6.0, 3.0], fixed_ints=[7, 10]), inputs(fixed=[1.0, 2.0, 3.0], fixed_ints=[7, 8])):
        assert program.matches(other) and program.executable is not None
    third = inputs(fixed=[1.0, 6.0, 4.0], fixed_ints=[7, 8])
    assert not program.matches(third)
    program.adapt(third)
    assert program.constants == Constants((1.0, None, None), (7, None)) and program.numbers(third) == ([6.0, 4.0], [8])


@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (float("nan"), 0.0), (float("inf"), float("-inf")), (1.0, 1.0 + 2**-52)])
def test_floats_are_told_apart_by_their_bits(first: float, second: float) -> None:
    program = made(ProgramCache(1), inputs(fixed=[first]))
    assert program.matches(inputs(fixed=[first]))
    assert not program.matches(inputs(fixed=[second]))


def test_the_least_recently_used_goes_first() -> None:
    cache = ProgramCache(2)
    first, second = (cache.program(key, inputs()) for key in ("first", "second"))
    assert cache.program("first", inputs()) is first
    cache.program("third", inputs())
    assert len(cache) == 2 and cache.program("first", inputs()) is first
    assert cache.program("second", inputs()) is not second
    cache.clear()
    assert len(cache) == 0


def test_threads_get_the_same_program() -> None:
    cache = ProgramCache(8)
    found: list[Program] = []
    threads = [
        threading.Thread(target=lambda: found.extend(cache.program(number % 3, inputs()) for number in range(300))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(program) for program in found}) == 3


def test_a_full_cache_recompiles_what_it_dropped(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ProgramCache(2)
    monkeypatch.setattr("xla_core.engine.runtime.executor.programs", lambda: small)
    for size in (1, 2, 3, 1, 1):
        x = torch.full((size, 3, 11), 0.5, device="xla").tanh()
        torch_xla.sync()
        assert x.shape == (size, 3, 11)
    assert (counts.UncachedCompile, counts.CachedCompile) == (4, 1)
    assert len(small) == 2


def test_the_same_body_with_other_shapes_is_another_program(counts: Counts) -> None:
    for shape, dtype in (((4, 13), torch.float32), ((13, 4), torch.float32), ((4, 13), torch.float64), ((4, 13), torch.float32)):
        x = torch.zeros(shape, dtype=dtype).to("xla")
        result = x.cosh() * 2
        torch_xla.sync()
        assert result.dtype is dtype
    assert (counts.UncachedCompile, counts.CachedCompile) == (3, 1)


def test_a_number_that_changed_for_one_shape_is_an_input_for_the_others(counts: Counts) -> None:
    programs().clear()
    for turn in range(10):
        x = torch.full((331 + turn % 5,), 2.0)  # shapes of this test alone: a line is that which had the shape first
        torch.testing.assert_close((x.to("xla") * (0.5 + turn)).cpu(), x * (0.5 + turn))
    assert counts.UncachedCompile == 6  # five shapes; the first one began with a constant


def test_whole_numbers_that_follow_from_shapes_stay_constants(counts: Counts) -> None:
    programs().clear()
    for size in (4, 6, 8, 4, 6, 8):
        x = torch.arange(float(size))
        torch.testing.assert_close((x.to("xla")[size // 2 :] * 2).cpu(), x[size // 2 :] * 2)
    assert counts.UncachedCompile == 3
    assert all(not program.varying for program in programs()._programs.values())


def test_two_devices_have_programs_of_their_own(run: Any) -> None:
    output = run(
        """
        import torch, torch_xla
        from xla_core.abi.metrics import counter
        from xla_core.abi.tensors import sync
        for device in ("xla:0", "xla:1", "xla:0", "xla:1"):
            x = torch.zeros(3, device=device).cosh()
            sync(device)
            print(x.sum().item(), counter("UncachedCompile"))
        """,
        CPU_NUM_DEVICES="2",
    )
    assert output.split()[::2] == ["3.0"] * 4
    counted = [int(each) for each in output.split()[1::2]]
    assert counted[1] == 2 * counted[0] and counted[1:] == [counted[1]] * 3
