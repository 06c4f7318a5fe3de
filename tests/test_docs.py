"""The documentation holds: its Python blocks run, its links lead somewhere, and every page is reached from docs/index.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "packages/*/*.md", "benchmarks/*.md", "examples/*.md")
# Where the files of the repository are to be seen: what wheels show away from it links there.
FILES = "https://torch-xla.example/blob/main/"
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(folder))


def blocks(page: Path) -> list[str]:
    """The fenced blocks of a page that are marked `python`; one marked `py` or `text` is an excerpt and does not run."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def links(page: Path) -> list[Path]:
    """The files that a page links to, by their full address too, without anchors and without addresses elsewhere."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    here = [page.parent / target for target in targets if "://" not in target and not target.startswith("mailto:")]
    return [file.resolve() for file in [*here, *(ROOT / target.removeprefix(FILES) for target in targets if target.startswith(FILES))]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    dead = [str(target) for target in links(page) if not target.exists()]
    assert not dead, f"{page.name} links to {dead}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(blocks(page)), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_page_is_reached_from_the_index() -> None:
    found = {ROOT / "docs/index.md"}
    queue = list(found)
    while queue:
        new = {target for target in links(queue.pop()) if target.suffix == ".md" and target.is_file()} - found
        found |= new
        queue.extend(new)
    assert set(ROOT.glob("docs/**/*.md")) - found == set()


@pytest.mark.parametrize("program", sorted(ROOT.glob("docs/**/*.py")), ids=lambda program: program.name)
def test_programs_in_the_documentation_run(program: Path) -> None:
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 program" in done.stdout


@pytest.mark.parametrize("example", ["custom_operator.py", "jax_function.py"])
def test_examples_check_themselves(example: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "examples" / example)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
