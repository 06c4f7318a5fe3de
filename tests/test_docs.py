"""The documentation holds: its Python blocks run, its links lead somewhere, and every page has its place in the site."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import forked_python
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "packages/*/*.md", "benchmarks/*.md", "examples/*.md")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(folder))
NOTEBOOKS = sorted(ROOT.glob("docs/**/*.ipynb"))
EXCERPTS = {
    "docs/checkpoints.md": "clients/test_excerpts.py",
    "docs/from-torchax.md": "torchax, which is not ours to run",
    "docs/libraries.md": "clients/test_excerpts.py",
    "docs/models.md": "clients/test_excerpts.py",
    "docs/parallelism.md": "tests/test_parallelism_page.py",
    "docs/performance.md": "clients/test_excerpts.py",
}
"""Pages with blocks that do not run here, and what runs them."""
# Runs programs one after the other in this process, and writes what each printed, and what it raised if it failed.
RUN_ALL = """
import contextlib, io, json, pathlib, runpy, sys, traceback
for program in sys.argv[1:]:
    raised = ""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            runpy.run_path(program, run_name="__main__")
        except BaseException:
            raised = traceback.format_exc()
    pathlib.Path(program).with_suffix(".json").write_text(json.dumps([raised, printed.getvalue()]))
"""


def blocks(page: Path) -> list[str]:
    """The fenced blocks of a page that are marked `python`; those marked `py` are `EXCERPTS`."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def unprinted(page: Path, printed: str) -> list[str]:
    """What comments behind a `print` of a page say that it prints, and no line that it printed is.

    `…` stands for anything, and what follows the first colon may be an explanation.
    """
    lines = printed.splitlines()
    said = re.findall(r"^ *print\(.*\)  # (.*)$", "\n".join(blocks(page)), re.M)
    return [claim for claim in said if not any(_says(claim, line) for line in lines)]


def _says(claim: str, line: str) -> bool:
    outputs = (claim, claim.partition(": ")[0])
    return any(re.fullmatch(".*".join(re.escape(part.strip()) for part in output.split("…")), line.strip()) for output in outputs)


def alone(page: Path) -> bool:
    """Whether the blocks of a page need a process of their own: they set it up, or start others."""
    return bool(re.search(r"os\.environ|__main__|use_spmd|config\.update", "".join(blocks(page))))


def name(page: Path) -> str:
    """The path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


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
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    for address, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        target = site.place(address, name(page)) if address else name(page)
        if target is not None:
            yield ROOT / target, anchor


@cache
def anchors(page: Path) -> set[str]:
    """The places of a page: its headings as hosts of repositories and the site name them, and those with a name of their own."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w -]", "", heading).strip().replace(" ", "-") for heading in plain} | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    found = list(links(page))
    dead = [str(target) for target, _ in found if not target.exists()]
    lost = [f"{target}#{anchor}" for target, anchor in found if anchor and target.suffix == ".md" and anchor not in anchors(target)]
    assert not dead + lost, f"{page.name} links to {dead + lost}"


@pytest.fixture(scope="module")
def run_together(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, tuple[str, str]]:
    """What the blocks of each page raised and printed that can share a process with others: torch and jax are imported once."""
    folder = tmp_path_factory.mktemp("blocks")
    programs = {page: folder / f"{name(page).replace('/', '-')}.py" for page in PAGES if blocks(page) and not alone(page)}
    for page, program in programs.items():
        program.write_text("\n".join(blocks(page)), encoding="utf-8")
    done = forked_python.run(
        [sys.executable, "-c", RUN_ALL, *map(str, programs.values())], cwd=folder, capture_output=True, text=True, check=False
    )
    results = {page: program.with_suffix(".json") for page, program in programs.items()}
    return {page: json.loads(file.read_text(encoding="utf-8")) if file.exists() else (done.stderr, "") for page, file in results.items()}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and not alone(page)], ids=name)
def test_python_blocks_run_and_print_what_they_say(page: Path, run_together: dict[Path, tuple[str, str]]) -> None:
    raised, printed = run_together[page]
    assert not raised, raised
    assert not unprinted(page, printed)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and alone(page)], ids=name)
def test_python_blocks_run_in_a_process_of_their_own(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(blocks(page)), encoding="utf-8")
    done = forked_python.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not unprinted(page, done.stdout)


@pytest.mark.parametrize(
    ("claim", "line", "says"),
    [
        ("6.0: the sum", "6.0", True), ("{'data': 4}", "{'data': 4}", True), ("… is gone: ask", "the file is gone: ask", True),
        ("6.0", "16.0", False), ("the sum: 6.0", "6.0", False), ("… is gone", "the file is gone, too", False),
    ],
)  # fmt: skip
def test_a_comment_behind_a_print_is_what_it_prints(claim: str, line: str, says: bool) -> None:
    assert _says(claim, line) is says


def test_blocks_that_do_not_run_here_run_elsewhere() -> None:
    pages = ROOT.glob("docs/*.md")  # in the reference they are signatures
    assert {name(page) for page in pages if re.search("^```py$", page.read_text(encoding="utf-8"), re.M)} == set(EXCERPTS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_notebooks_run_and_are_saved_with_what_they_show(notebook: Path, tmp_path: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run it whole: hatch run notebooks:run"
    kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert "display_data" in kinds and "error" not in kinds
    script = tmp_path / "notebook.py"
    script.write_text("\n".join("".join(cell["source"]) for cell in cells), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:FigureCanvasAgg is non-interactive", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    assert done.returncode == 0, done.stderr
    (right,) = re.findall(r"([\d.]+) % of the test digits right", done.stdout)
    assert float(right) > 90
    assert re.search(r"programs compiled: \d+ - of these after the first epoch: 0", done.stdout), done.stdout


def test_tests_that_the_page_of_promises_names_are_there() -> None:
    """By their path, or by their name alone after another one of the same package."""
    known = {path for folder in ("packages", "tests", "clients") for path in (ROOT / folder).rglob("test_*.py")}
    names = {path.name for path in known} | {name(path) for path in known}
    said = re.findall(r"`([\w/.-]*test_\w+\.py)`", (ROOT / "docs/reliability.md").read_text(encoding="utf-8"))
    assert said and not set(said) - names


def test_the_site_has_a_place_for_every_page() -> None:
    named = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    written = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    assert sorted(named) == sorted(written | site.notebooks().keys() | site.pages_elsewhere().keys())


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without marks of emphasis."""
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def times_torch() -> dict[tuple[str, str], float]:
    """What each contender takes for a step of each model, as a multiple of eager torch, from docs/performance.md."""
    text = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    head, _, *table = rows(text[text.index("<!-- begin steps -->") : text.index("<!-- end steps -->")])
    return {(row[0], row[1]): float(row[head.index("× torch")]) for row in table}


@pytest.mark.parametrize(
    ("page", "contenders", "models"),
    [
        (
            "docs/comparison.md",
            ("torch", "inductor", "xla", "captured", "jax"),
            {name: name for name in ("mlp", "cnn", "resnet18", "gpt", "decode")},
        ),
        (
            "docs/index.md",
            ("torch", "xla", "captured"),
            {
                "training step of a small network": "mlp",
                "training step of a small GPT": "gpt",
                "a token of the GPT, decoded": "decode",
                "training step of resnet18": "resnet18",
            },
        ),
    ],
)
def test_figures_of_other_pages_are_those_that_were_measured(page: str, contenders: tuple[str, ...], models: dict[str, str]) -> None:
    shown = {row[0]: row[1:] for row in rows((ROOT / page).read_text(encoding="utf-8")) if row[0] in models}
    for label, model in models.items():
        measured = [times_torch()[model, contender] for contender in contenders]
        assert [float(figure) for figure in shown[label]] == pytest.approx(measured, abs=0.0051), f"{label}: measured {measured}"


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
        ("docs/faq.md", "faq.md", "(notebooks/first-steps.ipynb)", "(notebooks/first-steps.md)"),
        ("docs/notebooks/first-steps.md", "notebooks/first-steps.md", "(first-steps.ipynb)", "(first-steps.ipynb)"),
    ],
)
def test_links_of_the_site_lead_to_its_pages_or_to_the_repository(source: str, page: str, before: str, after: str) -> None:
    assert site.relinked(f"[x]{before}", source, page) == f"[x]{after}"


def test_a_notebook_in_the_site_shows_what_it_printed_and_drew(tmp_path: Path) -> None:
    printed = {"output_type": "stream", "text": ["one\n", "two\n"]}
    drawn = {"output_type": "display_data", "data": {"image/png": "AAAA\n", "text/plain": "<Figure>"}}
    cells = [{"cell_type": "markdown", "source": ["# Title"]}, {"cell_type": "code", "source": ["print(1)"], "outputs": [printed, drawn]}]
    notebook = tmp_path / "some.ipynb"
    notebook.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert site.notebook_text(notebook) == (
        "# Title\n\n```python\nprint(1)\n```\n\n```text\none\ntwo\n```\n\n"
        "![drawn by the code above](data:image/png;base64,AAAA)\n\n[This notebook as a file](some.ipynb)\n"
    )


def test_code_in_the_site_is_as_it_is_written() -> None:
    text = "```py\nx = [f](../examples)\n```\n"
    assert site.relinked(text, "docs/index.md", "index.md") == text


@pytest.mark.parametrize("program", sorted(ROOT.glob("docs/**/*.py")), ids=lambda program: program.name)
def test_programs_in_the_documentation_run(program: Path) -> None:
    done = forked_python.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 program" in done.stdout


@pytest.mark.parametrize("example", ["custom_operator.py", "jax_function.py"])
def test_examples_check_themselves(example: str) -> None:
    done = forked_python.run([sys.executable, str(ROOT / "examples" / example)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
