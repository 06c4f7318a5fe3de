"""Parse the text of a program (`abi.texts.graph_text`): its operations, their operands, and the user's lines that recorded them."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


class GraphTextError(ValueError):
    """The text is no program, or only part of one."""


class NodeKind(enum.Enum):
    """The kinds of nodes of a program."""

    INPUT = "input"
    NUMBER = "number"
    """A Python number that is passed to each execution."""
    CONSTANT = "constant"
    """A Python number that is compiled into the program."""
    OPERATION = "operation"
    RESULT = "result"
    """One of several results of the operation above it."""


@dataclass(frozen=True, slots=True)
class Node:
    """One line of a program.

    name: the overload, such as `aten.add.Tensor`; of anything but an operation, its kind. text: as printed, with arguments.
    shape: such as `f32[8,4]`, or `2 results`. operands: slots. line: the user's `file:line`, if known.
    """

    slot: int
    kind: NodeKind
    name: str
    text: str
    shape: str
    operands: tuple[int, ...] = ()
    line: str | None = None


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """A program. nodes: by slot; results: the slots that it returns."""

    nodes: tuple[Node, ...]
    results: tuple[int, ...]


_LEAF = re.compile(r"(?P<kind>input|number|constant|result) : (?P<shape>.+)")
# The call ends at the last ")" that a shape follows; quoted arguments may contain anything.
_OPERATION = re.compile(r"(?P<text>.+\)) : (?P<shape>\w+\[[\d,]*\](?: on each device)?|\d+ results|None)(?:  # (?P<line>.+))?")
_RETURN = re.compile(r"return(?: %\d+(?:, %\d+)*)?")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_SLOT = re.compile(r"%([0-9]+)")
_DIGITS = 9


def parse(text: str) -> SavedGraph:
    """Parse the text of a program. Raises GraphTextError, naming the line, for any other text."""
    rows = text.rstrip().split("\n")
    if rows == [""]:
        raise GraphTextError("an empty text is no graph: save one with torch_xla.debug.graph_saver.save_tensors_graph")
    nodes: list[Node] = []
    for index, row in enumerate(rows[:-1]):
        nodes.append(_node(index, row, nodes))
    ending = _RETURN.fullmatch(rows[-1])
    results = _slots(rows[-1])
    if ending is None or (nodes and not results):
        raise GraphTextError(f"a graph ends with 'return', this text with {_shown(rows[-1])}: it is cut off, or no graph")
    if any(slot >= len(nodes) for slot in results):
        raise GraphTextError(f"line {len(rows)} returns %{max(results)}, but the graph has only {len(nodes)} entries")
    return SavedGraph(tuple(nodes), results)


def _node(index: int, row: str, earlier: list[Node]) -> Node:
    start, _, rest = row.partition(" = ")
    leaf = _LEAF.fullmatch(rest)
    match = leaf or _OPERATION.fullmatch(rest)
    if start != f"%{index}" or match is None:
        raise GraphTextError(f"line {index + 1} of a graph starts with '%{index} = ' and an operation or input, got {_shown(row)}")
    if leaf is not None:
        kind = NodeKind(leaf["kind"])
        operation = (_operation_above(index, earlier),) if kind is NodeKind.RESULT else ()
        return Node(index, kind, leaf["kind"], leaf["kind"], leaf["shape"], operation)
    name = _name(match["text"])
    operands = _slots(_QUOTED.sub("", match["text"][len(name) :]))
    if any(slot >= index for slot in operands):
        raise GraphTextError(f"line {index + 1} takes %{max(operands)}, which is not above it: {_shown(row)}")
    return Node(index, NodeKind.OPERATION, name, match["text"], match["shape"], operands, match["line"])


def _name(call: str) -> str:
    """Cut the name off before the arguments; names of views contain brackets, as in `xla.read.expand[(3,)]`."""
    depth = 0
    for index, character in enumerate(call):
        if character == "(" and not depth:
            return call[:index]
        depth += (character == "[") - (character == "]")
    return call


def _operation_above(index: int, earlier: list[Node]) -> int:
    """Find the slot of the operation above, to which a result belongs."""
    above = earlier[-1] if earlier else None
    if above is not None and above.kind is NodeKind.RESULT:
        return above.operands[0]
    if above is None or above.kind is not NodeKind.OPERATION:
        raise GraphTextError(f"line {index + 1} is a result, but no operation stands above it")
    return above.slot


def _slots(text: str) -> tuple[int, ...]:
    slots = _SLOT.findall(text)
    if any(len(slot) > _DIGITS for slot in slots):
        raise GraphTextError(f"no graph has an entry {_shown(f'%{max(slots, key=len)}')}")
    return tuple(map(int, slots))


def _shown(row: str) -> str:
    return repr(row if len(row) <= 80 else f"{row[:77]}...")
