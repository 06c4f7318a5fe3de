"""Links in a checkpoint's folder: Hugging Face's cache is read through them, and whatever else they lead to is refused (FORMAT.md §7)."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

import xla_serialization
from xla_serialization import Checkpoint, DamagedCheckpointError
from xla_serialization.cli import group
from xla_serialization.format.manifest import INDEX

WEIGHT, OTHER, SECRET = torch.arange(24.0).reshape(6, 4), torch.arange(3), torch.full((6, 4), 13.0)
NAME = "model.safetensors"


def cached(root: Path, files: Path, below: str = ".") -> Path:
    """The snapshot of a repository in a cache as huggingface_hub lays it out, with these files."""
    repository = root / "models--someone--small"
    folder, blobs = repository / "snapshots" / ("0" * 40) / below, repository / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(files.iterdir())):
        shutil.copy(file, blobs / f"{number:064x}")
        (folder / file.name).symlink_to(os.path.relpath(blobs / f"{number:064x}", folder))
    return folder


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """With one file."""
    (tmp_path / "files").mkdir()
    save_file({"w": WEIGHT}, tmp_path / "files" / NAME)
    save_file({"w": SECRET}, tmp_path / "secret")
    return cached(tmp_path / "hub", tmp_path / "files")


@pytest.mark.parametrize("below", [".", "unet", "a/b"])
def test_a_model_in_the_cache_is_loaded(tmp_path: Path, below: str) -> None:
    files = tmp_path / "files"
    files.mkdir()
    save_file({"w": WEIGHT}, files / "model-00001-of-00002.safetensors")
    save_file({"v": OTHER}, files / "model-00002-of-00002.safetensors")
    weights = {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}
    (files / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    folder = cached(tmp_path / "hub", files, below)
    found = xla_serialization.load(folder, device="xla")
    assert torch.equal(found["w"].cpu(), WEIGHT) and torch.equal(found["v"].cpu(), OTHER)
    (tmp_path / "latest").symlink_to(folder)
    assert torch.equal(Checkpoint(tmp_path / "latest")["w"], WEIGHT), "a folder that is asked for may be a link"
    done = CliRunner().invoke(group, ["inspect", str(folder)])
    assert done.exit_code == 0 and "2 tensors, 120 bytes" in done.output


def test_a_checkpoint_of_ours_in_the_cache_is_loaded_and_verified(tmp_path: Path) -> None:
    xla_serialization.save({"w": WEIGHT, "step": 3}, tmp_path / "files")
    folder = cached(tmp_path / "hub", tmp_path / "files")
    assert xla_serialization.load(folder, mmap=True)["step"] == 3
    assert CliRunner().invoke(group, ["verify", str(folder)]).exit_code == 0


def test_links_of_any_wording_to_the_same_places_are_followed(snapshot: Path) -> None:
    (link,) = snapshot.iterdir()
    blob = link.resolve()
    blob.rename(snapshot / "kept")
    (snapshot.parents[2] / "alias").symlink_to(snapshot.parents[1])
    for target in ("kept", "./kept", str(snapshot / "kept"), f"../../snapshots/{snapshot.name}/kept"):
        link.unlink()
        link.symlink_to(target)
        assert torch.equal(xla_serialization.load(snapshot)["w"], WEIGHT)
    (snapshot / "kept").rename(blob)
    for target in (str(blob), str(snapshot.parents[2] / "alias" / "blobs" / blob.name)):  # as on another volume
        link.unlink()
        link.symlink_to(target)
        assert torch.equal(xla_serialization.load(snapshot)["w"], WEIGHT)


def blob_of(folder: Path) -> Path:
    return folder.parents[1] / "blobs" / ("0" * 64)


Change = Callable[[Path, str], object]
"""Of a snapshot's folder, and the name of its link."""


def instead(make: Callable[[Path], object]) -> Change:
    """Of the blob."""

    def change(folder: Path, _: str) -> None:
        blob_of(folder).unlink()
        make(blob_of(folder))

    return change


def relink(*targets: str) -> Change:
    """To the first, that to the second, …; `itself` is the link's name."""

    def change(folder: Path, name: str) -> None:
        (folder / name).unlink()
        here = name
        for target in targets:
            there = name if target == "itself" else target
            (folder / here).symlink_to(there)
            here = there

    return change


def other_blobs(folder: Path, _: str) -> None:
    """`blobs` is a link to a folder with a file of the same name."""
    blobs, elsewhere = blob_of(folder).parent, folder.parents[3] / "private"
    blobs.rename(elsewhere)
    blobs.symlink_to(elsewhere)


def another_name(folder: Path, _: str) -> None:
    """Of the repository: no folder of the cache."""
    folder.parents[1].rename(folder.parents[2] / "another")
    folder.parents[1].symlink_to(folder.parents[2] / "another")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(change, said, id=name)
        for name, change, said in [
            ("pipe", instead(os.mkfifo), "is no file"),
            ("folder", instead(os.mkdir), "is no file"),
            ("socket", instead(lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)), "No such device"),
            ("blob to a file outside", instead(lambda path: path.symlink_to("../../../secret")), "which is a link too"),
            ("blob to a device", instead(lambda path: path.symlink_to("/dev/zero")), "which is a link too"),
            ("dangling", instead(lambda path: None), "where no file is"),
            ("loop", relink("turn", "itself"), "which is a link too"),
            ("itself", relink("itself"), "which is a link too"),
            ("chain", relink("second", "third", "../../../../secret"), "which is a link too"),
            ("device", relink("/dev/zero"), "is a link to /dev/zero, and"),
            ("memory", relink("/proc/self/mem"), "is a link to /proc/self/mem, and"),
            ("file outside", relink("../../../../secret"), "is a link to ../../../../secret, and a checkpoint's files"),
            ("through blobs", relink("../../blobs/../../../secret"), "and a checkpoint's files"),
            ("the folder", relink("."), "is a link to ., and"),
            ("the folder above", relink(".."), "is a link to .., and"),
            ("blobs", relink("../../blobs/"), "and a checkpoint's files"),
            ("root", relink("/"), "is a link to /, and"),
            ("nowhere", relink("/no/such/file"), "and a checkpoint's files"),
            ("blobs elsewhere", other_blobs, "and a checkpoint's files"),
            ("no cache", another_name, "and a checkpoint's files"),
        ]
    ],
)
@pytest.mark.parametrize("name", [NAME, INDEX])
def test_links_made_to_harm(snapshot: Path, change: Change, said: str, name: str) -> None:
    if name == INDEX:
        (snapshot / NAME).rename(snapshot / INDEX)
    else:  # a name, so that it is opened whatever it is
        (snapshot / INDEX).write_text(json.dumps({"weight_map": {"w": NAME}}))
    change(snapshot, name)
    for read in (Checkpoint, xla_serialization.load):
        with pytest.raises((DamagedCheckpointError, OSError), match=said):
            read(snapshot)


def test_a_link_that_is_swapped_all_the_time_never_leads_outside(snapshot: Path) -> None:
    """A check of a name, and then an open of it, would now and then read the secret."""
    (link,) = snapshot.iterdir()
    inside, outside, done = os.readlink(link), "../../../../secret", threading.Event()

    def swap() -> None:
        while not done.is_set():
            for target in (outside, inside):
                (snapshot / "next").symlink_to(target)
                (snapshot / "next").rename(link)

    thread = threading.Thread(target=swap)
    thread.start()
    loaded = refused = 0
    try:
        while loaded < 20 or refused < 20:
            try:
                assert torch.equal(xla_serialization.load(snapshot)["w"], WEIGHT)
                loaded += 1
            except DamagedCheckpointError as error:
                assert outside in str(error)
                refused += 1
    finally:
        done.set()
        thread.join()


def test_a_save_follows_no_link(snapshot: Path) -> None:
    before = blob_of(snapshot).read_bytes()
    (snapshot / INDEX).symlink_to("../../blobs/" + blob_of(snapshot).name)
    xla_serialization.save({"w": OTHER}, snapshot)
    assert blob_of(snapshot).read_bytes() == before and not (snapshot / INDEX).is_symlink()
    assert torch.equal(xla_serialization.load(snapshot)["w"], OTHER)
