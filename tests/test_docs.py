"""The documentation holds: its Python blocks run, its links lead somewhere, and every page has its place in the site."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "packages/*/*.md", "benchmarks/*.md", "examples/*.md")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(folder))


def blocks(page: Path) -> list[str]:
    """The fenced blocks of a page that are marked `python`; one marked `py` or `text` is an excerpt and does not run."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def script(name: str) -> types.ModuleType:
    """A program of scripts/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = script("site_pages")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files that a page links to, by their full address too, each with the anchor; addresses elsewhere are left out."""
    for address, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        target = site.place(address, page.relative_to(ROOT).as_posix()) if address else page.relative_to(ROOT).as_posix()
        if target is not None:
            yield ROOT / target, anchor


@cache
def anchors(page: Path) -> set[str]:
    """The places of a page: its headings as hosts of repositories and the site name them, and those with a name of their own."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w -]", "", heading).strip().replace(" ", "-") for heading in plain} | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    found = list(links(page))
    dead = [str(target) for target, _ in found if not target.exists()]
    lost = [f"{target}#{anchor}" for target, anchor in found if anchor and target.suffix == ".md" and anchor not in anchors(target)]
    assert not dead + lost, f"{page.name} links to {dead + lost}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(blocks(page)), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_site_has_a_place_for_every_page() -> None:
    named = re.findall(r"^ +- (?:.*: )?(\S+\.(?:md|ipynb))$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for pattern in ("*.md", "*.ipynb") for page in docs.rglob(pattern)}
    assert sorted(named) == sorted(pages | site.pages_elsewhere().keys())


@pytest.mark.parametrize(
    ("source", "page", "before", "after"),
    [
        ("docs/spmd.md", "spmd.md", "(distributed.md#a)", "(distributed.md#a)"),
        ("docs/internals/tour.md", "internals/tour.md", "(../spmd.md)", "(../spmd.md)"),
        ("docs/checkpoints.md", "checkpoints.md", "(../packages/xla-core/README.md)", "(packages/xla-core/README.md)"),
        ("packages/xla-core/README.md", "packages/xla-core/README.md", f"({site.FILES}docs/spmd.md#a)", "(../../spmd.md#a)"),
        ("CONTRIBUTING.md", "CONTRIBUTING.md", "(docs/spmd.md)", "(spmd.md)"),
        ("docs/index.md", "index.md", "(../examples/digits.py)", f"({site.FILES}examples/digits.py)"),
        ("docs/index.md", "index.md", "(https://example.org/x.md)", "(https://example.org/x.md)"),
        ("docs/index.md", "index.md", "(#here)", "(#here)"),
    ],
)
def test_links_of_the_site_lead_to_its_pages_or_to_the_repository(source: str, page: str, before: str, after: str) -> None:
    assert site.relinked(f"[x]{before}", source, page) == f"[x]{after}"


def test_code_in_the_site_is_as_it_is_written() -> None:
    text = "```py\nx = [f](../examples)\n```\n"
    assert site.relinked(text, "docs/index.md", "index.md") == text


@pytest.mark.parametrize("program", sorted(ROOT.glob("docs/**/*.py")), ids=lambda program: program.name)
def test_programs_in_the_documentation_run(program: Path) -> None:
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 program" in done.stdout


@pytest.mark.parametrize("example", ["custom_operator.py", "jax_function.py"])
def test_examples_check_themselves(example: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "examples" / example)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
