"""A headless Chromium, and pages of run reports in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from xla_debug.rendering.html_page import html_page
from xla_debug.run_report.schema import RunReport

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium: no chromium, chromium-browser or google-chrome on the PATH")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-background-networking"])
        yield started
        started.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the page of a run report; at the end nothing may have been logged, raised or fetched."""
    wrong: list[str] = []
    shown = []

    def opened(run_report: RunReport, width: int = 1280, touch: bool = False) -> Page:
        (tmp_path / "page.html").write_text(html_page(run_report), encoding="utf-8")
        one = browser.new_page(viewport={"width": width, "height": 844}, has_touch=touch)
        shown.append(one)
        one.on("console", lambda message: wrong.append(message.text))
        one.on("pageerror", lambda error: wrong.append(str(error)))
        one.on("request", lambda request: wrong.append(request.url) if not request.url.startswith(("file:", "data:")) else None)
        one.goto((tmp_path / "page.html").as_uri())
        return one

    yield opened
    for one in shown:
        one.close()
    assert wrong == []
