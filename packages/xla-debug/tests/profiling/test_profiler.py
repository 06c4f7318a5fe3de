"""Profiles: what is written holds the names, steps sync once, servers answer, mistakes are named."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest
import torch

import torch_xla
import torch_xla._XLAC as lib
import torch_xla.debug.profiler as xp
from xla_core.abi import job
from xla_core.abi.events import Cause, SyncEvent, SyncKind, subscribe
from xla_core.abi.tensors import is_pending, sync


def stats_of(folder: Path, name: str) -> list[dict[str, object]]:
    """What stands beside the events of a name."""
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    return [dict(event.stats) for plane in planes for line in plane.lines for event in line.events if event.name == name]


@contextmanager
def syncs() -> Iterator[list[SyncEvent]]:
    """The syncs made in the block."""
    seen: list[SyncEvent] = []
    end = subscribe(seen.append, SyncEvent)
    try:
        yield seen
    finally:
        end()


def test_programs_carry_names_and_operations_their_lines(tmp_path: Path) -> None:
    x = torch.randn(30, 30, device="xla")

    def training_step() -> torch.Tensor:
        y = x.sinh() @ x  # the operations
        torch_xla.sync(wait=True)
        return y

    inference = torch_xla.compile(lambda: x.cosh().sum(), name="my region")
    xp.start_trace(str(tmp_path))
    training_step()
    inference()
    torch_xla.sync(wait=True)
    xp.stop_trace()
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    written = file.read_bytes()
    line = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# the operations"))
    for name in ("jit_training_step", "jit_my_region", f"aten.sinh[test_profiler.py:{line}]", f"aten.mm[test_profiler.py:{line}]"):
        assert name.encode() in written


@pytest.mark.filterwarnings("ignore:builtin type event_stats has no __module__")  # of jaxlib 0.12, which aborts where that is an error
def test_a_trace_holds_the_names_of_blocks_functions_and_steps(tmp_path: Path, names_in: Callable[[Path], Counter[str]]) -> None:
    @xp.trace_me("called_by_name")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        """Twice x."""
        return x + x

    @xp.Trace("decorated")
    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    def steps() -> torch.Tensor:
        for number in range(3):
            with xp.StepTrace("a_step", step_num=number):
                with xp.Trace("a_block", batch=7):
                    result = halved(doubled(torch.ones(3, device="xla")))
        return result

    steps()  # compiles
    xp.start_trace(str(tmp_path))
    result = steps()
    xp.stop_trace()
    assert result.tolist() == [1.0] * 3
    found = names_in(tmp_path)
    assert [found[name] for name in ("a_step", "a_block", "called_by_name", "decorated")] == [3] * 4
    assert doubled.__name__ == "doubled" and doubled.__doc__ == "Twice x."
    assert {int(str(stats["step_num"])) for stats in stats_of(tmp_path, "a_step")} == {0, 1, 2}
    assert {str(stats["batch"]) for stats in stats_of(tmp_path, "a_block")} == {"7"}


def test_a_second_trace_and_the_end_of_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        xp.stop_trace()
    xp.start_trace(str(tmp_path))
    try:
        with pytest.raises(RuntimeError):
            xp.start_trace(str(tmp_path / "other"))
    finally:
        xp.stop_trace()
    assert not (tmp_path / "other").exists()


def test_a_step_syncs_once_and_says_why() -> None:
    x = torch.ones(4, device="xla")
    sync()
    with syncs() as seen:
        with xp.StepTrace("step", step_num=3):
            y = x + 1
            assert is_pending(y)
        assert not is_pending(y)
    assert [(event.kind, event.cause) for event in seen] == [(SyncKind.STEP, Cause.STEP_TRACE)]


def test_a_step_that_fails_syncs_too_and_ends() -> None:
    with syncs() as seen, pytest.raises(ZeroDivisionError):
        with xp.StepTrace("step"):
            raise ZeroDivisionError
    assert len(seen) == 1
    assert not xp.get_tracer_marked_step()


def test_within_a_step_loaders_leave_their_syncs_out() -> None:
    elsewhere: list[bool] = []
    assert not xp.get_tracer_marked_step()
    with xp.StepTrace("outer"):
        with xp.StepTrace("inner"):
            assert xp.get_tracer_marked_step()
        assert xp.get_tracer_marked_step()
        thread = threading.Thread(target=lambda: elsewhere.append(xp.get_tracer_marked_step()))
        thread.start()
        thread.join()
    assert not xp.get_tracer_marked_step()
    assert elsewhere == [False]
    xp.set_tracer_marked_step(True)
    assert xp.get_tracer_marked_step()
    xp.set_tracer_marked_step(False)


def test_a_device_loader_makes_no_sync_within_a_step() -> None:
    pl = pytest.importorskip("torch_xla.distributed.parallel_loader")
    loader = pl.ParallelLoader([torch.ones(2)] * 3, ["xla"]).per_device_loader("xla")
    with syncs() as seen:
        next(loader)
        with xp.StepTrace("step", step_num=0):
            next(loader)
    loader.close()
    assert [event.cause for event in seen] == [Cause.LOADER, Cause.STEP_TRACE]


def test_lightning_enters_and_leaves_by_hand() -> None:
    recording = xp.StepTrace("[Strategy]SingleDeviceXLAStrategy.validation_step", step_num=0)
    with syncs() as seen:
        recording.__enter__()
        recording.__exit__(None, None, None)
    assert [event.cause for event in seen] == [Cause.STEP_TRACE]


@pytest.mark.parametrize("port", [0, -1, 65536, "9012", True])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(RuntimeError, match="is none: give a whole number from 1 to 65535"):
        xp.start_server(port)


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("", 0)) as taken:
        with pytest.raises(RuntimeError, match="cannot be served .*: choose another"):
            xp.start_server(taken.getsockname()[1])


def test_only_the_master_serves(monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]) -> None:
    monkeypatch.setattr(job, "local_ordinal", lambda: 1)
    assert xp.start_server(free_port()) is None


def test_client_code_serves_by_the_extension_module(free_port: Callable[[], int]) -> None:
    library = lib.profiler
    port = free_port()
    server = library.start_server(port)
    try:
        with socket.create_connection(("localhost", port)):
            pass
    finally:
        server.stop()
    with library.TraceMe("by_client_code"):
        pass


def test_a_second_server_is_refused_until_the_first_is_stopped(free_port: Callable[[], int]) -> None:
    port = free_port()
    for _ in range(2):
        server = xp.start_server(port)
        assert server is not None
        try:
            with socket.create_connection(("localhost", port)):
                pass
            with pytest.raises(RuntimeError, match="runs already"):
                xp.start_server(free_port())
        finally:
            server.stop()


@pytest.mark.parametrize("host", ["", None, 7])
def test_a_host_that_is_none_is_refused(host: str, free_port: Callable[[], int]) -> None:
    with pytest.raises(RuntimeError, match="is none: give an address of this machine"):
        xp.start_server(free_port(), host=host)


def test_a_host_that_is_not_of_this_machine_is_refused(free_port: Callable[[], int]) -> None:
    with pytest.raises(RuntimeError, match="of 203.0.113.1 cannot be served .*: choose another"):
        xp.start_server(free_port(), host="203.0.113.1")
