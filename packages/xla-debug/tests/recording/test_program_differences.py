"""Why a program was compiled: each kind of change, made for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import torch_xla
from xla_debug.core import events
from xla_debug.recording.program_differences import KnownPrograms
from xla_debug.run_report.schema import Change, ProgramDifference

DEVICE = "xla"


@pytest.fixture
def reasons() -> Iterator[list[ProgramDifference]]:
    """Why each program was compiled, as they are."""
    torch_xla.sync()
    known = KnownPrograms()
    found: list[ProgramDifference] = []
    end = events.subscribe(lambda event: found.append(known.explain(event)), events.CompileEvent)
    yield found
    end()


def line_of(function: Callable[..., object], offset: int) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + offset}"


def run(function: Callable[..., torch.Tensor], *args: object) -> None:
    kept = function(*args)
    torch_xla.sync()
    del kept


def test_the_first_program_is_like_none(reasons: list[ProgramDifference]) -> None:
    run(lambda: torch.ones(3, 71, device=DEVICE).cos())
    assert [(one.change, one.nearest) for one in reasons] == [(Change.FIRST, None)]


def test_the_program_it_was_compared_with_is_named(reasons: list[ProgramDifference]) -> None:
    hashes: list[str] = []
    end = events.subscribe(lambda event: hashes.append(event.graph_hash), events.CompileEvent)
    for shape in ((3, 171), (4, 171), (5, 171)):
        run(lambda x: x.cosh().exp(), torch.ones(shape).to(DEVICE))
    end()
    assert [one.nearest for one in reasons] == [None, *hashes[:2]]


@pytest.mark.parametrize(
    ("before", "now", "change", "text", "advice"),
    [
        ((32, 72), (31, 72), Change.INPUT_SHAPE, "input 0 is f32[31,72], was f32[32,72], first used by aten.sinh", "drop_last=True"),
        ((32, 73), (32, 74), Change.INPUT_SHAPE, "input 0 is f32[32,74], was f32[32,73], first used by aten.sinh", "pad dimension 1"),
        ((75,), (75, 1), Change.INPUT_SHAPE, "input 0 is f32[75,1], was f32[75], first used by aten.sinh", "number of dimensions"),
    ],
)
def test_an_input_of_another_shape(
    reasons: list[ProgramDifference], before: tuple[int, ...], now: tuple[int, ...], change: Change, text: str, advice: str
) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.sinh().exp()

    inputs = [torch.ones(shape).to(DEVICE) for shape in (before, now)]
    for x in inputs:
        run(step, x)
    assert (reasons[1].change, reasons[1].text, reasons[1].line) == (change, text, line_of(step, 1)) and advice in reasons[1].advice


def test_an_input_of_another_dtype(reasons: list[ProgramDifference]) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.asinh().square()

    for dtype in (torch.float32, torch.float64):
        run(step, torch.ones(76, dtype=dtype).to(DEVICE))
    assert (reasons[1].change, reasons[1].line) == (Change.INPUT_DTYPE, line_of(step, 1))
    assert reasons[1].text == "input 0 is f64[76], was f32[76], first used by aten.asinh"


def test_a_number_that_is_only_a_value(reasons: list[ProgramDifference]) -> None:
    x = torch.ones(77).to(DEVICE)

    def step(factor: float) -> torch.Tensor:
        return x.acosh() * factor

    for factor in (0.1, 0.01, 0.001):
        run(step, factor)
    assert len(reasons) == 2, "the third value is an input"
    assert (reasons[1].change, reasons[1].line) == (Change.CONSTANT, line_of(step, 1))
    assert reasons[1].text == "a constant became an input: 0.1, now 0.01, in aten.mul.Tensor" and reasons[1].advice.startswith("nothing")


def test_a_number_that_changes_while_shapes_do(reasons: list[ProgramDifference]) -> None:
    inputs = [torch.ones(size).to(DEVICE) for size in (60, 61, 62)]

    def step(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x.acosh() * factor

    for turn in range(9):
        run(step, inputs[turn % 3], 0.1 * turn)
    assert [reason.change for reason in reasons] == [Change.FIRST, Change.INPUT_SHAPE, Change.INPUT_SHAPE, Change.CONSTANT]
    assert reasons[3].text.startswith("a constant became an input: 0.0, now 0.3")


def test_a_number_that_shapes_the_program(reasons: list[ProgramDifference]) -> None:
    x = torch.ones(78).to(DEVICE)

    def step(by: int) -> torch.Tensor:
        return x.atanh() ** by

    for by in (1, 2):
        run(step, by)
    assert (reasons[1].change, reasons[1].text, reasons[1].line) == (
        Change.ARGUMENT,
        "1 became 2 in aten.pow.Tensor_Scalar",
        line_of(step, 1),
    )


def test_an_index_of_a_view(reasons: list[ProgramDifference]) -> None:
    x = torch.ones(4, 79).to(DEVICE)

    def step(row: int) -> torch.Tensor:
        return x[row].erfc()

    for row in (1, 2):
        run(step, row)
    assert (reasons[1].change, reasons[1].text) == (Change.CONSTANT, "a constant became an input: 1, now 2, in xla.read.select.int")
    assert reasons[1].line == line_of(step, 1)


def test_an_operation_more_and_one_less(reasons: list[ProgramDifference]) -> None:
    x = torch.ones(80).to(DEVICE)

    def step(more: bool) -> torch.Tensor:
        y = x.lgamma()
        if more:
            y = y.digamma()
        return y.exp2()

    for more in (False, True):
        run(step, more)
    assert (reasons[1].change, reasons[1].text, reasons[1].line) == (
        Change.OPERATION_ADDED,
        "operation added: aten.digamma",
        line_of(step, 3),
    )
    known = KnownPrograms()
    again: list[ProgramDifference] = []
    end = events.subscribe(lambda event: again.append(known.explain(event)), events.CompileEvent)
    z = torch.ones(81).to(DEVICE)
    for more in (True, False):
        run(lambda flag: (z.lgamma().digamma() if flag else z.lgamma()).exp2(), more)
    end()
    assert (again[1].change, again[1].text) == (Change.OPERATION_REMOVED, "operation gone: aten.digamma")


def test_another_operation(reasons: list[ProgramDifference]) -> None:
    x = torch.ones(82).to(DEVICE)
    run(lambda: x.lgamma().i0().exp2())
    run(lambda: x.lgamma().sinc().exp2())
    assert (reasons[1].change, reasons[1].text) == (Change.OPERATION_CHANGED, "aten.i0 became aten.sinc")


def test_another_result_is_kept(reasons: list[ProgramDifference]) -> None:
    x = torch.ones(83).to(DEVICE)
    kept = []

    def step(keep: bool) -> torch.Tensor:
        y = x.log1p()
        if keep:
            kept.append(y)
        return y.expm1()

    for keep in (False, True):
        run(step, keep)
    assert (reasons[1].change, reasons[1].text, reasons[1].line) == (
        Change.RESULTS,
        "another result is kept, of aten.log1p",
        line_of(step, 1),
    )


def test_the_nearest_is_compared_not_the_last(reasons: list[ProgramDifference]) -> None:
    x, y = torch.ones(84).to(DEVICE), torch.ones(85).to(DEVICE)
    run(lambda: x.sin().cos().tan())
    run(lambda: x.log2().log10())
    run(lambda: y.sin().cos().tan())
    assert [one.change for one in reasons] == [Change.FIRST, Change.FIRST, Change.INPUT_SHAPE]
