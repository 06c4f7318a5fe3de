"""The wheels as users get them: built, compared with each other and with the sources, and imported away from this repository."""

from __future__ import annotations

import email.message
import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import torch_xla
from xla_core.abi import ABI_VERSION

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
FAMILY = ["xla-core", "xla-distributed", "xla-spmd", "xla-debug", "xla-serialization"]


@dataclass(frozen=True, slots=True)
class Wheel:
    """A built wheel. files: what its RECORD lists; metadata: its METADATA headers; source: the folder it was built from."""

    path: Path
    source: Path
    files: frozenset[str]
    metadata: email.message.Message

    @property
    def modules(self) -> set[str]:
        return {name for name in self.files if ".dist-info/" not in name}

    @property
    def requirements(self) -> dict[str, Requirement]:
        """The unconditional requirements, by name."""
        found = [Requirement(text) for text in self.metadata.get_all("Requires-Dist", [])]
        return {canonicalize_name(each.name): each for each in found if each.marker is None}

    def text(self, ending: str) -> str:
        """The content of the one file whose name has this ending."""
        (name,) = [name for name in self.files if name.endswith(ending)]
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(name).decode()


def build(source: Path, into: Path) -> Wheel:
    """Build the wheel of one folder with the hatchling at hand: no network, no build environment."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = into.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        (record,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        files = frozenset(line.rpartition(",")[0].rpartition(",")[0] for line in archive.read(record).decode().splitlines())
        (headers,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(headers))
    return Wheel(path, source, files, metadata)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Wheel]:
    """Every package and the root, by distribution name."""
    folders = {folder.name: folder for folder in PACKAGES} | {"torch_xla": ROOT}
    return {name: build(folder, tmp_path_factory.mktemp(name)) for name, folder in folders.items()}


def members(wheels: dict[str, Wheel]) -> list[Wheel]:
    return [wheel for name, wheel in wheels.items() if name != "torch_xla"]


def install(into: Path, *chosen: Wheel) -> Path:
    """Unpack wheels into a folder as pip does, without their requirements."""
    paths = [str(wheel.path) for wheel in chosen]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(into), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return into


def run_apart(site: Path, code: str) -> str:
    """The stdout of `code` in a new interpreter that sees `site` and the third-party packages, but not this repository."""
    away = f"""
import importlib.metadata, sys
sys.path[:] = [{str(site)!r}, *(p for p in sys.path if p and not p.startswith({str(ROOT / "packages")!r}))]
everywhere = importlib.metadata.entry_points
def here(**wanted):
    return [each for each in everywhere(**wanted) if str(each.dist.locate_file("")) == {str(site)!r}]
importlib.metadata.entry_points = here
"""
    done = subprocess.run([sys.executable, "-I", "-c", away + code], cwd=site, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_file_is_shipped_twice(wheels: dict[str, Wheel]) -> None:
    owner: dict[str, str] = {}
    for name, wheel in wheels.items():
        for file in wheel.files:
            assert file not in owner, f"{file} is in {owner[file]} and in {name}"
            owner[file] = name


def test_wheels_hold_all_sources(wheels: dict[str, Wheel]) -> None:
    for wheel in members(wheels):
        source = wheel.source / "src"
        kinds = (".py", ".typed", ".pyi", ".json", ".html", ".css", ".js")
        expected = {file.relative_to(source).as_posix() for file in source.rglob("*") if file.suffix in kinds}
        assert wheel.modules == expected
        assert f"{wheel.source.name.replace('-', '_')}/py.typed" in wheel.files


def test_one_package_owns_the_namespace(wheels: dict[str, Wheel]) -> None:
    assert [wheel.source.name for wheel in wheels.values() if "torch_xla/__init__.py" in wheel.files] == ["xla-core"]


def test_every_wheel_carries_the_licence(wheels: dict[str, Wheel]) -> None:
    for wheel in wheels.values():
        assert wheel.text(".dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")
        assert wheel.metadata["License-Expression"] == "Apache-2.0"


def test_every_wheel_says_what_it_needs(wheels: dict[str, Wheel]) -> None:
    for name, wheel in wheels.items():
        assert wheel.metadata["Name"] == name
        assert SpecifierSet(wheel.metadata["Requires-Python"]) == SpecifierSet(">=3.11")
        for requirement in map(Requirement, wheel.metadata.get_all("Requires-Dist", [])):
            exact = [str(part) for part in requirement.specifier if part.operator in ("==", "===")]
            assert not exact, f"{name} pins {requirement}; wheels give ranges"
    for wheel in members(wheels):
        if wheel.source.name != "xla-core":
            assert {part.operator for part in wheel.requirements["xla-core"].specifier} == {">=", "<"}


def test_the_core_gives_tested_ranges(wheels: dict[str, Wheel]) -> None:
    core = wheels["xla-core"]
    needs = {name: requirement.specifier for name, requirement in core.requirements.items()}
    assert needs["jax"] == needs["jaxlib"]
    for wheel in members(wheels):
        for name in ("torch", "jax"):
            assert wheel.requirements[name].specifier == needs[name], f"{wheel.source.name} and xla-core differ on {name}"
    assert set(needs) == {"torch", "jax", "jaxlib", "numpy", "ml-dtypes"}
    for name, allowed in needs.items():
        assert importlib.metadata.version(name) in allowed, f"{name} was tested with a version outside {allowed}"
    assert set(core.metadata.get_all("Provides-Extra", [])) == {"cuda", "targets", "testing", "tpu"}


def abi_required(wheel: Wheel) -> str | None:
    """The ABI that a package calls `require` with."""
    calls = [re.search(r"require\(\((\d+), (\d+)\)", file.read_text(encoding="utf-8")) for file in wheel.source.glob("src/xla_*/*.py")]
    (found,) = [".".join(call.groups()) for call in calls if call] or [None]
    return found


def abi_of_each_core(tree: Version) -> dict[Version, tuple[int, int]]:
    """The ABI of each release of xla-core, as recorded, and of the version in the tree."""
    records = {Version(file.stem): json.loads(file.read_text(encoding="utf-8")) for file in ROOT.glob("packages/xla-core/abi/*.json")}
    released = {version: (lock["version"][0], lock["version"][1]) for version, lock in records.items()}
    return {tree: ABI_VERSION, **released}


def test_requirements_follow_the_abi_that_is_asked_for(wheels: dict[str, Wheel]) -> None:
    core = Version(wheels["xla-core"].metadata["Version"])
    have = abi_of_each_core(core)
    assert have[core] == ABI_VERSION, f"xla-core {core} was released with another ABI: raise its version"
    floors = {}
    for wheel in members(wheels):
        asked = abi_required(wheel)
        if asked is None:
            assert wheel.source.name == "xla-core"
            continue
        major, minor = map(int, asked.split("."))
        floors[wheel.source.name] = min(version for version, abi in have.items() if abi[0] == major and abi[1] >= minor)
        (lower,) = [part.version for part in wheel.requirements["xla-core"].specifier if part.operator == ">="]
        assert Version(lower) >= floors[wheel.source.name], f"{wheel.source.name} asks for ABI {asked} and takes xla-core {lower}"
        assert core in wheel.requirements["xla-core"].specifier
    (lower,) = [part.version for part in wheels["torch_xla"].requirements["xla-core"].specifier if part.operator == ">="]
    assert Version(lower) >= max(floors.values()), "the root takes a core that its pieces do not"


def test_every_wheel_says_where_it_comes_from(wheels: dict[str, Wheel]) -> None:
    for name, wheel in wheels.items():
        addresses = dict(text.split(", ", 1) for text in wheel.metadata.get_all("Project-URL", []))
        assert {"Homepage", "Documentation", "Source", "Issues"} <= set(addresses)
        assert {address.split("/")[2] for address in addresses.values()} == {"torch-xla.example"}
        assert wheel.metadata["Author"] and wheel.metadata["Keywords"]
        text = str(wheel.metadata.get_payload())
        assert f"pip install {name}" in text and "```python" in text
        assert not re.search(r"\]\((?!https://)", text), "a link that leads nowhere away from the repository"


def test_the_root_wheel_is_metadata_only(wheels: dict[str, Wheel]) -> None:
    root = wheels["torch_xla"]
    assert root.modules == set()
    assert Version(root.metadata["Version"]).base_version == torch_xla.__version__
    assert set(root.requirements) == set(FAMILY)
    for wheel in members(wheels):
        assert wheel.metadata["Version"] in root.requirements[wheel.metadata["Name"]].specifier


def test_every_module_of_the_core_imports(wheels: dict[str, Wheel], tmp_path: Path) -> None:
    site = install(tmp_path, wheels["xla-core"])
    names = sorted(
        file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for file in wheels["xla-core"].modules
        if file.endswith(".py") and not file.endswith("__main__.py")
    )
    code = f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)\n    print(name)\n"
    assert run_apart(site, code).split() == names


def test_clients_find_the_distribution(wheels: dict[str, Wheel], tmp_path: Path) -> None:
    """`torch_xla` has metadata, and `torch_xla.__version__` is the same API level."""
    site = install(tmp_path, wheels["xla-core"], wheels["torch_xla"])
    code = "import importlib.metadata, torch_xla\nprint(importlib.metadata.version('torch_xla'), torch_xla.__version__)\n"
    distribution, module = run_apart(site, code).split()
    assert Version(distribution).base_version == module == torch_xla.__version__
