"""Disks that are full at any write of a save, and folders that cannot be written: the error names cause and path, and nothing is lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla.core.xla_model as xm
import torch_xla.experimental.distributed_checkpoint as xc
import torch_xla.utils.serialization as xser
import xla_serialization as checkpoint
from xla_serialization import FailedSaveError
from xla_serialization.tools.conversion import convert
from xla_serialization.tools.sources import open_source
from xla_serialization.training.steps import complete_steps

_NOBODY = 65534


def content(value: int, device: str = "xla") -> dict[str, Any]:
    """Everything in it says the value."""
    tensors = {f"t{number}": torch.full((number + 1, 300), float(value)).to(device) for number in range(6)}
    return {"tensors": tensors, "step": value}


def save_step(path: Path, value: int, background: bool) -> None:
    manager = xc.CheckpointManager(path, 1, max_to_keep=1, chkpt_on_preemption=False)
    if not background:
        manager.save(value, content(value))
        return
    manager.save_async(value, content(value))
    try:
        manager.join()
    except FailedSaveError as error:
        assert str(error.__cause__) in str(error) and (not value or str(complete_steps(path)) in str(error))
        assert error.__cause__ is not None
        raise error.__cause__ from None


def converted(path: Path, value: int, source: Path) -> None:
    checkpoint.save(content(value, "cpu"), source)
    convert(open_source(source), path)


def newest(path: Path) -> Any:
    steps = complete_steps(path)
    assert len(steps) == 1
    return checkpoint.load(path / str(steps[0]))


Save = Callable[[Path, int], None]
KINDS: dict[str, tuple[Save, Callable[[Path], Any]]] = {
    "checkpoint": (lambda path, value: checkpoint.save(content(value), path, shard_bytes=3000), checkpoint.load),
    "manager": (partial(save_step, background=False), newest),
    "async": (partial(save_step, background=True), newest),
    "xser": (lambda path, value: xser.save(content(value), path), xser.load),
    "xm": (lambda path, value: xm.save(content(value), path), partial(torch.load, weights_only=True)),
}


def value_of(kind: str, path: Path) -> int:
    """Of what is saved there, which must be of one save, whole."""
    found = KINDS[kind][1](path)
    assert {float(value) for tensor in found["tensors"].values() for value in tensor.unique()} == {float(found["step"])}
    return int(found["step"])


def files_below(place: Path) -> set[Path]:
    return {file.relative_to(place) for file in place.rglob("*") if file.name != "lost+found" and not file.name.startswith("ballast")}


def mounted(place: Path, *arguments: str) -> None:
    """Mount a file system there, or skip the test."""
    place.mkdir()
    if not shutil.which("mount") or subprocess.run(["mount", *arguments, place], capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    place = tmp_path / "disk"
    if request.param == "tmpfs":
        mounted(place, "-t", "tmpfs", "-o", "size=4m,nr_inodes=200", "none")
    else:
        image = tmp_path / "image"
        if not shutil.which("mkfs.ext4"):
            pytest.skip("there is no mkfs.ext4")
        image.touch()
        os.truncate(image, 4 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-b", "1024", "-m", "0", "-N", "200", image], check=True)
        mounted(place, "-o", "loop", str(image))
    yield place
    subprocess.run(["umount", "-l", place], check=True)


class Ballast:
    """Fills a disk but for so much."""

    def __init__(self, disk: Path) -> None:
        self._file = disk / "ballast"
        self._folder = disk / "ballast-files"
        self._folder.mkdir()
        self._disk = disk

    def leave_room(self, nbytes: int) -> None:
        """So many bytes, or somewhat more, are free."""
        self._file.unlink(missing_ok=True)
        os.sync()  # what was deleted counts until then, on some
        step = os.statvfs(self._disk).f_frsize
        with open(self._file, "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(step))
        size = max(self._file.stat().st_size - nbytes, 0)
        os.truncate(self._file, size)
        os.sync()

    def leave_files(self, count: int) -> None:
        """So many files, folders included, can be made."""
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        for number in range(os.statvfs(self._disk).f_ffree - count):
            (self._folder / str(number)).touch()


@pytest.mark.parametrize("scarce", ["bytes", "files"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full_at_each_write_in_turn(disk: Path, kind: str, scarce: str) -> None:
    place = disk / "run"
    place.mkdir()
    path, save = place / "saved", KINDS[kind][0]
    save(path, 0)
    before = files_below(place)
    ballast = Ballast(disk)
    step = 1024 if scarce == "bytes" else 1
    failures = 0
    while True:
        (ballast.leave_room if scarce == "bytes" else ballast.leave_files)(failures * step)
        try:
            save(path, 1)
        except OSError as error:
            assert error.errno == errno.ENOSPC and str(place) in str(error), f"{error!r}, with room for {failures}"
        else:
            break
        failures += 1
        assert value_of(kind, path) == 0 and files_below(place) == before, f"with room for {failures - 1}"
    assert value_of(kind, path) == 1 and len(files_below(place)) == len(before), "nothing was in the way of the one that fits"
    assert failures >= (1 if scarce == "files" else 5)


@pytest.mark.parametrize("name", ["folder", "one.safetensors", "one.pt"])
def test_a_disk_that_is_full_while_a_checkpoint_is_converted(disk: Path, tmp_path: Path, name: str) -> None:
    target = disk / name
    converted(target, 0, tmp_path / "source") if name != "one.safetensors" else None
    tensors = {f"t{number}": torch.ones(number + 1, 300) for number in range(6)}
    checkpoint.save(tensors, tmp_path / "source")
    before = files_below(disk)
    ballast = Ballast(disk)
    failures = 0
    while True:
        ballast.leave_room(failures * 1024)
        try:
            convert(open_source(tmp_path / "source"), target)
            break
        except OSError as error:
            assert error.errno == errno.ENOSPC and target.name in str(error), repr(error)
        failures += 1
        assert files_below(disk) == before
    assert failures >= 5
    assert {leaf.tensor for leaf in open_source(target).leaves()} == set(tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_system_that_is_read_only(tmp_path: Path, kind: str) -> None:
    mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m", "none")
    path, save = tmp_path / "disk" / "saved", KINDS[kind][0]
    try:
        save(path, 0)
        before = files_below(tmp_path)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "disk"], check=True)
        for target in (path, path.with_name("other")):
            with pytest.raises(OSError) as caught:
                save(target, 1 if target == path else 0)
            assert caught.value.errno == errno.EROFS and str(path.parent) in str(caught.value)
        assert value_of(kind, path) == 0 and files_below(tmp_path) == before
    finally:
        subprocess.run(["umount", "-l", tmp_path / "disk"], check=True)


@contextmanager
def powerless() -> Iterator[None]:
    """As a user to whom nothing belongs: the superuser may write wherever others may not."""
    if os.geteuid():
        yield
        return
    os.setegid(_NOBODY)
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that all users reach."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_may_not_be_written(reachable: Path, kind: str) -> None:
    place = reachable / "run"
    place.mkdir()
    path, save = place / "saved", KINDS[kind][0]
    save(path, 0)
    before = files_below(place)
    folders = [place, *(folder for folder in place.rglob("*") if folder.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    with powerless():
        for target in (path, path.with_name("other")):
            with pytest.raises(PermissionError) as caught:
                save(target, 1 if target == path else 0)
            assert str(place) in str(caught.value)
        assert value_of(kind, path) == 0
    for folder in folders:
        folder.chmod(0o755)
    assert files_below(place) == before
    save(path, 1)
    assert value_of(kind, path) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser makes files of two users")
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_folder_whose_files_belong_to_another(reachable: Path, kind: str) -> None:
    """As in /tmp: everybody may make files there, and remove only his own."""
    place = reachable / "run"
    place.mkdir()
    path, save = place / "saved", KINDS[kind][0]
    save(path, 0)
    for folder in (place, *(folder for folder in place.rglob("*") if folder.is_dir())):
        folder.chmod(0o1777)
    before = files_below(place)
    with powerless():
        if kind in ("manager", "async"):
            with pytest.raises(PermissionError):
                save(path, 1)
            assert complete_steps(path) == [0, 1], "the new one is whole, the old one cannot be removed"
            return
        with pytest.raises(PermissionError) as caught:
            save(path, 1)
        assert str(place) in str(caught.value) and value_of(kind, path) == 0 and files_below(place) == before
    save(path, 1)
    assert value_of(kind, path) == 1
