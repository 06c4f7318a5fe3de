"""Render a plan as one page of HTML that contains its styles and needs no script."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib import resources

from xla_debug.plan.schema import Plan
from xla_debug.printable_text import printable
from xla_debug.rendering.formatting import size
from xla_debug.rendering.plan_advice import advice
from xla_debug.rendering.plan_sections import Section, pace, sections, subject, verdict

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLES = """
.bar { display: block; height: .6rem; min-width: 1px; background: var(--accent); }
td.share { width: 30%; vertical-align: middle; }
tr.strong td { font-weight: 650; }
svg { width: 100%; height: 9rem; background: var(--panel); border: 1px solid var(--rule); }
polygon { fill: var(--accent); }
"""


def plan_page(plan: Plan) -> str:
    """Render a plan as HTML."""
    styles = resources.files("xla_debug.rendering").joinpath("page.css").read_text(encoding="utf-8")
    sentence, _ = verdict(plan)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n<link rel="icon" href="data:,">',
        f"<title>Plan for {_text(plan.target)}</title>\n<style>\n{styles}{_STYLES}</style>\n</head>\n<body>\n<header>",
        f'<p class="command">{_text(subject(plan))}</p>\n<h1>{_text(sentence)}</h1>',
        f'<p class="lead">{_text(pace(plan))}</p>\n</header>\n<main>',
        *[f'<p class="advice">{_text(text)}</p>' for text in advice(plan)],
        *map(_table, sections(plan)),
        *_schedule(plan),
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _text(text: str) -> str:
    return escape(printable(text))


def _table(part: Section) -> str:
    numbers = [column.startswith(">") for column in part.columns]

    def cells(tag: str, texts: list[str]) -> str:
        classes = [' class="number"' if number else "" for number in numbers]
        return "".join(f"<{tag}{kind}>{_text(text.removeprefix('>'))}</{tag}>" for text, kind in zip(texts, classes, strict=True))

    lines = [f'<section>\n<h2>{_text(part.title)} <span class="soft">{_text(part.note)}</span></h2>\n<table>']
    lines.append(f"<thead><tr>{cells('th', part.columns)}{'<th></th>' if part.bars else ''}</tr></thead>\n<tbody>")
    for position, row in enumerate(part.rows):
        bar = (
            f'<td class="share"><span class="bar" style="width: {100 * min(part.bars[position], 1):.1f}%"></span></td>' if part.bars else ""
        )
        strong = ' class="strong"' if part.strong and position == len(part.rows) - 1 else ""
        lines.append(f"<tr{strong}>{cells('td', row)}{bar}</tr>")
    return "\n".join([*lines, "</tbody>\n</table>\n</section>"])


def _schedule(plan: Plan) -> Iterator[str]:
    """Draw the temporaries of a step along its schedule."""
    points = plan.step.schedule if plan.step is not None else []
    most = max(points, default=0)
    if most:
        corners = " ".join(f"{position},{100 - 100 * value / most:.1f}" for position, value in enumerate(points))
        title = f'<h2>Temporaries along the schedule <span class="soft">up to {size(most)}</span></h2>'
        drawing = f'<polygon points="0,100 {corners} {len(points) - 1},100"></polygon>'
        yield f'<section>\n{title}\n<svg viewBox="0 0 {max(len(points) - 1, 1)} 100" preserveAspectRatio="none">{drawing}</svg>\n</section>'
