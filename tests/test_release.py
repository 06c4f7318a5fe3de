"""`hatch run release` in copies of the repository: what it refuses, what it makes, and that nothing is left of what fails midway."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import release

ROOT = release.ROOT
DAY = date(2026, 12, 1)
FILES = ("pyproject.toml", "towncrier.toml", "conftest.py", "LICENSE", "CHANGELOG.md", ".gitignore")
IDENTITY = {
    f"GIT_{who}_{what}": text for who in ("AUTHOR", "COMMITTER") for what, text in (("NAME", "Tester"), ("EMAIL", "tester@example.org"))
}


def git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True, check=False, env={**os.environ, **IDENTITY})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "change")


def below_top(folder: str, names: list[str]) -> list[str]:
    """The folders inside an import package."""
    return [name for name in names if Path(folder).parent.name == "src" and (Path(folder) / name).is_dir()]


def copied(root: Path, deep: bool) -> Path:
    """A repository of one commit, with what a release reads, as it was before the first one. deep: with all sources."""
    for name in FILES:
        shutil.copyfile(ROOT / name, root / name)
    for name in ("scripts", "changes", "tests/support"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    caches = shutil.ignore_patterns("tests", "__pycache__")
    shutil.copytree(ROOT / "packages", root / "packages", ignore=lambda *each: {*caches(*each), *(() if deep else below_top(*each))})
    (root / release.LOCK_TEST).parent.mkdir()
    for test in ("conftest.py", "test_abi_lock.py"):
        shutil.copyfile(ROOT / "packages/xla-core/tests" / test, root / "packages/xla-core/tests" / test)
    shutil.rmtree(root / "packages/xla-core/abi", ignore_errors=True)
    for package in release.packages(root).values():
        folder = root / package.folder
        package.write_version(root, Version("2.10.0" if package.name == "torch-xla" else "0.2.0"))
        replace(folder / "pyproject.toml", r'"(xla-[a-z]+)>=[\d.]+,<[\d.]+"', r'"\1>=0.2,<1"')
        (folder / "CHANGELOG.md").write_text(f"# Changes\n\n{release.MARK}\n### Before\n\n* This.\n", encoding="utf-8")
        for fragment in folder.glob("changes/*.md"):
            fragment.unlink()
    git(root, "init", "--quiet", "--initial-branch", "main")
    commit(root)
    return root


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the top of each package."""
    return copied(tmp_path_factory.mktemp("repository"), deep=False)


@pytest.fixture
def tree(repository: Path, tmp_path: Path) -> Path:
    """A clone of it."""
    git(tmp_path, "clone", "--quiet", str(repository), "tree")
    return tmp_path / "tree"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A repository with all sources."""
    (tmp_path / "whole").mkdir()
    return copied(tmp_path / "whole", deep=True)


def problems(tree: Path, name: str, version: str, today: date = DAY) -> list[str]:
    return list(release.problems(tree, release.packages(tree)[name], version, today))


def run(tree: Path, name: str, version: str) -> subprocess.CompletedProcess[str]:
    """The command itself, in the tree."""
    command = [sys.executable, str(tree / "scripts/release.py"), name, version, "--date", str(DAY)]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, env={**os.environ, **IDENTITY})


def state(tree: Path) -> tuple[object, ...]:
    """All that a release may change."""
    contents = {file: file.read_bytes() for folder in ("packages", "dist", "changes") for file in (tree / folder).rglob("*.[mpjwt]*")}
    shown = [git(tree, *each.split()) for each in ("rev-parse HEAD", "branch --list", "tag --list", "status --porcelain", "worktree list")]
    return contents, *shown


def replace(file: Path, pattern: str, new: str) -> None:
    file.write_text(re.sub(pattern, new, file.read_text(encoding="utf-8")), encoding="utf-8")


def needs_tools() -> None:
    """What the environment of hatch.toml has."""
    pytest.importorskip("towncrier")
    pytest.importorskip("twine")


def test_fragments_here_have_the_form_that_a_release_reads() -> None:
    assert {package.name: release.wrong_fragments(ROOT / package.folder / "changes") for package in release.packages(ROOT).values()} == {
        name: [] for name in ["torch-xla", *(folder.name for folder in (ROOT / "packages").iterdir())]
    }


def test_change_logs_have_the_place_for_releases() -> None:
    for package in release.packages(ROOT).values():
        assert (ROOT / package.folder / "CHANGELOG.md").read_text(encoding="utf-8").count(release.MARK) == 1


def test_the_version_in_the_tree_can_be_the_first_release(tree: Path) -> None:
    assert problems(tree, "xla-core", "0.2.0") == problems(tree, "xla-core", "0.3.0rc1") == []
    git(tree, "tag", "xla-core-v0.2.0")
    assert problems(tree, "xla-debug", "0.2.0") == []


@pytest.mark.parametrize("version", ["0.2", "v0.2.0", "0.2.0.0", "0.2.0-rc.1", "0.2.0+local", "0.2.0.dev1", "next", ""])
def test_only_versions_as_an_index_has_them(version: str, tree: Path) -> None:
    (problem,) = problems(tree, "xla-core", version)
    assert repr(version) in problem and "three numbers" in problem


def test_a_tree_with_changes_is_refused(tree: Path) -> None:
    (tree / "packages/xla-core/changes/new.fix.md").write_text("New.\n", encoding="utf-8")
    (problem,) = problems(tree, "xla-core", "0.2.0")
    assert "not clean" in problem and "new.fix.md" in problem


def test_versions_go_up(tree: Path) -> None:
    (problem,) = [each for each in problems(tree, "xla-core", "0.1.9") if "_version.py" in each]
    assert "0.1.9 is below" in problem
    git(tree, "tag", "xla-core-v0.2.5")
    git(tree, "tag", "xla-core-v0.2.10")
    assert problems(tree, "xla-core", "0.2.10") == ["xla-core-v0.2.10 is a tag already: give a version above 0.2.10"]
    assert problems(tree, "xla-core", "0.2.9") == ["0.2.9 is below 0.2.10, the last release: give a version above it"]
    assert problems(tree, "xla-core", "0.2.11") == []


def test_siblings_have_to_take_the_version(tree: Path) -> None:
    found = problems(tree, "xla-core", "1.0.0")
    assert len(found) == 5 and all(
        re.match(r"\S+ requires xla-core<1,>=[\d.]+, which 1.0.0 is not: change \S+, or", each) for each in found
    )
    assert any("change pyproject.toml" in each for each in found)
    assert len(problems(tree, "xla-debug", "1.0.0")) == 2  # the root's wheel, and that the core is not released


def test_what_a_package_needs_is_released_first(tree: Path) -> None:
    (problem,) = problems(tree, "xla-debug", "0.2.0")
    assert "requires xla-core" in problem and problem.endswith("release xla-core first")
    git(tree, "tag", "xla-core-v0.1.0")
    assert problems(tree, "xla-debug", "0.2.0") == [problem]
    git(tree, "tag", "xla-core-v0.9.0")
    assert problems(tree, "xla-debug", "0.2.0") == []


def test_a_package_takes_only_cores_with_its_abi(tree: Path) -> None:
    (tree / "packages/xla-core/abi").mkdir()
    major, minor = map(int, str(release.packages(tree)["xla-debug"].abi(tree)).split("."))
    for version, abi in {"0.1.9": [0, 0], "0.2.0": [major, minor - 1], "0.3.0": [major, minor], "0.4.0": [major, minor + 1]}.items():
        (tree / f"packages/xla-core/abi/{version}.json").write_text(json.dumps({"version": abi}), encoding="utf-8")
        git(tree, "tag", f"xla-core-v{version}")
    commit(tree)
    (problem,) = problems(tree, "xla-debug", "0.2.0")
    assert f"asks for ABI {major}.{minor}" in problem and f"takes 0.2.0, which has {major}.{minor - 1}" in problem
    replace(tree / "packages/xla-debug/pyproject.toml", "xla-core>=0.2", "xla-core>=0.3")
    commit(tree)
    assert problems(tree, "xla-debug", "0.2.0") == []


def test_tags_of_others_are_left_out(tree: Path) -> None:
    for tag in ("xla-core-vnext", "xla-core-v0.9.0-old", "v9.0.0", "xla-core-extras-v9.0.0"):
        git(tree, "tag", tag)
    assert problems(tree, "xla-core", "0.2.0") == []


def test_a_release_has_something_to_say(tree: Path) -> None:
    """Before the first one, the text in the change log is that; later it is fragments."""
    git(tree, "tag", "xla-core-v0.2.0")
    assert problems(tree, "xla-debug", "0.2.0") == []
    replace(tree / "packages/xla-debug/CHANGELOG.md", "### Before", "## 0.2.0 (2026-11-30)\n\n### Before")
    commit(tree)
    (problem,) = problems(tree, "xla-debug", "0.2.0")
    assert "nothing is new" in problem and "packages/xla-debug/changes/threads.fix.md" in problem


def test_fragments_have_a_form(tree: Path) -> None:
    folder = tree / "packages/xla-core/changes"
    wrong = {"A b.fix.md": "A.", "a.bug.md": "A.", "a.fix.md": "\n", "a.fix.rst": "A.", "a.md": "A."}
    for name, text in {**wrong, "sums-2.fix.md": "A."}.items():
        (folder / name).write_text(text, encoding="utf-8")
    commit(tree)
    (problem,) = problems(tree, "xla-core", "0.2.0")
    assert f"packages/xla-core/changes has {', '.join(wrong)}: name fragments NAME.TYPE.md" in problem


def test_a_deprecation_whose_month_has_come(tree: Path) -> None:
    file = tree / "packages/xla-core/src/xla_core/paint.py"
    file.write_text('_OLD = Deprecation("paint", "draw", "xla-core 0.2.0", "2026-12")\n', encoding="utf-8")
    commit(tree)
    (problem,) = problems(tree, "xla-core", "0.2.0")
    assert "paint.py:1: paint may go since 2026-12" in problem
    assert problems(tree, "xla-core", "0.2.0", date(2026, 11, 30)) == []


def test_the_root_follows_the_api_level(tree: Path) -> None:
    for name, package in release.packages(tree).items():
        if name != "torch-xla":
            git(tree, "tag", package.tag(Version("0.9.0")))
    assert problems(tree, "torch-xla", "2.10.0") == problems(tree, "torch-xla", "2.10.0.post1") == []
    (problem,) = problems(tree, "torch-xla", "3.0.0")
    assert "not of the API level" in problem and "torch_xla.__version__" in problem


def test_the_command_names_all_reasons(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "ROOT", tree)
    git(tree, "tag", "xla-core-v9.0.0")
    (tree / "draft").touch()
    before = state(tree)
    result = CliRunner().invoke(release.main, ["xla_core", "1.0.0"])
    assert result.exit_code == 1 and result.output.startswith("Error: xla-core 1.0.0 is not released:\n* the tree is not clean")
    assert result.output.count("\n* ") == 7 and "is below 9.0.0" in result.output
    assert state(tree) == before
    result = CliRunner().invoke(release.main, ["xla-cor", "1.0.0"])
    assert result.exit_code == 2 and "xla-core, xla-debug" in result.output


def forbid(tree: Path, reference: str) -> None:
    """Let the repository refuse to change a reference, as a hook of its owner may."""
    hook = tree / ".git/hooks/reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f'#!/bin/sh\nif [ "$1" = prepared ] && grep -q {reference}; then exit 1; fi\n', encoding="utf-8")
    hook.chmod(0o755)


@pytest.mark.parametrize("reference", ["refs/tags/xla-core-v0.2.0", "refs/heads/main"])
def test_what_was_published_is_taken_back(reference: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    (wheel := tmp_path / "xla_core-0.2.0-py3-none-any.whl").touch()
    with release.worktree(tree) as second:
        release.packages(second)["xla-core"].write_version(second, Version("0.2.0rc7"))
        shutil.copyfile(second / release.LOCK, second / "packages/xla-core/abi.json")
        commit(second)
        made = git(second, "rev-parse", "HEAD")
        before = state(tree)
        forbid(tree, reference)
        with pytest.raises(release.Failed, match="git (tag|merge)"):
            release.publish(tree, [wheel], "xla-core-v0.2.0", made)
        assert state(tree) == before
        (tree / ".git/hooks/reference-transaction").unlink()
        (published,) = release.publish(tree, [wheel], "xla-core-v0.2.0", made)
    assert published == tree / "dist" / wheel.name and published.is_file()
    assert git(tree, "rev-parse", "HEAD", "xla-core-v0.2.0^{commit}").split() == [made, made]
    assert git(tree, "status", "--porcelain") == "" and len(git(tree, "worktree", "list").splitlines()) == 1


def test_a_release_of_the_core(whole: Path) -> None:
    needs_tools()
    (whole / "packages/xla-core/changes/loops.feature.md").write_text("Loops with\n`while`.\n", encoding="utf-8")
    (whole / "packages/xla-core/changes/sums.fix.md").write_text("Sums of nothing.\n", encoding="utf-8")
    commit(whole)
    earlier = git(whole, "rev-parse", "HEAD")
    done = run(whole, "xla-core", "0.2.1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert git(whole, "cat-file", "-t", "xla-core-v0.2.1") == "tag" and "refs/tags/xla-core-v0.2.1" in done.stdout
    head, *others, parent = git(whole, "rev-parse", "HEAD", "main", "xla-core-v0.2.1^{commit}", "HEAD^").split()
    assert others == [head, head] and parent == earlier
    assert git(whole, "status", "--porcelain") == "" and len(git(whole, "worktree", "list").splitlines()) == 1
    core = whole / "packages/xla-core"
    changed = {"CHANGELOG.md", "abi/0.2.1.json", "changes/loops.feature.md", "changes/sums.fix.md", "src/xla_core/_version.py"}
    assert set(git(whole, "diff", "--name-only", "HEAD^", "HEAD").split()) == {f"packages/xla-core/{file}" for file in changed}
    assert [file.name for file in (core / "changes").iterdir()] == [".gitkeep"]
    assert (core / "abi/0.2.1.json").read_bytes() == (whole / release.LOCK).read_bytes()
    abi = ".".join(map(str, json.loads((core / "abi/0.2.1.json").read_text())["version"]))
    assert (core / "CHANGELOG.md").read_text(encoding="utf-8") == (
        f"# Changes\n\n{release.MARK}\n## 0.2.1 ({DAY}, ABI {abi})\n\n"
        "### New\n\n* Loops with\n  `while`.\n\n### Fixed\n\n* Sums of nothing.\n\n### Before\n\n* This.\n"
    )
    wheel, archive = sorted((whole / "dist").iterdir())
    assert (wheel.name, archive.name) == ("xla_core-0.2.1-py3-none-any.whl", "xla_core-0.2.1.tar.gz")
    with zipfile.ZipFile(wheel) as files:
        assert '__version__ = "0.2.1"' in files.read("xla_core/_version.py").decode()


def test_a_wheel_that_an_index_would_refuse_leaves_nothing(tree: Path) -> None:
    needs_tools()
    git(tree, "tag", "xla-core-v0.9.0")
    package = tree / "packages/xla-debug"
    replace(package / "pyproject.toml", 'readme = "README.md"', 'readme = { file = "README.rst", content-type = "text/x-rst" }')
    (package / "README.rst").write_text("Title\n=\n\n`a\n", encoding="utf-8")
    commit(tree)
    before = state(tree)
    done = run(tree, "xla-debug", "0.9.9")
    assert done.returncode == 1 and "twine check --strict" in done.stderr and "syntax errors in markup" in done.stderr
    assert state(tree) == before and not (tree / "dist").exists()


@pytest.mark.long
def test_an_abi_that_is_not_in_the_lock_leaves_nothing(whole: Path) -> None:
    needs_tools()
    replace(whole / "packages/xla-core/src/xla_core/abi/files.py", '"sync_file", ', "")
    commit(whole)
    before = state(whole)
    done = run(whole, "xla-core", "0.9.9")
    assert done.returncode == 1 and "write the new lock with" in done.stderr
    assert state(whole) == before


@pytest.mark.long
def test_all_packages_are_released_in_order_and_again(whole: Path) -> None:
    needs_tools()
    family = release.packages(whole)
    for name in ["xla-core", *sorted(set(family) - {"xla-core", "torch-xla"}), "torch-xla"]:
        assert (done := run(whole, name, str(family[name].version(whole)))).returncode == 0, done.stderr
    assert len(git(whole, "tag", "--list").split()) == 6 and len(list((whole / "dist").iterdir())) == 12
    (whole / "packages/xla-core/changes/sums.fix.md").write_text("Sums.\n", encoding="utf-8")
    replace(whole / "packages/xla-core/src/xla_core/engine/runtime/abi_version.py", r"ABI_VERSION = \(", "ABI_VERSION = (1 + ")
    lock = json.loads((whole / release.LOCK).read_text(encoding="utf-8"))
    lock["version"][0] += 1
    (whole / release.LOCK).write_text(json.dumps(lock, indent=2) + "\n", encoding="utf-8")
    commit(whole)
    assert (done := run(whole, "xla-core", "0.9.0")).returncode == 0, done.stderr
    log = (whole / "packages/xla-core/CHANGELOG.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^## (\S+) \(.*ABI (\d+)\..*\)$", log, re.M)
    assert first == ("0.9.0", str(lock["version"][0])) and int(second[1]) == lock["version"][0] - 1
    assert len(list((whole / "packages/xla-core/abi").iterdir())) == 2
