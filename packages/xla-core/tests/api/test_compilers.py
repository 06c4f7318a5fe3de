"""Programs compiled by the compilers of TPUs and GPUs: whole steps, and what is in them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.backends
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from xla_core.abi.events import FallbackEvent, subscribe
from xla_core.abi.graph import register_wrapper
from xla_core.base.errors import LoweringError, UnsupportedOperationError

COMPILERS = {"v5e": "libtpu", "h100": "jax_cuda13_plugin"}
pytestmark = [pytest.mark.targets]


@pytest.fixture(params=COMPILERS)
def programs(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """The programs that the test compiles for a device that is not there, as jax has them."""
    if importlib.util.find_spec(COMPILERS[request.param]) is None:
        pytest.skip(f"needs {COMPILERS[request.param]}: hatch run targets:test")
    compiled: list[Any] = []

    def note(graph: object, program: Any) -> Any:
        compiled.append(program.compiled)
        return program

    torch_xla.sync()
    with torch_xla.target(request.param):
        stop = register_wrapper(note)
        yield compiled
        stop()


def on_tpu() -> bool:
    return xm.xla_device_hw("xla:0") == "TPU"


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 15 * 15, 512))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)), (16, 512)),
    "cnn": (cnn, (8, 3, 32, 32)),
    "transformer": (lambda: nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), (4, 32, 256)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_compiles_and_donates_its_state(programs: list[Any], name: str) -> None:
    make, shape = MODELS[name]
    model = make().to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(shape).to("xla")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
    stats = programs[-1].memory_analysis()
    assert stats.alias_size_in_bytes >= 0.95 * stats.argument_size_in_bytes, "small buffers aside, results take over their memory"


@pytest.mark.filterwarnings("ignore:nothing runs on the target")
def test_products_are_in_the_precision_of_the_platform(programs: list[Any]) -> None:
    x = torch.ones(256, 256, device="xla")
    (x @ x).sum().item()
    assert torch_xla.backends.get_mat_mul_precision() == ("default" if on_tpu() else "highest")
    assert ("operand_precision={highest,highest}" in programs[-1].as_text()) == (not on_tpu())


@pytest.mark.parametrize("decomposed", [torch.linalg.svd, torch.linalg.svdvals, torch.linalg.pinv, torch.linalg.eigh, torch.linalg.qr])
def test_decompositions_compile(programs: list[Any], decomposed: Callable[[torch.Tensor], Any]) -> None:
    kept = decomposed(torch.ones(5, 5).to("xla"))
    torch_xla.sync()
    assert len(programs) == 1 and kept is not None


def test_integers_of_64_bits_multiply(programs: list[Any]) -> None:
    x = torch.ones(8, 8, dtype=torch.int64).to("xla")
    product, bilinear = x @ x, nn.functional.bilinear(x, x, torch.ones(3, 8, 8, dtype=torch.int64).to("xla"))
    torch_xla.sync()
    assert len(programs) == 1 and product.dtype is bilinear.dtype is torch.int64


def test_dtypes_that_the_compiler_has_not_are_refused_with_their_line(programs: list[Any]) -> None:
    x = torch.ones(3, device="xla")
    if on_tpu():
        with pytest.raises(UnsupportedOperationError, match=r"test_compilers.py:\d+: TPUs have no .*; use torch.complex64"):
            x.to(torch.complex128)
    else:
        wide = x.to(torch.complex128)
        torch_xla.sync()
        assert wide.dtype is torch.complex128 and programs


@pytest.mark.filterwarnings("ignore:.* runs on the CPU")
def test_eigenvalues_of_general_matrices_are_compiled_or_run_on_the_host(programs: list[Any]) -> None:
    seen: list[FallbackEvent] = []
    stop = subscribe(seen.append, FallbackEvent)
    values = torch.linalg.eigvals(torch.ones(4, 4, device="xla") + 1) * 2
    torch_xla.sync()
    stop()
    assert values.shape == (4,) and len(seen) == on_tpu()
    assert len(programs) == 1 + on_tpu(), "what comes before the host's part, and what comes after it"


@pytest.mark.filterwarnings("ignore:.* runs on the CPU")
def test_float64_is_compiled_as_far_as_the_platform_has_it(programs: list[Any]) -> None:
    x = torch.rand(5, 5, dtype=torch.float64, device="xla").uniform_(0, 2)
    kept = x.sort(), torch.linalg.cholesky_ex(x @ x.t())[0]
    torch_xla.sync()
    assert len(programs) == 1 and kept
    seen: list[FallbackEvent] = []
    stop = subscribe(seen.append, FallbackEvent)
    inverse, values = torch.linalg.inv_ex(x)[0], torch.linalg.svdvals(x)
    torch_xla.sync()
    stop()
    assert inverse.dtype is values.dtype is torch.float64
    assert [event.operator for event in seen] == ["aten::linalg_inv_ex", "aten::_linalg_svd"] * on_tpu()


def test_devices_have_the_attributes_of_their_kind(programs: list[Any]) -> None:
    (attributes,) = xr.global_runtime_device_attributes()
    assert set(attributes) == ({"name", "coords", "core_on_chip", "num_cores"} if on_tpu() else {"name"})
    assert xr.global_device_count() == xr.world_size() == 1 and not programs


def test_what_is_too_large_is_said_with_figures(programs: list[Any]) -> None:
    x = torch.ones(1 << 17, 1 << 17, dtype=torch.bfloat16, device="xla")  # 32 GiB
    y = x @ x
    if on_tpu():
        with pytest.raises(LoweringError, match=r"could not be compiled for xla:0 of v5e: .*(hbm|memory)") as error:
            torch_xla.sync()
        assert re.search(r"\d+(\.\d+)?G", str(error.value))
    else:  # the memory of a GPU is looked at when the program is launched
        torch_xla.sync()
        assert y.shape == (1 << 17, 1 << 17)
