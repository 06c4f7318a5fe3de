"""After `torch_xla.seal()` what was compiled before runs, and each planted leak is an error with the line, the input and both values."""

from __future__ import annotations

import gc
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_xla
from xla_core.base.errors import SealedError
from xla_core.ops import precision

Run = Callable[..., str]


@pytest.fixture(autouse=True)
def lifted() -> Iterator[None]:
    """No seal outlives its test."""
    from xla_core.engine.compile import seal

    yield
    for each in list(seal._present):
        seal.lift(each)
    torch_xla.sync()


class Model(nn.Module):
    """A step with a Python number, a branch, dtypes and shapes that may change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(13, 5)
        self.scale = 0.5
        self.deep = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x).sinh() * self.scale
        return hidden.cosh() if self.deep else hidden


def step(model: Model, x: Tensor, *, optimizer: Any = None, loss: Any = torch.sum) -> None:
    """A step with the device's sync at its end."""
    result = loss(model(x))
    if optimizer is not None:
        result.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch_xla.sync()
    del result


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape).to(dtype).to("xla")


def warmed() -> Model:
    model = Model().to("xla")
    for _ in range(2):
        for rows in (4, 8):
            step(model, batch(rows, 13))
    return model


def set_scale(model: Model) -> None:
    model.scale = 0.25
    step(model, batch(4, 13))


def go_deep(model: Model) -> None:
    model.deep = True
    step(model, batch(4, 13))


def halve(model: Model) -> None:
    step(model.to(torch.bfloat16), batch(4, 13, dtype=torch.bfloat16))


def in_a_thread(model: Model) -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            step(model, batch(5, 13))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise raised[0]


def read_a_sum(model: Model) -> None:
    (batch(4, 13).tanh() * 3).sum().item()


def train(model: Model) -> None:
    step(model, batch(4, 13), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def keep(model: Model) -> None:
    kept = model.linear(batch(4, 13)).sinh()
    result = (kept * 0.5).sum()
    torch_xla.sync()
    del kept, result


def under_autocast(model: Model) -> None:
    with torch.autocast("xla", torch.bfloat16):
        step(model, batch(4, 13))


def print_it(model: Model) -> None:
    str(batch(4, 13).tan())


def in_another_precision(model: Model) -> None:
    torch_xla.backends.set_mat_mul_precision("default")
    try:
        step(model, batch(4, 13))
    finally:
        precision.choose(None)


def loop_on(model: Model) -> None:
    x = batch(4, 13)
    for _ in range(3):
        x = x.cosh()
    step(model, x)


def in_a_function(model: Model) -> None:
    torch_xla.compile(lambda x: model(x).sum().log())(batch(4, 13))


LEAKS: dict[str, tuple[Callable[[Model], None], str]] = {
    "a smaller last batch": (
        lambda model: step(model, batch(3, 13)),
        r"f32\[3,13\].*Pad dimension 0 of input \d from 3 to 4, which is compiled",
    ),
    "between two sizes": (lambda model: step(model, batch(5, 13)), r"f32\[5,13\].*from 5 to 8, which is compiled"),
    "larger than all": (lambda model: step(model, batch(9, 13)), r"f32\[9,13\], was f32\[[48],13\].*buckets"),
    "a dtype": (halve, "aten._to_copy"),
    "a number": (set_scale, r"0\.5, now 0\.25.*two values before the seal"),
    "a branch": (go_deep, "cosh"),
    "another thread": (in_a_thread, r"f32\[5,13\]"),
    "a read": (read_a_sum, "aten.tanh"),
    "training": (train, "needs a program that is not compiled"),
    "a result that is kept": (keep, "another result is kept, of aten.sinh"),
    "another loss": (lambda model: step(model, batch(4, 13), loss=torch.mean), "aten.mean"),
    "another dimension": (lambda model: step(model, batch(1, 4, 13)), "needs a program that is not compiled"),
    "autocast": (under_autocast, "needs a program that is not compiled"),
    "a print": (print_it, "no program like this one was known"),
    "a precision": (in_another_precision, "other settings, precision"),
    "a longer loop": (loop_on, "aten.cosh"),
    "a compiled function": (in_a_function, "aten.log"),
    "a slice": (lambda model: step(model, batch(6, 13)[1:5]), "needs a program that is not compiled: .*slice"),
    "an argument": (lambda model: step(model, batch(4, 13).roll(2, 0)), "aten.roll"),
    "integers": (lambda model: step(model, batch(4, 13, dtype=torch.int32).float()), "aten._to_copy"),
}


def refused(leak: Callable[[Model], None], model: Model) -> str:
    """What a leak raises. Its frames are let go: what they hold would stay pending."""
    try:
        leak(model)
    except SealedError as error:
        text = str(error)
    gc.collect()
    return text


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_an_error_that_names_line_and_difference(name: str, counts: Any) -> None:
    model = warmed()
    leak, expected = LEAKS[name]
    with torch_xla.seal() as sealed:
        counts.restart()
        for rows in (8, 4, 8):
            step(model, batch(rows, 13))
        text = refused(leak, model)
        assert re.search(expected, text) and re.search(r"test_seal\.py:\d+ needs a program that is not compiled", text), text
        assert counts.UncachedCompile == 0 and sealed.leaks == (text,)
        model.scale, model.deep = 0.5, False
        if name not in ("a dtype", "training"):  # these have changed the weights, which wait for their program
            for rows in (4, 8):
                step(model, batch(rows, 13))
        assert counts.UncachedCompile == 0 and sealed.leaks == (text,)


def test_a_sweep_over_padded_lengths_compiles_nothing(counts: Any) -> None:
    from torch_xla.shapes import Padding, choose_buckets

    lengths = range(1, 4_097)
    padding = Padding(choose_buckets(lengths, 24), mask="mask")

    def total(length: int) -> Tensor:
        texts, mask = padding(torch.ones(1, length))
        result = torch.where(mask.to("xla"), texts.to("xla") * 2, 0).sum()
        torch_xla.sync()
        return result

    for size in padding.buckets.sizes:
        total(size)
    with torch_xla.seal():
        counts.restart()
        results = [total(length) for length in (*range(1, 4_097, 37), 4_096)]
        assert counts.UncachedCompile == 0
    assert [result.item() for result in results] == [2.0 * length for length in (*range(1, 4_097, 37), 4_096)]


def test_warnings_come_once_and_are_listed(counts: Any) -> None:
    model = warmed()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with torch_xla.seal("warn") as sealed:
            counts.restart()
            for rows in (4, 3, 3, 2):
                step(model, batch(rows, 13))
    assert len(sealed.leaks) == 2 and [str(each.message) for each in said if "sealed" in str(each.message)] == list(sealed.leaks)
    assert counts.UncachedCompile == 2


def test_reads_and_uploads_are_leaks_if_that_is_wanted() -> None:
    x = batch(4, 13)
    total = (x * 2).sum()
    torch_xla.sync()
    with torch_xla.seal():
        assert total.item() == 104 and batch(4, 13).shape == (4, 13)
    with torch_xla.seal(reads="error"), pytest.raises(SealedError, match=r"test_seal\.py:\d+ reads 4 bytes from the device"):
        total.item()
    with torch_xla.seal(transfers="error"):
        assert total.item() == 104
        with pytest.raises(SealedError, match=r"test_seal\.py:\d+ uploads 208 bytes"):
            batch(4, 13)
    with torch_xla.seal(reads="warn") as sealed, pytest.warns(RuntimeWarning, match="reads 4 bytes"):
        assert total.item() == 104
    assert len(sealed.leaks) == 1


def test_a_thread_without_a_line_of_the_users_is_named() -> None:
    total = (batch(4, 13) * 2).sum()
    torch_xla.sync()
    failed: list[BaseException | None] = []
    with pytest.MonkeyPatch.context() as patch, torch_xla.seal(reads="error"):
        patch.setattr(threading, "excepthook", lambda args: failed.append(args.exc_value))
        thread = threading.Thread(target=total.item, name="reader")
        thread.start()
        thread.join()
    assert [str(error) for error in failed] == [
        "the process is sealed, and the thread 'reader' reads 4 bytes from the device: do that behind the sealed part"
    ]


def test_captured_steps_are_sealed_as_well(counts: Any) -> None:
    model = nn.Linear(7, 3).to("xla")
    captured = torch_xla.compile(torch.no_grad()(lambda x: model(x).tanh().sum()), capture=True)
    for _ in range(6):
        captured(batch(4, 7))
    with torch_xla.seal():
        counts.restart()
        for _ in range(40):
            captured(batch(4, 7))
        assert counts.UncachedCompile == 0
        with pytest.raises(SealedError, match=r"f32\[2,7\].*from 2 to 4, which is compiled"):
            captured(batch(2, 7))


def test_a_seal_ends_with_its_block_and_an_earlier_one_counts_again() -> None:
    model = warmed()
    outer = torch_xla.seal()
    with torch_xla.seal("warn"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(model, batch(3, 13))
    assert "f32[6,13]" in refused(lambda model: step(model, batch(6, 13)), model)
    outer.lift()
    outer.lift()
    step(model, batch(6, 13))


def test_what_cannot_be_sealed_is_refused() -> None:
    warmed()
    with torch_xla.compile(), pytest.raises(RuntimeError, match="inside of torch_xla.compile"):
        torch_xla.seal()
    with pytest.raises(ValueError, match='mode is \'strict\', must be "error" or "warn"'):
        torch_xla.seal("strict")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reads is True"):
        torch_xla.seal(reads=True)  # type: ignore[arg-type]


def test_before_the_warm_up_there_is_nothing_to_seal(run: Run) -> None:
    assert run(
        """
        import torch, torch_xla
        try:
            torch_xla.seal()
        except RuntimeError as error:
            print(error)
        """
    ).startswith("torch_xla.seal() before anything was compiled: run the warm-up first")


def test_the_variable_says_what_a_leak_is_and_leaks_are_listed_at_the_end(run: Run) -> None:
    program = """
        import torch, torch_xla
        def step(n):
            result = (torch.ones(n).to("xla") * 2).sum()
            torch_xla.sync()
        step(3)
        torch_xla.seal()
        step(3)
        step(4)
        print("done")
    """
    assert "SealedError: the process is sealed" in run(program, stderr=True, code_wanted=1)
    text = run(program, stderr=True, XLA_SEAL="warn")
    assert "torch_xla.seal(): 1 leaks:" in text and "f32[4], was f32[3]" in text
