"""Draw programs as Graphviz's dot and as SVG: a box for each input and operation, with arrows down from operands to users."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from xml.sax.saxutils import escape

from xla_debug.graphs.graph_text import GraphTextError, Node, NodeKind, SavedGraph
from xla_debug.graphs.layering import Position, layered

_FILLS = {NodeKind.INPUT: "#dbeafe", NodeKind.NUMBER: "#fef3c7", NodeKind.CONSTANT: "#fef3c7", NodeKind.OPERATION: "#f8fafc"}
_STROKE, _RETURNED, _LINE = "#475569", "#15803d", "#94a3b8"
# In points: the size of a box; the width that a box, and a line that passes by, takes in its layer; the gap between layers.
_WIDTH, _HEIGHT = 168, 36
_BOX_ROOM, _LINE_ROOM = 184, 12
_GAP = 40
_LAYER_HEIGHT = _HEIGHT + _GAP
_MARGIN = 12
# Characters that fit into a box.
_MOST_CHARACTERS = 25
# More boxes take longer than seconds to draw, and nobody can read the picture.
_MOST_BOXES = 1000


@dataclass(frozen=True, slots=True)
class _Box:
    """A node together with its results, which get no boxes of their own. returned: whether the program returns any of them."""

    node: Node
    results: tuple[Node, ...]
    returned: bool

    @property
    def title(self) -> str:
        """The text that a viewer shows for a box: the printed node, each of several results, and the user's line, if known."""
        rows = [f"%{node.slot} = {node.text} : {node.shape}" for node in (self.node, *self.results)]
        return "\n".join([*rows, self.node.line] if self.node.line else rows)


def _drawn(graph: SavedGraph) -> tuple[dict[int, _Box], list[tuple[int, int]]]:
    """Make the boxes by slot, and the arrows between them."""
    box_of = {node.slot: node.operands[0] if node.kind is NodeKind.RESULT else node.slot for node in graph.nodes}
    returned = {box_of[slot] for slot in graph.results}
    results: defaultdict[int, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.kind is NodeKind.RESULT:
            results[box_of[node.slot]].append(node)
    nodes = [node for node in graph.nodes if node.kind is not NodeKind.RESULT]
    boxes = {node.slot: _Box(node, tuple(results[node.slot]), node.slot in returned) for node in nodes}
    arrows = [(box_of[operand], node.slot) for node in nodes for operand in node.operands]
    return boxes, list(dict.fromkeys(arrows))


def dot(graph: SavedGraph) -> str:
    """Draw a program in Graphviz's language; the user's lines are tooltips, returned values have thick frames."""
    boxes, arrows = _drawn(graph)
    rows = ["digraph program {", '  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=10];']
    for slot, box in boxes.items():
        label = _dot_text(f"{box.node.name}\n{box.node.shape}")
        frame = f', penwidth=2, color="{_RETURNED}"' if box.returned else ""
        rows.append(f'  n{slot} [label={label}, tooltip={_dot_text(box.title)}, fillcolor="{_FILLS[box.node.kind]}"{frame}];')
    rows += [f"  n{source} -> n{target};" for source, target in arrows]
    return "\n".join([*rows, "}", ""])


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def svg(graph: SavedGraph) -> str:
    """Draw a program as SVG, which a browser shows; pointing at a box shows the whole operation and the user's line.

    Raises GraphTextError for more than 1000 inputs and operations.
    """
    boxes, arrows = _drawn(graph)
    if len(boxes) > _MOST_BOXES:
        raise GraphTextError(f"{len(boxes)} inputs and operations are too many for one picture: ask for dot, and draw that with Graphviz")
    placed = layered(list(boxes), arrows, _BOX_ROOM, _LINE_ROOM)
    width, height = placed.width + 2 * _MARGIN, max(placed.layers * _LAYER_HEIGHT - _GAP, 0) + 2 * _MARGIN
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        'font-family="ui-monospace, monospace" font-size="10" text-anchor="middle">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        f'<g fill="none" stroke="{_LINE}">',
        *(f'<path d="M{_x(position)},{_y(position)}v{_HEIGHT}"/>' for position in placed.passed),
        *(f'<path d="{_curve(upper, lower)}"/>' for upper, lower in placed.lines),
        "</g>",
        *(_svg_box(box, placed.boxes[slot]) for slot, box in boxes.items()),
        "</svg>",
        "",
    ]
    return "\n".join(rows)


def _x(position: Position) -> int:
    return round(position.x) + _MARGIN


def _y(position: Position) -> int:
    return position.layer * _LAYER_HEIGHT + _MARGIN


def _curve(upper: Position, lower: Position) -> str:
    start, end = _y(upper) + _HEIGHT, _y(lower)
    middle = (start + end) // 2
    return f"M{_x(upper)},{start}C{_x(upper)},{middle} {_x(lower)},{middle} {_x(lower)},{end}"


def _svg_box(box: _Box, position: Position) -> str:
    node, x, y = box.node, _x(position), _y(position)
    frame = f'stroke="{_RETURNED}" stroke-width="2"' if box.returned else f'stroke="{_STROKE}"'
    return (
        f'<g id="n{node.slot}"><title>{escape(box.title)}</title>'
        f'<rect x="{x - _WIDTH // 2}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="{_FILLS[node.kind]}" {frame}/>'
        f'<text x="{x}" y="{y + 15}" font-weight="bold">{escape(_short(node.name))}</text>'
        f'<text x="{x}" y="{y + 28}">{escape(_short(node.shape))}</text></g>'
    )


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
