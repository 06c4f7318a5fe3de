"""Syncs and reads that are cut off, or fail: what did not run stays pending, and runs later with the same result."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
import torch
from torch import nn

import torch_xla
from xla_core.abi.events import ExecuteEvent, subscribe
from xla_core.abi.graph import Graph, register_pass
from xla_core.abi.operators import Context, OpSpec, register_op
from xla_core.base import errors
from xla_core.engine.compile.cache import programs
from xla_core.engine.graph.selection import renamed_lines
from xla_core.engine.runtime.interrupts import uninterrupted

Run = Callable[..., str]
OPS = torch.ops.xla_core_interrupts
_next_fault: list[Callable[[], None]] = []


@pytest.fixture(scope="module", autouse=True)
def operations() -> Iterator[None]:
    """`faulty(x)` is x; when it is lowered, what was put into `_next_fault` happens, once. `bad(x)` cannot be lowered."""
    library = torch.library.Library("xla_core_interrupts", "DEF")

    def lower(context: Context, x: jax.Array) -> jax.Array:
        if _next_fault:
            _next_fault.pop()()
        return x

    def fail(context: Context, x: jax.Array) -> jax.Array:
        raise ZeroDivisionError("injected")

    for name, lowering in (("faulty", lower), ("bad", fail)):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, torch.empty_like, "Meta")
        register_op(OpSpec(f"xla_core_interrupts::{name}", lowering))
    yield
    library._destroy()


def trained(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """After twelve steps of Adam without a sync."""
    torch.manual_seed(0)
    inputs = torch.randn(8, 4)
    network = nn.Linear(4, 3)
    network.to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        network(inputs.to(device)).square().mean().backward()
        optimizer.step()
    return network, optimizer


def raises(error: type[BaseException]) -> Callable[[], None]:
    def fault() -> None:
        raise error("injected")

    return fault


def sent() -> None:
    """As Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


FAULTS: dict[str, tuple[Callable[[], None], type[BaseException]]] = {
    "ctrl_c": (sent, KeyboardInterrupt),
    "no_memory": (raises(MemoryError), MemoryError),
    "too_deep": (raises(RecursionError), RecursionError),
    "exit": (raises(SystemExit), SystemExit),
}


@pytest.mark.parametrize("read", [False, True], ids=["sync", "read"])
@pytest.mark.parametrize(("fault", "error"), FAULTS.values(), ids=FAULTS)
def test_what_a_fault_while_compiling_cut_off_runs_later(fault: Callable[[], None], error: type[BaseException], read: bool) -> None:
    torch_xla.sync()
    network, _ = trained("xla")
    programs().clear()
    extra = OPS.faulty(network.weight.detach()) * 1
    _next_fault.append(fault)
    with pytest.raises(error):
        extra.cpu() if read else torch_xla.sync()
    assert not _next_fault
    expected, _ = trained("cpu")
    torch.testing.assert_close(network.weight.detach().cpu(), expected.weight.detach(), rtol=1e-4, atol=1e-5)
    torch_xla.sync()
    torch.testing.assert_close(extra.cpu(), expected.weight.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(network.bias.detach().cpu(), expected.bias.detach(), rtol=1e-4, atol=1e-5)


def test_one_operation_at_fault_loses_only_what_depends_on_it() -> None:
    torch_xla.sync()
    network, optimizer = trained("xla")
    bad = OPS.bad(network.weight.detach())
    after, beside = bad + 1, network.weight.detach() * 2
    with pytest.raises(errors.LoweringError, match="ZeroDivisionError: injected"):
        torch_xla.sync()
    expected, reference = trained("cpu")
    torch.testing.assert_close(beside.cpu(), expected.weight.detach() * 2, rtol=1e-4, atol=1e-5)
    for lost in (bad, after):
        with pytest.raises(errors.LoweringError, match="has no value.*ZeroDivisionError: injected"):
            lost.tolist()
    for each, stepping in ((network, optimizer), (expected, reference)):
        each(torch.ones(1, 4, device=each.weight.device)).sum().backward()
        stepping.step()
    torch_xla.sync()
    torch.testing.assert_close(network.weight.detach().cpu(), expected.weight.detach(), rtol=1e-4, atol=1e-5)


def test_two_operations_at_fault() -> None:
    torch_xla.sync()
    x = torch.ones(3, device="xla") + 1
    first, second, beside = OPS.bad(x), OPS.bad(x * 2) + 1, x * 3
    with pytest.raises(errors.LoweringError):
        torch_xla.sync()
    assert beside.tolist() == [6.0, 6.0, 6.0]
    for lost in (first, second):
        with pytest.raises(errors.LoweringError):
            lost.cpu()
    torch_xla.sync()


def test_a_pass_that_raises_loses_nothing() -> None:
    torch_xla.sync()
    x = torch.ones(3, device="xla") + 1

    def broken(graph: Graph) -> Graph:
        raise ValueError("injected")

    end = register_pass(broken)
    for ask in (torch_xla.sync, x.cpu):
        with pytest.raises(errors.PluginError, match="injected"):
            ask()
    end()
    assert x.tolist() == [2.0, 2.0, 2.0]


def test_a_listener_that_raises_loses_nothing() -> None:
    torch_xla.sync()
    x = torch.ones(3, device="xla") + 1

    def broken(event: object) -> None:
        raise ValueError("injected")

    end = subscribe(broken, ExecuteEvent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_xla.sync(wait=True)
    end()
    assert x.tolist() == [2.0, 2.0, 2.0]


def test_a_step_closure_that_raises_loses_nothing() -> None:
    torch_xla.sync()
    x = torch.ones(3, device="xla") + 1
    torch_xla.core.xla_model.add_step_closure(raises(ValueError))
    with pytest.raises(ValueError, match="injected"):
        torch_xla.sync()
    assert (x + 1).tolist() == [3.0, 3.0, 3.0]
    torch_xla.sync()


def test_ctrl_c_waits_for_the_end_of_a_block() -> None:
    done = False
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            sent()
            for _ in range(1000):
                pass
            done = True
    assert done
    with uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_slots_are_renumbered(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_xla.sync()
    x = torch.arange(5.0, device="xla") + 0.25
    kept = [x * number for number in range(3)]
    for number in range(400):  # so many dead ones are dropped by a read
        x + number
    kept.append(x - 7)
    monkeypatch.setattr("xla_core.engine.graph.selection.renamed_lines", interrupted(renamed_lines))
    with pytest.raises(KeyboardInterrupt):
        kept[0].tolist()
    expected = torch.arange(5.0) + 0.25
    assert [value.tolist() for value in kept] == [(expected * number).tolist() for number in range(3)] + [(expected - 7).tolist()]


def interrupted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, at whose first call Ctrl-C is pressed."""
    pressed: list[bool] = []

    def press(*args: Any) -> Any:
        if not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return function(*args)

    return press


@pytest.mark.parametrize("moments", [20, pytest.param(50, marks=pytest.mark.long)])
def test_no_value_is_lost_at_random_moments(run: Run, moments: int) -> None:
    """A loop that records, compiles, runs and reads, with Ctrl-C at any moment of it: a counter on the device goes on."""
    out = run(
        """
        import os, random, signal, threading
        import torch, torch_xla

        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where whoever runs the tests ignores it
        random.seed(0)
        x = torch.zeros(4, device="xla")
        weight = torch.ones(4, device="xla", requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.1)
        torch_xla.sync()
        began = ended = caught = 0

        def shoot(delay):
            threading.Event().wait(delay)
            os.kill(os.getpid(), signal.SIGINT)

        def turn():
            global began, ended
            began += 1
            x.add_(1)
            ended += 1
            y = torch.cat([x] * random.randint(1, 8))[random.randint(0, 3):].sin()
            (weight * y[:4].sum()).sum().backward()
            optimizer.step()
            choice = random.random()
            if choice < 0.3:
                torch_xla.sync()
            elif choice < 0.5:
                y.sum().item()
            elif choice < 0.6:
                x.cpu()

        for moment in range(int(os.environ["MOMENTS"])):
            gun = threading.Thread(target=shoot, args=(random.random() * 0.2,))
            try:
                gun.start()
                after = 0
                while after < 100:  # Python drops what is raised in a callback of the garbage collector
                    turn()
                    after += not gun.is_alive()
            except KeyboardInterrupt:
                caught += 1
            gun.join()
            found = x.cpu()
            assert found.tolist() in ([began] * 4, [ended] * 4), (moment, found, began, ended)
            began = ended = int(found[0])
            assert torch.isfinite(weight.detach().cpu()).all()
        print(caught)
        """,
        MOMENTS=str(moments),
    )
    assert 0.9 * moments <= int(out) <= moments


def test_too_deep_a_recursion_leaves_everything_usable(run: Run) -> None:
    """Also in the first sync of a process, where jax has much to import."""
    out = run(
        """
        import sys
        import torch, torch_xla

        def deep(left):
            if left:
                return deep(left - 1)
            torch_xla.sync()

        refused = 0
        for spare in range(10, 250, 7):
            x = torch.ones(spare, device="xla") + 1
            try:
                deep(sys.getrecursionlimit() - spare)
            except RecursionError:
                refused += 1
            assert x.sum().item() == 2 * spare, spare
        print(refused > 0)
        """
    )
    assert out.strip() == "True"
