"""From the outcomes to numbers, goals and the table in docs/ops.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from checks import Outcome
from entries import MAIN, OTHERS
from exclusions import EXCLUSIONS

Row = dict[str, Any]  # {"suite", "name", "seconds", "found": {dtype or way: {"forward" | "gradient": outcome …}}}
ORDER = {outcome.value: place for place, outcome in enumerate(Outcome)}
RIGHT = (Outcome.NATIVE.value, Outcome.FALLBACK.value)
NAMES = {kind: [str(dtype).removeprefix("torch.") for dtype in dtypes] for kind, dtypes in (("main", MAIN), ("others", OTHERS))}


@dataclass(frozen=True, slots=True)
class Share:
    """How many of the entries of a kind are right, and natively so."""

    title: str
    goal: str
    worst: list[str]  # outcome of each entry, its worst

    @property
    def entries(self) -> int:
        return len(self.worst)

    def count(self, *outcomes: str) -> int:
        """Entries with one of these outcomes."""
        return sum(outcome in outcomes for outcome in self.worst)

    def line(self) -> list[str]:
        """Cells: title, entries, native, right, wrong, errors, crashes and time-outs, goal."""
        native, right = self.count(Outcome.NATIVE.value), self.count(*RIGHT)
        lost = self.count(Outcome.CRASH.value, Outcome.TIMEOUT.value)
        wrong, failed = self.count(Outcome.WRONG.value), self.count(Outcome.ERROR.value)
        shares = [f"{number} ({100 * number / max(self.entries, 1):.1f} %)" for number in (native, right)]
        return [self.title, str(self.entries), *shares, str(wrong), str(failed), str(lost), self.goal]


def outcomes(row: Row, kind: str, dtypes: Iterable[str] | None = None) -> list[str]:
    """Outcomes of one pass of an entry over those dtypes of which the CPU could do a sample; a crash belongs to all of them."""
    found: dict[str, Any] = row["found"]
    if "any" in found and found["any"]["forward"]["outcome"] not in RIGHT:
        return [found["any"]["forward"]["outcome"]]
    results = [found[key][kind] for key in (found if dtypes is None else dtypes) if key in found and kind in found[key]]
    return [result["outcome"] for result in results if result["samples"] or result["outcome"] not in RIGHT]


def share(title: str, goal: str, rows: Iterable[Row], pick: Callable[[Row], list[str]]) -> Share:
    """The worst outcome of every entry that has one."""
    return Share(title, goal, [max(found, key=ORDER.__getitem__) for row in rows if (found := pick(row))])


def shares(rows: list[Row]) -> list[Share]:
    """All that there are goals for."""
    by_suite: dict[str, list[Row]] = {}
    for row in rows:
        by_suite.setdefault(row["suite"], []).append(row)
    ops = by_suite.get("ops", [])
    tables = [
        share(
            "operators, forward: float32, int64, bool", "≥ 97 % native, all right", ops, lambda row: outcomes(row, "forward", NAMES["main"])
        ),
        share("operators, gradient: float32", "≥ 99 % right", ops, lambda row: outcomes(row, "gradient", ["float32"])),
        *(
            share(f"operators, forward: {dtype}", "≥ 95 % native", ops, lambda row, dtype=dtype: outcomes(row, "forward", [dtype]))
            for dtype in NAMES["others"]
        ),
        *(
            share(f"operators, gradient: {dtype}", "", ops, lambda row, dtype=dtype: outcomes(row, "gradient", [dtype]))
            for dtype in ("float64", "complex64")
        ),
        share("error inputs", "the CPU's exception type", by_suite.get("errors", []), lambda row: outcomes(row, "forward")),
        share("modules, forward and backward", "≥ 99 % right", by_suite.get("modules", []), lambda row: outcomes(row, "forward")),
        share("optimizers", "100 % right", by_suite.get("optimizers", []), lambda row: outcomes(row, "forward")),
    ]
    return [table for table in tables if table.entries]


HEADINGS = ["what", "entries", "native", "right", "wrong", "errors", "crashes, time-outs", "goal"]


def failures(rows: list[Row]) -> list[tuple[str, str, str, str]]:
    """(entry, dtype and pass, outcome, detail) of all that is not native."""
    found = []
    for row in rows:
        for key, passes in row["found"].items():
            for kind, result in passes.items():
                if result["outcome"] != Outcome.NATIVE.value:
                    detail = result["detail"] or ", ".join(result["fallbacks"])
                    found.append((f"{row['suite']}: {row['name']}", f"{key} {kind}", result["outcome"], detail))
    return found


def markdown(rows: list[Row], header: str) -> str:
    """The page: summary, what is known not to be right, then a line for each operator."""
    lines = [header, "", "## Summary", "", f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(table.line())} |" for table in shares(rows)]
    lines += ["", "## Known, and why", "", "These count as not right all the same.", "", "| what | entry | reason |", "|---|---|---|"]
    lines += [f"| {suite.value} | `{name}` | {reason} |" for suite, listed in EXCLUSIONS.items() for name, reason in listed.items()]
    lines += ["", "## Operators", "", "| operator | native | fallback | not right | gradient | notes |", "|---|---|---|---|---|---|"]
    for row in sorted((row for row in rows if row["suite"] == "ops"), key=lambda row: str(row["name"]).lower()):
        lines.append(f"| {' | '.join(_cells(row))} |")
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    found: dict[str, Any] = row["found"]
    by_outcome: dict[str, list[str]] = {"native": [], "fallback": [], "wrong": []}
    notes: list[str] = []
    grads: set[str] = set()
    for dtype, passes in found.items():
        outcome = passes["forward"]["outcome"]
        place = "native" if outcome == Outcome.NATIVE.value else "fallback" if outcome in RIGHT else "wrong"
        by_outcome[place].append(dtype)
        if outcome not in RIGHT:
            notes.append(f"{dtype}: {passes['forward']['detail']}")
        if "gradient" in passes:
            grads.add("right" if passes["gradient"]["outcome"] in RIGHT else f"{dtype}: {passes['gradient']['outcome']}")
    text = "; ".join(notes)[:160].replace("|", "\\|").replace("\n", " ")
    return [f"`{row['name']}`", *(" ".join(by_outcome[place]) for place in by_outcome), ", ".join(sorted(grads)), text]
