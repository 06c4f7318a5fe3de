"""A program compiles quickly first, and better in the background once it is used again; what it computes does not depend on that."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torch_xla
from xla_core.base import metrics
from xla_core.engine.compile import tiers
from xla_core.engine.compile.cache import Program
from xla_core.engine.compile.tiers import TieredProgram, quick_program, wait_for_background

Run = Callable[..., str]


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """Nothing of other tests is recorded, and would be part of the first program, or is in the background."""
    torch_xla.sync()
    wait_for_background()
    yield
    wait_for_background()


def in_background() -> int:
    wait_for_background()
    return metrics.counter("BackgroundCompile")


def used(x: Tensor) -> Tensor:
    result = x.sinh().softmax(-1)
    torch_xla.sync()
    return result


@pytest.mark.parametrize(("columns", "uses"), [(67, 32), (50_000, 11), (300_000, 2)])
def test_a_program_that_is_used_again_compiles_in_the_background(columns: int, uses: int) -> None:
    """The sooner, the more it loses in each use: it holds three times as many elements as its input."""
    x = torch.randn(3, columns)
    on_device, before, compiled = x.to("xla"), in_background(), metrics.counter("UncachedCompile")
    seen = []
    for _ in range(uses + 2):
        torch.testing.assert_close(used(on_device).cpu(), x.sinh().softmax(-1))
        seen.append(in_background() - before)
    assert seen == [0] * (uses - 1) + [1] * 3 and metrics.counter("UncachedCompile") == compiled + 1
    metric = metrics.metric("BackgroundCompileTime")
    assert metric is not None and metric.accumulator > 0


def lowered_programs() -> int:
    gc.collect()
    return sum(type(each) is jax.stages.Lowered for each in gc.get_objects())


def test_a_small_program_does_not_keep_what_jax_lowered() -> None:
    x, before = torch.randn(3, 59).to("xla"), lowered_programs()
    used(x)
    assert lowered_programs() == before


def many_operations(x: Tensor) -> Tensor:
    for number in range(130):
        x = x.sigmoid() if number % 2 else x + number % 7
    return x


@pytest.mark.parametrize(
    ("shape", "function"), [((2000, 3000), lambda x: x.sinh().softmax(-1)), ((300, 150), many_operations)], ids=["elements", "operations"]
)
def test_a_large_program_compiles_once(
    shape: tuple[int, ...], function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "_MOST_USES", 2)
    x = torch.randn(shape)
    on_device, before = x.to("xla"), in_background()
    for _ in range(3):
        result = function(on_device)
        torch_xla.sync()
    torch.testing.assert_close(result.cpu(), function(x))
    assert in_background() == before


def test_many_operations_over_few_elements_compile_quickly_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "_MOST_USES", 2)
    x = torch.randn(3, 43)
    on_device, before = x.to("xla"), in_background()
    for _ in range(3):
        result = many_operations(on_device)
        torch_xla.sync()
    torch.testing.assert_close(result.cpu(), many_operations(x))
    assert in_background() == before + 1


def test_the_first_parameters_of_a_model_compile_quickly() -> None:
    before = in_background()
    for _ in range(3):  # more often than models are made
        layers = [torch.nn.Linear(300, 150, device="xla") for _ in range(60)]
        torch_xla.sync()
    assert in_background() == before + 1
    bounds = [layer.weight.detach().abs().max().item() * math.sqrt(300) for layer in layers]
    assert all(0.99 < bound <= 1 for bound in bounds)


def test_what_does_not_compile_quickly_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "quick_options", lambda platform: {"xla_no_such_option": "1"})
    x, before = torch.randn(3, 300_003), in_background()
    for _ in range(3):
        torch.testing.assert_close(used(x.to("xla")).cpu(), x.sinh().softmax(-1))
    assert in_background() == before


@settings(max_examples=10)
@given(st.lists(st.booleans(), min_size=4, max_size=8), st.sampled_from(["sgd", "adam"]))
def test_steps_train_as_on_the_cpu_whenever_the_better_program_comes(waits: list[bool], kind: str) -> None:
    """Donation, too: either program takes over the buffers of the weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "_MOST_USES", 2)
        losses = [_losses(device, waits, torch.optim.SGD if kind == "sgd" else torch.optim.Adam) for device in ("cpu", "xla")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def _losses(device: str, waits: list[bool], make: Callable[..., torch.optim.Optimizer]) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7 + len(waits)), nn.Tanh(), nn.Linear(7 + len(waits), 1)).to(device)
    optimizer = make(model.parameters(), lr=0.05)
    x, losses = torch.linspace(-1, 1, 20).reshape(4, 5).to(device), []
    for wait in waits:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
        if wait:
            wait_for_background()
    return losses


def test_threads_that_use_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "_MOST_USES", 2)
    x = torch.randn(4, 43)
    on_device, expected, wrong = x.to("xla"), x.sinh().softmax(-1), []

    def work() -> None:
        for _ in range(20):
            found = on_device.sinh().softmax(-1).cpu()
            if not torch.allclose(found, expected, atol=1e-6):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("way", ["captured", "setting", "disk", "mesh"])
def test_what_compiles_once(way: str, run: Run, tmp_path: Any) -> None:
    code = """
        import torch, torch_xla
        from xla_core.base import metrics
        from xla_core.engine.compile.tiers import wait_for_background
        if {way!r} == "mesh":
            import torch_xla.runtime as xr
            xr.use_spmd()
        step = lambda x: x.sinh().softmax(-1)
        if {way!r} == "captured":
            step = torch_xla.compile(step, capture=True)
        x = torch.ones(1000, 1000).to("xla")
        for _ in range(5):
            y = step(x)
            torch_xla.sync()
        wait_for_background()
        print(metrics.counter("BackgroundCompile"))
    """
    variables = {
        "setting": {"XLA_TIERED_COMPILATION": "0"},
        "disk": {"XLA_PERSISTENT_CACHE_PATH": str(tmp_path / "cache")},
        "mesh": {"CPU_NUM_DEVICES": "2"},
    }
    assert run(code.format(way="recorded")).split()[-1] != "0"
    assert run(code.format(way=way), **variables.get(way, {})).split()[-1] == "0"


def test_what_was_compiled_ahead_is_not_compiled_again() -> None:
    x, before = torch.randn(3, 300_001).to("xla"), in_background()
    with torch_xla.compile_only():
        used(x)
    for _ in range(3):
        used(x)
    assert in_background() == before


class FailsLater:
    """Like a lowered function that only compiles with options."""

    def compile(self, compiler_options: dict[str, str] | None = None) -> Callable[..., Any]:
        if compiler_options is None:
            raise RuntimeError("planted")
        return jax.jit(jnp.sin)


def test_a_failing_background_compile_is_reported_once_and_the_first_program_stays() -> None:
    program = Program([], [], b"")
    stage = FailsLater()
    quick = quick_program(program, stage, stage.compile, platform="cpu", line="train.py:3")
    program.executable = quick
    for _ in range(2):
        quick(1.0)
    wait_for_background()
    with pytest.warns(RuntimeWarning, match=r"a program of train.py:3 could not be compiled as it runs fastest, .*: planted") as said:
        for _ in range(3):
            assert float(quick(1.0)) == pytest.approx(0.841471)
    assert len(said) == 1 and program.executable is quick


def test_a_program_that_is_gone_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Waits(FailsLater):
        def compile(self, compiler_options: dict[str, str] | None = None) -> Callable[..., Any]:
            if compiler_options is None:
                begun.set()
                go_on.wait(60)
            return jax.jit(jnp.sin)

    compiled: list[str] = []
    monkeypatch.setattr(TieredProgram, "compile_best", _noting(compiled, TieredProgram.compile_best))
    stage = Waits()
    first, second = (quick_program(Program([], [], b""), stage, stage.compile, platform="cpu", line=name) for name in ("first", "second"))
    for quick in (first, second):
        quick(1.0)
    first(1.0)
    assert begun.wait(60)
    second(1.0)
    del second, quick
    go_on.set()
    wait_for_background()
    assert compiled == ["first"]


def _noting(compiled: list[str], real: Callable[[TieredProgram], None]) -> Callable[[TieredProgram], None]:
    def compile_best(program: TieredProgram) -> None:
        compiled.append(program._line or "")
        real(program)

    return compile_best


def test_a_process_ends_while_its_programs_compile(run: Run) -> None:
    assert run("""
        import torch, torch_xla
        x = torch.randn(8, 8).to("xla")
        for size in range(3, 20):
            for _ in range(2):
                y = x
                for _ in range(size):
                    y = (y @ x).softmax(-1)
                torch_xla.sync()
        print("the end")
    """).endswith("the end\n")


def test_the_child_of_a_fork_has_a_compiler_of_its_own(run: Run) -> None:
    assert run("""
        import os
        from xla_core.engine.compile import tiers
        before = tiers._compiler
        child = os.fork()
        if not child:
            os._exit(tiers._compiler is before)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """).split() == ["0"]
