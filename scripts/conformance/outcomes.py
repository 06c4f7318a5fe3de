"""What became of a file's tests on the CPU and on xla: kept as they end, and counted."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exclusions import exclusion_of

Answers = dict[str, dict[str, Any]]


class Record:
    """The answers about a file's tests, by device; a line in a file each, from which a later run goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.answers: dict[str, Answers] = {"cpu": {}, "xla": {}}
        self.facts: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                if "facts" in row:
                    self.facts |= row["facts"]
                else:
                    self.answers[row.pop("device")][row.pop("name")] = row

    def note(self, device: str, name: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer."""
        self.answers[device][name] = dict(answer)
        self._append({"device": device, "name": name, **answer})

    def note_facts(self, **facts: Any) -> None:
        """Keep what is known of the whole file."""
        self.facts |= facts
        self._append({"facts": facts})

    def _append(self, row: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@dataclass
class Counts:
    """What became of a file's tests. tests: how many it has; run: how many of them ran, evenly spread.

    asked: those that pass on the CPU and apply to another device. refused: by kind of tensor. failed: by cause. skipped: by reason, not
    asked. not_on_cpu: by outcome there, not asked.
    """

    file: str
    error: str = ""
    tests: int = 0
    run: int = 0
    asked: int = 0
    passed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    not_on_cpu: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def dense(self) -> int:
        """How many of those asked are about tensors that are not refused."""
        return self.asked - sum(self.refused.values())


def counts_of(file: str, record: Record) -> Counts:
    """Count what is known of a file."""
    counts = Counts(file, error=record.facts.get("error", ""), tests=record.facts.get("tests", 0), run=len(record.answers["cpu"]))
    counts.seconds = {device: round(sum(answer["seconds"] for answer in answers.values()), 1) for device, answers in record.answers.items()}
    for name, on_cpu in record.answers["cpu"].items():
        if on_cpu["outcome"] != "passed":
            counts.not_on_cpu[on_cpu["outcome"]] += 1
            continue
        answer = record.answers["xla"].get(name, {"outcome": "not run"})
        if answer["outcome"] == "skipped":
            counts.skipped[_reason(answer["text"])] += 1
            continue
        counts.asked += 1
        exclusion = exclusion_of(name, answer["text"]) if answer["outcome"] == "failed" else None
        if answer["outcome"] == "passed":
            counts.passed += 1
        elif exclusion is not None:
            counts.refused[exclusion.kind] += 1
        else:
            counts.failed[cause_of(answer)] += 1
    return counts


def _reason(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:160]


def cause_of(answer: Mapping[str, Any]) -> str:
    """The error of a test that failed, without what differs between tests of a cause."""
    if answer["outcome"] != "failed":
        return str(answer["outcome"])
    line = next((line.strip() for line in answer["text"].splitlines() if line.strip()), "")
    words = re.sub(r"[-+]?\d[\d.e+-]*", "#", line)
    return f"{answer['type']}: {words[:140]}"
