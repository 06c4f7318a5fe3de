"""Programs on disk. Second processes load them; whatever is wrong with an entry costs one warning and one compile."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import forked_python
import jax
import numpy as np
import pytest
import torch

from torch_xla.core.xla_builder import call_jax
from xla_core.base.private_jax import jaxlib_version
from xla_core.engine.compile import disk
from xla_core.engine.compile.disk import DiskCache
from xla_core.engine.compile.entry import MAGIC, Identity

SCRIPT = """
import json, sys, warnings
import torch
from xla_core.abi.metrics import snapshot
from xla_core.abi.tensors import sync
from xla_core.engine.compile import disk
from xla_core.engine.compile.cache import programs

NAMES = ("PersistentCacheHit", "PersistentCacheMiss", "UncachedCompile")
for line in sys.stdin:
    folder, mode, scales = json.loads(line)
    values, before = [], snapshot().counters
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for scale in scales:
            disk.configure(folder, mode == "readonly")
            programs().clear()
            x = torch.arange(12.0).reshape(3, 4).to("xla")
            y = torch.tanh(x @ x.t()) * scale
            sync(wait=True)
            values += y.cpu().unique().tolist()
    counts = {name: snapshot().counters.get(name, 0) - before.get(name, 0) for name in NAMES}
    print(json.dumps({"values": values, "warnings": [str(w.message) for w in caught], **counts}), flush=True)
"""

Run = Callable[..., dict[str, Any]]


def started(**environment: str) -> subprocess.Popen[str]:
    command, settings = [sys.executable, "-c", SCRIPT], {**os.environ, "PJRT_DEVICE": "CPU", **environment}
    return forked_python.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings)


def told(process: subprocess.Popen[str], folder: Path, mode: str, scales: Sequence[float]) -> None:
    """Have a process compute a matrix full of each of `scales`, with a program for each, of which its memory holds none."""
    assert process.stdin is not None
    process.stdin.write(json.dumps([str(folder), mode, scales]) + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    said: dict[str, Any] = json.loads(process.stdout.readline())
    return said


def fresh(folder: Path, scales: Sequence[float] = (2.0,), **environment: str) -> dict[str, Any]:
    """What a new process says that computes these."""
    process = started(**environment)
    said, _ = process.communicate(json.dumps([str(folder), "write", scales]) + "\n")
    assert process.returncode == 0
    return json.loads(said)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """`run(folder, mode="write", scales=(2.0,))`: what a process says that wrote nothing of `filled`; one for all tests, to save starts."""
    process = started()

    def ask(folder: Path, mode: str = "write", scales: Sequence[float] = (2.0,)) -> dict[str, Any]:
        told(process, folder, mode, scales)
        return answer(process)

    yield ask
    process.communicate()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with one program, made by another process."""
    folder = tmp_path_factory.mktemp("made") / "cache"
    first = fresh(folder)
    assert (first["PersistentCacheHit"], first["PersistentCacheMiss"], first["UncachedCompile"]) == (0, 1, 1)
    assert first["warnings"] == []
    return folder


@pytest.fixture
def filled(made: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return shutil.copytree(made, tmp_path / "cache")


def entry(folder: Path) -> Path:
    (only,) = folder.glob("*.xla")
    return only


def test_a_second_process_loads_instead_of_compiling(filled: Path) -> None:
    again = fresh(filled)
    assert (again["PersistentCacheHit"], again["PersistentCacheMiss"], again["UncachedCompile"]) == (1, 0, 0)
    assert again["values"] == [2.0]
    assert again["warnings"] == []


def test_another_constant_is_another_program(filled: Path, run: Run) -> None:
    other = run(filled, scales=[3.0])
    assert (other["PersistentCacheHit"], other["PersistentCacheMiss"]) == (0, 1)
    assert other["values"] == [3.0]


def test_other_conversion_variables_are_another_program(filled: Path) -> None:
    assert fresh(filled, XLA_DOWNCAST_BF16="1")["PersistentCacheMiss"] == 1


OPERATION = """
import sys
import torch
import alone, package.part
from xla_core.abi.metrics import snapshot
from xla_core.abi.operators import OpSpec, register_op
from xla_core.engine.compile import disk

disk.configure(sys.argv[1])
library = torch.library.Library("changing", "DEF")
for name, lowering in (("twice", alone.lowering), ("thrice", package.part.lowering)):
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, torch.empty_like, "Meta")
    register_op(OpSpec(f"changing::{name}", lowering))
x = torch.ones(2).to("xla")
values = [torch.ops.changing.twice(x)[0].item(), torch.ops.changing.thrice(x)[0].item()]
print(*values, snapshot().counters.get("PersistentCacheHit", 0), snapshot().counters.get("PersistentCacheMiss", 0))
"""


def test_a_changed_lowering_of_somebody_else_is_another_program(tmp_path: Path, run: Run) -> None:
    """The names and arguments of two operations stay the same; the file of one changes, then a helper in the package of the other."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/helper.py").write_text("FACTOR = 3\n")
    (tmp_path / "package/part.py").write_text("from package.helper import FACTOR\n\ndef lowering(context, x):\n    return x * FACTOR\n")
    (tmp_path / "alone.py").write_text("FACTOR = 2\n\ndef lowering(context, x):\n    return x * FACTOR\n")
    (tmp_path / "main.py").write_text(OPERATION)

    def outcome() -> str:
        command = [sys.executable, "-B", str(tmp_path / "main.py"), str(tmp_path / "cache")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PJRT_DEVICE": "CPU"})
        return done.stdout.strip()

    assert outcome() == "2.0 3.0 0 2"
    assert outcome() == "2.0 3.0 2 0"
    (tmp_path / "package/helper.py").write_text("FACTOR = 30\n")
    assert outcome() == "2.0 30.0 1 1"
    (tmp_path / "alone.py").write_text("def lowering(context, x):\n    return x * 20\n")
    assert outcome() == "20.0 30.0 1 1"


BOUND = """
import sys
import torch
from functools import partial
from xla_core import abi
from xla_core.abi.metrics import snapshot
from xla_core.abi.operators import OpSpec, register_op
from xla_core.engine.compile import disk
import made

disk.configure(sys.argv[1])
library = torch.library.Library("bound", "DEF")
factor = float(sys.argv[2])
typed = {"abi": abi, "helper": eval(f"lambda x: x * {factor}")}
exec("def lowering(context, x):\\n    return helper(x)", typed)
lowerings = {
    "closure": made.closure(factor),
    "partial": partial(made.scaled, factor=factor),
    "method": made.Scaled(factor).lower,
    "called": made.Scaled(factor),
    "typed": typed["lowering"],
}
for name, lowering in lowerings.items():
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, torch.empty_like, "Meta")
    register_op(OpSpec(f"bound::{name}", lowering))
x = torch.ones(2).to("xla")
values = {getattr(torch.ops.bound, name)(x)[0].item() for name in lowerings}
print(*values, snapshot().counters.get("PersistentCacheHit", 0), snapshot().counters.get("PersistentCacheMiss", 0))
"""

MADE = """
class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def lower(self, context, x):
        return x * self.factor

    __call__ = lower


def scaled(context, x, factor):
    return x * factor


def closure(factor):
    return lambda context, x: x * factor
"""


def test_values_that_a_lowering_is_bound_to_are_part_of_the_program(tmp_path: Path, run: Run) -> None:
    (tmp_path / "main.py").write_text(BOUND)
    (tmp_path / "made.py").write_text(MADE)

    def outcome(factor: int) -> str:
        command = [sys.executable, "-B", str(tmp_path / "main.py"), str(tmp_path / "cache"), str(factor)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PJRT_DEVICE": "CPU"})
        return done.stdout.strip()

    assert outcome(2) == "2.0 0 5"
    assert outcome(2) == "2.0 5 0"
    assert outcome(3) == "3.0 0 5"


def test_folder_and_entries_are_private(filled: Path) -> None:
    assert filled.stat().st_mode & 0o777 == 0o700
    assert entry(filled).stat().st_mode & 0o077 == 0
    assert [path.name for path in filled.iterdir()] == [entry(filled).name], "no temporary file is left"


def test_readonly_looks_up_and_writes_nothing(filled: Path, run: Run) -> None:
    assert run(filled, "readonly")["PersistentCacheHit"] == 1
    run(filled, "readonly", scales=[5.0])
    entry(filled)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "empty", "pickle"])
def test_a_damaged_entry_is_compiled_again_and_replaced(filled: Path, damage: str, run: Run) -> None:
    path = entry(filled)
    content = path.read_bytes()
    path.write_bytes(
        {
            "truncated": content[: len(content) // 2],
            "flipped": content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
            "foreign": b"not a program of ours",
            "empty": b"",
            "pickle": b"cos\nsystem\n(S'exit 3'\ntR.",
        }[damage]
    )
    refused(run, filled, path.name)


def bound(path: Path) -> bytes:
    """What the checksum of an entry is of: three digests and the payload."""
    return path.read_bytes()[len(MAGIC) + 32 :]


def write(path: Path, content: bytes) -> None:
    """Make an entry of what its checksum is of."""
    path.write_bytes(MAGIC + hashlib.sha256(content).digest() + content)


def refused(run: Run, folder: Path, why: str) -> None:
    """The entry is not used but replaced, with one warning that says why; the result is right."""
    recovered = run(folder, scales=[2.0, 2.0])
    assert (recovered["PersistentCacheHit"], recovered["PersistentCacheMiss"], recovered["UncachedCompile"]) == (1, 1, 1)
    (warning,) = recovered["warnings"]
    assert why in warning and "compiled again" in warning
    assert recovered["values"] == [2.0, 2.0]


def test_an_entry_copied_over_another_is_not_run(filled: Path, run: Run) -> None:
    """Both are intact, for the same shapes, and written by this very version. Then a backup is restored with its names mixed up."""
    mine = entry(filled)
    run(filled, scales=[3.0])
    (other,) = set(filled.iterdir()) - {mine}
    mine.write_bytes(other.read_bytes())
    refused(run, filled, "it holds another program")
    contents = mine.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    mine.write_bytes(contents[1])
    recovered = run(filled, scales=[3.0, 2.0, 3.0, 2.0])
    assert (recovered["PersistentCacheHit"], recovered["PersistentCacheMiss"], recovered["values"]) == (2, 2, [3.0, 2.0] * 2)
    assert all("it holds another program" in warning for warning in recovered["warnings"])


@pytest.mark.parametrize("other", ["jaxlib", "processor"])
def test_an_entry_of_another_environment_is_not_loaded(filled: Path, tmp_path: Path, other: str, run: Run) -> None:
    """Neither found by itself, nor loaded when it lies where one of ours should."""
    mine = entry(filled)
    if other == "processor":
        environment = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa=SSE4_2"}
    else:
        build = tmp_path / f"jaxlib-{jaxlib_version}.dist-info"
        build.mkdir()
        (build / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jaxlib\nVersion: {jaxlib_version}\n", encoding="utf-8")
        (build / "RECORD").write_text("jaxlib/libjax_common.so,sha256=another,3\n", encoding="utf-8")
        environment = {"PYTHONPATH": str(tmp_path)}
    theirs = fresh(filled, **environment)
    assert (theirs["PersistentCacheHit"], theirs["PersistentCacheMiss"], theirs["warnings"]) == (0, 1, [])
    (foreign,) = set(filled.iterdir()) - {mine}
    foreign.replace(mine)
    refused(run, filled, "made by other versions of the libraries, for another processor or with other flags")


def test_an_entry_of_another_interface_is_not_loaded(filled: Path, run: Run) -> None:
    path = entry(filled)
    content = bound(path)
    write(path, content[:64] + bytes(32) + content[96:])
    refused(run, filled, "other shapes, dtypes or shardings than ")


INTERFACES = """
import json, sys
import torch
import torch_xla
import torch_xla.runtime as xr
from xla_core.engine.compile import disk

seen = []
unpack = disk.unpack
disk.unpack = lambda wanted, content: (seen.append(wanted.interface), unpack(wanted, content))[1]
xr.initialize_cache(sys.argv[1])
x = torch.arange(4096.0).to("xla")
torch_xla.sync()
x.mul_(torch.tensor(2.0))
y = x.to(torch.int32)
torch_xla.sync()
print(json.dumps([seen, x.tolist()[:4], y.tolist()[:4]]))
"""


def test_the_interface_says_shapes_dtypes_and_donation(tmp_path: Path, run: Run) -> None:
    """Of the second process, which finds the entries of the first."""
    for _ in range(2):
        command = [sys.executable, "-c", INTERFACES, str(tmp_path / "cache")]
        done = forked_python.run(command, capture_output=True, text=True, env={**os.environ, "PJRT_DEVICE": "CPU"}, check=True)
    (interface,), *results = json.loads(done.stdout)
    taken, _, given = interface.partition(" -> ")
    assert taken.startswith("float32[4096]@SingleDeviceSharding(") and taken.count(" donated") == 1
    assert given == "f32[4096]@None, i32[4096]@None"
    assert results == [[0.0, 2.0, 4.0, 6.0], [0, 2, 4, 6]]


WRITER = """
import sys
from pathlib import Path
from xla_core.engine.compile.disk import DiskCache
from xla_core.engine.compile.entry import Identity

cache, identity = DiskCache(Path(sys.argv[1]), False), Identity("0" * 64, "interface", "environment")
print("ready", flush=True)
while True:
    cache.store(identity, sys.argv[2].encode() * 1_000_000)
"""


def test_readers_see_whole_entries_whatever_becomes_of_the_writers(tmp_path: Path) -> None:
    """Three processes write one entry over and over, each another payload, and are killed one by one."""
    cache, identity = DiskCache(tmp_path / "cache", True), Identity("0" * 64, "interface", "environment")
    command = [sys.executable, "-c", WRITER, str(cache.path)]
    writers = [forked_python.Popen([*command, letter], stdout=subprocess.PIPE) for letter in "abc"]
    try:
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        seen = set()
        for writer in writers:
            fresh = 0
            while fresh < 20 or len(seen) < 2:
                payload = cache.load(identity)  # a warning would fail the test
                if payload is not None:
                    seen.add(payload)
                    fresh += 1
            writer.kill()
            writer.wait()
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert seen <= {letter * 1_000_000 for letter in (b"a", b"b", b"c")}
    assert cache.load(identity) in seen


def test_processes_that_start_at_once_share_a_folder(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "cache"
    processes = [started() for _ in range(3)]
    for process in processes:
        told(process, folder, "write", [2.0])
    results = [answer(process) for process in processes]
    for process in processes:
        process.communicate()
    assert [result["warnings"] for result in results] == [[]] * 3
    assert [result["values"] for result in results] == [[2.0]] * 3
    entry(folder)
    assert run(folder)["PersistentCacheHit"] == 1


def test_a_folder_restored_from_a_backup_is_used(filled: Path, tmp_path: Path, run: Run) -> None:
    """With the modes and times of the archive, over a folder that was used meanwhile."""

    def as_archived(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mode, member.mtime = 0o755 if member.isdir() else 0o644, 1_000_000_000
        return member

    with tarfile.open(tmp_path / "backup.tar", "w") as archive:
        archive.add(filled, "cache", filter=as_archived)
    shutil.rmtree(filled)
    run(filled, scales=[3.0])
    with tarfile.open(tmp_path / "backup.tar") as archive:
        archive.extractall(tmp_path, filter="tar")
    again = run(filled, scales=[2.0, 3.0])
    assert (again["PersistentCacheHit"], again["PersistentCacheMiss"], again["warnings"]) == (2, 0, [])
    assert again["values"] == [2.0, 3.0]


def test_a_lowering_with_a_name_that_has_no_value_yet_has_a_digest() -> None:
    def made(fill: bool) -> Any:
        def lowering() -> Any:
            return later

        if fill:
            later = None
        return lowering

    digests = [disk._code_digest(made(fill)) for fill in (False, False, True)]
    assert digests[0] == digests[1] != digests[2]


def test_programs_that_xla_refuses_are_compiled_again_with_one_warning(filled: Path, run: Run) -> None:
    """Made for another processor, they say; XLA:CPU also refuses what it compiled on this one, on some with AVX-512."""
    path, machine = entry(filled), platform.machine().encode()
    content = bound(path)
    assert content.count(machine) == 1
    write(path, content.replace(machine, b"sparcv".ljust(len(machine), b"9")))
    refused(run, filled, "sparcv")


def test_an_intact_envelope_around_rubbish_is_compiled_again(filled: Path, run: Run) -> None:
    write(entry(filled), bound(entry(filled))[:96] + b"\x80\x04].")  # a harmless pickle that is no program
    refused(run, filled, "")


def test_what_others_can_write_is_not_loaded(filled: Path, run: Run) -> None:
    entry(filled).chmod(0o666)
    result = run(filled)
    assert result["PersistentCacheHit"] == 0
    assert "writable by others" in result["warnings"][0]


def test_a_folder_that_others_can_write_is_not_used(filled: Path, run: Run) -> None:
    filled.chmod(0o777)
    result = run(filled)
    assert result["PersistentCacheHit"] == 0
    assert "writable by others" in result["warnings"][0]


def test_links_are_not_followed(filled: Path, tmp_path: Path, run: Run) -> None:
    path = entry(filled)
    elsewhere = tmp_path / "elsewhere.xla"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert run(filled, "readonly")["PersistentCacheHit"] == 0


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path: Path, run: Run) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("a file where the folder should be")
    result = run(occupied)
    assert result["UncachedCompile"] == 1
    assert len(result["warnings"]) == 1


def test_a_program_that_calls_python_back_runs_and_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(x: jax.Array) -> jax.Array:
        return jax.pure_callback(lambda y: np.asarray(y) * 2, x, x)

    monkeypatch.setattr(disk, "_active", DiskCache(tmp_path / "cache", readonly=False))
    with pytest.warns(RuntimeWarning, match="cannot be serialized on cpu"):
        assert call_jax(doubled, (torch.ones(3, device="xla"),)).tolist() == [2, 2, 2]
    assert not list(tmp_path.rglob("*.xla"))
