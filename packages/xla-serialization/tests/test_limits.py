"""What hostile files may cost: time and memory have bounds, messages too, and nothing is waited for (FORMAT.md §7)."""

from __future__ import annotations

import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import torch_xla.utils.serialization as xser
import xla_serialization as checkpoint
from xla_serialization import DamagedCheckpointError, UnsavableError
from xla_serialization.cli import group
from xla_serialization.format import limits
from xla_serialization.format.manifest import INDEX, checksum
from xla_serialization.tools.sources import open_source

SHARD = f"model-00001-of-00001-{'0' * 16}.safetensors"


def write(folder: Path, tree: str = "null", files: str = "{}", tensors: str = "{}") -> Path:
    """A checkpoint whose index holds these JSON texts, with the right checksum."""
    manifest = f'"files":{files},"id":"0","tensors":{tensors},"tree":{tree},"version":1}}'
    digest = checksum(("{" + manifest).encode())
    whole = f'{{"metadata":{{"total_size":0}},"weight_map":{{}},"xla_checkpoint":{{"checksum":"{digest}",{manifest}}}'
    folder.mkdir(exist_ok=True)
    (folder / INDEX).write_text(whole, encoding="utf-8")
    return folder


def repeated(value: str, count: int) -> str:
    return '{"list":[' + ",".join(itertools.repeat(value, count)) + "]}"


def refused(folder: Path, said: str = ": ") -> str:
    with pytest.raises(DamagedCheckpointError, match=said) as caught:
        checkpoint.load(folder)
    assert len(str(caught.value)) < len(str(folder)) + 1500
    return str(caught.value)


def price(folder: Path) -> tuple[str, float, float]:
    """What loading it said, megabytes it took, and seconds."""
    code = f"""if True:
        import resource, time, xla_serialization
        before, started, said = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic(), ""
        try:
            xla_serialization.load({str(folder)!r})
        except xla_serialization.DamagedCheckpointError as error:
            said = str(error)
        print(said, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, time.monotonic() - started, sep=chr(10))
    """
    said, megabytes, seconds = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    ).stdout.splitlines()
    return said, float(megabytes), float(seconds)


@pytest.mark.parametrize("value", ['{"list":[]}', '"\\\\"'])
def test_an_index_of_too_many_values_costs_little(tmp_path: Path, value: str) -> None:
    write(tmp_path, repeated(value, 75_000_000 // (len(value) + 1)))
    said, megabytes, seconds = price(tmp_path)
    assert "it holds more than 8,000,000 values and keys" in said
    assert megabytes < 400 and seconds < 60, "the text and a copy, and not one value"


def test_commas_in_texts_are_no_values(tmp_path: Path) -> None:
    text = ',"[{:\\' * 2_000_000
    assert sum(map(text.count, ",[{:")) == limits.MOST_PARTS
    checkpoint.save({"text": text, "one": 1}, tmp_path)
    assert checkpoint.load(tmp_path) == {"text": text, "one": 1}


@pytest.mark.long
@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(lambda: repeated("1", limits.MOST_PARTS - 100), id="numbers"),
        pytest.param(lambda: repeated('{"list":[]}', limits.MOST_PARTS // 5 - 100), id="lists"),
        pytest.param(lambda: repeated('{"list":[' * 98 + "]}" * 98, limits.MOST_PARTS // (98 * 4 + 1)), id="chains of lists"),
        pytest.param(lambda: repeated('{"counter":[]}', limits.MOST_PARTS // 5 - 100), id="counters"),
        pytest.param(lambda: repeated('{"path":"a"}', limits.MOST_PARTS // 5 - 100), id="paths"),
        pytest.param(lambda: '{"integer":"0x' + "f" * 90_000_000 + '"}', id="a long integer"),
    ],
)
def test_the_most_that_is_read_has_a_price(tmp_path: Path, tree: Callable[[], str]) -> None:
    """Of the order of 25 s and 0.6 GB on a slow core; an index of tensors alone costs as much for each of its bytes."""
    write(tmp_path, tree())
    said, megabytes, seconds = price(tmp_path)
    assert not said and megabytes < 1200 and seconds < 200


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_of_many_wrong_entries_the_first_is_reported(tmp_path: Path, count: int) -> None:
    wrong = "{" + ",".join(f'"t{number:06}":1' for number in range(count)) + "}"
    write(tmp_path, tensors=wrong)
    assert "t000000: " in refused(tmp_path, "does not follow the format") and "t000001" not in refused(tmp_path)
    write(tmp_path, files=wrong.replace(":1", ":[]"))
    assert "t000000: " in refused(tmp_path, "does not follow the format")


@pytest.mark.parametrize(
    "index",
    [
        {"tree": '{"%s":1}'},
        {"tree": '{"device":"%s"}'},
        {"tree": '{"dtype":"%s"}'},
        {"tree": '{"float":"%s"}'},
        {"tree": '{"tensor":"%s"}'},
        {"tree": '{"integer":"%s"}'},
        {"tree": '{"dict":["%s"]}'},
        {"files": '{"%s":1}'},
        {"files": '{"%s":"x"}'},
        {"tensors": '{"%s":{"dtype":"x","shape":[],"pieces":[]}}'},
        {"tensors": '{"x":{"dtype":"%s","shape":[],"pieces":[]}}'},
        {"tensors": '{"x":{"dtype":"int8","shape":[],"pieces":[{"file":"%s","name":"","offset":[],"shape":[],"checksum":""}]}}'},
        {"tensors": '{"%s":{"dtype":"int8","shape":[],"pieces":[]}}'},
        {"tensors": '{"x":1,"%s":1,"%s":1}'},
    ],
)
def test_messages_stay_short(tmp_path: Path, index: dict[str, str]) -> None:
    write(tmp_path, **{key: value.replace("%s", "m" * 10_000_000) for key, value in index.items()})
    refused(tmp_path)


@pytest.mark.parametrize("kind", ["set", "frozenset", "dict", "ordered dict", "counter", "default dict", "state dict"])
def test_keys_that_were_chosen_to_collide(tmp_path: Path, kind: str) -> None:
    keys = [f'{{"integer":"{number * ((1 << 61) - 1):#x}"}}' for number in range(1, 200_000)]
    pairs = "[" + ",".join(keys if "set" in kind else (f"[{key},1]" for key in keys)) + "]"
    inside = {"default dict": f'{{"factory":null,"items":{pairs}}}', "state dict": f'{{"items":{pairs},"metadata":null}}'}.get(kind, pairs)
    started = time.monotonic()
    refused(write(tmp_path, f'{{"{kind}":{inside}}}'), "199,999 keys of one mapping or set have the same hash")
    assert time.monotonic() - started < 60, "hours, with each compared to all"


def test_keys_of_any_usual_kind_do_not_collide(tmp_path: Path) -> None:
    data = {
        "numbers": {number: number for number in range(5000)},
        "pairs": {(number, str(number)): 1 for number in range(5000)},
        "floats": {number / 7 for number in range(5000)},
        "ids": {hash((number, 1)) for number in range(5000)},
    }
    checkpoint.save(data, tmp_path)
    assert checkpoint.load(tmp_path) == data


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b'{"a":{"dtype":"U8","shape":[' + b"1," * 8_000_000 + b'1],"data_offsets":[0,1]}}', "more than 8,000,000 values"),
        (b'{"__metadata__":{' + b",".join(b'"%d":""' % number for number in range(2_100_000)) + b"}}", "more than 8,000,000 values"),
        (b"[" * 1_000_000, "no safetensors file"),
        (b'{"a":' * 1_000_000, "no safetensors file"),
    ],
    ids=["sizes", "metadata", "deep", "deep objects"],
)
def test_a_header_of_too_much(tmp_path: Path, header: bytes, said: str) -> None:
    (tmp_path / SHARD).write_bytes(struct.pack("<Q", len(header)) + header + b"x")
    write(tmp_path, files=f'{{"{SHARD}":{(tmp_path / SHARD).stat().st_size}}}')
    refused(tmp_path, said)


def test_what_no_reader_would_take_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save({"step": 1}, tmp_path)
    with pytest.raises(UnsavableError, match="257 dimensions, of 256 at most"):
        checkpoint.save({"w": torch.ones([1] * 257)}, tmp_path)
    with pytest.raises(UnsavableError, match="1,999 keys of one mapping or set have the same hash"):
        checkpoint.save({"w": {number * ((1 << 61) - 1) for number in range(1, 2000)}}, tmp_path)
    monkeypatch.setattr(limits, "MOST_PARTS", 1000)
    with pytest.raises(UnsavableError, match="more than 1,000 values and keys: large data is saved as tensors"):
        checkpoint.save({"numbers": list(range(1000))}, tmp_path)
    assert checkpoint.load(tmp_path) == {"step": 1}
    checkpoint.save({"w": torch.ones([1] * 256)}, tmp_path)
    assert checkpoint.load(tmp_path)["w"].shape == (1,) * 256


def test_a_long_key_on_the_way_to_many_values(tmp_path: Path) -> None:
    write(tmp_path, f'{{"dict":[["{"k" * 1_000_000}",{repeated("1", 1000)}]]}}')
    with pytest.raises(DamagedCheckpointError, match="the keys on the way to all its values make more than"):
        open_source(tmp_path).leaves()


@pytest.fixture
def patience() -> Iterator[None]:
    """Two minutes; what waits for longer is interrupted."""

    def over(*_: Any) -> None:
        raise TimeoutError("it was waited for")

    earlier = signal.signal(signal.SIGALRM, over)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, earlier)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("name", ["saved", "saved.tensors/structure", "saved.tensors/tensor_0.pt"])
def test_a_pipe_among_the_files_of_xser_is_not_waited_for(tmp_path: Path, name: str) -> None:
    xser.save({"w": torch.ones(2).to("xla")}, tmp_path / "saved")
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(DamagedCheckpointError, match=f"{name}: is no file"):
        xser.load(tmp_path / "saved")


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("command", ["inspect", "verify", "convert"])
@pytest.mark.parametrize("name", [INDEX, "weights.safetensors", "weights.pt"])
def test_commands_do_not_wait_for_pipes(tmp_path: Path, command: str, name: str) -> None:
    os.mkfifo(tmp_path / name)
    path = tmp_path if name == INDEX else tmp_path / name
    done = CliRunner().invoke(group, [command, str(path), *([str(tmp_path / "target")] if command == "convert" else [])])
    assert done.exit_code in (1, 2) and isinstance(done.exception, SystemExit), done.exception
    assert "is no file" in done.output or "no checkpoint" in done.output or "holds no checksums" in done.output


@pytest.mark.parametrize("file", ["..", "a\0b", "m" * 5000, "", "/etc/passwd", "a/b"])
def test_file_names_in_another_programs_index(tmp_path: Path, file: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"w": file}}))
    done = CliRunner().invoke(group, ["inspect", str(tmp_path)])
    assert done.exit_code == 2 and "is no plain file name" in done.output and len(done.output) < 1000


def test_links_lead_verify_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    checkpoint.save({"w": torch.ones(3)}, folder)
    (shard,) = folder.glob("*.safetensors")
    shard.rename(tmp_path / "secret")
    shard.symlink_to("../secret")
    done = CliRunner().invoke(group, ["verify", str(folder)])
    assert done.exit_code == 1 and "is a link to ../secret" in " ".join(done.output.split())
