"""The wheels in fresh environments: each piece beside the core alone, and before, after and over the wheel of PyTorch/XLA.

The environments see torch, jax and the like of this one, and nothing else; pip resolves, installs and removes as for users.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
OURS = re.compile(r"^_*(editable_impl_)?xla_(core|debug|distributed|serialization|spmd)\b|^torch_xla")
SMALL = {
    "xla-core": "print((torch.ones(3, device='xla') + 1).tolist())",
    "xla-debug": (
        "import torch_xla.debug.metrics as met; torch.ones(3, device='xla').sum().item(); print('ExecuteTime' in met.metrics_report())"
    ),
    "xla-distributed": "import torch_xla.distributed.xla_multiprocessing as xmp; xmp.spawn(print, args=('started',), nprocs=1)",
    "xla-serialization": (
        "import torch_xla.utils.serialization as xser; xser.save({'x': torch.ones(2, device='xla')}, 'x'); "
        "print(xser.load('x')['x'].tolist())"
    ),
    "xla-spmd": (
        "import torch_xla.runtime as xr, torch_xla.distributed.spmd as xs; xr.use_spmd(); "
        "print(xs.Mesh([0], (1,), ('data',)).get_logical_mesh().tolist())"
    ),
}
SAID = {
    "xla-core": "[2.0, 2.0, 2.0]",
    "xla-debug": "True",
    "xla-distributed": "0 started",
    "xla-serialization": "[1.0, 1.0]",
    "xla-spmd": "[0]",
}


def succeed(*command: str, cwd: Path = ROOT) -> str:
    # By this variable pip would look for what Python has compiled elsewhere than where the interpreters of the environments put it.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment without pip; this one's pip works on it, offline, with the wheels of `found_in`."""

    folder: Path
    found_in: tuple[Path, ...]

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def pip(self, *arguments: str) -> str:
        """What pip says; wheels come from the folders, what they need besides is there."""
        sources = [f"--find-links={folder}" for folder in self.found_in] if arguments[0] == "install" else []
        offline = ["--no-index", *sources] if arguments[0] == "install" else []
        return succeed(sys.executable, "-m", "pip", "--python", self.python, arguments[0], "--quiet", *offline, *arguments[1:])

    def run(self, code: str, expected: int = 0) -> str:
        """stdout of `code` after `import torch`, or stderr where it is to fail."""
        command = [self.python, "-I", "-c", f"import torch\n{code}"]
        environment = {**os.environ, "PJRT_DEVICE": "CPU"}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stderr if expected else done.stdout

    def report(self) -> dict[str, Any]:
        """What `xla-debug env` says."""
        command = [self.python, "-I", "-m", "xla_debug", "env", "--json"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def mend(self, message: str) -> None:
        """Do what a message says that one should run."""
        (line,) = {line for line in message.splitlines() if "Run: " in line}
        for command in line.partition("Run: ")[2].split("&&"):
            _, *arguments = shlex.split(command)
            self.pip(*arguments)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of all packages and of the root."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in [*PACKAGES, ROOT]:
        succeed(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=source)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is installed here, without our packages."""
    folder = tmp_path_factory.mktemp("base")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not OURS.match(entry.name) and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def fresh(tmp_path: Path, base: Path, wheels: Path, upstream: Path) -> Environment:
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "base.pth").write_text(f"{base}\n", encoding="utf-8")
    return Environment(folder, (wheels, upstream))


def stand_in(folder: Path) -> None:
    """A wheel `torch_xla` 2.9.0 with files where PyTorch/XLA has some, which cannot be imported beside another torch."""
    broken = "raise ImportError('_XLAC.so: undefined symbol')\n"
    files = {
        "torch_xla/__init__.py": "import _XLAC\n",
        "torch_xla/version.py": "__version__ = '2.9.0'\n",
        "torch_xla/runtime.py": broken,
        "torch_xla/core/__init__.py": "",
        "torch_xla/core/xla_model.py": broken,
        "torch_xla/debug/__init__.py": "",
        "torch_xla/debug/metrics.py": broken,
        "torch_xla/distributed/__init__.py": "",
        "torch_xla/distributed/spmd/__init__.py": broken,
        "torch_xla/distributed/xla_multiprocessing.py": broken,
        "torch_xla/utils/__init__.py": "",
        "torch_xla/utils/serialization.py": broken,
        "_XLAC.py": broken,
        "torch_xla-2.9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch_xla\nVersion: 2.9.0\n",
        "torch_xla-2.9.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for name, text in files.items()
    ]
    record = "torch_xla-2.9.0.dist-info/RECORD"
    with zipfile.ZipFile(folder / "torch_xla-2.9.0-py3-none-any.whl", "w") as archive:
        for name, text in {**files, record: "\n".join([*rows, f"{record},,"]) + "\n"}.items():
            archive.writestr(name, text)


def downloaded(folder: Path) -> None:
    """The real wheel, from the package index."""
    succeed(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), "torch_xla==2.9.0")


@pytest.fixture(scope="module", params=[stand_in, pytest.param(downloaded, marks=pytest.mark.long)], ids=["stand-in", "real"])
def upstream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the wheel of PyTorch/XLA 2.9.0."""
    folder = tmp_path_factory.mktemp("upstream")
    make: Callable[[Path], None] = request.param
    make(folder)
    yield folder


def attempts(*codes: str) -> str:
    """Code that says in a line what comes of running each of these."""
    return f"""
for code in {codes!r}:
    try:
        exec(code)
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}".replace("\\n", " "))
    else:
        print("nothing is wrong")
"""


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_piece_beside_the_core_alone(name: str, fresh: Environment) -> None:
    fresh.pip("install", "--no-deps", *sorted({"xla-core", name}))
    assert fresh.run(f"import torch_xla\n{SMALL[name]}").strip() == SAID[name]
    if name == "xla-core":
        return
    module = name.replace("-", "_")
    fresh.pip("uninstall", "--yes", name)
    said = fresh.run(f"import torch_xla\n{SMALL['xla-core']}\n" + attempts(f"import {module}", SMALL[name])).splitlines()
    assert said[0] == SAID["xla-core"], "the core works without it"
    assert f"No module named '{module}'" in said[1]
    if name != "xla-debug":
        assert f"pip install {name}" in said[-1]


def works(environment: Environment) -> bool:
    """Whether all five packages are usable."""
    modules = "xla_core.abi, xla_spmd, xla_debug.core, xla_distributed, xla_serialization"
    said = environment.run(f"import torch_xla, {modules}\n{SMALL['xla-core']}\n{SMALL['xla-debug']}")
    return said.splitlines() == [SAID["xla-core"], SAID["xla-debug"]]


def complaint(environment: Environment, *modules: str) -> str:
    """What importing any of `modules` says, the same for all; `xla-debug env` says it too."""
    code = f"""
import importlib
for module in {modules!r}:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(type(error).__name__, error)
    else:
        print(module, "is imported")
"""
    said = set(environment.run(code).splitlines())
    assert len(said) == 1, said
    (message,) = said
    assert message.startswith("InstallationError ")
    assert message.partition(" ")[2] in " ".join(environment.report()["problems"])
    return message


IMPORT_NAMES = ("xla_core", "xla_core.abi", "xla_spmd", "xla_distributed", "xla_serialization")


def test_an_upgrade_in_one_command(fresh: Environment) -> None:
    """Pip writes our files, then removes the old wheel's, which have the same names."""
    fresh.pip("install", "--no-deps", "torch_xla==2.9.0")
    fresh.pip("install", "--upgrade", "torch_xla")
    message = complaint(fresh, "torch_xla", "torch_xla.core.xla_model", *IMPORT_NAMES)
    assert "is incomplete" in message
    fresh.mend(message)
    assert works(fresh)


def test_an_upgrade_after_removing(fresh: Environment) -> None:
    """What the README says."""
    fresh.pip("install", "--no-deps", "torch_xla==2.9.0")
    fresh.pip("uninstall", "--yes", "torch_xla")
    fresh.pip("install", "torch_xla")
    assert works(fresh)
    assert fresh.run("import torch_xla; print(torch_xla.__version__)").strip() == "2.10.0"


def test_ours_over_theirs_then_the_old_one_removed(fresh: Environment) -> None:
    fresh.pip("install", "--no-deps", "torch_xla==2.9.0")
    fresh.pip("install", "xla-core", "xla-spmd", "xla-debug", "xla-distributed", "xla-serialization")
    message = complaint(fresh, "torch_xla", "torch_xla.core.xla_model", *IMPORT_NAMES)
    assert "PyTorch/XLA 2.9.0 and of xla-core" in message
    fresh.pip("uninstall", "--yes", "torch_xla")
    message = complaint(fresh, "torch_xla", *IMPORT_NAMES)
    assert "is incomplete" in message
    fresh.mend(message)
    assert works(fresh)


def test_theirs_over_ours(fresh: Environment) -> None:
    """`import torch_xla` is theirs then; ours say so."""
    fresh.pip("install", "torch_xla")
    fresh.pip("install", "--no-deps", "torch_xla==2.9.0")
    fresh.run("import torch_xla", expected=1)
    message = complaint(fresh, *IMPORT_NAMES)
    assert "PyTorch/XLA 2.9.0 and of xla-core" in message
    fresh.mend(message)
    assert works(fresh)


def test_a_foreign_folder_earlier_on_the_path(fresh: Environment, tmp_path: Path) -> None:
    fresh.pip("install", "--no-deps", "xla-core")
    (tmp_path / "elsewhere" / "torch_xla").mkdir(parents=True)
    (tmp_path / "elsewhere" / "torch_xla" / "__init__.py").touch()
    error = fresh.run(f"import sys; sys.path.insert(0, {str(tmp_path / 'elsewhere')!r})\nimport xla_core.abi", expected=1)
    assert "InstallationError" in error and "elsewhere/torch_xla/__init__.py, which is not the one of xla-core" in error


def test_one_skewed_plugin_stops_nobody(fresh: Environment) -> None:
    """An older core stays when a newer plugin is put in by force."""
    fresh.pip("install", "--no-deps", "xla-core", "xla-spmd", "xla-debug")
    (file,) = fresh.folder.glob("lib/python*/site-packages/xla_spmd/__init__.py")
    text = file.read_text(encoding="utf-8")
    file.write_text(re.sub(r"require\(\((\d+), \d+\)", r"require((\1, 99)", text), encoding="utf-8")
    assert file.read_text(encoding="utf-8") != text
    uses = attempts("import torch_xla.distributed.spmd", "import torch_xla.runtime as xr; xr.use_spmd()")
    first, *others = fresh.run(f"import torch_xla\n{SMALL['xla-core']}\n{uses}").splitlines()
    assert first == SAID["xla-core"]
    assert len(others) == 2 and all(line.startswith("AbiVersionError: ") for line in others)
    report = fresh.report()
    (problem,) = report["problems"]
    assert re.search(r"xla-spmd needs ABI \d+\.99 of xla-core", problem) and "pip install --upgrade xla-core" in problem
    assert report["devices"]["kind"] == "CPU"
