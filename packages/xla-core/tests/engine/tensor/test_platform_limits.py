"""What a platform cannot take is refused when it is recorded, or runs on the host: here as if the CPU were such a platform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_xla
from xla_core.abi.events import CompileEvent, subscribe
from xla_core.base import config
from xla_core.base.config import FallbackPolicy
from xla_core.base.errors import FallbackError, LoweringError, UnsupportedOperationError
from xla_core.engine.tensor import fallback
from xla_core.engine.tensor.recorded import forget_limited
from xla_core.ops.limits import LIMITS
from xla_core.testing import planned_cpu

Tensor = torch.Tensor
LINE = r"at .*test_platform_limits.py:\d+: TPUs have no complex numbers of 128 bits; use torch.complex64"


@pytest.fixture(autouse=True)
def warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has the first warning of an operator, and takes it from no other test."""
    monkeypatch.setattr(fallback, "_warned", set())


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU takes what a TPU takes. Other tests may have recorded the same calls before."""
    torch_xla.sync()
    monkeypatch.setitem(LIMITS, "cpu", LIMITS["tpu"])  # type: ignore[arg-type]
    forget_limited("cpu")
    yield
    torch_xla.sync()


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "cast": lambda x: x.to(torch.complex128),
    "factory": lambda x: torch.zeros(3, dtype=torch.complex128, device=x.device),
    "computed in it": lambda x: torch.linalg.vector_norm(x.to(torch.complex64), dtype=torch.complex128),
    "promotion": lambda x: x.to(torch.complex64) * x.double(),
    "upload": lambda x: torch.ones(3, dtype=torch.complex128).to(x.device) + 1,
    "view": lambda x: torch.view_as_complex(torch.ones(3, 2, dtype=torch.float64, device=x.device)),
    "view of bits": lambda x: torch.ones(6, dtype=torch.float64, device=x.device).view(torch.complex128),
    "out": lambda x: torch.add(x, x, out=torch.empty(3, dtype=torch.complex128, device=x.device)),
    "write": lambda x: torch.empty(3, dtype=torch.complex128, device=x.device).copy_(x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_dtype_that_the_platform_lacks_is_refused_at_the_call(limited: None, name: str) -> None:
    x = torch.ones(3, device="xla")
    with pytest.raises(UnsupportedOperationError, match=LINE):
        REFUSED[name](x)
    assert (x + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", REFUSED)
def test_a_platform_without_limits_takes_it(name: str) -> None:
    result = REFUSED[name](torch.ones(3, device="xla"))
    torch.testing.assert_close(result.cpu(), REFUSED[name](torch.ones(3)))


def test_calls_recorded_for_another_platform_are_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, device="xla")
    wide = x.to(torch.complex128)
    monkeypatch.setitem(LIMITS, "cpu", LIMITS["tpu"])  # type: ignore[arg-type]
    with planned_cpu(), pytest.raises(UnsupportedOperationError, match=LINE):
        torch.ones(3, device="xla").to(torch.complex128)
    monkeypatch.undo()
    assert (wide + x.to(torch.complex128)).tolist() == [2, 2, 2]


def test_what_was_recorded_otherwise_is_refused_while_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = torch.ones(3, device="xla").to(torch.complex128)
    with monkeypatch.context() as patch:
        patch.setitem(LIMITS, "cpu", LIMITS["tpu"])  # type: ignore[arg-type]
        expected = r"c128\[3\] recorded at .*test_platform_limits.py:\d+ cannot be compiled for cpu: TPUs have no complex numbers"
        with pytest.raises(LoweringError, match=expected):
            wide.cpu()
    assert wide.tolist() == [1, 1, 1]


def test_an_operator_that_the_platform_lacks_runs_on_the_host(limited: None, counts: Any) -> None:
    host = torch.tensor([[2.0, 1.0], [0.5, -1.0]], dtype=torch.float32)
    x = host.to("xla").requires_grad_()
    with pytest.warns(RuntimeWarning, match=r"linalg_eig cannot be compiled for cpu \(JAX has no eigenvalues .*\) and runs on the CPU"):
        values, vectors = torch.linalg.eig(x)
    expected = torch.linalg.eig(host.requires_grad_())
    torch.testing.assert_close(values.cpu(), expected[0])
    torch.testing.assert_close(vectors.cpu(), expected[1])
    values.abs().sum().backward()
    expected[0].abs().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), host.grad)  # type: ignore[union-attr]
    assert counts["aten::linalg_eig"] == 1


@pytest.mark.filterwarnings("error:.* runs on the CPU")
def test_tolerances_of_another_dtype_send_nothing_to_the_host(limited: None) -> None:
    host = torch.tensor([[2.0, 1.0], [0.5, -1.0]])
    inverse = torch.linalg.pinv(host.to("xla"), rtol=torch.tensor(1e-5, dtype=torch.float64, device="xla"))
    torch.testing.assert_close(inverse.cpu(), torch.linalg.pinv(host, rtol=torch.tensor(1e-5, dtype=torch.float64)))


def test_it_can_be_forbidden_to_run_on_the_host(limited: None) -> None:
    with config.override(config.FALLBACK, FallbackPolicy.ERROR), pytest.raises(FallbackError, match="cannot be compiled for cpu"):
        torch.linalg.eigvals(torch.eye(2, device="xla"))


@pytest.mark.filterwarnings("ignore:.* runs on the CPU")
def test_a_plan_goes_on_with_the_shapes(limited: None) -> None:
    compiled: list[CompileEvent] = []
    with planned_cpu():
        x = torch.ones(3, 3, device="xla") * 2
        stop = subscribe(compiled.append, CompileEvent)
        values = torch.linalg.eigvals(x)
        assert len(compiled) == 1, "what the operand comes from"
        doubled = values * 2
        torch_xla.sync()
        stop()
        assert len(compiled) == 2 and doubled.shape == (3,) and doubled.dtype is torch.complex64
        with pytest.raises(RuntimeError, match="must be batches of square matrices"):
            torch.linalg.eigvals(torch.ones(3, 4, device="xla"))


@pytest.mark.filterwarnings("ignore:.* runs on the CPU", "error:nothing runs on the target")
def test_a_plan_reads_no_values_for_the_host() -> None:
    """Factors of NaN would be refused as no such factors."""
    with planned_cpu():
        x = torch.eye(3, device="xla")
        factors, pivots, _ = torch.linalg.ldl_factor_ex(x)
        assert torch.linalg.ldl_solve(factors, pivots, x).shape == (3, 3)
