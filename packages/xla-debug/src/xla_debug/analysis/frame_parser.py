"""Parse the file that PT_XLA_DEBUG_FILE names: explanations with Python frames of the user's code."""

from __future__ import annotations

import enum
import io
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from xla_debug.regular_files import open_regular


class Explained(enum.Enum):
    """The subject of a block of the analysis; each of its lines starts with this."""

    COMPILATION = "Compilation Analysis"
    COMPILED = "Post Compilation Analysis"
    EXECUTION = "Execution Analysis"
    UNEXPECTED = "Unexpected Execution Analysis"
    """An execution caused by reading a value."""


OPENING, CLOSING = "=" * 80, "-" * 80
FRAMES = "Python Frames:"
HASH = "Graph Hash: "
_LINE = re.compile(f"({'|'.join(kind.value for kind in Explained)}): (.*)")
_FRAME = re.compile(r"(\S.*) \((.+):(\d+)\)")


@dataclass(frozen=True, slots=True)
class FrameGroup:
    """A call stack that caused compilations or executions.

    frames: `function (file:line)`, the innermost first. count: how many it caused. graphs: of how many distinct programs.
    """

    explained: Explained
    frames: tuple[str, ...]
    count: int
    graphs: int


def process_frames(fname: str | os.PathLike[str]) -> list[FrameGroup]:
    """Read the call stacks in a file of PT_XLA_DEBUG_FILE, the most frequent first.

    Raises OSError for a file that cannot be read, ValueError for one that holds no such explanations.
    """
    with io.TextIOWrapper(open_regular(fname), encoding="utf-8") as file:
        groups = parse_frames(file)
    if not groups:
        raise ValueError(f"{os.fspath(fname)} holds no explanations: run the program with PT_XLA_DEBUG=1 and PT_XLA_DEBUG_FILE=<this file>")
    return groups


def parse_frames(lines: Iterable[str]) -> list[FrameGroup]:
    """Read the call stacks in lines of such a file, the most frequent first; other lines are ignored."""
    counts: Counter[tuple[Explained, tuple[str, ...]]] = Counter()
    hashes: dict[tuple[Explained, tuple[str, ...]], set[str]] = {}
    for explained, block in _blocks(lines):
        if FRAMES not in block:
            continue  # this block states sizes
        frames = tuple(line.strip() for line in block[block.index(FRAMES) + 1 :])
        counts[explained, frames] += 1
        group_hashes = hashes.setdefault((explained, frames), set())
        group_hashes.update(line.partition(HASH)[2] for line in block if HASH in line)
    return [FrameGroup(*key, count, len(hashes[key])) for key, count in counts.most_common()]


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of the user's code."""

    function: str
    file: str
    line: int


def parse_frame_content(line: str) -> Frame | None:
    """Parse a frame from a line such as `  train (/home/me/train.py:17)`, also behind a block's prefix; None for any other line."""
    block = _LINE.fullmatch(line.rstrip("\n"))
    frame = _FRAME.fullmatch((block[2] if block else line).strip())
    return None if frame is None else Frame(frame[1], frame[2], int(frame[3]))


def create_report(frames: Iterable[FrameGroup]) -> str:
    """Write for each call stack what it caused, how often, and for how many programs."""
    return "".join(
        f"{group.explained.value}: {group.count} times, {group.graphs} programs\n{_indented(group.frames)}\n" for group in frames
    )


def _indented(frames: Iterable[str]) -> str:
    return "".join(f"  {frame}\n" for frame in frames)


def _blocks(lines: Iterable[str]) -> list[tuple[Explained, list[str]]]:
    """Split lines into the blocks of an analysis: the subject of each, and its lines."""
    blocks: list[tuple[Explained, list[str]]] = []
    is_open = False
    for line in lines:
        parts = _LINE.fullmatch(line.rstrip("\n"))
        if parts is None:
            continue  # the stream may contain other output
        explained, text = Explained(parts[1]), parts[2]
        if text == OPENING:
            blocks.append((explained, []))
            is_open = True
        elif text == CLOSING:
            is_open = False
        elif is_open:
            blocks[-1][1].append(text)
    return blocks
