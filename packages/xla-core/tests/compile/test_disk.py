"""C18, W13: programs on disk. Second processes load them; whatever is wrong with an entry costs one warning and one compile."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xla_core.compile import disk

SCRIPT = """
import json, sys, warnings
import torch
from xla_core import abi
from xla_core.compile import disk

folder, readonly, scale = sys.argv[1], sys.argv[2] == "readonly", float(sys.argv[3])
disk.configure(folder, readonly)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.arange(12.0).reshape(3, 4).to("xla")
    y = torch.tanh(x @ x.t()) * scale
    abi.sync(wait=True)
    values = y.cpu().tolist()
counters = dict(abi.snapshot().counters)
names = ("PersistentCacheHit", "PersistentCacheMiss", "UncachedCompile")
print(json.dumps({"values": values, "warnings": [str(w.message) for w in caught], **{n: counters.get(n, 0) for n in names}}))
"""


def run(folder: Path, mode: str = "write", scale: float = 2.0, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-c", SCRIPT, str(folder), mode, str(scale)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PJRT_DEVICE": "CPU", **environment}, check=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A cache folder with one program, made by another process."""
    folder = tmp_path / "cache"
    first = run(folder)
    assert (first["PersistentCacheHit"], first["PersistentCacheMiss"], first["UncachedCompile"]) == (0, 1, 1)
    assert first["warnings"] == []
    return folder


def entry(folder: Path) -> Path:
    (only,) = folder.glob("*.xla")
    return only


def test_a_second_process_loads_instead_of_compiling(filled: Path) -> None:
    again = run(filled)
    assert (again["PersistentCacheHit"], again["PersistentCacheMiss"], again["UncachedCompile"]) == (1, 0, 0)
    expected = [[pytest.approx(2.0, abs=1e-3)] * 3] * 3
    assert again["values"] == expected
    assert again["warnings"] == []


def test_another_constant_is_another_program(filled: Path) -> None:
    other = run(filled, scale=3.0)
    assert (other["PersistentCacheHit"], other["PersistentCacheMiss"]) == (0, 1)
    assert other["values"][0][0] == pytest.approx(3.0, abs=1e-3)


def test_other_conversion_variables_are_another_program(filled: Path) -> None:
    assert run(filled, XLA_DOWNCAST_BF16="1")["PersistentCacheMiss"] == 1


OPERATION = """
import sys
import torch
import alone, package.part
from xla_core import abi
from xla_core.compile import disk

disk.configure(sys.argv[1])
library = torch.library.Library("changing", "DEF")
for name, lowering in (("twice", alone.lowering), ("thrice", package.part.lowering)):
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, torch.empty_like, "Meta")
    abi.register_op(abi.OpSpec(f"changing::{name}", lowering))
x = torch.ones(2).to("xla")
values = [torch.ops.changing.twice(x)[0].item(), torch.ops.changing.thrice(x)[0].item()]
print(*values, abi.snapshot().counters.get("PersistentCacheHit", 0), abi.snapshot().counters.get("PersistentCacheMiss", 0))
"""


def test_a_changed_lowering_of_somebody_else_is_another_program(tmp_path: Path) -> None:
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
from xla_core.compile import disk
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
    abi.register_op(abi.OpSpec(f"bound::{name}", lowering))
x = torch.ones(2).to("xla")
values = {getattr(torch.ops.bound, name)(x)[0].item() for name in lowerings}
print(*values, abi.snapshot().counters.get("PersistentCacheHit", 0), abi.snapshot().counters.get("PersistentCacheMiss", 0))
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


def test_values_that_a_lowering_is_bound_to_are_part_of_the_program(tmp_path: Path) -> None:
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


def test_readonly_looks_up_and_writes_nothing(filled: Path) -> None:
    assert run(filled, "readonly")["PersistentCacheHit"] == 1
    run(filled, "readonly", scale=5.0)
    entry(filled)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "empty", "pickle"])
def test_a_damaged_entry_is_compiled_again_and_replaced(filled: Path, damage: str) -> None:
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
    recovered = run(filled)
    assert (recovered["PersistentCacheHit"], recovered["PersistentCacheMiss"], recovered["UncachedCompile"]) == (0, 1, 1)
    assert len(recovered["warnings"]) == 1
    assert path.name in recovered["warnings"][0]
    assert run(filled)["PersistentCacheHit"] == 1


def wrap(payload: bytes) -> bytes:
    """An entry as the cache writes it."""
    return disk.MAGIC + hashlib.sha256(payload).digest() + payload


def test_programs_that_xla_refuses_are_compiled_again_with_one_warning(filled: Path) -> None:
    """Made for another processor, they say; XLA:CPU also refuses what it compiled on this one, on some with AVX-512."""
    run(filled, scale=7.0)
    paths = sorted(filled.iterdir())
    for path in paths:
        payload = path.read_bytes()[len(disk.MAGIC) + 32 :]
        assert payload.count(platform.machine().encode()) == 1
        path.write_bytes(wrap(payload.replace(platform.machine().encode(), b"sparcv".ljust(len(platform.machine()), b"9"))))
    recovered = run(filled)
    assert (recovered["PersistentCacheHit"], recovered["PersistentCacheMiss"], recovered["UncachedCompile"]) == (0, 1, 1)
    (warning,) = recovered["warnings"]
    assert "sparcv" in warning and "compiled again" in warning
    assert run(filled)["PersistentCacheHit"] == 1


def test_another_build_of_the_native_library_has_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    assert disk._native_libraries()
    for build in ("one", "other"):
        site = tmp_path / build
        (site / "jaxlib-0.10.2.dist-info").mkdir(parents=True)
        (site / "libjax_common.so").write_bytes(build.encode())
        (site / "jaxlib-0.10.2.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: jaxlib\nVersion: 0.10.2\n", encoding="utf-8"
        )
        for digest in ("", f"sha256={build}"):  # not recorded, and recorded
            (site / "jaxlib-0.10.2.dist-info" / "RECORD").write_text(f"libjax_common.so,{digest},3\n", encoding="utf-8")
            with monkeypatch.context() as patched:
                patched.syspath_prepend(site)
                disk._native_libraries.cache_clear()
                digests.append(tuple(disk._native_libraries()))
    disk._native_libraries.cache_clear()
    assert len(set(digests)) == 4


def test_an_intact_envelope_around_rubbish_is_compiled_again(filled: Path) -> None:
    entry(filled).write_bytes(wrap(b"\x80\x04]."))  # a harmless pickle that is no program
    recovered = run(filled)
    assert recovered["UncachedCompile"] == 1
    assert len(recovered["warnings"]) == 1


def test_what_others_can_write_is_not_loaded(filled: Path) -> None:
    entry(filled).chmod(0o666)
    refused = run(filled)
    assert refused["PersistentCacheHit"] == 0
    assert "writable by others" in refused["warnings"][0]


def test_a_folder_that_others_can_write_is_not_used(filled: Path) -> None:
    filled.chmod(0o777)
    refused = run(filled)
    assert refused["PersistentCacheHit"] == 0
    assert "writable by others" in refused["warnings"][0]


def test_links_are_not_followed(filled: Path, tmp_path: Path) -> None:
    path = entry(filled)
    elsewhere = tmp_path / "elsewhere.xla"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert run(filled, "readonly")["PersistentCacheHit"] == 0


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("a file where the folder should be")
    result = run(occupied)
    assert result["UncachedCompile"] == 1
    assert len(result["warnings"]) == 1
