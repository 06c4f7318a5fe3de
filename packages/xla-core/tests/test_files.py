"""Files replaced atomically: by the new contents whole, or left as they were."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from xla_core import files


def test_the_new_contents_take_the_place_of_the_old(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with files.atomic_write(target) as temporary:
        temporary.write_bytes(b"new")
        assert target.read_bytes() == b"old" and temporary.parent == tmp_path
    assert target.read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]
    files.atomic_write_bytes(target, b"newer", durable=True)
    assert target.read_bytes() == b"newer" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError("injected"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_what_fails_leaves_the_old_contents_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(type(error)), files.atomic_write(target) as temporary:
        temporary.write_bytes(b"ne")
        raise error
    assert target.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_target_that_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        files.atomic_write_bytes(tmp_path / "folder", b"new")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        files.atomic_write_bytes(tmp_path / "nowhere" / "file", b"new")


def test_mode_bits_are_those_asked_for_less_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.atomic_write_bytes(tmp_path / "all", b"")
        files.atomic_write_bytes(tmp_path / "mine", b"", mode=0o600)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"all": 0o644, "mine": 0o600}


def test_a_temporary_file_of_the_callers_own(tmp_path: Path) -> None:
    with files.atomic_write(tmp_path / "file", tmp_path / "mine") as temporary:
        assert temporary == tmp_path / "mine" and not temporary.exists()
        temporary.write_bytes(b"new")
    assert (tmp_path / "file").read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


def test_durable_files_are_synchronized_before_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fsync(fd: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        assert (tmp_path / "file").exists() == (synced[-1] == "folder")

    monkeypatch.setattr(os, "fsync", fsync)
    files.atomic_write_bytes(tmp_path / "file", b"new", durable=True)
    assert synced == ["file", "folder"]
    files.atomic_write_bytes(tmp_path / "file", b"newer")
    assert synced == ["file", "folder"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_a_folder_that_cannot_be_synchronized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fsync(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    if number == errno.EINVAL:  # a file system that synchronizes none
        files.sync_folder(tmp_path)
    else:
        with pytest.raises(OSError, match=tmp_path.name):
            files.sync_folder(tmp_path)
    with pytest.raises(OSError, match=tmp_path.name):
        files.sync_file(tmp_path)
