"""Parse the file that PT_XLA_DEBUG_FILE names: explanations with Python frames of the user's code."""

from __future__ import annotations

import enum
import os
import re
from collections import Counter
from dataclasses import dataclass


class Explained(enum.Enum):
    """The subject of a block of the analysis; each of its lines starts with this."""

    COMPILATION = "Compilation Analysis"
    COMPILED = "Post Compilation Analysis"
    EXECUTION = "Execution Analysis"
    UNEXPECTED = "Unexpected Execution Analysis"
    """An execution that only a value read asked for."""


OPENING, CLOSING = "=" * 80, "-" * 80
FRAMES = "Python Frames:"
HASH = "Graph Hash: "
_LINE = re.compile(f"({'|'.join(kind.value for kind in Explained)}): (.*)")


@dataclass(frozen=True, slots=True)
class FrameGroup:
    """A call stack that asked for compilations or executions.

    frames: `function (file:line)`, the innermost first. count: how often it asked. graphs: for how many distinct programs.
    """

    explained: Explained
    frames: tuple[str, ...]
    count: int
    graphs: int


def process_frames(fname: str | os.PathLike[str]) -> list[FrameGroup]:
    """The call stacks in a file of PT_XLA_DEBUG_FILE, those that asked most often first.

    Raises OSError for a file that cannot be read, ValueError for one that holds no such explanations.
    """
    counts: Counter[tuple[Explained, tuple[str, ...]]] = Counter()
    hashes: dict[tuple[Explained, tuple[str, ...]], set[str]] = {}
    for explained, lines in _blocks(fname):
        if FRAMES not in lines:
            continue  # a block about sizes
        frames = tuple(line.strip() for line in lines[lines.index(FRAMES) + 1 :])
        counts[explained, frames] += 1
        found = hashes.setdefault((explained, frames), set())
        found.update(line.partition(HASH)[2] for line in lines if HASH in line)
    return [FrameGroup(*key, count, len(hashes[key])) for key, count in counts.most_common()]


def _blocks(fname: str | os.PathLike[str]) -> list[tuple[Explained, list[str]]]:
    """The blocks of an analysis: what is explained, and the lines of the explanation."""
    blocks: list[tuple[Explained, list[str]]] = []
    is_open = False
    with open(fname, encoding="utf-8") as file:
        for line in file:
            parts = _LINE.fullmatch(line.rstrip("\n"))
            if parts is None:
                continue  # the stream may hold what others wrote
            explained, text = Explained(parts[1]), parts[2]
            if text == OPENING:
                blocks.append((explained, []))
                is_open = True
            elif text == CLOSING:
                is_open = False
            elif is_open:
                blocks[-1][1].append(text)
    if not blocks:
        raise ValueError(f"{os.fspath(fname)} holds no explanations: run the program with PT_XLA_DEBUG=1 and PT_XLA_DEBUG_FILE=<this file>")
    return blocks
