"""Within `torch_xla.compile_only()` programs are compiled, in threads, and nothing runs: behind it all is as before, but compiled."""

from __future__ import annotations

import math
import os
import pty
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import jax
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_xla
from xla_core.abi.events import ExecuteEvent
from xla_core.abi.graph import register_build_scope
from xla_core.abi.operators import Context, OpSpec, register_op
from xla_core.base import metrics
from xla_core.base.errors import ExecutionError, LoweringError, SealedError, UnsupportedOperationError

Run = Callable[..., str]
Step = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Reads within the block give stand-ins, and say so once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="nothing runs on the target compile_only")
        yield
    torch_xla.sync()


class Classifier(nn.Module):
    """Has parameters, buffers that steps write, and dropout, which draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(12, 17, bias=False), nn.BatchNorm1d(17), nn.Linear(17, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(self.norm(self.first(x)).relu(), 0.25, self.training))


def trainer(device: str, wrap: Callable[[Step], Step] = lambda step: step) -> tuple[Classifier, torch.optim.Optimizer, Step]:
    torch.manual_seed(0)
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, wrap(train)


def synced(step: Step) -> Step:
    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = step(x, y)
        torch_xla.sync()
        return loss

    return train


def batches(device: str, sizes: tuple[int, ...] = (4, 6, 9)) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for size in sizes:
        for _ in range(3):
            yield torch.randn(size, 12, generator=generator).to(device), torch.randint(5, (size,), generator=generator).to(device)


FAILS = "xla_core_compile_only::fails"


@pytest.fixture(scope="module", autouse=True)
def operation() -> Iterator[None]:
    """An operation whose lowering fails."""
    library = torch.library.Library("xla_core_compile_only", "DEF")
    library.define("fails(Tensor x) -> Tensor")
    library.impl("fails", torch.empty_like, "Meta")

    def fail(context: Context, x: jax.Array) -> jax.Array:
        raise ZeroDivisionError("planted")

    register_op(OpSpec(FAILS, fail))
    yield
    library._destroy()


WAYS: dict[str, Callable[[Step], Step]] = {
    "recorded": synced,
    "region": lambda step: torch_xla.compile(step),
    "captured": lambda step: torch_xla.compile(step, capture=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_trained_model_compiles_nothing_behind_the_block(way: str) -> None:
    model, optimizer, step = trainer("xla", WAYS[way])
    unwarmed_model, _, unwarmed_step = trainer("xla", WAYS[way])
    torch_xla.manual_seed(3)
    expected = [unwarmed_step(*batch).cpu() for batch in batches("xla")]
    with torch_xla.compile_only():
        for batch in batches("xla"):
            step(*batch)
    assert not optimizer.state
    with torch_xla.seal():
        torch_xla.manual_seed(3)
        losses = [step(*batch).cpu() for batch in batches("xla")]
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(dict(model.state_dict()), dict(unwarmed_model.state_dict()))


def test_what_is_compiled_is_what_would_run() -> None:
    """A model of sizes that no other test has: as many programs are compiled in the block as by running, and none behind it."""
    programs = []
    for warm in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(19 + warm, 3), nn.Tanh()).to("xla")
        torch_xla.sync()
        before = metrics.counter("UncachedCompile")
        with torch_xla.compile_only() if warm else nullcontext():
            for rows in (2, 3, 4, 3):
                y = model(torch.ones(rows, 19 + warm, device="xla"))
                torch_xla.sync()
        compiled = metrics.counter("UncachedCompile")
        programs.append(compiled - before)
        for rows in (2, 3, 4):
            y = model(torch.ones(rows, 19 + warm, device="xla"))
            torch_xla.sync()
        assert y.shape == (4, 3) and metrics.counter("UncachedCompile") == compiled
    assert programs[0] == programs[1] > 0


def test_torch_compile_is_warmed_up() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(23, 3), nn.Tanh()).eval().to("xla")
    compiled = torch.compile(model, backend="openxla", dynamic=False)
    inputs = [torch.randn(rows, 23) for rows in (2, 3)]
    with torch.no_grad():
        with torch_xla.compile_only():
            for x in inputs:
                compiled(x.to("xla")).cpu()
        with torch_xla.seal():
            results = [compiled(x.to("xla")).cpu() for x in inputs]
    torch.testing.assert_close(results, [model.cpu()(x).detach() for x in inputs])


def test_nothing_runs_and_no_memory_is_taken() -> None:
    executions: list[ExecuteEvent] = []
    unsubscribe = metrics.subscribe(executions.append, ExecuteEvent)
    before = sum(array.nbytes for array in jax.live_arrays())
    try:
        with torch_xla.compile_only() as warm:
            large = torch.rand(1 << 20, 1 << 20, device="xla")  # 4 TiB
            total = (large @ large[:, :3]).sum()
            torch_xla.sync()
            assert sum(array.nbytes for array in jax.live_arrays()) <= before
            del large, total
    finally:
        unsubscribe()
    assert warm.programs > 0 and executions == []


class TestAsBefore:
    """Behind the block, what is on devices is as it was."""

    def test_data_and_gradients(self) -> None:
        model, optimizer, step = trainer("xla", synced)
        for batch in batches("xla", (4,)):
            step(*batch)
        model.first.weight.grad = None
        data = {name: value.cpu() for name, value in model.state_dict().items()}
        gradient = model.last.weight.grad
        assert gradient is not None
        of_last = gradient.cpu()
        with torch_xla.compile_only():
            for batch in batches("xla"):
                step(*batch)
        torch.testing.assert_close({name: value.cpu() for name, value in model.state_dict().items()}, data)
        assert model.first.weight.grad is None and model.last.weight.grad is gradient
        torch.testing.assert_close(gradient.cpu(), of_last)

    @pytest.mark.parametrize("options", [{}, {"capturable": True}, {"fused": True}])
    def test_the_state_of_optimizers(self, options: dict[str, bool]) -> None:
        """Also step counts on the CPU, and the state that only the block makes."""
        weights = [nn.Parameter(torch.ones(3, device="xla")), nn.Parameter(torch.ones(2, device="xla"))]
        optimizer = torch.optim.Adam(weights, **options)
        weights[0].sum().backward()
        optimizer.step()
        state = {name: value.cpu().clone() for name, value in optimizer.state[weights[0]].items()}
        with torch_xla.compile_only():
            for _ in range(2):
                (weights[0].sum() * weights[1].sum()).backward()
                optimizer.step()
                torch_xla.sync()
        assert list(optimizer.state) == weights[:1]
        torch.testing.assert_close({name: value.cpu() for name, value in optimizer.state[weights[0]].items()}, state)

    def test_random_states(self) -> None:
        torch_xla.manual_seed(5)
        expected = torch.rand(3, device="xla").cpu()
        torch_xla.manual_seed(5)
        with torch_xla.compile_only():
            torch.rand(3, device="xla").cpu()
            torch_xla.sync()
        assert torch.equal(torch.rand(3, device="xla").cpu(), expected)

    def test_views_and_tied_weights_share_their_data(self) -> None:
        base = torch.arange(6.0, device="xla")
        view = base[2:4]
        first, last = nn.Linear(2, 2).to("xla"), nn.Linear(2, 2).to("xla")
        last.weight = first.weight
        with torch_xla.compile_only():
            view.add_(1)
            with torch.no_grad():
                first.weight.mul_(2)
            torch_xla.sync()
        view.zero_()
        assert base.tolist() == [0, 1, 0, 0, 4, 5]
        with torch.no_grad():
            first.weight.fill_(3)
        assert last.weight.tolist() == [[3, 3], [3, 3]]

    def test_data_that_was_replaced(self) -> None:
        weight = nn.Parameter(torch.ones(3, device="xla"))
        plain = torch.ones(2, device="xla")
        with torch_xla.compile_only():
            weight.data = weight.data * 2
            plain.data = torch.zeros(2, device="xla")
            torch_xla.sync()
        assert weight.tolist() == [1, 1, 1] and plain.tolist() == [1, 1]

    def test_zeros_that_nobody_has_used(self) -> None:
        zeros, more = torch.zeros(3, device="xla"), torch.ones(3, device="xla").zero_()
        with torch_xla.compile_only():
            zeros.add_(1)
            more.add_(1)
            torch_xla.sync()
        assert (zeros + more).tolist() == [0, 0, 0]

    def test_an_error_in_the_block(self) -> None:
        weight = torch.ones(3, device="xla")
        with pytest.raises(KeyError, match="mine"), torch_xla.compile_only():
            weight.add_(1)
            raise KeyError("mine")
        assert weight.tolist() == [1, 1, 1]


class TestValues:
    """What can be read in the block, and behind it."""

    def test_small_integers_are_known(self) -> None:
        ids = torch.tensor([3, 4, 5], device="xla")
        with torch_xla.compile_only():
            assert (ids * 2).sum().item() == 24
            assert math.isnan(torch.ones(2, device="xla").sum().item())

    def test_what_the_block_has_made_has_no_data(self) -> None:
        with torch_xla.compile_only():
            made = torch.ones(3, device="xla") * 2
            torch_xla.sync()
            pending = made + 1
        for use in (made.cpu, lambda: made + 1, lambda: print(made), pending.cpu):
            with pytest.raises(ExecutionError, match=r"has no value: it was made within torch_xla.compile_only\(\)"):
                use()
        assert (torch.ones(2, device="xla") + 1).tolist() == [2, 2]

    def test_shapes_that_depend_on_data(self) -> None:
        data = torch.ones(3, device="xla")
        with torch_xla.compile_only(), pytest.raises(UnsupportedOperationError, match="Give it a fixed shape"):
            data.nonzero()


class TestCompiling:
    """Threads, order, failures, and the cache on disk."""

    def test_the_largest_programs_come_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.cpu_count", lambda: 1)
        recorded, sizes = threading.Event(), []

        @contextmanager
        def waiting(graph: Any) -> Iterator[None]:
            recorded.wait(60)
            sizes.append(len(list(graph.operations())))
            yield

        remove = register_build_scope(waiting)
        try:
            with torch_xla.compile_only():
                x = torch.ones(29, device="xla")
                for count in (1, 3, 2, 5, 4):
                    y = x
                    for _ in range(count):
                        y = y.sin()
                    torch_xla.sync()
                recorded.set()
        finally:
            remove()
        assert sizes[1:] == sorted(sizes[1:], reverse=True) and len(sizes) == 5

    def test_failures_are_raised_at_the_end(self) -> None:
        with (
            pytest.raises(LoweringError, match=r"xla_core_compile_only.fails.*test_compile_only.py:\d+") as raised,
            torch_xla.compile_only(),
        ):
            for count in (1, 2):
                x = torch.ones(3, device="xla")
                for _ in range(count):
                    x = torch.ops.xla_core_compile_only.fails(x)
                torch_xla.sync()
        assert any("1 more programs could not be compiled" in note for note in raised.value.__notes__)

    def test_a_terminal_shows_a_bar(self) -> None:
        code = """
import torch, torch_xla
with torch_xla.compile_only():
    for size in (2, 3):
        y = torch.ones(size, device="xla").sinh()
        torch_xla.sync()
"""
        terminal, other_end = pty.openpty()
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "TERM": "xterm", "COLUMNS": "80"}
        with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=other_end) as process:
            os.close(other_end)
            shown = b""
            with suppress(OSError):  # the terminal's end
                while part := os.read(terminal, 1 << 12):
                    shown += part
        os.close(terminal)
        assert process.returncode == 0 and b"compiling" in shown and b"2/2" in shown, shown

    def test_numbers_that_change_are_inputs(self) -> None:
        x = torch.ones(31, device="xla")
        with torch_xla.compile_only():
            for factor in (0.1, 0.2, 0.3):
                y = x * factor
                torch_xla.sync()
        with torch_xla.seal():
            y = x * 0.7
            torch_xla.sync()
        assert y[0].item() == pytest.approx(0.7)

    def test_a_process_finds_the_programs_of_another_one_on_disk(self, interpreter: Run, tmp_path: Any) -> None:
        code = """
            import torch, torch_xla
            from contextlib import nullcontext
            from xla_core.base import metrics
            model = torch.nn.Linear(7, 3).to("xla")
            with {block}:
                for rows in (2, 5):
                    model(torch.ones(rows, 7, device="xla")).sum().backward()
                    torch_xla.sync()
            print(metrics.counter("UncachedCompile"), metrics.counter("PersistentCacheHit"))
        """
        folder = str(tmp_path / "cache")
        compiled = interpreter(code.format(block="torch_xla.compile_only()"), XLA_PERSISTENT_CACHE_PATH=folder).split()
        assert int(compiled[0]) > 0
        assert interpreter(code.format(block="nullcontext()"), XLA_PERSISTENT_CACHE_PATH=folder).split() == ["0", compiled[0]]

    def test_a_target(self, interpreter: Run) -> None:
        """For devices that are not there, as `torch_xla.target`, in threads."""
        text = interpreter("""
            import torch, torch_xla
            with torch_xla.compile_only("cpu:1") as warm:
                model = torch.nn.Linear(7, 3).to("xla")
                for rows in (2, 5):
                    y = model(torch.ones(rows, 7, device="xla")).sum()
                    torch_xla.sync()
            print(warm.programs, torch.ones(2, device="xla").sum().item())
        """)
        assert text.split()[1] == "2.0" and int(text.split()[0]) > 0

    def test_in_a_process_that_plans(self, interpreter: Run) -> None:
        """Nothing there has data, before, in and behind the block."""
        text = interpreter(
            """
            import torch, torch_xla
            model = torch.nn.Linear(7, 3).to("xla")
            made = []
            with torch_xla.compile_only() as warm:
                made.append(model(torch.ones(2, 7, device="xla")))
                torch_xla.sync()
            y = model(torch.ones(2, 7, device="xla")) + made[0]
            torch_xla.sync()
            print(warm.programs, y.shape)
            """,
            XLA_TARGET="cpu:1",
        )
        assert text.split(maxsplit=1)[1].strip() == "torch.Size([2, 3])" and int(text.split()[0]) > 0


SPMD = """
import numpy as np, torch, torch_xla
import torch_xla.distributed.spmd as xs, torch_xla.runtime as xr
from xla_core.base import metrics
xr.use_spmd()
mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)).to("xla")
xs.mark_sharding(model[0].weight, mesh, ("model", None))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def losses():
    found = []
    for rows in (4, 8):
        for _ in range(2):
            x = xs.mark_sharding(torch.ones(rows, 8).to("xla"), mesh, ("data", None))
            loss = model(getattr(x, "global_tensor", x)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            found.append(round(loss.item(), 4))
    return found

with torch_xla.compile_only():
    losses()
before = metrics.counter("UncachedCompile")
print(losses(), metrics.counter("UncachedCompile") - before)
"""


def test_meshes(interpreter: Run) -> None:
    """Results have the shardings that the compiler chooses, so that the programs of later steps are those that will run."""
    text = interpreter(SPMD, CPU_NUM_DEVICES="4")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for rows in (4, 8):
        for _ in range(2):
            loss = model(torch.ones(rows, 8)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(round(loss.item(), 4))
    numbers, compiled = text.rsplit(maxsplit=1)
    assert compiled == "0" and [float(each) for each in numbers.strip("[]").split(",")] == pytest.approx(losses, abs=2e-4)


class TestRefused:
    """Where the block cannot begin, and who may not run programs meanwhile."""

    def test_in_a_region(self) -> None:
        @torch_xla.compile
        def step() -> None:
            with torch_xla.compile_only():
                pass

        with pytest.raises(RuntimeError, match="inside of torch_xla.compile: begin it outside"):
            step()

    def test_in_another_block(self) -> None:
        with torch_xla.compile_only(), pytest.raises(RuntimeError, match="inside of another one"), torch_xla.compile_only():
            pass
        assert (torch.ones(2, device="xla") + 1).tolist() == [2, 2]

    def test_in_another_thread(self) -> None:
        raised: list[Exception] = []

        def work() -> None:
            try:
                torch.ones(2, device="xla").sum().item()
            except ExecutionError as error:
                raised.append(error)

        with torch_xla.compile_only():
            thread = threading.Thread(target=work, name="server")
            thread.start()
            thread.join()
        assert "in the thread server while another one is within torch_xla.compile_only()" in str(raised[0])
        assert "test_compile_only.py" in str(raised[0])

    def test_a_new_program_under_a_seal(self) -> None:
        (torch.ones(2, device="xla") + 1).tolist()
        with torch_xla.seal(), pytest.raises(SealedError, match="needs a program that is not compiled"), torch_xla.compile_only():
            torch.ones(37, device="xla").sinh().sum().item()
