"""Devices by their texts and real names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._internal.utils import parse_xla_device
from xla_core.api import devices
from xla_core.base import deprecation

Run = Callable[..., str]


@pytest.fixture
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing has warned yet."""
    monkeypatch.setattr(deprecation, "_warned", set())
    yield


def test_default_device() -> None:
    assert torch_xla.device() == torch.device("xla:0") and str(torch_xla.device()) == "xla:0"
    assert torch_xla.device(0) == xm.xla_device() == xm.xla_device(0)
    assert str(torch.zeros(1, device="xla").device) == "xla:0"


def test_several_devices(run: Run) -> None:
    code = """
        import torch, torch_xla, torch_xla.core.xla_model as xm
        print(torch_xla.devices() == [torch.device("xla", n) for n in range(3)], torch_xla.device_count())
        print(torch_xla.device(), torch_xla.device(1), torch_xla.device(), torch.zeros(1, device="xla").device)
        print(xm.xla_device(2), xm.get_xla_supported_devices(), torch_xla.real_devices())
    """
    counted, default, names = run(code, CPU_NUM_DEVICES="3").splitlines()
    assert counted == "True 3"
    assert default == "xla:0 xla:1 xla:1 xla:1"
    assert names == "xla:2 ['xla:0', 'xla:1', 'xla:2'] ['CPU:0', 'CPU:1', 'CPU:2']"


@pytest.mark.parametrize("index", [1, 99, -1])
def test_out_of_range(index: int) -> None:
    with pytest.raises(IndexError):
        torch_xla.device(index)
    with pytest.raises(IndexError):
        xm.xla_device(index)
    assert torch_xla.device() == torch.device("xla:0")


@pytest.mark.usefixtures("fresh_warnings")
def test_deprecated_and_devkind_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert xm.xla_device(devkind="TPU") == torch.device("xla:0")
    assert [("devkind" in record.message, "torch_xla.device" in record.message) for record in caplog.records] == [
        (False, True),
        (True, False),
    ]


def test_hardware_kind() -> None:
    assert xm.xla_device_hw("xla:0") == xm.xla_device_hw(torch.device("xla")) == "CPU"
    assert isinstance(xm.xla_device_kind(), str) and xm.xla_device_kind("xla:0")
    for text in ("cpu", "no device", "xla:x"):
        with pytest.raises(RuntimeError):
            xm.xla_device_hw(text)


def test_is_xla_tensor() -> None:
    assert xm.is_xla_tensor(torch.zeros(1, device="xla")) is True
    assert xm.is_xla_tensor(torch.zeros(1)) is False
    assert xm.is_xla_tensor(torch.nn.Linear(1, 1).to("xla").weight)


def test_supported_devices() -> None:
    assert xm.get_xla_supported_devices() == ["xla:0"]
    assert xm.get_xla_supported_devices(max_devices=0) == xm.get_xla_supported_devices(0) == []
    assert xm.get_xla_supported_devices("CPU") == xm.get_xla_supported_devices(["CPU", "TPU"]) == ["xla:0"]
    assert xm.get_xla_supported_devices(devkind="TPU") is None


def test_real_names_are_parsed() -> None:
    for parse in (xm.parse_xla_device, parse_xla_device):
        assert parse("CPU:3") == ("CPU", 3)
        for text in ("CPU", "CPU:", ":3", "CPU:x", "xla:0 ", ""):
            assert parse(text) is None


def test_real_devices() -> None:
    assert xm._xla_real_device("xla:0") == xm._xla_real_device(torch.device("xla:0")) == "CPU:0"
    assert xm.xla_real_devices() == xm.xla_real_devices([]) == xm.xla_real_devices(["xla:0"]) == ["CPU:0"]
    for text in ("xla", "CPU:0", "xla:one", "cpu"):
        with pytest.raises(RuntimeError):
            xm._xla_real_device(text)


def test_replication_devices(run: Run) -> None:
    assert xm.xla_replication_devices() == xm.xla_replication_devices(["xla:0"]) == ["CPU:0"]
    with pytest.raises(RuntimeError, match="one kind"):
        xm.xla_replication_devices(["CPU:0", "TPU:0"])
    code = """
        import torch_xla.core.xla_model as xm
        print(xm.xla_replication_devices(["xla:1", "xla:0"]))
        try:
            xm.xla_replication_devices(["xla:1"])
        except RuntimeError as error:
            print(error)
    """
    names, error = run(code, CPU_NUM_DEVICES="2").splitlines()
    assert names == "['CPU:0', 'CPU:1']" and "all devices of this process" in error


@pytest.mark.usefixtures("fresh_warnings")
def test_each_old_name_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="torch_xla"):
        for _ in range(2):
            xm.mark_step()
            xm.xrt_world_size()
            xm.get_ordinal()
            xm.parse_xla_device("CPU:0")
            xm.get_xla_supported_devices("CPU")
    assert len(caplog.records) == 5
    assert all("deprecated" in record.message for record in caplog.records)


@pytest.mark.parametrize(("kind", "count"), [("CPU", 0), ("TPU", 4), (None, 0)])
def test_accelerators_are_counted(monkeypatch: pytest.MonkeyPatch, kind: str | None, count: int) -> None:
    monkeypatch.setattr(devices.client, "device_kind", lambda: kind)
    monkeypatch.setattr(devices, "device_count", lambda: 4)
    assert xm.xla_device_count() == count
