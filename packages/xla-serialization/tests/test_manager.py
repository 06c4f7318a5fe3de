"""`CheckpointManager`: what is saved when, beside training, how many are kept, and what happens when writing fails."""

from __future__ import annotations

import importlib
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.experimental.distributed_checkpoint as xc
from xla_serialization import (
    Checkpoint,
    FailedSaveError,
    MismatchError,
    MissingCheckpointError,
    PerProcess,
    UnsavableError,
    load,
    load_into,
)
from xla_serialization.training import manager

Make = Callable[..., xc.CheckpointManager]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda save_interval=1, **options: xc.CheckpointManager(tmp_path, save_interval, chkpt_on_preemption=False, **options)


class Gate:
    """Writing waits before it begins, until the gate is opened."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.open = threading.Event()

    def write(self, state: Any, chunks: Any, folder: Path, participants: Any) -> None:
        assert self.open.wait(60)
        _write(state, chunks, folder, participants)
        self.log.append(folder.name)


_write = manager.write_chunks


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate()
    monkeypatch.setattr(manager, "write_chunks", found.write)
    yield found
    found.open.set()


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can be longer than a few bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def weight(value: float = 1.0) -> torch.Tensor:
    return torch.full((100,), value, device="xla")


def fail_in_background(found: xc.CheckpointManager, step: int) -> None:
    """The write ends without success before anybody asks."""
    with full_disk():
        assert found.save_async(step, {"weight": weight()})
        for pending in found._pending.values():
            assert pending.exception(60) is not None


def test_names_are_where_programs_of_2_9_import_them_from() -> None:
    from torch_xla.experimental.distributed_checkpoint import manager as managers
    from torch_xla.experimental.distributed_checkpoint import planners, util

    assert managers.CheckpointManager is xc.CheckpointManager and util.prime_optimizer is xc.prime_optimizer
    assert (planners.SPMDLoadPlanner, planners.SPMDSavePlanner) == (xc.SPMDLoadPlanner, xc.SPMDSavePlanner)


def test_numbers_that_are_none_have_their_defaults(make: Make) -> None:
    found = make(max_to_keep=None, max_pending_async=None, num_of_threads=None)
    for step in (0, 1, 2):
        assert found.save_async(step, {"step": step})
    found.join()
    assert found.all_steps() == [0, 1, 2]


@pytest.mark.parametrize("save", ["save", "save_async"])
def test_every_interval_is_saved(make: Make, save: str) -> None:
    found = make(3, max_pending_async=9)
    done = [getattr(found, save)(step, {"step": step, "weight": weight(step)}) for step in range(8)]
    found.join()
    assert done == [step % 3 == 0 for step in range(8)] == [found.should_save(step) for step in range(8)]
    assert found.all_steps() == [0, 3, 6]
    assert getattr(found, save)(7, {"step": 7}, force=True)
    found.join()
    assert found.all_steps() == [0, 3, 6, 7]


def test_training_goes_on_while_the_copy_is_written(make: Make, gate: Gate, tmp_path: Path) -> None:
    found = make()
    on_device, on_host, view = weight(), torch.ones(5), weight()[10:20]
    state = {"device": on_device, "host": on_host, "view": view, "twice": on_device, "numbers": [1, 2.5]}
    assert found.save_async(0, state)
    on_device.add_(1)
    on_host.add_(1)
    view.zero_()
    state["numbers"].append(3)  # type: ignore[attr-defined]
    torch_xla.sync()
    assert found.all_steps() == []
    gate.open.set()
    found.join()
    saved = load(tmp_path / "0")
    assert torch.equal(saved["device"], torch.ones(100)) and torch.equal(saved["host"], torch.ones(5))
    assert torch.equal(saved["view"], torch.ones(10)) and saved["twice"] is saved["device"] and saved["numbers"] == [1, 2.5]


def test_no_more_copies_wait_than_allowed(make: Make, gate: Gate) -> None:
    found = make(max_pending_async=2)
    for step in (0, 1):
        found.save_async(step, {"weight": weight()})
    assert gate.log == []
    opening = threading.Timer(0.3, gate.open.set)
    opening.start()
    found.save_async(2, {"weight": weight()})
    assert gate.log, "one was written before"
    opening.join()
    found.join()
    assert found.all_steps() == [0, 1, 2]


def test_threads_write_at_the_same_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def write(*args: Any) -> None:
        both.wait(60)
        _write(*args)

    monkeypatch.setattr(manager, "write_chunks", write)
    found = make(max_pending_async=2, num_of_threads=2)
    for step in range(4):
        found.save_async(step, {"step": step})
    found.join()
    assert found.all_steps() == [0, 1, 2, 3]


CALLS: dict[str, Callable[[xc.CheckpointManager], object]] = {
    "save": lambda found: found.save(2, {}),
    "save_async": lambda found: found.save_async(2, {}),
    "should_save": lambda found: found.should_save(2),
    "reached_preemption": lambda found: found.reached_preemption(2),
    "restore": lambda found: found.restore(0, {"weight": weight()}),
    "join": lambda found: found.join(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_failed_write_is_raised_once_by_the_next_call(make: Make, call: str) -> None:
    found = make(max_to_keep=1)
    found.save(0, {"weight": weight(5.0)})
    fail_in_background(found, 1)
    with pytest.raises(FailedSaveError, match=r"saving step 1 .*File too large.*whole: \[0\]") as caught:
        CALLS[call](found)
    assert isinstance(caught.value.__cause__, OSError)
    found.join()
    state = {"weight": weight()}
    found.restore(0, state)
    assert torch.equal(state["weight"].cpu(), torch.full((100,), 5.0)), "the last good one is there"
    found.save(3, state)
    assert found.all_steps() == [3]


def test_a_folder_that_cannot_be_written() -> None:
    found = xc.CheckpointManager("/sys/checkpoints", 1, chkpt_on_preemption=False)
    with pytest.raises(OSError):
        found.save(0, {"weight": weight()})
    found.save_async(1, {"weight": weight()})
    with pytest.raises(FailedSaveError, match="saving step 1 below /sys/checkpoints"):
        found.join()
    assert found.all_steps() == []


def test_a_failure_that_nobody_asks_for_is_logged(start: Callable[..., list[subprocess.Popen[str]]], tmp_path: Path) -> None:
    (process,) = start("pending", tmp_path, 1, "full")
    _, err = process.communicate(timeout=240)
    assert f"saving step 1 below {tmp_path} in the background failed" in err and "OSError: [Errno 27] File too large" in err


def test_those_saved_longest_ago_go(make: Make, tmp_path: Path) -> None:
    found = make(max_to_keep=2)
    for step in (5, 6, 7):
        found.save(step, {"step": step})
    assert found.all_steps() == [6, 7]
    again = make(max_to_keep=2)
    again.save_async(3, {"step": 3})
    again.join()
    assert again.all_steps() == [3, 7], "an earlier step that was saved later"
    again.save(7, {"step": "again"})
    again.save(8, {})
    assert again.all_steps() == [7, 8] and load(tmp_path / "7") == {"step": "again"}


def test_what_is_unfinished_is_no_step_and_goes(make: Make, tmp_path: Path) -> None:
    found = make()
    found.save(1, {})
    for name in ("2", "3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"model-00001-of-00001-{'0' * 16}.safetensors").write_bytes(b"half")
    (tmp_path / "3" / "notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "03").mkdir()
    assert found.all_steps() == [1]
    found.save(4, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["03", "1", "3", "4"]
    assert [path.name for path in (tmp_path / "3").iterdir()] == ["notes.txt"]


def test_a_state_of_everything_is_restored_in_place(make: Make) -> None:
    def made(seed: int) -> tuple[dict[str, Any], torch.nn.Module]:
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 2).to("xla")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * seed)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        xc.prime_optimizer(optimizer)
        random = {"cpu": torch.get_rng_state(), "xla": xm.get_rng_state()}
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "random": random}
        return state | {"step": seed, "best": (seed, "text"), "losses": [0.5 * seed]}, model

    found = make()
    (saved, one), (state, two) = made(1), made(2)
    found.save(0, saved)
    inside, tensor, losses = state["optimizer"]["state"][0], state["model"]["weight"], state["losses"]
    found.restore(0, state)
    assert state["optimizer"]["state"][0] is inside and state["model"]["weight"] is tensor and state["losses"] is losses
    assert torch.equal(one.weight.cpu(), two.weight.cpu()), "the model itself"
    assert torch.equal(state["random"]["cpu"], saved["random"]["cpu"]) and state["random"]["xla"] == saved["random"]["xla"]
    for key in ("scheduler", "step", "best", "losses"):
        assert state[key] == saved[key]
    assert state["optimizer"]["param_groups"] == saved["optimizer"]["param_groups"]


def test_priming_makes_the_state_exist() -> None:
    model = torch.nn.Linear(3, 2).to("xla")
    model.bias.requires_grad_(False)
    before = model.weight.detach().cpu().clone()
    optimizer = torch.optim.Adam(model.parameters())
    assert xc.prime_optimizer(optimizer) is optimizer
    assert set(optimizer.state_dict()["state"]) == {0} and model.weight.grad is None
    assert torch.equal(model.weight.detach().cpu(), before), "without weight decay"
    assert not optimizer.state[model.weight]["exp_avg"].cpu().any()


def test_wrong_use_is_refused(make: Make, tmp_path: Path) -> None:
    found = make()
    found.save(1, {"weight": weight()})
    with pytest.raises(MissingCheckpointError, match="no checkpoint of step 2; there are 1"):
        found.restore(2, {})
    with pytest.raises(MismatchError, match="other keys"):
        found.restore(1, {"bias": weight()})
    with pytest.raises(UnsavableError, match="model"):
        found.save_async(2, {"model": torch.nn.Linear(1, 1)})
    for step in (-1, "3", 1.0):
        with pytest.raises(ValueError, match="step is"):
            found.should_save(step)  # type: ignore[arg-type]
    for name in ("save_interval", "max_pending_async", "num_of_threads"):
        with pytest.raises(ValueError, match=f"{name} is 0"):
            make(**{name: 0})
    with pytest.raises(ValueError, match="mount the storage"):
        xc.CheckpointManager("gs://bucket/run", 1)
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            xc.CheckpointManager(tmp_path, 1)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_pending_saves_are_finished_at_the_end(start: Callable[..., list[subprocess.Popen[str]]], tmp_path: Path) -> None:
    (process,) = start("pending", tmp_path, 1)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert xc.CheckpointManager(tmp_path, 1, chkpt_on_preemption=False).all_steps() == [0, 1]


def test_killed_while_it_writes_the_last_good_one_stays(start: Callable[..., list[subprocess.Popen[str]]], tmp_path: Path) -> None:
    (process,) = start("pending", tmp_path, 400)
    while not list((tmp_path / "1").glob("*.safetensors")):
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    found = xc.CheckpointManager(tmp_path, 1, chkpt_on_preemption=False)
    assert found.all_steps() == [0], "it was killed at the beginning of step 1"
    state = {"weight": torch.zeros(1000)}
    found.restore(0, state)
    assert torch.equal(state["weight"], torch.ones(1000))


def test_replicas_save_one_state_of_which_marked_parts_are_each_ones_own(run: Callable[..., list[Any]], tmp_path: Path) -> None:
    pytest.importorskip("xla_distributed")
    pytest.importorskip("xla_spmd")
    one, two = run("together", "replicas", tmp_path, processes=2)
    for report in (one, two):
        assert report["weight"] == [1.0, 1.0, 1.0] and report["process"] == 0, "plain values are the first one's"
        assert report["all"] == [0]
        for name, words in (
            ("differ", "'weight' of process 0 differs from that of process 1"),
            ("names", "of 'weight 0' (and 1 more: 'weight 1') process 0 has float32[2], process 1 has none"),
            ("shapes", "of 'weight' process 0 has float32[2], process 1 has float32[3]"),
        ):
            kind, text, _ = report["errors"][name]
            assert kind == "ReplicasDifferError" and words in text and "PerProcess" in text
        assert "have [0, 1] PerProcess" in report["errors"]["marks"][1]
        assert report["errors"]["alone"][0] == "UnsavableError" and "over 2 processes, and 1 save together" in report["errors"]["alone"][1]
        assert report["later"][0] == "FailedSaveError" and report["later"][2] == "ReplicasDifferError"
    assert one["own"] == [[0.0, 0.0], 0.0, [1.0], 0.0] and two["own"] == [[1.0, 1.0, 1.0], 1.0, [2.0], 1.0]
    assert one["blocks"] == [[[0.0, 1.0], [2.0, 3.0]], [1.0, 1.0], [0.0, 1.0]]
    assert two["blocks"] == [[[10.0, 11.0], [12.0, 13.0]], [1.0, 1.0], [2.0]]
    whole = load(tmp_path / "0")
    assert torch.equal(whole["divided"], torch.tensor([[0.0, 1.0], [2.0, 3.0], [10.0, 11.0], [12.0, 13.0]]))
    assert whole["uneven"].tolist() == [0.0, 1.0, 2.0] and [own["rank"] for own in whole["own"]] == [0.0, 1.0]
    (file,) = {piece.file for piece in Checkpoint(tmp_path / "0").manifest.tensors["weight"].pieces}
    assert file.startswith("model-00001-"), "what all have is written once"
    with pytest.raises(MismatchError, match="own: the checkpoint has the values of 2 processes, and 1 load"):
        load_into({**whole, "own": PerProcess(whole["own"][0])}, tmp_path / "0")


def test_a_mark_is_a_list_of_one_for_a_process_on_its_own(make: Make, tmp_path: Path) -> None:
    found = make()
    shared = torch.ones(2)
    found.save(0, {"own": PerProcess({"random": torch.arange(3), "tied": shared}), "shared": shared})
    saved = load(tmp_path / "0")
    assert saved["own"][0]["tied"] is saved["shared"] and saved["own"][0]["random"].tolist() == [0, 1, 2]
    state = {"own": PerProcess({"random": torch.zeros(3, dtype=torch.int64), "tied": shared}), "shared": shared}
    inside = state["own"].value["random"]  # type: ignore[attr-defined]
    found.restore(0, state)
    assert state["own"].value["random"] is inside and inside.tolist() == [0, 1, 2]  # type: ignore[attr-defined]
    with pytest.raises(UnsavableError, match="a PerProcess in a PerProcess"):
        found.save(1, {"own": PerProcess([PerProcess(1)])})
    with pytest.raises(MismatchError, match="one value for all processes there"):
        found.restore(0, {"own": state["own"], "shared": PerProcess(shared)})


def test_a_group_that_is_not_of_the_cpu_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("xla_distributed")
    importlib.import_module("torch_xla.distributed.xla_backend")
    dist.init_process_group("xla", init_method="xla://")
    try:
        with pytest.raises(ValueError, match=r"the process group is for 'xla:xla'; .*new_group\(backend='gloo'\)"):
            xc.CheckpointManager(tmp_path, 1, process_group=dist.group.WORLD)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("action", ["steps", "fail", "refuse"])
def test_two_processes(run: Callable[..., list[Any]], tmp_path: Path, action: str) -> None:
    pytest.importorskip("xla_spmd")
    one, two = run("together", action, tmp_path, processes=2, devices=2)
    if action == "steps":
        assert one == two
        # Two threads save at once, in either order: of two steps, the one that was saved longest ago is gone.
        assert one["all"] in ([6, 8], [4, 8]) and one["weight"] == [9.0] and one["step"] == 8 and one["here"] == [8.0, 8.0]
        assert one["pieces"] == 4 and one["files"] == 4, "each wrote what its two devices hold, and a file has one piece of a tensor"
    elif action == "fail":
        assert (one["refused"][0], two["refused"][0]) == ("CheckpointError", "UnsavableError")
        assert one["errors"][0] == two["errors"][0] == "FailedSaveError" and two["errors"][2] == "OSError"
        assert "process 1: OSError" in one["errors"][1]
        assert one["there"] == two["there"] == [1] and one["then"] == two["then"] == [1, 20_000]
    else:
        assert one["paths"][0] == "ValueError" and "one path" in one["paths"][1]
        assert one["part"][0] == "ValueError" and "has 1 of 2 processes" in one["part"][1]
        assert one["alone"][0] == "ValueError" and "init_process_group" in one["alone"][1]
