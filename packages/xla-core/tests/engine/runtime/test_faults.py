"""What only data shows to be wrong raises as on the CPU, when a value is read or at a later sync, and names the user's line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import torch_xla
from xla_core.api.eager import eager_mode_context
from xla_core.base.errors import RegistrationError
from xla_core.engine.runtime.executor import wait_all
from xla_core.ops.checks import made, name_fault

Tensor = torch.Tensor
Case = Callable[[str], Tensor]
Run = Callable[..., str]


def at(device: str, *numbers: int) -> Tensor:
    return torch.tensor(numbers, device=device)


def x(device: str) -> Tensor:
    return torch.arange(6.0, device=device).reshape(2, 3)


def row(device: str) -> Tensor:
    return torch.arange(4.0, device=device)


def put(device: str, values: Tensor, *indices: Any) -> Tensor:
    target = torch.zeros(3, 4, device=device)
    target[tuple(torch.tensor(index, device=device) for index in indices)] = values.to(device)
    return target


PICKS = [True, False, True]
CASES: dict[str, Case] = {
    "read past the end": lambda d: x(d)[:, at(d, 0, 7)],
    "read before the start": lambda d: x(d)[at(d, -3)],
    "read by two indices": lambda d: x(d)[at(d, 0, 1), at(d, 0, 3)],
    "write past the end": lambda d: x(d).index_put((at(d, 9),), torch.ones(1, device=d)),
    "add past the end": lambda d: x(d).index_put((at(d, 9),), torch.ones(1, device=d), accumulate=True),
    "index_select": lambda d: row(d).index_select(0, at(d, 4)),
    "gather": lambda d: x(d).gather(1, at(d, 5, 0)[None]),
    "gather, negative": lambda d: x(d).gather(1, at(d, -1, 0)[None]),
    "take": lambda d: x(d).take(at(d, 9)),
    "embedding": lambda d: F.embedding(at(d, 5), x(d)),
    "embedding with a norm": lambda d: F.embedding(at(d, 5), x(d), max_norm=1.0),
    "embedding_bag": lambda d: F.embedding_bag(at(d, 5)[None], x(d)),
    "embedding_bag, first offset": lambda d: F.embedding_bag(at(d, 0, 1), x(d), at(d, 1)),
    "embedding_bag, last offset": lambda d: F.embedding_bag(at(d, 0, 1), x(d), at(d, 0, 3)),
    "segment_reduce, too few": lambda d: torch.segment_reduce(row(d), "sum", lengths=at(d, 1, 2)),
    "segment_reduce, in rows": lambda d: torch.segment_reduce(x(d), "max", lengths=at(d, 1, 2, 2, 2).view(2, 2), axis=-1),
    "segment_reduce, negative": lambda d: torch.segment_reduce(row(d), "sum", lengths=at(d, -1, 5)),
    "scatter": lambda d: x(d).scatter(1, at(d, 5)[None], 1.0),
    "scatter a tensor": lambda d: x(d).scatter(1, at(d, -1)[None], x(d)),
    "scatter_add": lambda d: x(d).scatter_add(1, at(d, 5)[None], x(d)),
    "scatter_reduce": lambda d: x(d).scatter_reduce(1, at(d, 5)[None], x(d), "amax"),
    "index_add": lambda d: row(d).index_add(0, at(d, 4), torch.ones(1, device=d)),
    "index_add of columns": lambda d: x(d).index_add(1, at(d, 5), x(d)[:, :1]),
    "index_copy": lambda d: x(d).index_copy(1, at(d, 5), x(d)[:, :1]),
    "index_fill": lambda d: x(d).index_fill(1, at(d, 5), 1.0),
    "index_reduce": lambda d: x(d).index_reduce(1, at(d, 5), x(d)[:, :1], "amax"),
    "put": lambda d: x(d).put(at(d, 9), torch.ones(1, device=d)),
    "max_unpool": lambda d: F.max_unpool2d(torch.ones(1, 1, 1, 2, device=d), at(d, 0, 50).reshape(1, 1, 1, 2), 2),
    "repeat_interleave": lambda d: torch.repeat_interleave(at(d, 1, 2), output_size=5),
    "one_hot, too large": lambda d: F.one_hot(at(d, 0, 3), 3),
    "one_hot, negative": lambda d: F.one_hot(at(d, 0, -1), 3),
    "class": lambda d: F.cross_entropy(x(d), at(d, 0, 3)),
    "class of a pixel": lambda d: F.nll_loss(torch.zeros(1, 2, 2, 1, device=d), at(d, 0, 2).reshape(1, 2, 1)),
    "multi_margin_loss": lambda d: F.multi_margin_loss(x(d), at(d, 0, 3)),
    "multilabel_margin_loss": lambda d: F.multilabel_margin_loss(x(d), torch.tensor([[0, 3, 1], [0, 0, 0]], device=d)),
    "binary_cross_entropy of no share": lambda d: F.binary_cross_entropy(x(d), torch.ones(2, 3, device=d)),
    "binary_cross_entropy to no share": lambda d: F.binary_cross_entropy(torch.full((2, 3), 0.5, device=d), x(d)),
    "binary_cross_entropy of NaN": lambda d: F.binary_cross_entropy(torch.full((1,), torch.nan, device=d), torch.ones(1, device=d)),
    "bernoulli": lambda d: torch.bernoulli(torch.full((2,), 1.5, device=d)),
    "bernoulli_": lambda d: row(d).bernoulli_(torch.full((4,), -0.5, device=d)),
    "multinomial, negative": lambda d: torch.multinomial(torch.tensor([2.0, -1.0], device=d), 1),
    "multinomial, NaN": lambda d: torch.multinomial(torch.tensor([2.0, torch.nan], device=d), 1, True),
    "multinomial, infinite": lambda d: torch.multinomial(torch.tensor([2.0, torch.inf], device=d), 1),
    "multinomial, nothing": lambda d: torch.multinomial(torch.zeros(2, device=d), 1),
    "normal": lambda d: torch.normal(torch.zeros(2, device=d), torch.tensor([-1.0, 1.0], device=d)),
    "poisson": lambda d: torch.poisson(torch.tensor([-1.0], device=d)),
    "//": lambda d: at(d, 1, 2) // at(d, 1, 0),
    "%": lambda d: at(d, 1, 2) % at(d, 1, 0),
    "fmod": lambda d: torch.fmod(at(d, 1, 2), at(d, 1, 0)),
    "truncating division": lambda d: torch.div(at(d, 1, 2), at(d, 1, 0), rounding_mode="trunc"),
    "too many values for a mask": lambda d: put(d, torch.ones(3, 4), PICKS),
    "no values for a mask": lambda d: put(d, torch.ones(0, 4), PICKS),
    "values for an empty mask": lambda d: put(d, torch.ones(2, 4), [False] * 3),
    "a mask beside too many positions": lambda d: put(d, torch.ones(()), PICKS, [0, 1, 2]),
    "rows that fit no mask": lambda d: put(d, torch.ones(2, 5), PICKS),
    "values of too many dimensions": lambda d: put(d, torch.ones(4, 2, 4), PICKS),
    "masked_scatter": lambda d: row(d).masked_scatter(row(d) > 0, torch.ones(2, device=d)),
    "singular": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    "not positive-definite": lambda d: torch.linalg.cholesky(torch.zeros(2, 2, device=d) - 1),
}


@pytest.mark.parametrize("name", CASES)
def test_it_raises_what_the_cpu_raises(name: str) -> None:
    with pytest.raises(Exception) as wanted:
        CASES[name]("cpu")
    with pytest.raises(type(wanted.value)) as found:
        CASES[name]("xla").cpu()
    assert type(found.value) is type(wanted.value)
    assert torch.ones(2, device="xla").tolist() == [1, 1], "and the next program runs"


RIGHT: dict[str, Case] = {
    "unsafe lengths": lambda d: torch.segment_reduce(row(d), "sum", lengths=at(d, 1, 2), unsafe=True),
    "lengths of the last dimension": lambda d: torch.segment_reduce(x(d), "sum", lengths=at(d, 1, 2, 3, 0).view(2, 2), axis=-1),
    "read": lambda d: x(d)[at(d, -2, 1), at(d, 2, -3)],
    "ignored class": lambda d: F.cross_entropy(x(d), at(d, 0, -100)),
    "empty mask": lambda d: put(d, torch.ones(0, 4), [False] * 3),
    "one value for all": lambda d: put(d, torch.ones(1, 4), PICKS),
    "one element beside positions": lambda d: put(d, torch.ones(3), [False, True, False], [0, 1, 2]),
    "label list that ends": lambda d: F.multilabel_margin_loss(x(d), torch.tensor([[0, -1, 1], [2, 1, -1]], device=d)),
    "no indices": lambda d: x(d)[torch.zeros(0, dtype=torch.int64, device=d)],
    "division of floats": lambda d: row(d) // 0,
    "one_hot": lambda d: F.one_hot(at(d, 0, 2)),
    "one_hot of none": lambda d: F.one_hot(torch.zeros(0, dtype=torch.int64, device=d), 3),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_does_not_raise(name: str) -> None:
    torch.testing.assert_close(RIGHT[name]("xla").cpu(), RIGHT[name]("cpu"), equal_nan=True)


@given(st.lists(st.integers(-6, 6), min_size=1, max_size=4), st.sampled_from(["read", "write", "gather"]))
def test_any_positions(numbers: list[int], way: str) -> None:
    def tried(device: str) -> Tensor | type[Exception]:
        index = torch.tensor(numbers + [0] * (4 - len(numbers)), device=device)
        try:
            if way == "gather":
                return row(device).gather(0, index).cpu()
            if way == "read":
                return row(device)[index].cpu()
            target = row(device)
            target[index] = 7.0
            return target.cpu()
        except Exception as error:
            return type(error)

    wanted, found = tried("cpu"), tried("xla")
    assert torch.equal(wanted, found) if isinstance(wanted, Tensor) and isinstance(found, Tensor) else wanted is found


def test_the_message_has_the_value_and_the_line() -> None:
    with pytest.raises(
        IndexError, match=r"index 44 is out of bounds for dimension 0 with size 43 \(aten.index.Tensor.*test_faults\.py:\d+\)"
    ):
        torch.ones(43, 5, device="xla")[torch.tensor([7, 44, 3]).to("xla")].tolist()  # a shape of its own: the line is of its first use


def test_a_later_sync_raises_and_keeps_what_is_pending() -> None:
    wrong = F.embedding(at("xla", 5), x("xla"))
    torch_xla.sync()
    state = torch.ones(3, device="xla") + 1
    raised = False
    while not raised:  # the word is looked at without waiting for it
        try:
            torch_xla.sync()
        except IndexError:
            raised = True
    assert state.tolist() == [2, 2, 2]
    torch_xla.sync()
    del wrong


def test_waiting_raises() -> None:
    wrong = F.embedding(at("xla", 5), x("xla"))
    torch_xla.sync()
    with pytest.raises(IndexError, match="embedding"):
        wait_all()
    del wrong


def test_a_value_that_does_not_depend_on_it_raises_too() -> None:
    wrong = F.embedding(at("xla", 5), x("xla"))
    right = torch.ones(3, device="xla") * 2
    torch_xla.sync()
    with pytest.raises(IndexError, match="embedding"):
        right.tolist()
    assert right.tolist() == [2, 2, 2]
    del wrong


def test_eager_mode_raises_at_the_call() -> None:
    with eager_mode_context(True), pytest.raises(IndexError):
        x("xla")[at("xla", 4)]


PROGRAM = """
    import torch, torch_xla
    x = torch.arange(4.0, device="xla")
    try:
        print(x[torch.tensor([5, 1], device="xla")].tolist())
    except IndexError as error:
        print(error)
    import torch_xla.debug.metrics as met
    print(met.counter_value("UncachedCompile"))
"""


def test_programs_from_the_disk_find_it_too(run: Run, tmp_path: Path) -> None:
    first, second = (run(PROGRAM, XLA_PERSISTENT_CACHE_PATH=str(tmp_path)).splitlines() for _ in range(2))
    assert "index 5 is out of bounds" in first[0] and first[0] == second[0]
    assert first[1] != "None" and second[1] == "None", "the second process compiles nothing"


def test_checks_can_be_switched_off(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path)
    assert run(PROGRAM, XLA_CHECKS="0", XLA_PERSISTENT_CACHE_PATH=path).startswith("[3.0, 1.0]"), "the nearest element"
    assert "index 5 is out of bounds" in run(PROGRAM, XLA_PERSISTENT_CACHE_PATH=path), "which is another program on disk"


OWN = """
    import torch, torch_xla
    from xla_core.abi.operators import OpSpec, register_op

    TEXT = "a price is negative: {value} cents, of at most {0}"

    @torch.library.custom_op("test_faults::total", mutates_args=(), device_types="cpu")
    def total(cents: torch.Tensor) -> torch.Tensor:
        return cents.sum()

    total.register_fake(lambda cents: cents.new_empty(()))

    def lower(context, cents):
        context.check(TEXT, cents < 0, -cents, 500)
        return cents.sum()

    register_op(OpSpec("test_faults::total", lower, faults=(TEXT,)))
    print(total(torch.tensor([250, 99], device="xla")).item())
    try:
        print(total(torch.tensor([250, -99], device="xla")).item())
    except RuntimeError as error:
        print(error)
    import torch_xla.debug.metrics as met
    print(met.counter_value("UncachedCompile"))
"""


def test_a_row_has_faults_of_its_own(run: Run, tmp_path: Path) -> None:
    first, second = (run(OWN, XLA_PERSISTENT_CACHE_PATH=str(tmp_path)).splitlines() for _ in range(2))
    assert first[0] == "349" and first[1].startswith("a price is negative: 99 cents, of at most 500 (test_faults.total")
    assert first[:2] == second[:2] and second[2] == "None", "a program from the disk knows the text, too"


def test_texts_of_faults_are_named_by_a_row() -> None:
    with jax.enable_x64(True), pytest.raises(RegistrationError, match=r"OpSpec\.faults"):
        made("nobody says this", jax.numpy.ones(1, bool), None, (), "cpu")
    with pytest.raises(RegistrationError, match="other fields"):
        name_fault("too much: {amount}")
