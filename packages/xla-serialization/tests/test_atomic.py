"""Programs killed while they save leave the earlier checkpoint or the new one, whole; readers see one of them (FORMAT.md §6)."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import forked_python
import pytest
import torch

import torch_xla.core.xla_model as xm
import torch_xla.experimental.distributed_checkpoint as xc
import torch_xla.utils.serialization as xser
import xla_serialization as checkpoint
from xla_serialization.format import folder as folders
from xla_serialization.format.manifest import INDEX
from xla_serialization.format.shards import ShardReader
from xla_serialization.training.steps import complete_steps

PROGRAM = Path(__file__).parent / "programs" / "saver.py"


class Saver:
    """Processes that save, one at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.server = forked_python.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
        )
        self.pid = 0

    def start(self, kind: str, path: Path, value: int, stop: int = -1) -> None:
        """A process that saves `value`."""
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps({"kind": kind, "path": str(path), "value": value, "stop": stop}).encode() + b"\n")
        self.server.stdin.flush()
        self.pid = self.printed("pid")

    def printed(self, key: str) -> Any:
        """What the process tells next, which must be this."""
        line = self._line()
        assert key in line, f"{line} instead of {key}"
        if "ended" in line:
            self.pid = 0
        return line[key]

    def saved(self, kind: str, path: Path, value: int) -> int:
        """Save, to the end; gives the number of system calls."""
        self.start(kind, path, value)
        count = int(self.printed("saved"))
        assert self.printed("ended") == 0
        return count

    def kill(self) -> int:
        """The process, which may tell some more before it is dead; gives the last value that it then said it had saved, or -1."""
        os.kill(self.pid, signal.SIGKILL)
        self.pid = 0
        printed = -1
        while "ended" not in (line := self._line()):
            printed = line["value"]
        assert line["ended"] == -signal.SIGKILL
        return printed

    def _line(self) -> dict[str, Any]:
        assert self.server.stdout is not None
        assert select.select([self.server.stdout], [], [], 120)[0], "the process that saves says nothing"
        found: dict[str, Any] = json.loads(self.server.stdout.readline())
        return found

    def close(self) -> None:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.close()
        self.server.stdout.close()
        self.server.wait(timeout=60)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Saver]:
    """One that forks the processes that save."""
    made = Saver()
    yield made
    made.close()


@pytest.fixture
def saver(interpreter: Saver) -> Iterator[Saver]:
    """Leaves no process behind, also of a test that fails."""
    yield interpreter
    if interpreter.pid:
        interpreter.kill()


def newest(path: Path) -> Any:
    """Of the steps below a path."""
    while True:
        step = complete_steps(path)[-1]
        try:
            return checkpoint.load(path / str(step))
        except checkpoint.MissingCheckpointError:
            assert complete_steps(path)[-1] > step, "it made room for a later one"


LOADS: dict[str, Callable[[Path], Any]] = {
    "checkpoint": checkpoint.load,
    "large": checkpoint.load,
    "manager": newest,
    "async": newest,
    "xser": xser.load,
    "xm": lambda path: torch.load(path, weights_only=True),
}


def value_of(kind: str, path: Path) -> int:
    """Of what is saved there, which must be of one save, whole."""
    found = LOADS[kind](path)
    values = {float(value) for tensor in found["tensors"].values() for value in tensor.unique()}
    assert values == {float(found["step"])}
    return int(found["step"])


def leftovers(kind: str, path: Path) -> set[str]:
    """Files that no reader needs."""
    if kind in ("checkpoint", "large"):
        return {file.name for file in path.iterdir()} - {INDEX, *checkpoint.Checkpoint(path).manifest.files}
    if kind in ("manager", "async"):
        steps = [folder for folder in path.iterdir() if folder.name not in map(str, complete_steps(path))]
        return {folder.name for folder in steps}.union(*(leftovers("checkpoint", path / str(step)) for step in complete_steps(path)))
    return {file.name for file in path.parent.iterdir()} - {path.name, *([f"{path.name}.tensors"] if kind == "xser" else [])}


def save_here(kind: str, path: Path, value: int) -> None:
    """The next save, which ends."""
    tensors = {f"t{number}": torch.full((number + 1, 50), float(value)).to("xla") for number in range(12)}
    data = {"tensors": tensors, "step": value}
    if kind in ("manager", "async"):
        xc.CheckpointManager(path, 1, max_to_keep=1, chkpt_on_preemption=False).save(value, data)
    else:
        {"xser": xser.save, "xm": xm.save}.get(kind, partial(checkpoint.save, shard_bytes=1000))(data, path)


KINDS = ["checkpoint", "manager", "async", "xser", "xm"]


@pytest.mark.parametrize("points", [5, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_save_leaves_the_old_or_the_new(tmp_path: Path, saver: Saver, kind: str, points: int) -> None:
    path = tmp_path / "saved"
    calls = [saver.saved(kind, path, value) for value in (0, 1)][1]
    before = 1
    seen: set[int] = set()
    for stop in sorted({number * (calls - 1) // (points - 1) for number in range(points)}):  # all of them, if they are fewer
        saver.start(kind, path, before + 1, stop)
        call = saver.printed("stopped")
        assert value_of(kind, path) in (before, before + 1), f"while it waits before call {stop}, {call}"
        saver.kill()
        after = value_of(kind, path)
        assert after in (before, before + 1), f"killed before call {stop}, {call}"
        seen.add(after - before)
        before = after + 1
        save_here(kind, path, before)
        assert value_of(kind, path) == before and not leftovers(kind, path), f"after it was killed before call {stop}, {call}"
    assert seen == {0, 1}, "some points are before the moment of saving, and some after it"


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_first_save_leaves_none_or_the_new(tmp_path: Path, saver: Saver, kind: str) -> None:
    calls = saver.saved(kind, tmp_path / "other", 1)
    for stop in random.Random(8).sample(range(calls), 4):
        folder = tmp_path / str(stop)
        folder.mkdir()
        saver.start(kind, folder / "saved", 1, stop)
        saver.printed("stopped")
        saver.kill()
        try:
            assert value_of(kind, folder / "saved") == 1
        except (FileNotFoundError, IndexError):
            pass  # nothing was saved yet
        save_here(kind, folder / "saved", 2)
        assert value_of(kind, folder / "saved") == 2 and not leftovers(kind, folder / "saved")


@pytest.mark.parametrize("moments", [3, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["large", *KINDS])
def test_killed_at_any_moment(tmp_path: Path, saver: Saver, kind: str, moments: int) -> None:
    path = tmp_path / "saved"
    value = 0
    random_moments = random.Random(moments)
    for _ in range(moments):
        saver.start(kind, path, value, stop=-2)
        saver.printed("saved")
        with pytest.raises(subprocess.TimeoutExpired):
            saver.server.wait(timeout=random_moments.uniform(0.0, 0.3))  # wherever it then is
        printed = saver.kill()
        found = value_of(kind, path)
        assert found in (max(value, printed), max(value, printed) + 1), "the last that was saved, or the one after it"
        value = found + 1
        save_here(kind, path, value)
        assert value_of(kind, path) == value and not leftovers(kind, path)
        value += 1


@pytest.mark.parametrize("kind", ["checkpoint", "manager", "async", "xser", "xm"])
def test_a_reader_sees_one_save_while_others_follow(tmp_path: Path, saver: Saver, kind: str) -> None:
    path = tmp_path / "saved"
    saver.saved(kind, path, 0)
    saver.start(kind, path, 1, stop=-2)
    values = [value_of(kind, path) for _ in range(100)]
    while values[-1] < 3:
        values.append(value_of(kind, path))
    saver.kill()
    assert values == sorted(values)


def test_a_save_between_the_index_and_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_here("checkpoint", tmp_path / "saved", 0)
    real, saves = folders.open_shard, iter([1, 2])

    def after_another_save(folder: Path, name: str, nbytes: int) -> ShardReader:
        for value in saves:
            save_here("checkpoint", tmp_path / "saved", value)
            break
        return real(folder, name, nbytes)

    monkeypatch.setattr(folders, "open_shard", after_another_save)
    assert value_of("checkpoint", tmp_path / "saved") == 2


def test_a_save_between_the_structure_and_the_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_here("xser", tmp_path / "saved", 0)
    real, saves = torch.load, iter([1, 2])

    def before_another_save(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        for value in saves:
            save_here("xser", tmp_path / "saved", value)
            break
        return found

    monkeypatch.setattr(torch, "load", before_another_save)
    assert value_of("xser", tmp_path / "saved") == 2


def test_a_checkpoint_opened_before_other_saves_stays_whole(tmp_path: Path, saver: Saver) -> None:
    saver.saved("checkpoint", tmp_path / "saved", 5)
    held = checkpoint.Checkpoint(tmp_path / "saved")
    for value in (6, 7):
        saver.saved("checkpoint", tmp_path / "saved", value)
    assert {float(value) for name in held for value in held[name].unique()} == {5.0} and held.nesting()["step"] == 5


def test_two_programs_do_not_save_to_one_folder_at_once(tmp_path: Path, saver: Saver) -> None:
    path = tmp_path / "saved"
    saver.saved("checkpoint", path, 1)
    saver.start("checkpoint", path, 2, stop=20)
    saver.printed("stopped")
    with pytest.raises(BlockingIOError, match="another program is saving there"):
        checkpoint.save({"tensors": {}, "step": 3}, path)
    assert value_of("checkpoint", path) == 1
    saver.kill()
    save_here("checkpoint", path, 3)
    assert value_of("checkpoint", path) == 3 and not leftovers("checkpoint", path)


def test_what_another_program_is_writing_is_no_leftover(tmp_path: Path, saver: Saver) -> None:
    path = tmp_path / "saved"
    calls = saver.saved("xm", path, 1)
    for stop in range(2, calls):
        saver.start("xm", path, 2, stop)
        if saver.printed("stopped") == "replace":
            break
        saver.kill()
    newest = max(leftovers("xm", path), key=lambda name: (tmp_path / name).stat().st_mtime_ns)
    save_here("xm", path, 3)
    assert leftovers("xm", path) == {newest}
    saver.kill()
    save_here("xm", path, 4)
    assert value_of("xm", path) == 4 and not leftovers("xm", path)


def test_of_two_programs_that_save_with_xm_the_last_wins(tmp_path: Path, saver: Saver) -> None:
    path = tmp_path / "saved"
    saver.saved("xm", path, 1000)
    saver.start("xm", path, 1001, stop=-2)
    seen = set()
    while len(seen) < 10:
        save_here("xm", path, 1)
        seen.add(value_of("xm", path))
    assert all(value == 1 or value >= 1000 for value in seen)
    saver.kill()
    save_here("xm", path, 2)
    assert value_of("xm", path) == 2 and not leftovers("xm", path)


@pytest.mark.parametrize("kind", ["manager", "async"])
def test_two_managers_of_one_path(tmp_path: Path, saver: Saver, kind: str) -> None:
    """Not meant to be; each removes what the other saved, and not what it is saving, and readers see whole steps only."""
    path = tmp_path / "saved"
    saver.start(kind, path, 1000, stop=-2)
    saver.printed("saved")
    saved = 0
    for value in range(60):
        try:
            save_here(kind, path, value)
            saved += 1
        except BlockingIOError as error:
            assert "another program is saving there" in str(error)
        for step in complete_steps(path):
            with suppress(checkpoint.MissingCheckpointError):
                found = checkpoint.load(path / str(step))
                assert {float(one) for tensor in found["tensors"].values() for one in tensor.unique()} == {float(step)}
    assert saved
    saver.kill()
    save_here(kind, path, 5000)
    assert value_of(kind, path) == 5000 and not leftovers(kind, path)


def test_two_programs_that_save_with_xser_take_turns(tmp_path: Path, saver: Saver) -> None:
    path = tmp_path / "saved"
    saver.saved("xser", path, 1000)
    saver.start("xser", path, 1001, stop=-2)
    seen = set()
    while len(seen) < 20:
        save_here("xser", path, 1)
        seen.add(value_of("xser", path))
    assert seen - {1} and all(value >= 1000 for value in seen - {1}), "each save was whole, whoever's it was"
    saver.kill()
    save_here("xser", path, 2)
    assert value_of("xser", path) == 2 and not leftovers("xser", path)
