"""Folders of exported programs: replaced in one moment, whoever is killed or finds no room, and checked when they are read."""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import forked_python
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torch_xla import stablehlo
from torch_xla.stablehlo import StableHLOGraphModule
from xla_core.base.errors import ExportFolderError
from xla_core.features.export.torch_export import folder_writer
from xla_core.features.export.torch_export.folder_index import INDEX
from xla_core.features.export.torch_export.model_bundle import StableHLOModelBundle, load_bundle, save_bundle

PROGRAM = Path(__file__).parent / "programs" / "exporter.py"


class Doubled(nn.Module):
    """One weight, one method."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(200))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * 2


class Shifted(nn.Module):
    """Two weights, a constant; another program."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(200)), nn.Parameter(torch.ones(200))
        self.register_buffer("offset", torch.zeros(200), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x + self.bias + torch.arange(200.0)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of two exports, which share some names of files."""
    top = tmp_path_factory.mktemp("templates")
    x = torch.ones(200)
    options = stablehlo.StableHLOExportOptions(inline_all_constant=False)
    first = {"forward": torch.export.export(Doubled(), (x,)), "relu": torch.export.export(nn.ReLU(), (x,))}
    stablehlo.exported_programs_to_stablehlo(first).save(str(top / "0"))
    stablehlo.save_as_stablehlo(torch.export.export(Shifted(), (x,)), str(top / "1"), options)
    return [top / "0", top / "1"]


@cache
def loaded_template(folder: Path) -> StableHLOModelBundle:
    return load_bundle(folder)


def save(template: Path, path: Path, value: int) -> None:
    bundle = loaded_template(template)
    state: dict[str, Any] = {name: np.full_like(array, value) for name, array in bundle.state_dict.items()}
    save_bundle(StableHLOModelBundle(state, bundle.additional_constants, bundle.stablehlo_funcs), path, True)


def value_of(templates: list[Path], path: Path) -> int:
    """Of the export in a folder, which must be one of those that were saved, whole: its template is known by the value."""
    bundle = load_bundle(path)
    (value,) = {float(each) for array in bundle.state_dict.values() for each in np.unique(np.asarray(array))}
    template = loaded_template(templates[int(value) % 2])
    assert bundle.state_dict.keys() == template.state_dict.keys() and bundle.stablehlo_funcs == template.stablehlo_funcs
    assert [array.tobytes() for array in bundle.additional_constants] == [array.tobytes() for array in template.additional_constants]
    return int(value)


def files_of(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()}


def check_places(templates: list[Path], path: Path, value: int) -> None:
    """What readers find that do not know the index: the files of one export in their places, and no others."""
    assert files_of(path) == files_of(templates[value % 2])
    assert {child.name for child in path.iterdir()} == {"constants", "data", "functions", INDEX}
    for file in (path / "data").iterdir():
        assert np.unique(np.load(file)).tolist() == [value]
    for file in (path / "functions").iterdir():
        assert file.read_bytes() == (templates[value % 2] / "functions" / file.name).read_bytes()


class Server:
    """Forks processes that save, one at a time."""

    def __init__(self, templates: list[Path]) -> None:
        self._templates = templates
        self._process = forked_python.Popen([sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.pid = 0

    def start(self, path: Path, value: int, stop: int = -1, limit: int = -1) -> None:
        request = {"templates": list(map(str, self._templates)), "path": str(path), "value": value, "stop": stop, "limit": limit}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self.pid = self.said("pid")

    def said(self, key: str) -> Any:
        """What comes next that is no `pid`, which must be this."""
        line = self._line()
        assert key in line, f"{line} instead of {key}"
        if key == "ended":
            self.pid = 0
        return line[key]

    def saved(self, path: Path, value: int) -> int:
        """Save to the end; gives the number of system calls."""
        self.start(path, value)
        count: int = self.said("saved")
        assert self.said("ended") == 0
        return count

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        while "ended" not in (line := self._line()):
            pass  # it has saved some more
        assert line["ended"] == -signal.SIGKILL
        self.pid = 0

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], 120)[0], "the process that saves says nothing"
        line: dict[str, Any] = json.loads(self._process.stdout.readline())
        return line

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=60)


@pytest.fixture(scope="module")
def interpreter(templates: list[Path]) -> Iterator[Server]:
    made = Server(templates)
    yield made
    made.close()


@pytest.fixture
def server(interpreter: Server) -> Iterator[Server]:
    yield interpreter
    if interpreter.pid:
        interpreter.kill()


@pytest.mark.parametrize("points", [16, pytest.param(1000, marks=pytest.mark.long)])
def test_a_killed_save_leaves_the_old_or_the_new(tmp_path: Path, templates: list[Path], server: Server, points: int) -> None:
    path = tmp_path / "exported"
    calls = min(server.saved(path, value) for value in (0, 1, 2))
    before, seen = 2, set()
    for stop in sorted({number * (calls - 1) // (points - 1) for number in range(points)}):  # all of them, if they are fewer
        server.start(path, before + 1, stop)
        call = server.said("stopped")
        assert value_of(templates, path) in (before, before + 1), f"while it waits before call {stop}, {call}"
        server.kill()
        after = value_of(templates, path)
        assert after in (before, before + 1), f"killed before call {stop}, {call}"
        seen.add(after - before)
        before = after + 1
        save(templates[before % 2], path, before)
        assert value_of(templates, path) == before
        check_places(templates, path, before)
    assert seen == {0, 1}, "some points are before the moment of saving, and some after it"


def test_a_killed_save_over_an_export_without_index(tmp_path: Path, templates: list[Path], server: Server) -> None:
    calls = server.saved(tmp_path / "other", 1)
    seen = set()
    for stop in sorted(random.Random(3).sample(range(calls), 8)):
        path = tmp_path / str(stop)
        save(templates[0], path, 0)
        (path / INDEX).unlink()
        server.start(path, 1, stop)
        server.said("stopped")
        server.kill()
        seen.add(value_of(templates, path))
        save(templates[1], path, 3)
        check_places(templates, path, 3)
    assert seen <= {0, 1}


def test_a_killed_first_save_leaves_none_or_the_new(tmp_path: Path, templates: list[Path], server: Server) -> None:
    calls = server.saved(tmp_path / "other", 1)
    for stop in sorted(random.Random(5).sample(range(calls), 8)):
        path = tmp_path / str(stop)
        server.start(path, 1, stop)
        server.said("stopped")
        server.kill()
        try:
            assert value_of(templates, path) == 1
        except (FileNotFoundError, ExportFolderError) as error:
            assert isinstance(error, FileNotFoundError) or "holds no exported functions" in str(error)
        save(templates[0], path, 2)
        check_places(templates, path, 2)


def test_killed_at_any_moment(tmp_path: Path, templates: list[Path], server: Server) -> None:
    path, moments = tmp_path / "exported", random.Random(7)
    value = 0
    for _ in range(5):
        server.start(path, value, stop=-2)
        server.said("saved")
        time.sleep(moments.uniform(0, 0.05))  # wherever it then is
        server.kill()
        assert value_of(templates, path) >= value
        value = value_of(templates, path) + 1
        save(templates[value % 2], path, value)
        check_places(templates, path, value)


def test_readers_see_one_export_while_others_follow(tmp_path: Path, templates: list[Path], server: Server) -> None:
    path = tmp_path / "exported"
    server.saved(path, 0)
    server.start(path, 1, stop=-2)
    values = [value_of(templates, path) for _ in range(20)]
    while values[-1] < 3:
        values.append(value_of(templates, path))
    server.kill()
    assert values == sorted(values)


def test_two_programs_do_not_save_there_at_once(tmp_path: Path, templates: list[Path], server: Server) -> None:
    path = tmp_path / "exported"
    save(templates[0], path, 0)
    server.start(path, 1, stop=30)
    server.said("stopped")
    with pytest.raises(BlockingIOError, match="another program is saving there"):
        save(templates[0], path, 2)
    assert value_of(templates, path) == 0
    server.kill()
    save(templates[0], path, 2)
    check_places(templates, path, 2)


def test_a_file_that_finds_no_room(tmp_path: Path, templates: list[Path], server: Server) -> None:
    """The system refuses to let a file grow beyond a limit: at each file of the save in turn, by size."""
    path = tmp_path / "exported"
    save(templates[0], path, 0)
    sizes = sorted({file.stat().st_size for file in templates[1].rglob("*") if file.is_file()})
    for limit in (0, *[size - 1 for size in sizes]):
        server.start(path, 1, limit=limit)
        assert str(path) in server.said("failed")
        assert server.said("ended") == 0
        check_places(templates, path, 0)
        fresh = tmp_path / "fresh" / "inner"
        server.start(fresh, 1, limit=limit)
        server.said("failed")
        assert server.said("ended") == 0 and not fresh.parent.exists()
    server.start(path, 1, limit=sizes[-1])
    assert server.said("saved") and server.said("ended") == 0
    check_places(templates, path, 1)


def test_a_full_disk(tmp_path: Path, templates: list[Path]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not shutil.which("mount") or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        save(templates[0], disk / "exported", 0)
        ballast = disk / "ballast"
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        refused = 0
        for room in range(0, free, 4096):
            ballast.write_bytes(bytes(free - room))
            try:
                save(templates[1], disk / "exported", 1)
                break
            except OSError as error:
                refused += 1
                assert str(disk) in str(error)
            check_places(templates, disk / "exported", 0)
        assert refused > 2 and value_of(templates, disk / "exported") == 1
    finally:
        subprocess.run(["umount", disk], check=True)


def test_an_error_behind_the_moment_of_saving_keeps_the_new_export(
    tmp_path: Path, templates: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "exported"
    save(templates[0], path, 0)

    def interrupted(folder: Path, root: int) -> None:
        if (folder / INDEX).exists() and any(child.name.startswith(".export-") for child in folder.iterdir()):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(folder_writer, "_finish", interrupted)
        save(templates[1], path, 1)
    assert value_of(templates, path) == 1
    save(templates[0], path, 2)
    check_places(templates, path, 2)


def test_files_of_others_stay(tmp_path: Path, templates: list[Path]) -> None:
    """Only what an export names is removed, whatever else is in its folders."""
    others = [tmp_path / name for name in ("data/train.csv", "functions/notes.txt", "README.md", "constants/pi.txt")]
    for value in (0, 1, 2):
        for other in others:
            other.parent.mkdir(exist_ok=True)
            other.write_text("mine")
        save(templates[value % 2], tmp_path, value)
        assert value_of(templates, tmp_path) == value and all(other.read_text() == "mine" for other in others)


def test_an_export_without_weights_has_none(tmp_path: Path, templates: list[Path]) -> None:
    """Not those of the export that was there before, which are other numbers."""
    save(templates[0], tmp_path, 0)
    StableHLOGraphModule(load_bundle(templates[1])).save(str(tmp_path), include_weights=False)
    loaded = StableHLOGraphModule.load(str(tmp_path))
    assert loaded.bundle.state_dict == {} and not list((tmp_path / "data").iterdir())
    with pytest.raises(ValueError, match="takes the weight 'weight', which is not in its folder"):
        loaded(torch.ones(200))
    loaded.bundle.state_dict = dict(load_bundle(templates[1]).state_dict)
    assert loaded(torch.ones(200)).tolist() == (torch.arange(200.0) + 2).tolist()


Change = Callable[[bytes, random.Random], bytes]
DAMAGES: dict[str, Change] = {
    "flipped": lambda whole, numbers: _flipped(whole, numbers.randrange(len(whole)), numbers.randrange(8)),
    "cut": lambda whole, numbers: whole[: numbers.randrange(len(whole))],
    "longer": lambda whole, numbers: whole + numbers.randbytes(3),
    "zeros": lambda whole, numbers: bytes(len(whole)),
    "empty": lambda whole, numbers: b"",
    "others": lambda whole, numbers: numbers.randbytes(len(whole)),
}


def _flipped(whole: bytes, place: int, bit: int) -> bytes:
    return whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]


def check_damaged(templates: list[Path], path: Path, name: str, value: int) -> None:
    """The export is refused with the file's name, or it is the one that was saved."""
    try:
        found = value_of(templates, path)
    except ExportFolderError as error:
        assert str(path / name) in str(error) and ("save the program again" in str(error) or "upgrade" in str(error))
    else:
        assert found == value and name == INDEX, f"a damaged {name} was taken"


@pytest.mark.parametrize("value", [0, 1])
def test_every_damage_is_noticed(tmp_path: Path, templates: list[Path], value: int) -> None:
    path = tmp_path / "exported"
    save(templates[value], path, value)
    numbers = random.Random(value)
    names = sorted(files_of(path))
    for name in names:
        whole = (path / name).read_bytes()
        for damage in [*DAMAGES.values(), *[DAMAGES["flipped"]] * 20]:
            changed = damage(whole, numbers)
            (path / name).write_bytes(changed)
            if changed != whole:
                check_damaged(templates, path, name, value)
        (path / name).unlink()
        if name != INDEX:
            with pytest.raises(ExportFolderError, match=f"{path / name} is missing"):
                load_bundle(path)
        (path / name).write_bytes(whole)
    for one, other in zip(names, names[1:], strict=False):
        if INDEX not in (one, other) and (path / one).read_bytes() != (path / other).read_bytes():
            _swap(path / one, path / other)
            with pytest.raises(ExportFolderError, match=f"{path / one} |{path / other} "):
                load_bundle(path)
            _swap(path / one, path / other)
    assert value_of(templates, path) == value


def _swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def test_files_of_another_export_are_noticed(tmp_path: Path, templates: list[Path]) -> None:
    """Also with their index, which does not fit the other files."""
    save(templates[0], tmp_path / "old", 0)
    save(templates[0], tmp_path / "new", 2)
    for name in ("data/weight", INDEX):
        kept = (tmp_path / "old" / name).read_bytes()
        shutil.copyfile(tmp_path / "new" / name, tmp_path / "old" / name)
        with pytest.raises(ExportFolderError, match="is damaged, or of another export"):
            load_bundle(tmp_path / "old")
        (tmp_path / "old" / name).write_bytes(kept)


def test_a_folder_without_index_loads_unchecked(tmp_path: Path, templates: list[Path]) -> None:
    save(templates[1], tmp_path, 1)
    (tmp_path / INDEX).unlink()
    assert value_of(templates, tmp_path) == 1
    weight = tmp_path / "data/weight"
    whole = weight.read_bytes()
    weight.write_bytes(whole[:-4])
    with pytest.raises(ExportFolderError, match=f"{weight} cannot be read: .* bytes of data"):
        load_bundle(tmp_path)
    np.save(weight, np.ones(3, np.float32))
    os.replace(tmp_path / "data/weight.npy", weight)
    with pytest.raises(ExportFolderError, match=r"its shape is \[3\], and functions take \[200\]"):
        load_bundle(tmp_path)


def test_a_newer_index(tmp_path: Path, templates: list[Path]) -> None:
    save(templates[0], tmp_path, 0)
    index = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps({**index, "version": 2, "files": []}))
    with pytest.raises(ExportFolderError, match=f"{INDEX} has version 2, this xla-core reads up to 1: upgrade"):
        load_bundle(tmp_path)


def test_a_damaged_export_can_be_saved_over(tmp_path: Path, templates: list[Path]) -> None:
    for name in (INDEX, "functions/forward.meta", "data/weight"):
        save(templates[0], tmp_path, 0)
        (tmp_path / name).write_bytes(b"{")
        save(templates[1], tmp_path, 1)
        assert value_of(templates, tmp_path) == 1


def test_the_index_says_what_the_files_are(tmp_path: Path, templates: list[Path]) -> None:
    """As the page says it to other readers."""
    save(templates[0], tmp_path, 0)
    index = json.loads((tmp_path / INDEX).read_text())
    assert set(index["files"]) == files_of(tmp_path) - {INDEX}
    for name, entry in index["files"].items():
        content = (tmp_path / name).read_bytes()
        assert entry == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@given(content=st.dictionaries(st.sampled_from(["a", "b", "c.d", "ü", "x y"]), st.integers(0, 5), min_size=1))
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, templates: list[Path], content: dict[str, int]) -> None:
    """Whatever was in the folder before, of whichever names, shapes and dtypes."""
    path = tmp_path_factory.getbasetemp() / "any"
    dtypes = (np.float32, np.int8, np.complex64, np.bool_, np.float16, np.uint32)
    state: dict[str, Any] = {name: np.asfortranarray(np.ones((number, 2), dtypes[number])) for name, number in content.items()}
    bundle = StableHLOModelBundle(state, [], [load_bundle(templates[0]).stablehlo_funcs[1]])
    save_bundle(bundle, path, True)
    loaded = load_bundle(path).state_dict
    assert loaded.keys() == state.keys()
    for name, array in loaded.items():
        np.testing.assert_array_equal(np.asarray(array), state[name], strict=True)
    assert {file.name for file in (path / "data").iterdir()} == set(content)
