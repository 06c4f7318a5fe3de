"""Draw which devices hold which shard of a tensor, as a `rich` table of the one or two dimensions that are split."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch

from xla_core.abi.declarations import budget
from xla_core.abi.job import device_count
from xla_core.abi.process import device_kind
from xla_spmd.annotations import sharding_text
from xla_spmd.errors import ShardingError
from xla_spmd.op_sharding import OpSharding, ShardingType, parse
from xla_spmd.tensor import unwrap_sharded_tensor

if TYPE_CHECKING:
    from rich.table import Table

RICH_ENABLED = importlib.util.find_spec("rich") is not None
"""Whether pictures can be drawn: the package `rich` is installed."""

_COLORS = ("red", "green", "blue", "yellow", "magenta", "cyan", "white")
# A picture at scale 1, in characters; as wide as high, since characters are two and a half times as high as wide.
_HEIGHT, _WIDTH = 10, 25


@budget()
def visualize_tensor_sharding(t: torch.Tensor, **kwargs: Any) -> Table:
    """Print and return the picture of a tensor's sharding; keywords and errors as in `visualize_sharding`."""
    return visualize_sharding(sharding_text(unwrap_sharded_tensor(t)), **kwargs)


@budget()
def visualize_sharding(text: str, use_color: bool = True, scale: float = 1.0, min_width: int = 9, max_width: int = 80) -> Table:
    """Print and return a table with a cell for each tile of a sharding, such as `{devices=[2,1]0,1}`.

    use_color: coloured cells instead of lines between them. scale: of the whole. min_width: of a cell, max_width: of the whole, in
    characters. Raises ValueError without `rich`, for a text that is no sharding, a manual one, or one that splits more than two dimensions.
    """
    try:
        from rich import box
        from rich.console import Console
        from rich.padding import Padding
        from rich.style import Style
        from rich.table import Table
    except ImportError as error:
        raise ValueError("pictures of shardings need the package rich: pip install rich") from error
    cells = _cells(parse(text))
    rows, columns = len(cells), len(cells[0])
    height = max(1, round(_HEIGHT * scale) // rows)
    borders = 0 if use_color else columns + 1
    width = max(1, min(max(min_width, round(_WIDTH * scale) // columns), (max_width - borders) // columns))
    above = (height - 1) // 2
    table = Table(show_header=False, show_lines=not use_color, padding=0, pad_edge=False, box=None if use_color else box.SQUARE)
    for _ in range(columns):
        table.add_column(justify="center", vertical="middle", width=width)
    for row, line in enumerate(cells):
        colors = [_COLORS[(3 * row + column) % len(_COLORS)] for column in range(columns)]  # neighbours differ
        styles = [Style(color="black", bgcolor=color) if use_color else Style() for color in colors]
        table.add_row(*(Padding(cell, (above, 0, height - 1 - above, 0), style=style) for cell, style in zip(line, styles, strict=True)))
    Console(width=max_width).print(table)
    return table


def _cells(sharding: OpSharding) -> list[list[str]]:
    """The text of each cell: the kind of hardware and the ids of the devices that hold this tile."""
    kind = device_kind() or ""
    if sharding.effective_type is ShardingType.MANUAL:
        raise ShardingError("a manual sharding does not say at which indices of a tensor its shards are")
    if sharding.effective_type is ShardingType.REPLICATED:
        return [[f"{kind} {list(range(device_count()))}"]]
    shown_dims = sharding.dims
    if len(shown_dims) > 2:
        split = [dim for dim, count in enumerate(shown_dims) if count > 1]
        if len(split) > 2:
            raise ShardingError(f"pictures have two dimensions, the sharding {sharding} splits {len(split)}: {split}")
        others = [dim for dim in range(len(shown_dims)) if dim not in split]
        shown_dims = tuple(shown_dims[dim] for dim in sorted((split + others)[:2]))
    tiles = sharding.tiles.reshape(-1, shown_dims[-1], sharding.tiles.shape[-1])
    return [[f"{kind} {ids[0] if len(ids) == 1 else ids}" for ids in row] for row in tiles.tolist()]
