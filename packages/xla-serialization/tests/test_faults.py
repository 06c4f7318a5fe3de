"""Full disks, targets that cannot be written, and files that were cut, changed or lost: clear errors, and the earlier checkpoint stays."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked_python
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_xla.core.xla_model as xm
import torch_xla.utils.serialization as xser
import xla_serialization as checkpoint
from xla_serialization import Checkpoint, DamagedCheckpointError, MissingCheckpointError
from xla_serialization.format.manifest import INDEX

OLD = {"w": torch.arange(50.0), "b": [torch.ones(7), torch.zeros(3, dtype=torch.int64)], "step": 1}
LARGE = {"w": torch.ones(1 << 20), "step": 2}


def is_old(path: Path) -> bool:
    found = checkpoint.load(path)
    return found["step"] == 1 and torch.equal(found["w"], OLD["w"]) and all(map(torch.equal, found["b"], OLD["b"]))  # type: ignore[arg-type]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if not shutil.which("mount") or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    path = small_disk / "saved"
    checkpoint.save(OLD, path)
    files = sorted(path.iterdir())
    with pytest.raises(OSError) as caught:
        checkpoint.save(LARGE, path)
    assert caught.value.errno == errno.ENOSPC and str(path) in str(caught.value)
    assert is_old(path) and sorted(path.iterdir()) == files, "and what was written of the new one is taken back"
    checkpoint.save({**OLD, "more": torch.ones(100)}, path)
    assert is_old(path)


def test_a_disk_that_is_full_when_the_index_is_written(small_disk: Path) -> None:
    path = small_disk / "saved"
    checkpoint.save(OLD, path)
    files = sorted(path.iterdir())
    with pytest.raises(OSError) as caught:
        checkpoint.save({"w": torch.ones(10), "text": "x" * (1 << 20)}, path)
    assert caught.value.errno == errno.ENOSPC and is_old(path) and sorted(path.iterdir()) == files


def test_a_full_disk_under_xser_and_xm_save(small_disk: Path) -> None:
    xser.save({"w": torch.ones(5).to("xla")}, small_disk / "x")
    xm.save({"w": torch.ones(5)}, small_disk / "m")
    files = sorted(small_disk.iterdir())
    for save, name in ((xser.save, "x"), (xm.save, "m")):
        with pytest.raises((OSError, RuntimeError)):  # torch.save raises RuntimeError for a disk that is full
            save({"w": LARGE["w"].to("xla")}, small_disk / name)  # type: ignore[attr-defined]
        assert sorted(small_disk.iterdir()) == files
    assert torch.equal(xser.load(small_disk / "x")["w"], torch.ones(5))
    assert torch.equal(torch.load(small_disk / "m", weights_only=True)["w"], torch.ones(5))


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """As a quota does it."""
    checkpoint.save(OLD, tmp_path / "saved")
    code = f"""
        import resource, signal, torch, xla_serialization
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, {resource.RLIM_INFINITY}))
        try:
            xla_serialization.save({{"w": torch.ones(1 << 20)}}, {str(tmp_path / "saved")!r})
        except OSError as error:
            print(error)
    """
    done = forked_python.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=300)
    assert "File too large" in done.stdout and ".safetensors" in done.stdout
    assert is_old(tmp_path / "saved") and len(list((tmp_path / "saved").iterdir())) == 2
    assert signal.getsignal(signal.SIGXFSZ) is not None


def test_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(OLD, tmp_path)
    files = sorted(tmp_path.iterdir())

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match=r"Input/output error.*model-00001-of-00001") as caught:
        checkpoint.save(LARGE, tmp_path)
    assert caught.value.errno == errno.EIO
    monkeypatch.undo()
    assert is_old(tmp_path) and sorted(tmp_path.iterdir()) == files


def test_an_interrupted_save(tmp_path: Path) -> None:
    checkpoint.save(OLD, tmp_path)
    files = sorted(tmp_path.iterdir())

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(LARGE, tmp_path, progress=interrupt)
    assert is_old(tmp_path) and sorted(tmp_path.iterdir()) == files


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(NotADirectoryError, match="a checkpoint is a folder, and there is a file"):
        checkpoint.save(OLD, tmp_path / "file")
    with pytest.raises(NotADirectoryError, match="file"):
        checkpoint.save(OLD, tmp_path / "file" / "below")
    for save in (xser.save, xm.save):
        with pytest.raises((NotADirectoryError, RuntimeError)):
            save(OLD, tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "no folder"


def test_a_read_only_file_system(small_disk: Path) -> None:
    path = small_disk / "saved"
    checkpoint.save(OLD, path)
    xm.save(OLD, small_disk / "m")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for save, target in ((checkpoint.save, path), (checkpoint.save, small_disk / "new"), (xm.save, small_disk / "m")):
        with pytest.raises(OSError) as caught:
            save(LARGE, target)
        assert caught.value.errno == errno.EROFS and str(target.parent) in str(caught.value)
    assert is_old(path) and {file.name for file in small_disk.iterdir()} == {"saved", "m"}


def test_what_cannot_be_removed_is_warned_of_and_the_save_stands(tmp_path: Path) -> None:
    checkpoint.save(LARGE, tmp_path)
    (shard,) = tmp_path.glob("*.safetensors")
    if not shutil.which("chattr") or subprocess.run(["chattr", "+i", shard], check=False, capture_output=True).returncode:
        pytest.skip("files cannot be made immutable here")
    try:
        with pytest.warns(UserWarning, match=f"{shard.name}: of an earlier save, cannot be removed"):
            checkpoint.save(OLD, tmp_path)
    finally:
        subprocess.run(["chattr", "-i", shard], check=True)
    assert is_old(tmp_path)
    checkpoint.save(OLD, tmp_path)
    assert not shard.exists() and is_old(tmp_path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two shards, of which copies are damaged."""
    folder = tmp_path_factory.mktemp("sound")
    checkpoint.save(OLD, folder, shard_bytes=210)
    assert len(list(folder.glob("*.safetensors"))) == 2
    return folder


def damaged(sound: Path, name: str, data: bytes | None) -> Path:
    """A copy, with other bytes in a file, or without it."""
    folder = sound.parent / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    if data is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(data)
    return folder


def shards(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.safetensors"))


def test_a_missing_shard_is_named_with_its_tensors(sound: Path) -> None:
    name = shards(sound)[1]
    with pytest.raises(DamagedCheckpointError, match=f"{name}: this file .* is missing, with 2 tensors: 'b.0', 'b.1'"):
        checkpoint.load(damaged(sound, name, None))


def test_no_index_is_no_checkpoint(sound: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingCheckpointError, match=f"no {INDEX} in it") as caught:
        checkpoint.load(damaged(sound, INDEX, None))
    assert isinstance(caught.value, FileNotFoundError)
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingCheckpointError, match="no folder"):
        checkpoint.load(tmp_path / "file")


@given(data=st.data())
def test_a_file_that_was_cut_or_has_more(sound: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*shards(sound), INDEX]))
    whole = (sound / name).read_bytes()
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedCheckpointError, match=name):
        Checkpoint(damaged(sound, name, whole[:size]))
    if name != INDEX:
        with pytest.raises(DamagedCheckpointError, match=f"{name}: has {len(whole) + 1} bytes, should have {len(whole)}"):
            Checkpoint(damaged(sound, name, whole + b"\0"))


def flipped(data: bytes, bit: int) -> bytes:
    found = bytearray(data)
    found[bit // 8] ^= 1 << bit % 8
    return bytes(found)


@given(data=st.data())
def test_a_flipped_bit_of_the_data_is_found_and_its_tensor_named(sound: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(shards(sound)))
    whole = (sound / name).read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    bit = data.draw(st.integers(8 * start, 8 * len(whole) - 1))
    header = json.loads(whole[8:start])
    header.pop("__metadata__")
    (tensor,) = [key for key, entry in header.items() if entry["data_offsets"][0] <= bit // 8 - start < entry["data_offsets"][1]]
    folder = damaged(sound, name, flipped(whole, bit))
    with pytest.raises(DamagedCheckpointError, match=f"{name}: the data of tensor '{tensor}' has changed"):
        checkpoint.load(folder)
    held = Checkpoint(folder)
    assert all(torch.equal(held[other], Checkpoint(sound)[other]) for other in held if other != tensor), "the others are read"
    assert checkpoint.load(folder, verify=False)["step"] == 1


@given(data=st.data())
def test_a_flipped_bit_of_a_header_is_found_or_changes_nothing(sound: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(shards(sound)))
    whole = (sound / name).read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    bit = data.draw(st.integers(0, 63) | st.integers(64, 8 * start - 1))
    folder = damaged(sound, name, flipped(whole, bit))
    try:
        assert is_old(folder)  # in a space, or in what says that the file is of torch
    except DamagedCheckpointError as error:
        assert name in str(error)
    else:
        assert bit >= 64, "a header of another length"


@given(data=st.data())
def test_a_flipped_bit_of_the_index_is_found_or_changes_nothing(sound: Path, data: st.DataObject) -> None:
    whole = (sound / INDEX).read_bytes()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    folder = damaged(sound, INDEX, flipped(whole, bit))
    try:
        assert is_old(folder)  # in a space
        assert json.loads((folder / INDEX).read_bytes()) == json.loads(whole)
    except (DamagedCheckpointError, checkpoint.NewerCheckpointError) as error:
        assert INDEX in str(error)


def test_an_index_whose_manifest_has_another_key_is_not_taken_for_that_of_another_program(sound: Path) -> None:
    whole = (sound / INDEX).read_bytes()
    key = b"xla_checkpoint"
    assert whole.count(key) == 1
    for bit in range(8 * len(key)):
        folder = damaged(sound, INDEX, flipped(whole, 8 * whole.index(key) + bit))
        with pytest.raises(DamagedCheckpointError, match=INDEX):
            checkpoint.load(folder)


def test_damage_leaves_what_is_loaded_into_as_it_was(sound: Path) -> None:
    name = shards(sound)[0]
    state = {"w": torch.zeros(50), "b": [torch.zeros(7), torch.zeros(3, dtype=torch.int64)], "step": 0}
    with pytest.raises(DamagedCheckpointError, match=name):
        checkpoint.load_into(state, damaged(sound, name, (sound / name).read_bytes()[:-1]))
    assert not state["w"].any() and not state["b"][0].any()  # type: ignore[attr-defined, index]


def test_a_file_that_is_cut_off_while_it_is_read(tmp_path: Path) -> None:
    checkpoint.save({"w": torch.ones(1 << 20), "step": 1}, tmp_path)
    held = Checkpoint(tmp_path)
    (shard,) = tmp_path.glob("*.safetensors")
    os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(DamagedCheckpointError, match=f"{shard.name}: was cut off while it was read"):
        held["w"]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of NFS and its like: only files open for writing are locked, folders are not synchronised."""
    lock, sync = fcntl.flock, os.fsync

    def flock(fd: int, operation: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode) and not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_RDWR:
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(fd, operation)

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(fd)

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("save", [checkpoint.save, xm.save, xser.save], ids=["checkpoint", "xm", "xser"])
def test_a_network_file_system(save: Callable[..., None], tmp_path: Path) -> None:
    for step in (1, 2):
        save({"w": torch.full((3,), float(step)).to("xla"), "step": step}, tmp_path / "saved")
    load: dict[Any, Callable[..., Any]] = {checkpoint.save: checkpoint.load, xm.save: torch.load, xser.save: xser.load}
    found = load[save](tmp_path / "saved")
    assert found["step"] == 2 and found["w"].tolist() == [2.0] * 3
    assert {path.name for path in tmp_path.iterdir()} <= {"saved", "saved.tensors"}


def test_a_folder_whose_names_do_not_last_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(OLD, tmp_path / "saved")
    sync = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        checkpoint.save(LARGE, tmp_path / "saved")
    monkeypatch.undo()
    assert is_old(tmp_path / "saved")
