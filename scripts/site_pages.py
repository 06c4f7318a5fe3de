"""What MkDocs builds besides the Markdown of docs/: notebooks, pages of the repository that stand elsewhere, and links between all of them.

A hook of mkdocs.yml. Files link to each other by their places in the repository. In the site a link leads to the page, or, where the site
has none of that file, to the file in the repository. Notebooks become Markdown, as they were saved: so their links are checked too,
and no page loads anything from other hosts.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the checks run where MkDocs is not installed
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FILES = "https://torch-xla.example/blob/main/"
ELSEWHERE = ("CONTRIBUTING.md", "packages/*/README.md", "packages/*/FORMAT.md", "packages/*/CHANGELOG.md")

_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_FENCED = re.compile(r"(^ *```.*?^ *```)", re.M | re.S)


def pages_elsewhere() -> dict[str, Path]:
    """The pages outside docs/, by their path in the site, which is that in the repository."""
    return {file.relative_to(ROOT).as_posix(): file for pattern in ELSEWHERE for file in sorted(ROOT.glob(pattern))}


def notebooks() -> dict[str, Path]:
    """The notebooks of docs/, by the path of their page in the site."""
    docs = ROOT / "docs"
    return {file.relative_to(docs).with_suffix(".md").as_posix(): file for file in sorted(docs.rglob("*.ipynb"))}


def notebook_text(file: Path) -> str:
    """A saved notebook as Markdown: its text, its code, and what the code printed and drew."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![drawn by the code above](data:image/png;base64,{''.join(data['image/png']).strip()})")
            else:
                text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + f"\n\n[This notebook as a file]({file.name})\n"


def place(address: str, source: str) -> str | None:
    """The path in the repository that a link means; None for an address elsewhere. source: the path of the file that has the link."""
    if address.startswith(FILES):
        return address.removeprefix(FILES)
    if ":" in address or address.startswith("/"):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), address))


def relinked(text: str, source: str, page: str) -> str:
    """A page's Markdown with its links as the site needs them. source: its path in the repository; page: its path in the site."""
    others = pages_elsewhere()

    def link(match: re.Match[str]) -> str:
        target = place(match[1], source)
        if target is None or not (ROOT / target).exists():
            return match[0]
        inside = target.removeprefix("docs/")
        if inside.endswith(".ipynb") and posixpath.splitext(inside)[0] != posixpath.splitext(page)[0]:  # its own page offers the file
            inside = posixpath.splitext(inside)[0] + ".md"
        if target not in others and (not target.startswith("docs/") or (ROOT / target).is_dir()):
            return f"]({FILES}{target}{match[2] or ''})"
        return f"]({posixpath.relpath(inside, posixpath.dirname(page) or '.')}{match[2] or ''})"

    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, with the notebooks as pages, and the pages outside docs/."""
    from mkdocs.structure.files import File

    for name, file in pages_elsewhere().items():
        files.append(File.generated(config, name, abs_src_path=str(file)))
    for name, file in notebooks().items():
        files.append(File.generated(config, name, content=notebook_text(file)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text of a page, before it is turned into HTML."""
    name = page.file.src_uri
    return relinked(markdown, name if name in pages_elsewhere() else f"docs/{name}", name)
