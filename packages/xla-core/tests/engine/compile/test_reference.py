"""Programs evaluated operator by operator give what the CPU gives, and what the compiled program gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_xla
from xla_core.base import config, metrics
from xla_core.base.config import override
from xla_core.engine.compile import reference
from xla_core.engine.compile.cache import programs
from xla_core.engine.graph.aval import aval_of
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.ops.table import Context


@pytest.fixture
def by_operators() -> Iterator[None]:
    """Programs of this test are built anew, operator by operator."""
    torch_xla.sync()
    programs().clear()
    with override(config.REFERENCE, True):
        yield
        torch_xla.sync()
    programs().clear()


UNARY: list[Callable[[torch.Tensor], torch.Tensor]] = [torch.sin, torch.exp, torch.relu, torch.neg, lambda x: x.t(), lambda x: x * 2.5]
BINARY: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [torch.add, torch.mul, torch.sub, torch.matmul]


@given(st.lists(st.tuples(st.sampled_from(UNARY), st.sampled_from(BINARY)), min_size=1, max_size=6), st.integers(0, 2**31))
@pytest.mark.usefixtures("by_operators")
def test_programs_are_those_of_the_cpu(steps: list[tuple[Any, Any]], seed: int) -> None:
    x = torch.rand(3, 3, generator=torch.Generator().manual_seed(seed)) - 0.5
    results = []
    for device in ("cpu", "xla"):
        y = x.to(device)
        for unary, binary in steps:
            y = torch.tanh(binary(unary(y), x.to(device)))
        results.append(y.cpu())
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.usefixtures("by_operators")
def test_a_training_loop_compiles_nothing_as_a_whole() -> None:
    def losses(device: str) -> list[float]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        data, target = torch.arange(20.0).reshape(5, 4).to(device) / 20, torch.tensor([0, 1, 2, 1, 0]).to(device)
        history = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
            torch_xla.sync()
        return history

    before = metrics.snapshot().counters.get("UncachedCompile")
    torch.testing.assert_close(losses("xla"), losses("cpu"), rtol=1e-5, atol=1e-6)
    assert metrics.snapshot().counters.get("UncachedCompile") == before


@pytest.mark.usefixtures("by_operators")
def test_data_is_checked() -> None:
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 3"):
        torch.ones(3, device="xla")[torch.tensor([0, 7]).to("xla")].cpu()


@pytest.mark.usefixtures("by_operators")
def test_random_numbers_are_those_of_the_compiled_program() -> None:
    torch.manual_seed(5)
    mine = torch.rand(6, device="xla").cpu()
    with override(config.REFERENCE, False):
        programs().clear()
        torch.manual_seed(5)
        assert torch.equal(torch.rand(6, device="xla").cpu(), mine)


@pytest.mark.usefixtures("by_operators")
def test_a_lowering_that_fails_says_where() -> None:
    from xla_core.base.errors import LoweringError
    from xla_core.engine.compile.emit import Constants, program
    from xla_core.engine.graph.graph import Graph

    def fails(context: Any, x: jax.Array) -> jax.Array:
        raise ValueError("too blue")

    f32 = aval_of((2,), torch.float32)
    graph = Graph((f32, (Signature("test.paint", fails, (PLACEHOLDER,), {}, (f32,)), 0)), (1,), lines={1: "paint.py:3"})
    with pytest.raises(LoweringError, match=r"test.paint over .*paint.py:3.*too blue"):
        program(graph, Constants((), ()), Context(()), emitter=reference.Operators().emit)(jax.numpy.ones(2))


def test_few_executables_are_kept() -> None:
    operators = reference.Operators(size=2)
    f32 = aval_of((2,), torch.float32)
    signatures = [Signature(f"test.{n}", lambda context, x, n=n: x + n, (PLACEHOLDER,), {}, (f32,)) for n in range(4)]
    x = jax.numpy.zeros(2)
    assert [float(operators.emit(signature, [x], Context(()))[0][0]) for signature in (*signatures, signatures[0])] == [0, 1, 2, 3, 0]
    assert len(operators) == 2


def test_a_mesh_is_evaluated_too(run: Callable[..., str]) -> None:
    program = """
import torch, torch_xla, torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
xr.use_spmd()
mesh = xs.Mesh(range(4), (4,), ("x",))
a = torch.arange(32.0).reshape(8, 4)
x = a.to("xla")
xs.mark_sharding(x, mesh, ("x", None))
y = (x @ x.t()).relu()
torch_xla.sync()
print(torch.equal(y.cpu(), (a @ a.t()).relu()))
"""
    assert run(program, CPU_NUM_DEVICES="4", XLA_REFERENCE_EXECUTOR="1").split() == ["True"]
