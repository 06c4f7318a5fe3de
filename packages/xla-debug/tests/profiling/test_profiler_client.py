"""Profiles of other processes, asked for over the network: real servers in processes of their own, and what goes wrong."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import forked_python
import pytest

import torch_xla._XLAC as lib
import torch_xla.debug.profiler as xp
from xla_debug.profiling import profiler_client

SERVE = Path(__file__).parents[1] / "programs/serve.py"
NamesIn = Callable[[Path], Counter[str]]


@pytest.fixture(scope="module")
def addresses(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The addresses of two processes that work and serve profiles of themselves; asked once while they were starting."""
    ports = [free_port(), free_port()]
    command = [sys.executable, str(SERVE)]
    processes = [forked_python.Popen([*command, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for port in ports]
    found = [f"localhost:{port}" for port in ports]
    early = tmp_path_factory.mktemp("early")
    xp.trace(",".join(found), str(early), duration_ms=100, num_tracing_attempts=200, timeout_s=100, interval_s=1)
    assert len(list(early.glob("plugins/profile/*/*"))) == 2
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "works\n"
    yield found
    for process in processes:
        process.communicate()  # closes its standard input
        assert process.returncode == 0


def test_several_processes_are_profiled_at_once(addresses: list[str], tmp_path: Path, names_in: NamesIn) -> None:
    xp.trace(f"grpc://{addresses[0]}, {addresses[1]}", str(tmp_path), duration_ms=500)
    assert sorted(file.name for file in tmp_path.glob("plugins/profile/*/*")) == sorted(
        f"{address.replace(':', '_')}.xplane.pb" for address in addresses
    )
    found = names_in(tmp_path)
    assert found["served_step"] > 0 and found["served_product"] > 0


def test_a_process_is_profiled_in_the_background(addresses: list[str], tmp_path: Path, names_in: NamesIn) -> None:
    xp.trace_detached(addresses[0], str(tmp_path), duration_ms=500, delay_ms=1)
    for thread in threading.enumerate():
        if thread.name == "xla-profile":
            thread.join()
    assert names_in(tmp_path)["served_step"] > 0


def test_client_code_asks_by_the_extension_module(addresses: list[str], tmp_path: Path, names_in: NamesIn) -> None:
    lib.profiler.trace(addresses[1], str(tmp_path), 500, 3, 60, 1, {"host_tracer_level": 2, "device_tracer_level": 1, "delay_ms": 0})
    assert names_in(tmp_path)["served_step"] > 0


def test_a_profile_without_events_is_tried_again_and_then_refused(addresses: list[str], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"did nothing in 2 × 20 ms"):
        xp.trace(addresses[0], str(tmp_path), duration_ms=20, num_tracing_attempts=2, host_tracer_level=0)
    assert not list(tmp_path.iterdir())


def test_what_the_server_refuses_is_said(addresses: list[str], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=f"no profile came from {addresses[0]} .INTERNAL: Another profiling session active"):
        xp.trace(f"{addresses[0]},{addresses[0]}", str(tmp_path), duration_ms=500)


def test_a_server_that_is_not_there_is_said(free_port: Callable[[], int], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="UNAVAILABLE.*is start_server running there"):
        xp.trace(f"localhost:{free_port()}", str(tmp_path), timeout_s=0)


def test_an_answer_without_a_profile_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiler_client, "_answer", lambda *args: b"")
    with pytest.raises(RuntimeError, match="answered without a profile"):
        xp.trace("localhost:1", str(tmp_path))


@pytest.mark.parametrize("address", ["", "localhost", "localhost:9012,", ":9012"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give host:port"):
        xp.trace(address, str(tmp_path))


@pytest.mark.parametrize("number", [{"duration_ms": 0}, {"num_tracing_attempts": 0}, {"delay_ms": -1}, {"interval_s": -1}])
def test_numbers_out_of_range_are_refused(number: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least"):
        xp.trace("localhost:9012", str(tmp_path), **number)
