"""Hardware, processes, replicas, SPMD mode, the compilation cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from xla_core.api import job
from xla_core.api.job import set_topology
from xla_core.engine.runtime import client
from xla_core.engine.runtime.topology import Topology

Run = Callable[..., str]


@pytest.fixture
def launched() -> object:
    """This process is number 2 of 4, the first of two on its host."""
    previous = set_topology(Topology(2, 4, 0, 2, replicas=True))
    yield
    set_topology(previous)


def test_device_type(run: Run) -> None:
    assert xr.device_type() == "CPU"
    code = "import torch_xla.runtime as xr; print(xr.device_type())"
    assert run(code, PJRT_DEVICE="TPU_16").strip() == "TPU"
    assert run(code, PJRT_DEVICE=None, PJRT_SELECT_DEFAULT_DEVICE="0").strip() == "None"


@pytest.mark.parametrize("gpu", [False, True])
def test_default_is_chosen_and_an_unused_accelerator_is_logged(gpu: bool, tmp_path: Path, run: Run) -> None:
    if gpu:
        (tmp_path / "nvidia0").touch()
    code = f"""
        import os, sys
        from pathlib import Path
        import torch_xla.runtime as xr
        from xla_core.engine.runtime import placing
        placing.default_kind.__defaults__ = (Path({str(tmp_path)!r}),)
        assert "PJRT_DEVICE" not in os.environ
        print(xr.device_type(), os.environ["PJRT_DEVICE"], file=sys.stderr)
    """
    *warnings, chosen = run(code, stderr=True, PJRT_DEVICE=None).splitlines()
    assert chosen == "CPU CPU"
    assert [("PJRT_DEVICE is not set: using CPU" in text, "xla-core[cuda]" in text) for text in warnings] == [(True, True)] * gpu


def test_an_unknown_kind_is_an_error(run: Run) -> None:
    code = """
        import torch, torch_xla
        try:
            torch.ones(1, device="xla")
        except RuntimeError as error:
            print(error)
    """
    assert "PJRT_DEVICE=ABACUS" in run(code, PJRT_DEVICE="ABACUS")


def test_alone() -> None:
    assert (xr.process_count(), xr.process_index(), xr.host_index(), xr.local_process_count()) == (1, 0, 0, 1)
    assert xr.addressable_device_count() == xr.local_device_count() == xr.global_device_count() == 1
    assert xr.addressable_runtime_device_count() == xr.global_runtime_device_count() == 1
    assert (xr.world_size(), xr.global_ordinal(), xr.local_ordinal()) == (1, 0, 0)


def test_one_process_sees_all_cpu_devices_and_is_one_replica(run: Run) -> None:
    code = """
        import torch, torch_xla, torch_xla.runtime as xr, torch_xla.core.xla_model as xm
        print(xr.addressable_device_count(), xr.local_device_count(), xr.global_device_count(), xr.global_runtime_device_count())
        print([a["name"] for a in xr.global_runtime_device_attributes()], xr.runtime_device_attributes("xla:1"))
        torch_xla.device(2)
        print(xr.world_size(), xr.global_ordinal(), xr.local_ordinal(), xm.is_master_ordinal(), xm.is_master_ordinal(local=False))
        print(torch_xla.devices(), torch.ones(1, device="xla").device)
    """
    counts, names, ordinals, devices = run(code, CPU_NUM_DEVICES="3").splitlines()
    assert counts == "3 3 3 3"
    assert names == "['CPU:0', 'CPU:1', 'CPU:2'] {'name': 'CPU:1'}"
    assert ordinals == "1 0 2 False True"
    assert devices.endswith("xla:2") and devices.count("xla") == 4


@pytest.mark.usefixtures("launched")
def test_in_a_launch() -> None:
    assert (xr.process_count(), xr.process_index(), xr.host_index(), xr.local_process_count()) == (4, 2, 1, 2)
    assert (xr.local_device_count(), xr.global_device_count(), xr.global_runtime_device_count()) == (2, 4, 4)
    assert (xr.world_size(), xr.global_ordinal(), xr.local_ordinal()) == (4, 2, 0)
    assert (xm.xrt_world_size(), xm.get_ordinal(0), xm.get_local_ordinal()) == (4, 2, 0)
    assert xm.is_master_ordinal() and not xm.is_master_ordinal(local=False)
    assert xm._xla_real_device("xla:0") == "CPU:2"
    assert xm.xla_replication_devices(["xla:0"]) == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]


@pytest.mark.parametrize(("slices", "named"), [([0, 0], [None, None]), ([0, 1], [0, 1])])
def test_slices_are_told_apart_only_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch, slices: list[int], named: list[int | None]
) -> None:
    """jax gives a TPU of one slice a `slice_index` too, which would make a mesh ask for the other slices."""
    chips = [SimpleNamespace(coords=[x, 0, 0], core_on_chip=0, slice_index=index) for x, index in enumerate(slices)]
    monkeypatch.setattr(client, "client", lambda: SimpleNamespace(devices=chips, kind="TPU"))
    found = xr.global_runtime_device_attributes()
    assert [attributes.get("slice_index") for attributes in found] == named
    assert found[1]["name"] == "TPU:1" and found[1]["coords"] == [1, 0, 0] and found[1]["num_cores"] == 1


def test_code_looks_the_topology_up_through_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xr, "global_runtime_device_attributes", lambda: [{"name": f"TPU:{number}"} for number in range(8)])
    assert xr.global_runtime_device_count() == xr.global_device_count() == 8
    assert xr.runtime_device_attributes("TPU:7") == {"name": "TPU:7"}
    monkeypatch.setattr(xr, "global_runtime_device_count", lambda: 5)
    assert xr.global_device_count() == 5 and xr.world_size() == 1
    monkeypatch.setattr(xr, "local_ordinal", lambda: 3)
    assert not xm.is_master_ordinal() and xm.get_local_ordinal() == 3


def test_torchrun_variables_give_the_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"WORLD_SIZE": "6", "RANK": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, text)
    job.forget()  # the devices of this process run
    assert (xr.world_size(), xr.global_ordinal(), xr.local_ordinal(), xr.local_process_count()) == (6, 4, 1, 3)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert (xr.world_size(), xr.global_ordinal()) == (6, 4), "kept while they do"
    job.forget()
    assert (xr.world_size(), xr.global_ordinal()) == (1, 0)


def test_the_environment_counts_until_the_devices_start(run: Run) -> None:
    code = """
        import os, torch, torch_xla, torch_xla.runtime as xr
        said = [xr.process_count(), xr.is_spmd(), xr.world_size()]
        os.environ.update(WORLD_SIZE="3", RANK="2", XLA_USE_SPMD="1")
        said += [xr.process_count(), xr.is_spmd(), xr.world_size()]
        os.environ.update(WORLD_SIZE="1", XLA_USE_SPMD="0")
        torch.ones(1, device="xla").item()
        said += [xr.process_count(), xr.is_spmd()]
        os.environ.update(WORLD_SIZE="2", XLA_USE_SPMD="1")
        print(*said, xr.process_count(), xr.is_spmd())
    """
    assert run(code).split() == "1 False 1 3 True 1 1 False 1 False".split()


def test_a_forked_child_asks_anew(run: Run) -> None:
    code = """
        import os, torch, torch_xla, torch_xla.runtime as xr
        torch.ones(1, device="xla").item()
        before = xr.process_index()
        child = os.fork()
        if not child:
            os.environ.update(WORLD_SIZE="2", RANK="1")
            os._exit(xr.process_index())
        print(before, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(code).split() == ["0", "1"]


def test_set_replication_joins_and_leaves() -> None:
    try:
        xm.set_replication("xla:0", ["CPU:0", "CPU:1"])
        assert job.joined() == ("CPU:0", "CPU:1")
        assert (xr.world_size(), xr.global_ordinal()) == (2, 0)
        xm.set_replication("xla:0", ["CPU:1", "CPU:0"])
        assert (xr.world_size(), xr.global_ordinal()) == (2, 1), "places in the set, which need not hold all devices"
        xm.set_replication(torch.device("xla:0"), None)
        assert xr.world_size() == 1
        with pytest.raises(RuntimeError, match="CPU:3"):
            xm.set_replication("CPU:3", [])
    finally:
        xm.set_replication("xla:0", [])
        job._membership.devices = None


@pytest.mark.usefixtures("launched")
def test_the_only_device_of_a_process_of_several_joins_it_to_the_job() -> None:
    """accelerate says so of the devices that it sees."""
    try:
        xm.set_replication(torch.device("xla:0"), xm.get_xla_supported_devices())
        assert (xr.world_size(), xr.global_ordinal()) == (4, 2)
        xm.set_replication("xla:0", [])
        assert (xr.world_size(), xr.global_ordinal()) == (1, 0)
    finally:
        job._membership.devices = None


def test_master_ip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert xr.get_master_ip() == "127.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "10.1.2.3")
    assert xr.get_master_ip() == "10.1.2.3"


def test_master_ip_of_a_tpu_slice(run: Run) -> None:
    code = "import torch_xla.runtime as xr; print(xr.get_master_ip())"
    assert run(code, PJRT_DEVICE="TPU", TPU_WORKER_HOSTNAMES="127.0.0.9,127.0.0.8").strip() == "127.0.0.9"


SPMD = """
    import os, warnings
    import torch, torch_xla, torch_xla.runtime as xr, torch_xla.core.xla_model as xm, torch_xla._XLAC as xlac
    assert not xr.is_spmd()
    torch_xla.device(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        xlac._xla_force_spmd_device()
        xr.use_spmd()
    print(len(caught), os.environ["XLA_USE_SPMD"], xr.is_spmd())
    print(torch_xla.devices(), torch_xla.device_count(), torch_xla.device(3), xm.xla_device_hw("xla:0"), torch.ones(1, device="xla").device)
    print(xr.addressable_device_count(), xr.global_device_count(), xr.world_size(), xr.global_ordinal(), xr.local_ordinal())
    print(xr.global_runtime_device_count(), xr.addressable_runtime_device_count(), xlac._xla_num_runtime_devices())
"""


def test_spmd_is_one_virtual_device(run: Run) -> None:
    warned, devices, counts, physical = run(SPMD, CPU_NUM_DEVICES="4").splitlines()
    assert warned == "0 1 True"
    assert devices == "[device(type='xla', index=0)] 1 xla:0 CPU xla:0"
    assert counts == "1 1 1 0 0"
    assert physical == "4 4 4"


def test_warnings(run: Run) -> None:
    code = """
        import warnings, torch, torch_xla, torch_xla.runtime as xr
        kept = torch.ones(2, device="xla")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            xr.use_spmd()
        print([str(warning.message) for warning in caught])
    """
    assert "replicated" in run(code)
    assert "already set" in run(code, XLA_USE_SPMD="1")


def test_cache_only_before_the_first_computation(run: Run, tmp_path: Path) -> None:
    code = f"""
        import torch, torch_xla, torch_xla.runtime as xr
        xr.initialize_cache({str(tmp_path / "first")!r})
        xr.initialize_cache({str(tmp_path / "second")!r})
        (torch.ones(2).to("xla") * 3).cpu()
        try:
            xr.initialize_cache({str(tmp_path / "third")!r})
        except AssertionError as error:
            print("refused:", error)
    """
    assert run(code).startswith("refused: ")
    assert [folder.name for folder in tmp_path.iterdir()] == ["second"]
    assert list((tmp_path / "second").iterdir())


def test_readonly_never_writes(run: Run, tmp_path: Path) -> None:
    code = f"""
        import torch, torch_xla, torch_xla.runtime as xr
        xr.initialize_cache({str(tmp_path)!r}, readonly=True)
        (torch.ones(2).to("xla") * 3).cpu()
    """
    run(code)
    assert not list(tmp_path.iterdir())


def test_attributes_are_those_of_the_hardware() -> None:
    (attributes,) = xr.global_runtime_device_attributes()
    assert attributes == {"name": "CPU:0"}
    assert xr.runtime_device_attributes(torch.device("xla:0")) == attributes
    with pytest.raises(RuntimeError, match="CPU:9"):
        xr.runtime_device_attributes("CPU:9")


def test_set_device_type(run: Run) -> None:
    code = """
        import os, torch, torch_xla, torch_xla.runtime as xr
        xr.set_device_type("CPU")
        torch.ones(1, device="xla")
        xr.set_device_type("CPU")
        try:
            xr.set_device_type("TPU")
        except RuntimeError as error:
            print(error, os.environ["PJRT_DEVICE"])
    """
    assert run(code, PJRT_DEVICE="TPU").rstrip().endswith("CPU")


def test_the_rest_of_the_module() -> None:
    assert xr.using_pjrt() is True and xr.is_bf16_supported() is True
    (torch.ones(3).to("xla") * 2).cpu()
    assert xr.get_num_cached_compilation_graph() >= 1
    assert xr.xla_device() == torch_xla.device()
