"""Failures on the way to the device: lowerings, executions, memory, devices and dtypes that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import torch_xla
from xla_core.abi.operators import Context, OpSpec, register_op
from xla_core.base import errors
from xla_core.engine.compile.cache import programs

Run = Callable[..., str]
OPS = torch.ops.xla_core_error_tests


@pytest.fixture(scope="module", autouse=True)
def operations() -> Iterator[None]:
    """Operations whose lowerings fail, each in its way."""
    library = torch.library.Library("xla_core_error_tests", "DEF")

    def add(name: str, lower: Callable[..., Any]) -> None:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x * 2, "CPU")
        library.impl(name, torch.empty_like, "Meta")
        register_op(OpSpec(f"xla_core_error_tests::{name}", lower))

    def raises(context: Context, x: jax.Array) -> jax.Array:
        raise ZeroDivisionError("injected")

    add("raises", raises)
    add("wrong_shape", lambda context, x: x[:1])
    yield
    library._destroy()


@pytest.mark.parametrize(("name", "what"), [("raises", "ZeroDivisionError: injected"), ("wrong_shape", r"result 0 is float32\[1\]")])
def test_a_lowering_that_fails_names_operation_shapes_and_line(name: str, what: str) -> None:
    torch_xla.sync()
    result = getattr(OPS, name)(torch.ones(5, device="xla"))  # the line that the error has to name
    with pytest.raises(errors.LoweringError, match=what) as caught:
        torch_xla.sync()
    text = str(caught.value)
    assert f"xla_core_error_tests.{name}" in text
    assert "float32[5]" in text
    line = int(text.split("test_errors.py:")[1].split(",")[0])
    assert "the line that the error has to name" in Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1]
    with pytest.raises(RuntimeError, match="has no value"):
        result.tolist()
    assert (torch.ones(2, device="xla") + 1).tolist() == [2.0, 2.0], "later work is not affected"


def test_an_execution_that_fails_surfaces_at_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_xla.sync()
    x = torch.ones(3, device="xla")
    x.tolist()
    y = x * 5

    def fail(*_: Any) -> Any:
        raise RuntimeError("INTERNAL: the device went away")

    with monkeypatch.context() as patch:
        patch.setattr("xla_core.engine.compile.build.build", lambda *_, **__: fail)
        programs().clear()
        with pytest.raises(errors.ExecutionError, match="the device went away"):
            torch_xla.sync()
    programs().clear()
    with pytest.raises(RuntimeError, match="has no value.*the device went away"):
        y.tolist()
    with pytest.raises(RuntimeError, match="has no value.*the device went away"):
        y + 1
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]


def test_out_of_memory_is_an_error_and_not_the_end(run: Run) -> None:
    out = run(
        """
        import resource
        import torch, torch_xla
        small = torch.ones(4, device="xla") + 1
        torch_xla.sync(wait=True)
        limit = int(open("/proc/self/statm").read().split()[0]) * 4096 + (1 << 31)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            big = torch.ones(1 << 33, dtype=torch.float32, device="xla") + 1  # 32 GiB
            print(big[0].item())
        except RuntimeError as error:
            print("refused", type(error).__name__)
        print(small.sum().item())
        """
    )
    assert out.splitlines() == ["refused ExecutionError", "8.0"]


def test_unknown_devices(run: Run) -> None:
    with pytest.raises(IndexError, match="xla:7 does not exist"):
        torch_xla.device(7)
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.ones(2).to("xla:7")
    run(
        "import torch, torch_xla\ntry:\n    torch_xla.device()\nexcept RuntimeError as e:\n    assert 'NOSUCH' in str(e), e",
        PJRT_DEVICE="NOSUCH",
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_dtype_that_xla_has_not() -> None:
    with pytest.raises(TypeError, match="has no counterpart on XLA devices"):
        torch.zeros(2, dtype=torch.complex32).to("xla")
