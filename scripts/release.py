"""Make a release candidate of one package: its version, change log, wheel and source archive, the record of its ABI, a commit and a tag.

Everything is made in a worktree of its own and reaches the branch as its last step, so that whatever fails leaves the repository, the
branch and the files as they were. Nothing is pushed or uploaded.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import click
import deprecations
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
CORE = "xla-core"
TOGETHER = "torch-xla"  # the wheel of the root, which brings the others
LOCK = "packages/xla-core/abi.lock.json"
LOCK_TEST = "packages/xla-core/tests/test_abi_lock.py"
MARK = "<!-- releases -->\n"


class Failed(click.ClickException):
    """A release that is not made, and why."""


@dataclass(frozen=True, slots=True)
class Package:
    """A folder from which a wheel is made. folder, version_file: from the root; line: what stands in front of the version there."""

    name: str
    folder: str
    version_file: str
    line: str

    def version(self, root: Path) -> Version:
        """The version in the tree."""
        return Version(self._pattern.findall((root / self.version_file).read_text(encoding="utf-8"))[0])

    def write_version(self, root: Path, version: Version) -> None:
        """Put another version there."""
        file = root / self.version_file
        text = file.read_text(encoding="utf-8")
        file.write_text(self._pattern.sub(f'{self.line} = "{version}"', text, count=1), encoding="utf-8")

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf'^{re.escape(self.line)} = "(.*)"$', re.M)

    def tag(self, version: Version) -> str:
        """The tag of a release."""
        return f"{self.name}-v{version}"

    def requirements(self, root: Path) -> dict[str, Requirement]:
        """What it needs, by name."""
        metadata = tomllib.loads((root / self.folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return {canonicalize_name(found.name): found for found in map(Requirement, metadata["dependencies"])}

    def abi(self, root: Path) -> str | None:
        """The ABI that the core has, or that another package asks for; None for the wheel without code."""
        if self.name == CORE:
            return ".".join(map(str, json.loads((root / LOCK).read_text(encoding="utf-8"))["version"]))
        for file in sorted((root / self.folder).glob("src/xla_*/*.py")):
            if found := re.search(r"require\(\((\d+), (\d+)\)", file.read_text(encoding="utf-8")):
                return ".".join(found.groups())
        return None


def packages(root: Path) -> dict[str, Package]:
    """All that can be released, by name."""
    names = sorted(file.parent.name for file in root.glob("packages/*/pyproject.toml"))
    found = [
        Package(name, f"packages/{name}", f"packages/{name}/src/{name.replace('-', '_')}/_version.py", "__version__") for name in names
    ]
    return {each.name: each for each in [*found, Package(TOGETHER, ".", "pyproject.toml", "version")]}


def run(*command: str, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """The stdout of a command. Raises Failed with all that it said if it fails."""
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{shlex.join(command)} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def released(root: Path, package: Package) -> list[Version]:
    """The versions that have a tag, in order."""
    prefix = f"{package.name}-v"
    texts = (tag.removeprefix(prefix) for tag in run("git", "tag", "--list", f"{prefix}*", cwd=root).split())
    return sorted(version for text in texts if (version := _canonical(text)) is not None)


def wrong_fragments(folder: Path) -> list[str]:
    """Names in a folder of fragments that are not of the form NAME.TYPE.md, or empty files."""
    form = re.compile(r"[a-z0-9-]+\.(breaking|deprecation|feature|fix)\.md")
    files = sorted(file for file in folder.iterdir() if file.name != ".gitkeep")
    return [file.name for file in files if not form.fullmatch(file.name) or not file.read_text(encoding="utf-8").strip()]


def has_notes(folder: Path) -> bool:
    """Whether there is something to say: fragments, or, for a first release, text in the change log that is of no version."""
    text = (folder / "CHANGELOG.md").read_text(encoding="utf-8").partition(MARK)[2]
    return any(folder.glob("changes/*.md")) or bool(re.split(r"^## ", text, maxsplit=1, flags=re.M)[0].strip())


def problems(root: Path, package: Package, text: str, today: date) -> Iterator[str]:
    """Why this version cannot be released, and what to do about each reason."""
    if dirty := run("git", "status", "--porcelain", cwd=root).splitlines():
        more = ", …" if dirty[1:] else ""
        yield f"the tree is not clean ({dirty[0].strip()}{more}): commit what belongs to the release, and put the rest away"
    if (version := _canonical(text)) is None:
        now = package.version(root)
        yield f"{text!r} is no version as an index has them: give three numbers, such as {now} or {now}rc1"
        return
    yield from _order(root, package, version)
    yield from _between_packages(root, package, version)
    yield from _notes(root, package)
    for row in deprecations.due(deprecations.found(root), package.name, f"{today:%Y-%m}"):
        yield f"{row.place}: {row.old} may go since {row.removal}: remove it, or give it a later month"


def _canonical(text: str) -> Version | None:
    """The version that is written so and not otherwise; None for another text."""
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    return version if str(version) == text and len(version.release) == 3 and not (version.local or version.is_devrelease) else None


def _order(root: Path, package: Package, version: Version) -> Iterator[str]:
    """What is wrong with the version itself."""
    before = released(root, package)
    if version in before:
        yield f"{package.tag(version)} is a tag already: give a version above {before[-1]}"
    elif before and version < before[-1]:
        yield f"{version} is below {before[-1]}, the last release: give a version above it"
    elif Version(version.base_version) < package.version(root):
        yield f"{version} is below {package.version(root)}, which {package.version_file} has: give that one or a version above it"
    if package.name == TOGETHER:
        level = _api_level(root)
        if version.base_version != level:
            yield f"{version} is not of the API level: give {level}, or {level}.postN, or change torch_xla.__version__ in xla-core first"


def _notes(root: Path, package: Package) -> Iterator[str]:
    """What keeps the change log from being written."""
    changes = Path(package.folder, "changes")
    if wrong := wrong_fragments(root / changes):
        yield f"{changes} has {', '.join(wrong)}: name fragments NAME.TYPE.md (types: towncrier.toml), and write into them"
    elif not has_notes(root / package.folder):
        yield f"nothing is new: {changes} has no fragment. Write one, such as {changes / 'threads.fix.md'}"


def _api_level(root: Path) -> str:
    file = root / "packages/xla-core/src/torch_xla/__init__.py"
    return str(re.findall(r'^__version__ = "(.*?)"', file.read_text(encoding="utf-8"), re.M)[0])


def _between_packages(root: Path, package: Package, version: Version) -> Iterator[str]:
    """What does not fit between this package and those beside it."""
    family = packages(root)
    for other in family.values():
        need = other.requirements(root).get(package.name)
        if need is not None and not need.specifier.contains(version, prereleases=True):
            file = Path(other.folder, "pyproject.toml")
            yield f"{other.name} requires {need}, which {version} is not: change {file}, or give another version"
    for name, need in package.requirements(root).items():
        if name in family and not any(need.specifier.contains(each, prereleases=True) for each in released(root, family[name])):
            yield f"it requires {need}, of which nothing is released: release {name} first"
    if package.name not in (CORE, TOGETHER):
        yield from _older_cores(root, package)


def _older_cores(root: Path, package: Package) -> Iterator[str]:
    """Releases of the core that the package would be installed with and not work with."""
    asked, need = package.abi(root), package.requirements(root)[CORE]
    for version in released(root, packages(root)[CORE]):
        record = root / f"packages/{CORE}/abi/{version}.json"
        if asked is None or version not in need.specifier or not record.is_file():
            continue
        (major, minor), has = map(int, asked.split(".")), json.loads(record.read_text(encoding="utf-8"))["version"]
        if has[0] != major or has[1] < minor:
            file = Path(package.folder, "pyproject.toml")
            yield f"it asks for ABI {asked}, and {need} takes {version}, which has {has[0]}.{has[1]}: change the bounds in {file}"


def check_abi(root: Path) -> None:
    """Run the test of the ABI lock on the sources in `root`. Raises Failed with what it said."""
    sources = os.pathsep.join(str(folder) for folder in sorted(root.glob("packages/*/src")))
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=0", LOCK_TEST)
    run(*command, cwd=root, environment={**os.environ, "PYTHONPATH": sources, "PJRT_DEVICE": "CPU"})


@contextmanager
def worktree(root: Path) -> Iterator[Path]:
    """The commit that is checked out, checked out a second time, until the end."""
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        tree = Path(folder) / "tree"
        run("git", "worktree", "add", "--quiet", "--detach", str(tree), cwd=root)
        try:
            yield tree
        finally:
            run("git", "worktree", "remove", "--force", str(tree), cwd=root)


def write(tree: Path, package: Package, version: Version, today: date) -> str:
    """Version, change log and ABI record of a release, committed in `tree`; the commit. Raises Failed if the ABI lock is not true."""
    package.write_version(tree, version)
    if package.name == CORE:
        check_abi(tree)
    abi = package.abi(tree)
    heading = today.isoformat() if abi is None else f"{today}, ABI {abi}"
    towncrier = (sys.executable, "-m", "towncrier", "build", "--yes", "--config", "towncrier.toml", "--dir", package.folder)
    run(*towncrier, "--name", package.name, "--version", str(version), "--date", heading, cwd=tree)
    if package.name == CORE:
        record = tree / package.folder / "abi" / f"{version}.json"
        record.parent.mkdir(exist_ok=True)
        shutil.copyfile(tree / LOCK, record)
    run("git", "add", "--all", cwd=tree)
    run("git", "commit", "--quiet", "-m", f"Release {package.name} {version}", cwd=tree)
    return run("git", "rev-parse", "HEAD", cwd=tree).strip()


def build(tree: Path, package: Package, into: Path) -> list[Path]:
    """Wheel and source archive of a package, as twine accepts them. Raises Failed if it does not."""
    run(sys.executable, "-m", "hatchling", "build", "-d", str(into), cwd=tree / package.folder)
    files = sorted(into.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files), cwd=tree)
    return files


def publish(root: Path, files: Sequence[Path], tag: str, commit: str) -> list[Path]:
    """Put files into dist/, tag the commit and move the branch to it: all of that, or nothing. The files."""
    dist = root / "dist"
    with ExitStack() as undo:
        dist.mkdir(exist_ok=True)
        for file in files:
            if not (dist / file.name).exists():
                undo.callback((dist / file.name).unlink, missing_ok=True)
            shutil.copyfile(file, dist / file.name)
        run("git", "tag", "--annotate", "-m", tag.replace("-v", " "), tag, commit, cwd=root)
        undo.callback(run, "git", "tag", "--delete", tag, cwd=root)
        undo.callback(_go_back, root, commit, run("git", "rev-parse", "HEAD", cwd=root).strip())
        run("git", "merge", "--quiet", "--ff-only", commit, cwd=root)
        undo.pop_all()
    return [dist / file.name for file in files]


def _go_back(root: Path, commit: str, before: str) -> None:
    """Undo a merge to `commit` that was cut off: it changes the files first, the branch last. What others changed meanwhile stays."""
    if run("git", "rev-parse", "HEAD", cwd=root).strip() == commit:
        run("git", "reset", "--soft", before, cwd=root)
    run("git", "read-tree", "-m", "-u", commit, before, cwd=root)


def _package(context: click.Context, parameter: click.Parameter, value: str) -> str:
    known = packages(ROOT)
    if (name := canonicalize_name(value)) not in known:
        raise click.BadParameter(f"{value!r} is none of {', '.join(known)}")
    return name


@click.command()
@click.argument("name", metavar="PACKAGE", callback=_package)
@click.argument("version")
@click.option("--date", "day", type=click.DateTime(["%Y-%m-%d"]), help="The day that the change log names; today, in UTC, if not given.")
def main(name: str, version: str, day: datetime | None) -> None:
    """Make VERSION of PACKAGE: a commit, a tag, and its wheel and source archive in dist/.

    PACKAGE is a folder of packages/, or torch-xla for the wheel of the root. Nothing is pushed or uploaded.
    """
    console = Console(highlight=False)
    package = packages(ROOT)[name]
    today = (day or datetime.now(UTC)).date()
    if found := list(problems(ROOT, package, version, today)):
        raise Failed(f"{name} {version} is not released:\n" + "\n".join(f"* {each}" for each in found))
    with worktree(ROOT) as tree:
        console.print("writing version and change log")
        commit = write(tree, package, Version(version), today)
        console.print("building and checking the wheel and the source archive")
        files = publish(ROOT, build(tree, package, tree.parent / "dist"), package.tag(Version(version)), commit)
    _tell(console, package.tag(Version(version)), files)


def _tell(console: Console, tag: str, files: Sequence[Path]) -> None:
    """What there is now, and what to do with it."""
    names = [str(file.relative_to(ROOT)) for file in files]
    for line in (
        f"[bold]{tag}[/bold]: a commit, a tag, and {' and '.join(names)}",
        f"to look at it:   git show {tag}",
        f"to publish it:   git push --atomic origin HEAD refs/tags/{tag} && python -m twine upload {shlex.join(names)}",
        f"to take it back: git tag --delete {tag} && git reset --keep HEAD~1",
    ):
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    main()
