"""Render a plan in the terminal, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from rich.console import Group, RenderableType
from rich.text import Text

from xla_debug.plan.schema import Plan
from xla_debug.rendering.formatting import size
from xla_debug.rendering.plan_advice import advice
from xla_debug.rendering.plan_sections import Section, pace, sections, subject, verdict
from xla_debug.rendering.tables import Bar, Cell, indented, plain, section

_LEVELS = " ▁▂▃▄▅▆▇█"
_WIDTH = 72


def plan_view(plan: Plan) -> Group:
    """Render all of a plan."""
    sentence, good = verdict(plan)
    parts: list[RenderableType] = [plain(sentence, "bold green" if good else "bold red")]
    parts += [plain(text, style) for text, style in ((pace(plan), "bold"), (subject(plan), "dim")) if text]
    parts += [indented(plain(f"→ {text}", "green")) for text in advice(plan)]
    for part in sections(plan):
        parts += _table(part)
    return Group(*parts, *_schedule(plan))


def _table(part: Section) -> list[RenderableType]:
    bars = [Bar(share, "cyan") for share in part.bars]
    rows: list[list[Cell]] = [[*row, *([] if bar is None else [bar])] for row, bar in zip_longest(part.rows, bars)]
    if part.strong:
        rows[-1] = [plain(cell, "bold") if isinstance(cell, str) else cell for cell in rows[-1]]
    return section(part.title, part.note, [*part.columns, *([""] if bars else [])], rows)


def _schedule(plan: Plan) -> Iterator[RenderableType]:
    """Draw the temporaries of a step along its schedule."""
    points = plan.step.schedule if plan.step is not None else []
    most = max(points, default=0)
    if most:
        chunk = -(-len(points) // _WIDTH)
        heights = [max(points[begin : begin + chunk]) for begin in range(0, len(points), chunk)]
        yield Text.assemble("\n", ("Temporaries along the schedule", "bold"), (f"  up to {size(most)}", "dim"))
        yield Text("".join(_LEVELS[round((len(_LEVELS) - 1) * height / most)] for height in heights), "cyan")
