"""`torch.accelerator` and `torch.xla`: all that programs for any accelerator ask is answered."""

from __future__ import annotations

import sys
from typing import Any

import forked_python
import pytest
import torch

import torch_xla

XLA: Any = torch.get_device_module("xla")


def test_the_accelerator_is_ours() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("xla") and torch.accelerator.is_available()
    assert torch.accelerator.device_count() == XLA.device_count() == 1
    assert torch.accelerator.current_device_index() == XLA.current_device() == 0
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        assert torch.ones(2, device="xla").device.index == 0
    XLA.init()
    assert XLA.is_initialized() and not XLA.can_device_access_peer(0, 0)
    torch.accelerator.synchronize(), XLA.synchronize("xla:0")


def test_devices_past_the_last_are_refused() -> None:
    for run in (lambda: torch.accelerator.set_device_index(3), lambda: XLA.set_device("xla:3"), lambda: XLA.get_device_name(5)):
        with pytest.raises((RuntimeError, IndexError), match="does not exist"):
            run()
    assert torch.accelerator.current_device_index() == 0


def test_memory_is_counted() -> None:
    before = torch.accelerator.memory_allocated()
    x = torch.rand(1 << 18, device="xla")
    torch_xla.sync(wait=True)
    now = torch.accelerator.memory_allocated()
    assert now - before >= 1 << 19 and now == XLA.memory_allocated() == XLA.memory_reserved() == torch.accelerator.memory_reserved()
    del x
    assert torch.accelerator.memory_allocated() < now <= torch.accelerator.max_memory_allocated() == XLA.max_memory_reserved()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() < now
    torch.accelerator.reset_accumulated_memory_stats()
    torch.accelerator.empty_cache(), XLA.empty_cache()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == XLA.memory_stats()["allocated_bytes.all.current"]
    free, total = XLA.mem_get_info()
    assert 0 < free < total == XLA.get_device_properties().total_memory


@pytest.mark.skipif(not hasattr(torch.accelerator, "get_device_capability"), reason="this torch does not ask")
def test_capabilities() -> None:
    assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"] and XLA.is_bf16_supported()
    assert XLA.get_device_properties("xla").name == XLA.get_device_name() == "cpu"


def test_random_states() -> None:
    states = XLA.get_rng_state_all()
    XLA.manual_seed(4)
    assert XLA.initial_seed() == 4
    wanted = torch.rand(2, device="xla").cpu()
    XLA.manual_seed_all(4)
    assert torch.equal(torch.rand(2, device="xla").cpu(), wanted)
    XLA.seed()
    first = XLA.initial_seed()
    XLA.seed_all()
    assert XLA.initial_seed() != first
    XLA.set_rng_state_all(states)
    assert torch.equal(XLA.get_rng_state(), states[0])
    with torch.random.fork_rng(device_type="xla"):
        torch.rand(1, device="xla")
    assert torch.equal(XLA.get_rng_state(), states[0])


def test_counting_devices_starts_no_client() -> None:
    program = (
        "import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr\n"
        "assert torch_xla.device_count() == 3 and torch.xla.device_count() == 3 and torch.accelerator.device_count() == 3\n"
        "assert xm.xla_device_count() == 0\n"
        "assert xm.get_xla_supported_devices() == ['xla:0', 'xla:1', 'xla:2'] and xm.get_xla_supported_devices('CPU')[0] == 'xla:0'\n"
        "assert [str(one) for one in torch_xla.devices()] == xm.get_xla_supported_devices() and str(torch_xla.device()) == 'xla:0'\n"
        "assert xr.device_type() == 'CPU' and xr.addressable_device_count() == 3 and xr.local_device_count() == 3\n"
        "assert not torch.xla.is_initialized()\n"
        "torch.accelerator.set_device_index(2)\n"
        "assert torch.ones(1, device='xla').device.index == 2 and torch.accelerator.current_stream().device.index == 2\n"
        "with torch.accelerator.device_index(1): assert torch.ones(1, device='xla').device.index == 1\n"
        "with torch.xla.stream(torch.Stream('xla:0')): assert torch.ones(1, device='xla').device.index == 0\n"
        "generator = torch.Generator('xla:1').manual_seed(0)\n"
        "torch.rand(2, device='xla:1', generator=generator).tolist()\n"
        "event = torch.Event('xla:1'); event.record(); torch.accelerator.current_stream().wait_event(event)\n"
        "torch.accelerator.current_stream().wait_stream(torch.Stream('xla:0'))\n"
        "try: torch.rand(2, device='xla:0', generator=generator)\n"
        "except RuntimeError as error: assert \"Expected a 'xla:0' generator device but found 'xla:1'\" in str(error)\n"
        "else: raise SystemExit('accepted')\n"
    )
    forked_python.run([sys.executable, "-c", program], env={"CPU_NUM_DEVICES": "3", "PATH": ""}, check=True)
