"""The repository keeps its shape: the tour is no older than the files, files and functions stay small, set-up stays two commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from xla_core.api.plugins import MODULES

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "packages/xla-core/src/xla_core"
PAGES = [ROOT / "docs/internals" / f"{name}.md" for name in ("map", "glossary", "tour", "design")]
PACKAGES = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
SOURCES = sorted(file for package in PACKAGES for file in package.glob("src/**/*.py"))

FILE_LINES, FUNCTION_LINES = 400, 60
# Where more lines make the better code: path below packages/ (with `::function` for one function), and why.
LARGER: dict[str, str] = {"xla-core/src/xla_core/base/private_torch.py": "one place for all private names of torch"}

PRIVATE = re.compile(r"^(jax\._(?!_)|jaxlib\.|torch\.(\w+\.)*_(?!foreach_|_version__))")

DEMO = "python -m pip install hatch && hatch run demo"
TEST = "python -m pip install hatch && hatch run test"


def named_in(page: Path) -> set[str]:
    """The files and folders that a page names in backticks: by their path below src/xla_core, or below the src of any package."""
    return set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py|(?:[a-z_0-9]+/)*[a-z_0-9]+/)`", page.read_text(encoding="utf-8")))


def too_large(path: Path, label: str) -> Iterator[str]:
    """Each excess over the budgets in one file, `label` being its name in LARGER."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > FILE_LINES and label not in LARGER:
        yield f"{label}: {lines} lines, at most {FILE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES and f"{label}::{node.name}" not in LARGER:
                yield f"{label}::{node.name}: {size} lines, at most {FUNCTION_LINES}"


def private_names(source: str) -> list[str]:
    """Dotted private names of torch and jax that Python code reaches for."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [f"{alias.name}." for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        found += [name for name in names if PRIVATE.match(name) and not name.startswith("torch.ops.")]
    return found


@pytest.mark.parametrize("source", ["import jaxlib", "from torch.utils import _pytree", "torch._C.x()", "from jax._src import core"])
def test_private_names_are_seen(source: str) -> None:
    assert private_names(source)


def test_private_names_stay_in_their_modules() -> None:
    modules = ("_compat.py", "private_torch.py", "private_jax.py")
    strays = {
        file.relative_to(ROOT).as_posix(): names
        for file in SOURCES
        if file.name not in modules and (names := private_names(file.read_text(encoding="utf-8")))
    }
    assert strays == {}


# What touches the environment beside the tables of settings, and why.
ENVIRONMENT: dict[str, str] = {
    "xla-core/src/xla_core/base/config.py": "reads and writes for all tables",
    "xla-core/src/xla_core/engine/placement/topologies.py": "sets what the compiler of TPUs asks for where there is none",
    "xla-core/src/xla_core/features/captured/reads.py": "looks which variables the user's function reads",
    "xla-core/src/xla_core/legacy/utils.py": "helpers by which users read their own variables",
    "xla-debug/src/xla_debug/commands/plan.py": "hands the whole environment on to the program that it plans",
    "xla-debug/src/xla_debug/commands/run.py": "hands the whole environment on to the program that it runs",
    "xla-debug/src/xla_debug/commands/warm.py": "hands the whole environment on to the program whose steps it compiles",
    "xla-distributed/src/xla_distributed/job/coordinator.py": "hands the whole environment on to the coordinator",
}
_OF_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"})


def touches_environment(source: str) -> bool:
    """Whether Python code uses `os.environ` or its kin."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in _OF_ENVIRONMENT and ast.unparse(node.value) == "os":
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os" and not _OF_ENVIRONMENT.isdisjoint(alias.name for alias in node.names):
            return True
    return False


@pytest.mark.parametrize("source", ["import os; os.environ['A']", "os.getenv('A')", "from os import environ", "f(vars(os.environ))"])
def test_a_use_of_the_environment_is_seen(source: str) -> None:
    assert touches_environment(source) and not touches_environment("import os; os.getpid(); 'os.environ'")


def test_only_the_tables_of_settings_touch_the_environment() -> None:
    found = {file.relative_to(ROOT / "packages").as_posix() for file in SOURCES if touches_environment(file.read_text(encoding="utf-8"))}
    assert found == ENVIRONMENT.keys()


# Where modules of ours are imported by names that are put together, and why. Contracts of imports do not see these.
LOADERS: dict[str, str] = {
    "xla-core/src/torch_xla/stablehlo.py": "the part of exporting whose name is asked for",
    "xla-core/src/xla_core/abi/__init__.py": "the subject that is asked for",
    "xla-core/src/xla_core/api/user_modules.py": "a submodule of a package that its user asks for by attribute",
    "xla-core/src/xla_core/base/private_jax.py": "modules of jaxlib",
    "xla-core/src/xla_core/ops/families.py": "each file of a folder",
    "xla-debug/src/xla_debug/cli.py": "the command that was asked for",
    "xla-debug/src/xla_debug/warm_script.py": "the user's module whose function is to be compiled",
    "xla-distributed/src/xla_distributed/collectives/ops/__init__.py": "each file of the folder",
    "xla-serialization/src/xla_serialization/cli.py": "the command that was asked for",
}
OURS = ("torch_xla", "xla_core", "xla_debug", "xla_distributed", "xla_serialization", "xla_spmd")


def imported_by_string(source: str) -> list[str]:
    """The calls of `import_module` whose argument is no name of another's module: ours, or put together."""
    calls = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
    ]
    names = [node.args[0].value if isinstance(node.args[0], ast.Constant) else "" for node in calls]
    return [ast.unparse(call) for call, name in zip(calls, names, strict=True) if str(name).partition(".")[0] in ("", *OURS)]


@pytest.mark.parametrize("argument", ["'xla_core.ops'", "f'xla_core.{name}'", "name", "'torch_xla'"])
def test_imports_by_string_are_seen(argument: str) -> None:
    assert imported_by_string(f"importlib.import_module({argument})")
    assert not imported_by_string("importlib.import_module('libtpu')")


def test_our_modules_are_imported_by_statements() -> None:
    by_string = {file.relative_to(ROOT / "packages").as_posix() for file in SOURCES if imported_by_string(file.read_text(encoding="utf-8"))}
    assert by_string == LOADERS.keys()


def modules_of_siblings() -> dict[str, str]:
    """What the other packages bring below `torch_xla`, by module, without what is inside a package of theirs."""
    owners = {}
    for package in PACKAGES:
        folder = package / "src/torch_xla"
        files = [] if package.name == "xla-core" else sorted(folder.rglob("*.py"))
        roots = {file.parent for file in files if file.name == "__init__.py"}
        for file in files:
            place = file.parent if file.name == "__init__.py" else file.with_suffix("")
            if not roots & set(place.parents):
                owners[".".join(place.relative_to(package / "src").parts)] = package.name
    return owners


def test_the_core_knows_whose_modules_are_missing() -> None:
    assert modules_of_siblings() == MODULES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_about_the_code_name_nothing_that_is_gone(page: Path) -> None:
    roots = [CORE, *CORE.glob("*"), *CORE.glob("*/*"), *(ROOT / "packages").glob("*/src"), *(ROOT / "packages").glob("*/src/*")]
    roots += [ROOT, *PACKAGES]
    gone = [name for name in named_in(page) if not any((root / name).exists() for root in roots)]
    assert not gone, f"{page.name} names {gone}"


def test_files_and_functions_stay_small() -> None:
    excess = [line for file in SOURCES for line in too_large(file, file.relative_to(ROOT / "packages").as_posix())]
    assert not excess, excess


def test_a_large_file_is_seen(tmp_path: Path) -> None:
    body = "\n".join(f"    x = {number}" for number in range(FUNCTION_LINES))
    (tmp_path / "long.py").write_text(f"def long():\n{body}\n" + "\n" * FILE_LINES, encoding="utf-8")
    assert [line.partition(" ")[0] for line in too_large(tmp_path / "long.py", "long.py")] == ["long.py:", "long.py::long:"]


def test_exceptions_to_the_budgets_are_still_needed() -> None:
    for label, reason in LARGER.items():
        assert (ROOT / "packages" / label.partition("::")[0]).is_file(), f"{label} is gone"
        assert reason


def test_every_source_file_says_its_job() -> None:
    silent = [file.relative_to(ROOT).as_posix() for file in SOURCES if not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))]
    assert not silent, f"no module docstring: {silent}"


def test_set_up_is_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^python -m pip install .*$", readme, re.M) == [DEMO, TEST]
    assert readme.index(TEST) < readme.index("\n## "), "both commands stand on the first screen"


def test_ci_runs_what_the_readme_says() -> None:
    run = ROOT / ".ci/run"
    commands = [line for line in run.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    install, test = TEST.split(" && ")
    assert commands[0] == "set -euo pipefail"
    assert commands.index(install) < commands.index("hatch run lint") < commands.index(test)
    assert run.stat().st_mode & 0o111


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_package_folder_is_complete(package: Path) -> None:
    for name in ("README.md", "CHANGELOG.md", "changes", "LICENSE", "tests", f"src/{package.name.replace('-', '_')}/py.typed"):
        assert (package / name).exists(), f"{package.name} lacks {name}"
    assert (package / "LICENSE").read_text(encoding="utf-8") == (ROOT / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_package_readme_is_short_and_starts_with_an_example(package: Path) -> None:
    lines = (package / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60
    assert "```python" in lines[:24]


_OF_THE_PROCESS = {"devices", "local_devices", "default_backend", "device_count", "local_device_count", "process_count", "process_index"}


def test_lowerings_ask_their_context_and_not_the_process() -> None:
    """What a program is compiled for need not be what this process has."""
    core = ROOT / "packages/xla-core/src/xla_core"
    asking = [
        f"{file.relative_to(core)}:{node.lineno}"
        for folder in ("ops", "features/kernels")
        for file in sorted((core / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in _OF_THE_PROCESS and isinstance(node.value, ast.Name) and node.value.id == "jax"
    ]
    assert not asking
