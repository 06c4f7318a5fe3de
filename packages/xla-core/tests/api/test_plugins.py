"""Names of other distributions: theirs, or one replica's result, or an error that names the wheel."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla import _XLAC
from xla_core.api import one_replica
from xla_core.api.backends import Plugin
from xla_core.api.plugins import MODULES, MissingModules, forget
from xla_core.base import installation, metrics
from xla_core.base.errors import AbiVersionError, InstallationError, MissingPackageError, RegistrationError
from xla_core.legacy.xlac import of_siblings
from xla_core.testing import check_collective_backend

Run = Callable[..., str]


class _EntryPoint:
    """An entry point that is not installed. plugin: what it names, or what loading it raises."""

    def __init__(self, name: str, plugin: Any) -> None:
        self.name = name
        self._plugin = plugin

    def load(self) -> Any:
        if isinstance(self._plugin, Exception):
            raise self._plugin
        return self._plugin


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`plugins(name=Plugin(...))`: these are what is installed."""

    def install(**installed: Any) -> None:
        points = [_EntryPoint(name, plugin) for name, plugin in installed.items()]
        monkeypatch.setattr(installation, "entry_points", lambda group: points if group == "xla_core.plugins" else [])
        monkeypatch.setattr(installation, "is_installed", lambda distribution: distribution in installed)
        monkeypatch.setattr(installation, "brought", lambda distribution, module: False)
        monkeypatch.setattr(installation, "_unfit", {})
        forget()

    install()
    yield install
    monkeypatch.undo()
    forget()


pytestmark = pytest.mark.usefixtures("plugins")


class Several:
    """Collectives of somebody else's, of which only a few are there."""

    others: Mapping[str, Callable[..., Any]] = {"newer": len}

    def all_reduce(self, *args: Any) -> list[str]:
        return ["theirs"]


def theirs() -> Plugin:
    return Plugin(collectives=Several)  # type: ignore[arg-type]


def marks() -> int:
    return metrics.counter("MarkStep")


def values() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], device="xla")


def test_what_a_plugin_brings(plugins: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    plugins(one=theirs())
    assert xm.newer is len
    assert xm.all_reduce("sum", values()).tolist() == [1.0, 2.0, 3.0], "one replica's result is the core's"
    monkeypatch.setattr(xr, "world_size", lambda: 2)
    assert xm.all_reduce("sum", values()) == "theirs"
    with pytest.raises(AttributeError, match="no attribute 'older'"):
        _ = xm.older


def test_parts_are_loaded_when_they_are_needed(plugins: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def give() -> Any:
        called.append("collectives")
        return Several()

    plugins(one=Plugin(prepare=lambda: called.append("prepare"), collectives=give))
    assert xm.all_gather(values()).tolist() == [1.0, 2.0, 3.0]
    torch_xla.sync()
    assert called == ["prepare"]
    monkeypatch.setattr(xr, "world_size", lambda: 2)
    for _ in range(2):
        assert xm.all_reduce("sum", values()) == "theirs"
    assert called == ["prepare", "collectives"]


def test_two_plugins_with_one_part_are_an_error(plugins: Callable[..., None]) -> None:
    plugins(one=theirs(), two=theirs())
    with pytest.raises(RegistrationError, match="one and two both bring collectives"):
        torch_xla.sync()


def test_an_entry_point_names_a_plugin(plugins: Callable[..., None]) -> None:
    plugins(one={"torch_xla.core.xla_model.all_reduce": len})
    with pytest.raises(RegistrationError, match=r"entry point one of xla_core.plugins names a dict: name an abi.plugins.Plugin"):
        torch_xla.sync()


def test_a_sibling_that_does_not_fit_is_left_out_with_one_warning(plugins: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    skew = AbiVersionError(
        "xla-distributed needs ABI 1.9 of xla-core, version 0.2.0 has 1.7: upgrade xla-core (pip install --upgrade xla-core)"
    )
    other = Plugin(reports=lambda: pytest.fail("nobody asked for reports"))
    plugins(**{"xla-distributed": skew, "xla-other": other})
    with pytest.warns(UserWarning, match="ABI 1.9 of xla-core.*pip install --upgrade xla-core.*xla-distributed is left out") as seen:
        torch_xla.sync()
        forget()
        torch_xla.sync()
    assert len(seen) == 1
    assert xm.all_reduce("sum", values()).tolist() == [1.0, 2.0, 3.0], "one replica needs no plugin"
    monkeypatch.setattr(xr, "world_size", lambda: 2)
    with pytest.raises(AbiVersionError, match="all_reduce is in xla-distributed, which is left out: .*pip install --upgrade xla-core"):
        xm.all_reduce("sum", values())


def test_what_an_installed_sibling_lacks_is_told_from_what_it_lost(plugins: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    plugins(**{"xla-spmd": {}})
    load, spmd = MissingModules().exec_module, ModuleType("torch_xla.distributed.spmd")
    with pytest.raises(MissingPackageError, match="not in the xla-spmd that is installed: pip install --upgrade xla-spmd"):
        load(spmd)
    monkeypatch.setattr(installation, "brought", lambda distribution, module: module == "torch_xla.distributed.spmd")
    with pytest.raises(InstallationError, match="file is gone: pip install --force-reinstall --no-deps xla-spmd"):
        load(spmd)


def test_all_reduce_of_one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = values()
    result = xm.all_reduce(xm.REDUCE_SUM, tensor, scale=0.5)
    assert result is not tensor and result.tolist() == [1.0, 2.0, 3.0]
    listed = [tensor, values()]
    assert xm.all_reduce("max", listed, scale=0.5, groups=[[0]]) is listed
    assert tensor.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="reduce_type"):
        xm.all_reduce("average", tensor)
    for groups in ([[0, 1]], [[1]], [[0], [0]]):
        with pytest.raises(ValueError, match="groups"):
            xm.all_reduce("sum", tensor, groups=groups)
    monkeypatch.setenv("XLA_ALWAYS_ALLREDUCE", "1")
    assert xm.all_reduce("sum", tensor, scale=0.5).tolist() == [0.5, 1.0, 1.5]
    counts = torch.tensor([2, 4], device="xla")
    assert xm.all_reduce("sum", [counts], scale=0.5)[0] is counts
    assert counts.tolist() == [1, 2] and counts.dtype is torch.int64


def test_all_gather_of_one_replica() -> None:
    tensor = values()
    for gathered in (xm.all_gather(tensor, dim=-1), xm._all_gather_using_all_reduce(tensor), xm.all_gather_bucketized([tensor])[0]):
        assert gathered is not tensor and gathered.tolist() == [1.0, 2.0, 3.0]
    output = torch.zeros(3, device="xla")
    assert xm.all_gather(tensor, output=output, channel_id=1) is output and output.tolist() == [1.0, 2.0, 3.0]
    outputs = [torch.zeros(3, device="xla")]
    assert xm.all_gather([tensor], output=outputs, pin_layout=False) is outputs and outputs[0].tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(RuntimeError, match="pin_layout"):
        xm.all_gather([tensor])
    with pytest.raises(RuntimeError, match="pin_layout"):
        xm.all_gather_bucketized([tensor], pin_layout=True)
    with pytest.raises(TypeError):
        xm.all_gather("text")
    with pytest.raises(TypeError):
        xm.all_gather([tensor], output=tensor, pin_layout=False)
    with pytest.raises(ValueError, match="2 tensors for 1"):
        xm.all_gather([tensor], output=[tensor, tensor], pin_layout=False)


def test_of_one_replica() -> None:
    tensor = values()
    assert xm.all_to_all(tensor, 0, 0, 1).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="split_count"):
        xm.all_to_all(tensor, 0, 0, 3)
    assert xm.collective_permute(tensor, [[0, 0]]).tolist() == [1.0, 2.0, 3.0]
    assert xm.collective_permute(tensor, []).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError):
        xm.collective_permute(tensor, [[0, 0], [0, 0]])
    assert xm.collective_broadcast([tensor]) is None and tensor.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError):
        xm.collective_broadcast([tensor], root_ordinal=1)


def test_scale_applies_to_reduce_scatter() -> None:
    tensor = values()
    assert xm.reduce_scatter("sum", tensor, 0.5, 0, 1).tolist() == [0.5, 1.0, 1.5]
    (listed,) = xm.reduce_scatter_bucketized("sum", [tensor], 2.0, 0, 1)
    assert listed.tolist() == [2.0, 4.0, 6.0] and tensor.tolist() == [1.0, 2.0, 3.0]
    output = torch.zeros(3, device="xla")
    assert xm.reduce_scatter("sum", tensor, 1.0, 0, 1, output=output) is output
    with pytest.raises(ValueError, match="shard_count"):
        xm.reduce_scatter("sum", tensor, 1.0, 0, 3)
    with pytest.raises(TypeError):
        xm.reduce_scatter("sum", 3.0, 1.0, 0, 1)


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 1).to("xla")
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_gradients() -> None:
    model, optimizer = model_and_optimizer()
    assert xm._fetch_gradients(optimizer) == []
    model(values()).sum().backward()
    weight, bias = xm._fetch_gradients(optimizer)
    assert (weight.tolist(), bias.tolist()) == ([[1.0, 2.0, 3.0]], [1.0])
    assert xm.reduce_gradients(optimizer) is None and weight.tolist() == [[1.0, 2.0, 3.0]]
    assert xm.all_reduce_bucketized_gradients([weight], 0.5, None, True) is None and weight.tolist() == [[1.0, 2.0, 3.0]]


def test_optimizer_step_returns_the_result_and_syncs_if_asked() -> None:
    model, optimizer = model_and_optimizer()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(values()).sum()
        loss.backward()
        return loss

    expected = closure().item()
    before = marks()
    assert xm.optimizer_step(optimizer, optimizer_args={"closure": closure}).item() == pytest.approx(expected)
    assert marks() == before
    closure()
    assert xm.optimizer_step(optimizer, barrier=True) is None
    assert marks() == before + 1


def test_reduction_is_looked_up_through_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(xm, "reduce_gradients", lambda optimizer, **kwargs: seen.append((optimizer, kwargs)))
    _, optimizer = model_and_optimizer()
    xm.optimizer_step(optimizer, groups=[[0]], pin_layout=False)
    assert seen == [(optimizer, {"groups": [[0]], "pin_layout": False})]
    monkeypatch.undo()
    assert xm.reduce_gradients(optimizer) is None


def test_rendezvous() -> None:
    before = marks()
    assert xm.xla_rendezvous(b"here") == [b"here"]
    assert marks() == before + 2
    assert xm.rendezvous("tag") == [b""] and xm.rendezvous("other", b"x", replicas=[0]) == [b"x"]
    with pytest.raises(TypeError):
        xm.xla_rendezvous("text")
    with pytest.raises(ValueError, match="ordinals"):
        xm.xla_rendezvous(b"", ordinals=[0, 1])


def test_run_with_cpu_tensors() -> None:
    def target(data: dict[str, torch.Tensor], factor: float) -> float:
        assert data["x"].device.type == "cpu"
        return float(data["x"].sum()) * factor

    assert xm.do_on_ordinals(target, ({"x": values()}, 2.0)) == 12.0
    assert xm.do_on_ordinals(target, ({"x": values()}, 2.0), ordinals=0) == 12.0
    assert xm.do_on_ordinals(target, ({"x": values()}, 2.0), ordinals=(1,)) is None
    with pytest.raises(ZeroDivisionError):
        xm.do_on_ordinals(lambda: 1 // 0)
    assert xm.mesh_reduce("tag", {"x": values()}, lambda parts: [part["x"].device.type for part in parts]) == ["cpu"]


def test_d21() -> None:
    model, _ = model_and_optimizer()
    before = marks()
    assert xm.broadcast_master_param(model) is None
    assert marks() == before + 1
    token, context = xm._get_all_reduce_token()
    assert context is xm._get_device_context() and xm._get_all_reduce_token()[0] is token


def test_save_loads_without_this_package(tmp_path: Path) -> None:
    state = {"weight": values(), "nested": [torch.ones(2, 2, device="xla"), 3, "text"]}
    xm.save(state, tmp_path / "state.pt", sync=True)
    loaded = torch.load(tmp_path / "state.pt", weights_only=True, map_location="cpu")
    assert loaded["weight"].device.type == "cpu" and loaded["weight"].tolist() == [1.0, 2.0, 3.0]
    assert loaded["nested"][0].tolist() == [[1.0, 1.0], [1.0, 1.0]] and loaded["nested"][1:] == [3, "text"]


def test_functions_of_one_replica_are_differentiable() -> None:
    leaf = values().requires_grad_()
    (xf.all_reduce("sum", leaf, scale=0.5) * xf.all_gather(leaf)).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [2.0, 4.0, 6.0]
    weight = torch.eye(3, device="xla")
    assert xf.distributed_mm(weight, values()[:, None]).tolist() == [[1.0], [2.0], [3.0]]


@pytest.mark.parametrize("name", ["send", "recv"])
def test_there_is_no_point_to_point(name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{name}: CPU devices have no transfers between two replicas.*use xm.collective_permute"):
        getattr(xm, name)(values(), 0)


def test_one_replica_keeps_the_contract_of_collectives() -> None:
    check_collective_backend(one_replica)


def test_with_several_replicas_the_wheel_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(xr, "world_size", lambda: 2)
    with pytest.raises(ModuleNotFoundError, match="pip install xla-distributed"):
        xm.all_reduce("sum", values())
    with pytest.raises(ModuleNotFoundError, match="pip install xla-serialization"):
        xm.save({}, tmp_path / "state.pt")
    assert not list(tmp_path.iterdir())


MISSING = {
    "import torch_xla.distributed.parallel_loader": "xla-distributed",
    "from torch_xla import distributed; distributed.parallel_loader": "xla-distributed",
    "from torch_xla.distributed import spmd": "xla-spmd",
    "import torch_xla._internal.pjrt": "xla-distributed",
    "import torch_xla._internal.tpu": "xla-distributed",
    "import torch_xla.experimental.pjrt": "xla-distributed",
    "import torch_xla.experimental.pjrt_backend": "xla-distributed",
    "import torch_xla.distributed.spmd": "xla-spmd",
    "import torch_xla.debug.metrics as met": "xla-debug",
    "from torch_xla.utils import serialization": "xla-serialization",
    "import torch_xla.utils.serialization": "xla-serialization",
    "from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel": "xla-spmd",
    "import torch_xla.experimental.xla_sharding as xs": "xla-spmd",
    "from torch_xla.experimental.xla_sharded_tensor import XLAShardedTensor": "xla-spmd",
    "import torch_xla; torch_xla.distributed.xla_multiprocessing": "xla-distributed",
    "import torch_xla.runtime; torch_xla.runtime.use_spmd()": "xla-spmd",
    "import torch_xla, torch.distributed; torch.distributed.init_process_group('xla', init_method='xla://')": "xla-distributed",
    "import torch_xla, torch.distributed as dist; dist.init_process_group('xla', store=dist.HashStore(), rank=0, world_size=1)": (
        "xla-distributed"
    ),
}
# The core as if it were installed alone.
ALONE = """
        import importlib.metadata, sys
        sys.path = [entry for entry in sys.path if "xla-core" in entry or "packages/xla-" not in entry]
        importlib.metadata.entry_points = lambda group: []
        importlib.metadata.Distribution.discover = lambda **wanted: iter(())
"""


def test_importing_a_missing_module_names_the_wheel(run: Run) -> None:
    code = f"""{ALONE}
        for statement in {list(MISSING)!r}:
            try:
                exec(statement)
            except ModuleNotFoundError as error:
                print(error)
    """
    for line, wheel in zip(run(code).splitlines(), MISSING.values(), strict=True):
        assert f"pip install {wheel}" in line


def test_every_module_of_another_wheel_is_there_or_missing_by_name(run: Run) -> None:
    for module in MODULES:
        importlib.import_module(module)
    code = f"""{ALONE}
        import importlib.util, runpy, torch_xla
        try:
            runpy.run_module("torch_xla.distributed.xla_dist")
        except ImportError as error:
            print(error)
        for module in {list(MODULES)!r}:
            print(importlib.util.find_spec(module).loader.__class__.__name__)
        print(importlib.util.find_spec("torch_xla.distributed.newer"), importlib.util.find_spec("torch_xla.newer"))
    """
    started, *loaders, others = run(code).splitlines()
    assert started.endswith("pip install xla-distributed"), "as `python -m`"
    assert loaders == ["MissingModules"] * len(MODULES) and others == "None None"


def test_one_sibling_alone_has_its_modules_and_the_others_are_named(tmp_path: Path, run: Run) -> None:
    package = tmp_path / "torch_xla" / "distributed" / "spmd"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("here = True\n")
    code = f"""{ALONE}
        sys.path.append({str(tmp_path)!r})
        import torch_xla.distributed.spmd as xs
        print(xs.here)
        try:
            import torch_xla.distributed.xla_multiprocessing
        except ModuleNotFoundError as error:
            print(error)
    """
    here, error = run(code).splitlines()
    assert here == "True" and "pip install xla-distributed" in error


def test_launch_of_one_device(run: Run) -> None:
    code = f"""{ALONE}
        import torch_xla
        torch_xla.launch(lambda index, text: print(index, text), args=("started",))
    """
    assert run(code).split() == ["0", "started"]
    with_two = f"""{ALONE}
        import torch_xla
        try:
            torch_xla.launch(print)
        except ModuleNotFoundError as error:
            print(error)
        torch_xla.launch(print, debug_single_process=True)
    """
    error, index = run(with_two, CPU_NUM_DEVICES="2").splitlines()
    assert "pip install xla-distributed" in error and index == "0"


@pytest.mark.parametrize("name", of_siblings.NAMES)
def test_a_missing_backend_of_the_extension_module_is_named(name: str) -> None:
    with pytest.raises(MissingPackageError, match=rf"torch_xla\._XLAC\.{name} needs the distribution xla-(spmd|debug).*pip install"):
        getattr(_XLAC, name)()
    with pytest.raises(AttributeError, match="no attribute '_newer'"):
        _ = _XLAC._newer
