"""Hardware that others bring."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import torch_xla
import torch_xla._XLAC as xlac
import torch_xla.runtime as xr
from torch_xla.experimental import plugins
from xla_core.api import device_plugins
from xla_core.base import config, private_jax
from xla_core.base.config import override
from xla_core.engine.runtime import client


class Npu(plugins.DevicePlugin):
    def __init__(self) -> None:
        self.configured: list[Any] = []

    def library_path(self) -> str:
        return "/nowhere/npu.so"

    def client_create_options(self) -> dict[str, Any]:
        return {"rank": 1}

    def configure_single_process(self) -> None:
        self.configured.append("alone")


@pytest.fixture(autouse=True)
def none_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_plugins, "_plugins", {})
    monkeypatch.setattr(device_plugins, "_with_jax", set())
    torch_xla.sync()
    return


def test_a_registered_plugin_is_what_the_variable_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Npu()
    plugins.register_plugin("npu", plugin)
    with pytest.raises(RuntimeError, match="PJRT_DEVICE chooses CPU"):
        plugins.default()
    monkeypatch.setattr(client, "device_kind", lambda: "NPU")
    assert plugins.default() is plugin
    given: list[Any] = []
    monkeypatch.setattr(private_jax, "register_jax_plugin", lambda *arguments: given.append(arguments))
    device_plugins._start()
    device_plugins._start()  # jax is told once
    assert given == [("npu", "/nowhere/npu.so", {"rank": 1})] and plugin.configured == ["alone", "alone"]
    with pytest.raises(RuntimeError, match="run already"):
        plugins.register_plugin("NPU", Npu())


def test_a_library_that_is_not_there_is_named(run: Callable[..., str]) -> None:
    printed = run("""
        import os, torch
        os.environ["PJRT_DEVICE"] = "NPU"
        import torch_xla
        from torch_xla.experimental import plugins
        class Npu(plugins.DevicePlugin):
            def library_path(self): return "/nowhere/npu.so"
        plugins.register_plugin("NPU", Npu())
        try:
            torch.ones(1).to("xla")
        except RuntimeError as error:
            print(error)
    """)
    assert "PJRT_DEVICE=NPU" in printed and "/nowhere/npu.so" in printed


def test_installed_plugins_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(group: str) -> list[importlib.metadata.EntryPoint]:
        return [importlib.metadata.EntryPoint("npu", f"{__name__}:Npu", group)] if group == "torch_xla.plugins" else []

    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: Npu)
    monkeypatch.setattr(device_plugins, "entry_points", installed)
    with monkeypatch.context() as chosen:
        chosen.setattr(client, "device_kind", lambda: "NPU")
        chosen.setattr(client, "started", lambda: False)
        assert type(plugins.default()) is Npu  # without any setting
        device_plugins._plugins.clear()
    plugins.register_installed_plugins()
    assert type(device_plugins._plugins["NPU"]) is Npu
    device_plugins._plugins.clear()
    with override(config.PJRT_DYNAMIC_PLUGINS, False):
        device_plugins._start()
        assert not device_plugins._plugins and not plugins.using_dynamic_plugins()
        plugins.use_dynamic_plugins()
        assert plugins.using_dynamic_plugins()
        device_plugins._start()
        assert list(device_plugins._plugins) == ["NPU"]


def test_wrong_use() -> None:
    with pytest.raises(ValueError, match="DevicePlugin"):
        plugins.register_plugin("npu", object())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="run already"):
        plugins.register_plugin(str(xr.device_type()), Npu())
    bare = plugins.DevicePlugin()
    for ask in (bare.library_path, bare.host_index, bare.physical_chip_count):
        with pytest.raises(NotImplementedError, match="define "):
            ask()
    assert bare.client_create_options() == {} and not bare.requires_xla_coordinator()
    assert issubclass(plugins.DevicePlugin, xlac.PjRtPlugin)
    xlac._register_pjrt_plugin("other", bare)
    assert device_plugins._plugins["OTHER"] is bare
