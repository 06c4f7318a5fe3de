"""The timeline of the page, in a headless Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from xla_debug.rendering.html_page import html_page
from xla_debug.run_report.schema import Replica, RunReport, Span

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

START = 1_750_000_000.0
LINE = "/work/app/train.py:30"
SPANS = [
    Span("host", "tracing", "recording operations", START, 50.0, "/work/app/model.py:4", estimated=True),
    Span("host", "look-up", "sync of a step", START + 0.05, 40.0, LINE),
    Span("host", "compile", "compile step, 12 operations", START + 0.055, 30.0, LINE),
    Span("copies", "transfer", "864 bytes to the device", START + 0.02, 5.0, "/work/app/data.py:7"),
    Span("xla:0", "device", "step, 12 operations", START + 0.09, 10.0, LINE, launched_s=START + 0.086),
    Span("xla:0", "device", "<b>last</b>", START + 0.1001, 0.0004, None, launched_s=START + 0.087),
]


@pytest.fixture
def page(show: Callable[..., Page], full: Callable[..., Replica], run_report: Callable[..., RunReport]) -> Page:
    return show(run_report(full(0, spans=SPANS)))


@pytest.fixture
def chart(page: Page) -> Locator:
    """The timeline of SPANS."""
    found = page.locator("#spans")
    found.scroll_into_view_if_needed()
    return found


def point(page: Page, chart: Locator, across: float, row: int) -> None:
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * across, box["y"] + 44 * row + 34)


def test_pointing_says_what_it_was_and_whose_line(page: Page, chart: Locator) -> None:
    said = page.locator("#span")
    assert chart.locator(".track").all_inner_texts() == ["host", "copies", "xla:0"]
    assert chart.locator("rect").count() == len(SPANS) and chart.locator("line").count() == 2
    for across, row, text in (  # of lines the part that the page's others share is left out
        (0.2, 0, "recording operations: 50.0 ms, 0 ms after the start (host, tracing, estimated from samples) model.py:4"),
        (0.7, 0, "compile step, 12 operations: 30.0 ms, 55.0 ms after the start (host, compile) train.py:30"),
        (0.88, 0, "sync of a step: 40.0 ms, 50.0 ms after the start (host, look-up) train.py:30"),
        (0.22, 1, "864 bytes to the device: 5.00 ms, 20.0 ms after the start (copies, transfer) data.py:7"),
        (0.95, 2, "step, 12 operations: 10.0 ms, 90.0 ms after the start (xla:0, device) train.py:30"),
    ):
        point(page, chart, across, row)
        assert said.inner_text() == text


def test_wheel_drag_and_buttons_move_the_view(page: Page, chart: Locator) -> None:
    scale = page.locator(".timeline .scale")
    whole = scale.inner_text()
    assert whole.split() == ["0", "ms", "after", "the", "start", "100", "ms"]
    point(page, chart, 0.5, 0)
    page.mouse.wheel(0, -100)
    assert scale.inner_text() == whole, "not focused: the page scrolls"
    chart.scroll_into_view_if_needed()
    chart.focus()
    point(page, chart, 0.5, 0)
    page.mouse.wheel(0, -100)
    page.wait_for_function("before => document.querySelector('.timeline .scale').innerText !== before", arg=whole)
    closer = scale.inner_text()
    assert closer.startswith("10.0 ms") and closer.endswith("90.1 ms"), "where it points stays"
    page.mouse.down()
    point(page, chart, 0.6, 0)
    page.mouse.up()
    assert scale.inner_text().startswith(("1.99 ms", "2.00 ms", "2.01 ms"))
    page.get_by_role("button", name="Show all").click()
    assert scale.inner_text() == whole
    page.get_by_role("button", name="Zoom in").click()
    assert scale.inner_text() != whole
    page.get_by_role("button", name="Zoom out").click()
    assert scale.inner_text() == whole


def test_keys_choose_and_zoom(page: Page, chart: Locator) -> None:
    said, scale = page.locator("#span"), page.locator(".timeline .scale")
    whole = scale.inner_text()
    chart.focus()
    assert said.inner_text().startswith("<b>last</b>: 0.000 ms") and said.inner_text().endswith("no line known")
    page.keyboard.press("ArrowLeft")
    assert said.inner_text().startswith("step, 12 operations: 10.0 ms")
    page.keyboard.press("ArrowUp")
    assert said.inner_text().startswith("864 bytes")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert said.inner_text().startswith("sync of a step")
    for _ in range(5):
        page.keyboard.press("+")
    width = chart.locator("rect.chosen").bounding_box()
    box = chart.bounding_box()
    assert scale.inner_text() != whole and width is not None and box is not None and width["width"] > box["width"] * 0.9
    page.keyboard.press("0")
    assert scale.inner_text() == whole


def test_without_spans_there_is_no_timeline(
    page: Page, full: Callable[..., Replica], run_report: Callable[..., RunReport], tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text(html_page(run_report(full(0))), encoding="utf-8")
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator("#spans").count() == 0 and page.locator("#timeline").is_hidden()
