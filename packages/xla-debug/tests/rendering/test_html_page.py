"""The page of a run report: what is in the file, and, in a headless Chromium, what it shows."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from xla_debug.rendering.html_page import html_page
from xla_debug.run_report import files
from xla_debug.run_report.merging import merge
from xla_debug.run_report.schema import Bottleneck, Excerpt, Problem, ProgramDifference, Replica, RunReport

if TYPE_CHECKING:
    from playwright.sync_api import Page

Make = Callable[..., Replica]
MakeReport = Callable[..., RunReport]
Open = Callable[..., "Page"]
HOSTILE = "</script><img src=x onerror=document.title='taken'>{{ <!--report--> & \u2028 ]]>"
PHONE, DESKTOP = 390, 1280


class Elements(HTMLParser):
    """The tags of a page with their attributes, and the text of the element that holds the run report."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = ("id", "report") in attrs

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


def parsed(text: str) -> Elements:
    elements = Elements()
    elements.feed(text)
    elements.close()
    return elements


def hostile(replica: Replica) -> Replica:
    """A replica whose texts try to be more than text."""
    compiles = [
        dataclasses.replace(
            row,
            name=HOSTILE,
            line=f"{HOSTILE}:3",
            graph=HOSTILE,
            difference=ProgramDifference(row.difference.change, HOSTILE, f"{HOSTILE}:3", HOSTILE),
        )
        for row in replica.compiles
    ]
    return dataclasses.replace(
        replica,
        host=HOSTILE,
        compiles=compiles,
        fallbacks=[dataclasses.replace(row, operator=HOSTILE, line=f"{HOSTILE}:3") for row in replica.fallbacks],
        findings=[dataclasses.replace(row, text=HOSTILE, line=f"{HOSTILE}:3", advice=HOSTILE) for row in replica.findings],
    )


@pytest.fixture
def job(full: Make, run_report: MakeReport) -> RunReport:
    """Three replicas, one of which has a slow loader and a fallback of its own."""
    slow = {"tracing": 6.0, "compile": 4.5, "waiting": 0.0, "fallback": 0.8, "loader": 4.0}
    lone = full(1, per_step=slow, verdict=Bottleneck.LOADER)
    lone = dataclasses.replace(lone, fallbacks=[dataclasses.replace(lone.fallbacks[0], operator="aten::sort")])
    return merge([run_report(full(0)), run_report(lone), run_report(full(2))])


def test_the_page_needs_nothing_else(job: RunReport) -> None:
    text = html_page(job)
    assert not re.search(r"https?:|//[\w.]+\.\w|@import|url\(", text)
    references = [
        (tag, name) for tag, attributes in parsed(text).tags for name in ("src", "href", "action", "srcset") if attributes.get(name)
    ]
    assert references == [("link", "href")] and 'href="data:,"' in text, "an empty icon, so that none is asked for"


def test_the_run_report_in_it_is_the_run_report(job: RunReport, full: Make, run_report: MakeReport, tmp_path: Path) -> None:
    for one in (job, run_report(hostile(full())), run_report()):
        elements = parsed(html_page(one))
        (tmp_path / "a.json").write_text(elements.data)
        assert files.read(tmp_path / "a.json") == one
        assert json.loads(elements.data) == json.loads(files.to_json(one))


def test_texts_make_no_elements(full: Make, run_report: MakeReport) -> None:
    plain, tried = (parsed(html_page(run_report(one))).tags for one in (full(), hostile(full())))
    assert [tag for tag, _ in tried] == [tag for tag, _ in plain] and "img" not in dict(tried)


def test_every_section_has_the_heading_that_names_it() -> None:
    from importlib import resources

    markup, script = (
        resources.files("xla_debug.rendering").joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.js")
    )
    sections = [attributes for tag, attributes in parsed(markup).tags if tag == "section"]
    assert len(sections) == 11 and all(attributes["aria-labelledby"] == f"{attributes['id']}-title" for attributes in sections)
    assert all(f'"{attributes["id"]}"' in script for attributes in sections)


def words(text: str | None) -> str:
    return " ".join((text or "").split())


def headings(shown: Page) -> list[str]:
    """The visible headings of sections, without counts."""
    return [one.evaluate("node => node.firstChild.textContent") for one in shown.locator("h2").all() if one.is_visible()]


def test_what_it_shows(show: Open, full: Make, run_report: MakeReport) -> None:
    shown = show(run_report(full()))
    assert words(shown.locator("h1").inner_text()).lower() == "tracing-bound" and "39 % of the step goes into tracing" in shown.inner_text(
        "header"
    )
    assert "tracing-bound · train.py --epochs 3" == shown.title()
    facts = words(shown.locator("#facts").inner_text())
    assert all(part in facts for part in ("Step 15.3 ms", "Steps 100", "Device at work 20 %", "State finished", "Peak memory 64.0 MiB"))
    finding = words(shown.locator(".findings li").inner_text())
    assert finding.lower().startswith("reads in the loop train.py:41") and "cost 400 ms" in finding and "read it every 100 steps" in finding
    for name, part in {
        "Time per step by phase": "fallback 0.80 5 %",
        "Compiles": "input 3 is f32[31,784], was f32[32,784] data.py:7",
        "Syncs": "train.py:41 read value read before sync 100 100 388 ms",
        "Operators on the CPU": "aten::median model.py:12 100 400.0 KiB 80.0 ms",
        "Transfers": "to device train.py:25 200 19.1 MiB 30.0 ms",
        "Devices": "CPU:0 50.0 MiB 64.0 MiB unknown",
        "Largest live buffers": "train.py:44 list 'losses' (40 items) f32[1000,1000] CPU:0 10 38.1 MiB",
        "Hot lines": "model.py:20 tracing 300 ms 20 %",
        "Environment": "torch 2.13.0",
    }.items():
        table = shown.get_by_role("table", name=name, exact=True)
        assert part in words(table.inner_text()), name
        assert table.get_by_role("columnheader").count() >= 2, "a screen reader can name each column"
    assert shown.locator("#replicas").is_hidden() and shown.locator("#choice").is_hidden()
    assert "at most 64.0 MiB" in (shown.get_by_role("img").get_attribute("aria-label") or "")
    assert "leave out the last batch (drop_last=True), or pad it (step 40)" in words(
        shown.get_by_role("list", name="What to do").inner_text()
    )
    behind = words(shown.locator("#compiles p").inner_text())
    assert behind == "In the background: 3 compiles, 1.50 s; until then 12 executions operation by operation."
    shown.get_by_text("Text of the program").click()
    assert shown.get_by_text("%1 = aten.add(%0, %0) : f32[31,784]").is_visible()


def test_steps_are_described_by_pointer_and_keyboard(show: Open, full: Make, run_report: MakeReport) -> None:
    shown = show(run_report(full()))
    chart, said = shown.locator("#steps svg"), shown.locator("#step")
    assert chart.locator("rect:not(.cursor):not(.cut)").count() == 99 * 2 + 2, "a part for each phase of each step"
    assert chart.locator(".cut").count() == 1, "the step that compiles is cut off"
    assert "Step 99, 990 ms after the start: 10.0 ms (tracing 6.00 ms, waiting 4.00 ms); device at work 3.00 ms" == said.inner_text()
    box = chart.bounding_box()
    assert box is not None
    shown.mouse.move(box["x"] + box["width"] * 0.405, box["y"] + box["height"] / 2)
    assert said.inner_text().startswith("Step 40, 400 ms after the start: 456 ms (compile 450 ms, tracing 6.00 ms)")
    assert said.inner_text().endswith("; 1 compile")
    slider = shown.get_by_role("slider", name="Step")
    slider.focus()
    slider.press("ArrowLeft")
    assert said.inner_text().startswith("Step 39,") and slider.get_attribute("aria-valuetext") == said.inner_text()


def test_a_tap_describes_the_step(show: Open, full: Make, run_report: MakeReport) -> None:
    shown = show(run_report(full()), PHONE, touch=True)
    chart = shown.locator("#steps svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    shown.touchscreen.tap(box["x"] + box["width"] * 0.105, box["y"] + box["height"] - 5)
    assert shown.locator("#step").inner_text().startswith("Step 10, 100 ms after the start: 10.0 ms")


def test_many_steps_are_drawn_as_averages(show: Open, replica: Make, run_report: MakeReport) -> None:
    one = replica(steps=1000)
    shown = show(run_report(dataclasses.replace(one, timeline=one.timeline * 10)))
    assert shown.locator("#slide").get_attribute("max") == "199"
    assert shown.locator("#step").inner_text().startswith("5 steps from step 995")


def test_the_search_filters_all_tables(show: Open, full: Make, run_report: MakeReport) -> None:
    shown = show(run_report(full()))
    before = headings(shown)
    box = shown.get_by_role("searchbox", name="Filter all tables")
    box.fill("train.py:41")
    assert headings(shown) == ["Findings", "Syncs", "Transfers"] and shown.locator("#matches").inner_text() == "3 rows found"
    rows = shown.locator("#syncs tbody tr")
    assert [rows.nth(place).is_visible() for place in range(2)] == [True, False]
    box.fill("MEDIAN  model.py")
    assert headings(shown) == ["Operators on the CPU"], "all words, in either case"
    box.fill("nowhere")
    assert headings(shown) == [] and shown.locator("#matches").inner_text() == "0 rows found"
    box.press("Enter")
    box.fill("")
    assert headings(shown) == before and shown.locator("#matches").inner_text() == ""


def test_replicas_side_by_side_and_one_by_one(show: Open, job: RunReport) -> None:
    shown = show(job)
    assert shown.locator("h1").inner_text().lower() == "tracing-bound (2 replicas), loader-bound (replica 1)"
    table = shown.get_by_role("table", name="Replicas")
    rows = [words(row) for row in table.locator("tbody tr").all_inner_texts()]
    assert [row.split(" ", 2)[0] for row in rows] == ["0", "1", "2"] and rows[1].endswith("15.3 6.00 4.50 0 0.80 4.00 20 %")
    assert table.locator("td.high").all_inner_texts() == ["4.00"], "what takes longer than with the others"
    assert "straggler" in shown.inner_text("#findings").lower() and "replica 1" in shown.inner_text("#findings")
    assert "aten::sort" in shown.inner_text("#fallbacks"), "the slowest replica comes first"
    shown.get_by_role("searchbox").fill("aten")
    shown.get_by_label("Details of").select_option("0")
    assert "aten::median" in shown.inner_text("#fallbacks") and shown.locator("#syncs").is_hidden(), "still filtered"


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_it_fits(width: int, show: Open, job: RunReport, full: Make, run_report: MakeReport) -> None:
    long = dataclasses.replace(full(), hardware="H" * 300, host="h" * 300, hot_lines=[])
    for one in (job, run_report(hostile(long), command=["x" * 300]), run_report()):
        shown = show(one, width)
        if one.replicas:
            for summary in shown.locator("summary").all():
                summary.click()
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        boxes = [box for part in shown.locator("h1, h2, table, svg, input").all() if (box := part.bounding_box())]
        assert boxes and all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)


def test_hostile_texts_are_texts(show: Open, full: Make, run_report: MakeReport) -> None:
    shown = show(run_report(hostile(full()), command=[HOSTILE]))
    assert shown.locator("img").count() == 0 and words(shown.title()) == f"tracing-bound · {words(HOSTILE)}"
    for place in ("#command", "#findings li p", "#compiles .soft.small", "#fallbacks .code", "#compiles pre"):
        assert words(HOSTILE) in words(shown.locator(place).first.text_content()), place


def test_dark_and_light(show: Open, full: Make, run_report: MakeReport) -> None:
    shown = show(run_report(full()))
    colors = []
    for scheme in ("light", "dark"):
        shown.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        colors.append(shown.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"))
    brightness = [[sum(map(int, re.findall(r"\d+", color)[:3])) for color in pair] for pair in colors]
    assert brightness[0][0] > 600 > 200 > brightness[0][1] and brightness[1][0] < 200 < 600 < brightness[1][1]


def test_two_programs_side_by_side(show: Open, full: Make, run_report: MakeReport) -> None:
    one = full()
    old = "\n".join(["%0 = input : f32[4]", *(f"%{n} = aten.sin(%{n - 1}) : f32[4]" for n in range(1, 20)), "%20 = aten.neg(%19) : f32[4]"])
    new = "\n".join(["%0 = input : f32[4]", "%1 = aten.relu(%0) : f32[4]", *(f"%{n} = aten.sin(%{n - 1}) : f32[4]" for n in range(2, 21))])
    difference = dataclasses.replace(one.compiles[1].difference, nearest=one.compiles[0].graph_hash)
    compiles = [dataclasses.replace(one.compiles[0], graph=old), dataclasses.replace(one.compiles[1], graph=new, difference=difference)]
    shown = show(run_report(dataclasses.replace(one, compiles=compiles)), 1400)
    region = shown.get_by_role("region", name="Both programs")
    assert region.count() == 0, "closed"
    shown.get_by_text("Beside the program of step 0").click()
    assert words(region.inner_text()).startswith("Step 0 Step 40 %0 = input : f32[4]")
    changed = [
        (words(each.inner_text()), each.get_attribute("class")) for each in region.locator(".gone:not(:empty), .come:not(:empty)").all()
    ]
    assert changed == [("%1 = aten.relu(%0) : f32[4]", "come"), ("%20 = aten.neg(%19) : f32[4]", "gone")], (
        "numbers that shift are no change"
    )
    assert region.locator(".alike").all_inner_texts() == ["15 lines alike"]
    left, right = (region.locator("code").nth(place).bounding_box() for place in (0, 1))
    assert left is not None and right is not None and left["y"] == right["y"] and left["x"] < right["x"]


def test_findings_of_a_kind_have_one_advice_and_their_source(show: Open, full: Make, run_report: MakeReport) -> None:
    first = dataclasses.replace(full().findings[0], source=Excerpt(40, ["for batch in data:", "    print(loss.item())", "    step += 1"]))
    second = dataclasses.replace(first, line="/work/app/train.py:52", source=None)
    other = dataclasses.replace(first, problem=Problem.LOADER, advice="load in the background", source=None)
    shown = show(run_report(full(), findings=[first, other, second]))
    groups = shown.locator(".findings > li")
    assert groups.count() == 2 and words(groups.nth(0).inner_text()).count("read it every 100 steps") == 1
    assert all(place in groups.nth(0).inner_text() for place in ("train.py:41", "train.py:52"))
    source = groups.nth(0).get_by_role("region", name="Source of /work/app/train.py:41")
    assert words(source.inner_text()) == "40for batch in data: 41 print(loss.item()) 42 step += 1"
    assert words(source.locator("mark").inner_text()) == "41 print(loss.item())"


def test_steps_that_compile_do_not_flatten_the_others(show: Open, full: Make, run_report: MakeReport) -> None:
    one = full()
    often = [
        dataclasses.replace(step, ms={"tracing": 6.0, "compile": 300.0}, compiles=1) if number % 3 == 0 else step
        for number, step in enumerate(one.timeline)
    ]
    shown = show(run_report(dataclasses.replace(one, timeline=often)))
    switch = shown.get_by_role("checkbox", name="compiling in the bars")
    assert not switch.is_checked() and words(shown.locator(".chart .scale").first.inner_text()) == "10.0 ms"
    switch.check()
    assert words(shown.locator(".chart .scale").first.inner_text()) == "456 ms"
    row = shown.get_by_role("table", name="Time per step by phase").locator("tbody tr").first
    assert words(row.inner_text()) == "tracing 6.00 39 % 6.00", "the mean and the chosen step side by side"
    assert shown.locator("#step").inner_text().startswith("Step 99,") and "compile 300 ms" in shown.locator("#step").inner_text()


@pytest.mark.parametrize("width", [1400, 900, 420])
def test_no_word_is_broken(width: int, show: Open, full: Make, run_report: MakeReport) -> None:
    shown = show(run_report(full()), width)
    broken = shown.evaluate(
        """() => {
          const found = [], walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
          while (walker.nextNode()) {
            const node = walker.currentNode;
            if (!node.parentElement.checkVisibility() || node.parentElement.closest("pre")) continue;
            for (const word of node.data.matchAll(/[^\\s/-]+/g)) {
              const range = document.createRange();
              range.setStart(node, word.index);
              range.setEnd(node, word.index + word[0].length);
              if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) found.push(word[0]);
            }
          }
          return found;
        }"""
    )
    assert broken == []


def test_a_run_without_replicas(show: Open, run_report: MakeReport) -> None:
    shown = show(run_report(exit_code=1))
    assert shown.locator("h1").inner_text().lower() == "nothing measured" and "exit code 1" in shown.inner_text("#facts")
    assert headings(shown) == ["Findings", "Environment"] and "No problem found." in shown.inner_text("#findings")
