"""Files made to do harm are refused before any tensor is allocated, and run no code (FORMAT.md §7)."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_xla.utils.serialization as xser
import xla_serialization as checkpoint
from xla_serialization import Checkpoint, DamagedCheckpointError, NewerCheckpointError
from xla_serialization.format.manifest import INDEX, checksum

DATA = {"a": torch.arange(24.0).reshape(4, 6), "b": [torch.ones(8), {"step": 3}], "c": torch.zeros(16, dtype=torch.bfloat16)}
NO_MEMORY = ("empty", "zeros", "from_numpy", "frombuffer", "tensor", "load", "empty_strided", "full")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound checkpoint."""
    checkpoint.save(DATA, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, error: type[Exception] = DamagedCheckpointError) -> None:
    """Opening it raises, and makes no tensor before."""

    def allocated(*_: Any, **__: Any) -> None:
        pytest.fail("a tensor was made of a file that is to be refused")

    for name in NO_MEMORY:
        monkeypatch.setattr(torch, name, allocated)
    with pytest.raises(error, match=said):
        Checkpoint(folder)
    with pytest.raises(error, match=said):
        checkpoint.load(folder)
    monkeypatch.undo()


def shard(folder: Path) -> Path:
    (found,) = folder.glob("*.safetensors")
    return found


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, with a checksum that is right again."""
    whole = json.loads((folder / INDEX).read_bytes())
    manifest = whole["xla_checkpoint"]
    manifest.pop("checksum")
    change(manifest)
    manifest["checksum"] = checksum(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
    if isinstance(manifest.get("tensors"), dict):
        pieces = [piece for entry in manifest["tensors"].values() for piece in entry["pieces"]]
        whole["weight_map"] = {piece["name"]: piece["file"] for piece in pieces}
    (folder / INDEX).write_text(json.dumps(whole), encoding="utf-8")


def reshard(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of the shard, whose size stays or is set in the manifest."""
    path = shard(folder)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    rewrite(folder, lambda manifest: manifest["files"].update({path.name: path.stat().st_size}))


def entry(name: str, /, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["tensors"][name].update(fields)


def piece(name: str, /, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["tensors"][name]["pieces"][0].update(fields)


def twice(manifest: dict[str, Any]) -> None:
    manifest["tensors"]["a"]["pieces"] *= 2


def borrowed(manifest: dict[str, Any]) -> None:
    """Another tensor shows the same bytes: a million of them would make a small file large."""
    manifest["tensors"]["d"] = manifest["tensors"]["b.0"]


def halves(*offsets: int) -> Callable[[dict[str, Any]], None]:
    """Pieces of two rows of `a` at these offsets."""

    def change(manifest: dict[str, Any]) -> None:
        (one,) = manifest["tensors"]["a"]["pieces"]
        manifest["tensors"]["a"]["pieces"] = [{**one, "shape": [2, 6], "offset": [offset, 0]} for offset in offsets]

    return change


def tree(value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update(tree=value)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"list": [value]}
    return value


def elsewhere(name: str) -> Callable[[dict[str, Any]], None]:
    """The shard's name, wherever it stands."""

    def change(manifest: dict[str, Any]) -> None:
        (size,) = manifest["files"].values()
        manifest["files"] = {name: size}
        for one in manifest["tensors"].values():
            one["pieces"][0]["file"] = name

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(change, said, id=name)
        for name, change, said in [
            ("traversal", elsewhere("../secret.safetensors"), "no plain file name"),
            ("absolute", elsewhere("/etc/passwd"), "no plain file name"),
            ("hidden", elsewhere(".hidden"), "no plain file name"),
            ("nul", elsewhere("a\0b"), "no plain file name"),
            ("newline", elsewhere("model\n"), "no plain file name"),
            ("long name", elsewhere("m" * 5000), "of 5000 characters, is no plain file name"),
            ("one character too long", elsewhere("m" * 256), "of 256 characters, is no plain file name"),
            ("empty name", elsewhere(""), "no plain file name"),
            ("no such file", elsewhere("other.safetensors"), "is missing"),
            ("negative file", lambda manifest: manifest["files"].update({"x": -1}), "has -1 bytes"),
            ("negative size", entry("a", shape=[-4, -6]), "impossible shape"),
            ("negative piece", piece("a", shape=[-4, 6]), "is outside"),
            ("negative offset", piece("a", offset=[-1, 0]), "is outside"),
            ("overflow", entry("a", shape=[1 << 32, 1 << 32]), "impossible shape"),
            ("overflow beside 0", entry("a", shape=[1 << 62, 1 << 62, 0]), "impossible shape"),
            ("huge number", entry("a", shape=[10**4000] * 50), "impossible shape"),
            ("many dimensions", entry("a", shape=[2] * 100_000), "impossible shape"),
            ("many dimensions of 1", entry("a", shape=[1] * 257), "shape of 257 dimensions, of 256 at most"),
            ("bytes of another tensor", borrowed, "the piece 'b.0' of tensor 'd' is part of two"),
            (
                "other shape",
                lambda manifest: [entry("a", shape=[24, 1])(manifest), piece("a", shape=[24, 1], offset=[0, 0])(manifest)],
                "should be",
            ),
            ("other dtype", entry("a", dtype="int32"), "should be"),
            ("unknown dtype", entry("a", dtype="float4"), "unknown dtype"),
            ("no dtype", entry("a", dtype="load"), "unknown dtype"),
            ("duplicate piece", twice, "overlap"),
            ("no piece", entry("a", pieces=[]), "do not make it up"),
            ("overlap", halves(0, 1), "overlap"),
            ("gap", halves(0), "do not make it up"),
            ("same place", halves(2, 2), "do not make it up"),
            ("piece of other dimensions", piece("a", offset=[0]), "is outside"),
            ("piece of another name", piece("a", name="b"), "is not in this file"),
            ("text as a number", entry("a", shape=["many"]), "does not follow the format: a.shape.0"),
            ("text as a size", lambda manifest: manifest.update(files={"x": "many"}), "does not follow the format: x: "),
            ("list as an id", lambda manifest: manifest.update(id=[]), "does not follow the format: id: "),
            ("no tensors", lambda manifest: manifest.pop("tensors"), "it has no 'tensors'"),
            ("tensors as a list", lambda manifest: manifest.update(tensors=[]), "does not follow the format"),
            ("version 0", lambda manifest: manifest.update(version=0), "never was"),
            ("no version", lambda manifest: manifest.pop("version"), "never was"),
            ("no name", lambda manifest: manifest.update(id=""), "its id is empty"),
            ("version as a text", lambda manifest: manifest.update(version="1"), "never was"),
            ("deep tree", tree(nested(150)), "100 containers"),
            ("unknown kind", tree({"list": [{"tensor": "a"}, {"object": "os.system"}]}), "the tree"),
            ("factory", tree({"default dict": {"items": [], "factory": "eval"}}), "the tree"),
            ("attribute of torch", tree({"dtype": "load"}), "the tree"),
            ("unknown tensor", tree({"tensor": "nothing"}), "the tree"),
            ("kind of no value", tree({"object": 1}), "'object' is no kind of value"),
            ("equal hashes", tree({"set": [{"integer": hex(number * ((1 << 61) - 1))} for number in range(2000)]}), "have the same hash"),
        ]
    ],
)
def test_a_manifest_made_to_harm(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    rewrite(folder, change)
    refused(folder, monkeypatch, said)


def test_a_checkpoint_of_a_later_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(folder, lambda manifest: manifest.update(version=2, tree={"unheard of": 1}))
    refused(folder, monkeypatch, "version 2, this xla-serialization reads up to 1: pip install -U", NewerCheckpointError)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (b"", "not JSON"),
        (b"\x80\x04\x95", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"xla_checkpoint": ' + b'{"a":' * 50_000, "not JSON"),
        (b'{"xla_checkpoint": {"version": 1, "id": NaN, "files": {}, "tensors": {}}}', "NaN is no JSON"),
        (b'{"xla_checkpoint": {"version": 1, "id": "0", "files": {}, "tensors": {}, "tree": 1e999}}', "checksum is wrong"),
        (b'{"xla_checkpoint": {"version": 1, "id": "0", "files": {}, "tensors": {}}}', "checksum is wrong"),
        (b'{"xla_checkpoint": {"version": ' + b"9" * 10_000 + b"}}", "not JSON"),
        (b'{"xla_checkpoint": {"version": 1, "version": 2}}', "the key 'version' occurs 2 times"),
        (b'{"weight_map": {}}', "another program's"),
        (b"null", "another program's"),
        ('{"xla_checkpoint": {}}'.encode("utf-16"), "not JSON"),
    ],
    ids=["empty", "binary", "deep", "deep objects", "nan", "infinity", "no checksum", "digits", "key twice", "foreign", "null", "utf-16"],
)
def test_an_index_made_to_harm(folder: Path, monkeypatch: pytest.MonkeyPatch, index: bytes, said: str) -> None:
    (folder / INDEX).write_bytes(index)
    refused(folder, monkeypatch, said)


def test_an_index_larger_than_any(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(folder / INDEX, 1 << 40)  # sparse
    refused(folder, monkeypatch, "larger than any index")


def test_what_other_programs_read_is_what_we_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads((folder / INDEX).read_bytes())
    whole["weight_map"]["a"] = "../../secret.safetensors"
    (folder / INDEX).write_text(json.dumps(whole), encoding="utf-8")
    refused(folder, monkeypatch, "'weight_map', which other programs read")


def offsets(name: str, start: int, end: int) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(data_offsets=[start, end])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(change, said, id=name)
        for name, change, said in [
            ("overlap", offsets("b.0", 0, 32), "no safetensors file"),
            ("gap", offsets("b.0", 100, 132), "no safetensors file"),
            ("beyond the file", offsets("c", 128, 1 << 40), "no safetensors file"),
            ("backwards", offsets("b.0", 128, 96), "no safetensors file"),
            ("negative offset", offsets("a", -96, 0), "no safetensors file"),
            ("huge offset", offsets("a", 0, 1 << 70), "no safetensors file"),
            ("negative size", lambda header: header["a"].update(shape=[-4, -6]), "no safetensors file"),
            ("overflow", lambda header: header["a"].update(shape=[1 << 33, 1 << 33]), "no safetensors file"),
            ("other product", lambda header: header["a"].update(shape=[4, 7]), "no safetensors file"),
            ("unknown dtype", lambda header: header["a"].update(dtype="F1000"), "no safetensors file"),
            ("dtype of no checkpoint", lambda header: header["c"].update(dtype="F4", shape=[64]), "no safetensors file"),
            ("other dtype", lambda header: header["a"].update(dtype="I32"), "should be F32"),
            ("tensor left out", lambda header: header.pop("c"), "no safetensors file"),
            ("no tensor", lambda header: header.update(a=1), "no safetensors file"),
        ]
    ],
)
def test_a_header_made_to_harm(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    reshard(folder, change)
    refused(folder, monkeypatch, said)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 101 << 20, 10_000, 3, 0])
def test_a_header_of_impossible_length(folder: Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    raw = shard(folder).read_bytes()
    shard(folder).write_bytes(struct.pack("<Q", length) + raw[8:])
    refused(folder, monkeypatch, shard(folder).name)


def test_links_lead_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard(folder)
    path.rename(folder.parent / "secret")
    path.symlink_to("../secret")
    refused(folder, monkeypatch, "is a link to ../secret")
    path.unlink()
    (folder.parent / "secret").rename(path)
    (folder / INDEX).rename(folder.parent / "index")
    (folder / INDEX).symlink_to("../index")
    refused(folder, monkeypatch, "is a link to ../index")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
@pytest.mark.parametrize("which", ["shard", "index"])
def test_what_is_no_file_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], which: str) -> None:
    path = shard(folder) if which == "shard" else folder / INDEX
    path.unlink()
    make(path)
    refused(folder, monkeypatch, f"{path.name}: is no file")


class Harm:
    """Leaves a sign if it is unpickled."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.sign}",)


def disguises(sign: Path) -> dict[str, bytes]:
    """What is no safetensors file nor an index, and would run code if it were unpickled."""
    saved, zipped = io.BytesIO(), io.BytesIO()
    torch.save({"w": Harm(sign)}, saved)
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Harm(sign)))
    return {"pickle": pickle.dumps(Harm(sign), protocol=2), "torch": saved.getvalue(), "zip": zipped.getvalue()}


@pytest.mark.parametrize("kind", ["pickle", "torch", "zip"])
def test_pickles_in_disguise_run_no_code(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    disguise = disguises(tmp_path / "sign")[kind]
    path = shard(folder)
    path.write_bytes(disguise)
    rewrite(folder, lambda manifest: manifest["files"].update({path.name: len(disguise)}))
    refused(folder, monkeypatch, path.name)
    (folder / INDEX).write_bytes(disguise)
    refused(folder, monkeypatch, "not JSON")
    assert not (tmp_path / "sign").exists()
    pickle.loads(pickle.dumps(Harm(tmp_path / "sign")))
    assert (tmp_path / "sign").exists(), "the disguise would have done harm"


@pytest.mark.parametrize("kind", ["pickle", "torch", "zip"])
@pytest.mark.parametrize("which", ["structure", "tensor"])
def test_no_code_of_xser_files_is_run(tmp_path: Path, kind: str, which: str) -> None:
    xser.save({"w": torch.ones(2).to("xla")}, tmp_path / "saved")
    path = tmp_path / "saved" if which == "structure" else tmp_path / "saved.tensors" / "tensor_0.pt"
    path.write_bytes(disguises(tmp_path / "sign")[kind])
    with pytest.raises(DamagedCheckpointError, match=path.name):
        xser.load(tmp_path / "saved")
    assert not (tmp_path / "sign").exists()
