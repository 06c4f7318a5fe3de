"""The tables of an account: what was compiled, synced, moved and held, and the lines that took the host's time.

Of several replicas those rows that say the same are one, with the figures that one replica has on average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import RenderableType
from rich.text import Text

from xla_debug.account.figures import Pool, pooled, share, step_ms
from xla_debug.account.schema import Change, Compile, Fallback, Replica, Transfer
from xla_debug.places import Places
from xla_debug.quantities import counted, duration, number, percent, ranges, size
from xla_debug.tables import Cell, plain, section

Replicas = Sequence[Replica]
T = TypeVar("T")
Copied = TypeVar("Copied", Fallback, Transfer)


def _section(
    title: str, replicas: Replicas, columns: list[str], pools: list[Pool[T]], row: Callable[[Pool[T]], list[Cell]]
) -> list[RenderableType]:
    """A table with a row for each pool, and where there are several replicas, which of them it is about."""
    if len(replicas) == 1:
        return section(title, "", columns, [row(pool) for pool in pools])
    return section(title, "per replica", [*columns, "replicas"], [[*row(pool), _who(pool.ordinals, replicas)] for pool in pools])


def _who(ordinals: Sequence[int], replicas: Replicas) -> str:
    return "all" if len(ordinals) == len(replicas) else ranges(ordinals)


def _dearest(pools: list[Pool[T]], figure: Callable[[T], float]) -> list[Pool[T]]:
    return sorted(pools, key=lambda pool: -pool.mean(figure))


def _compiles(replicas: Replicas, places: Places) -> list[RenderableType]:
    pools = pooled(replicas, lambda replica: replica.compiles, lambda row: (row.step, row.graph_hash, row.line))
    pools.sort(key=lambda pool: (pool.first.step, pool.first.start_s))
    spent = sum(pool.mean(lambda row: row.ms) * len(pool.ordinals) for pool in pools) / max(len(replicas), 1)

    def row(pool: Pool[Compile]) -> list[Cell]:
        first = pool.first
        given = f"{first.donated} of {counted(first.inputs, 'input')} donated ({size(first.donated_bytes)})" if first.donated else None
        what = ", ".join(filter(None, [first.name, counted(first.operations, "operation"), given]))
        asked = plain(places.shown(first.line)).append_text(plain(f"\n{what}", "dim"))
        return [str(first.step), duration(pool.mean(lambda row: row.ms)), asked, _why(first, places)]

    return _section(f"Compiles: {len(pools)}, {duration(spent)}", replicas, [">step", ">took", "asked for by", "why"], pools, row)


def _why(row: Compile, places: Places) -> Text:
    """Explain a recompilation: how the program differs, where that comes from, and what to do."""
    difference = row.difference
    text = plain(difference.text or difference.change.value)
    if difference.line and difference.line != row.line:
        text.append_text(plain(f" ({places.shown(difference.line)})"))
    if difference.advice and difference.change is not Change.FIRST:
        text.append_text(plain(f"\n→ {difference.advice}", "green"))
    return text


def _syncs(replicas: Replicas, places: Places) -> list[RenderableType]:
    pools = pooled(replicas, lambda replica: replica.syncs, lambda row: (row.line, row.kind, row.cause))
    return _section(
        "Syncs",
        replicas,
        ["line", "kind", "cause", ">count", ">in steps", ">blocked"],
        _dearest(pools, lambda row: row.blocked_ms),
        lambda pool: [
            places.shown(pool.first.line),
            pool.first.kind,
            pool.first.cause or "",
            number(pool.mean(lambda row: row.count)),
            number(pool.mean(lambda row: row.steps)),
            duration(pool.mean(lambda row: row.blocked_ms)),
        ],
    )


def _copies(
    title: str, replicas: Replicas, columns: list[str], pools: list[Pool[Copied]], names: Callable[[Copied], list[Cell]]
) -> list[RenderableType]:
    """A table of what moved data: the columns that name it, then how often, how much, how long."""
    return _section(
        title,
        replicas,
        [*columns, ">moved", ">took"],
        _dearest(pools, lambda row: row.ms),
        lambda pool: [
            *names(pool.first),
            number(pool.mean(lambda row: row.count)),
            size(pool.mean(lambda row: row.nbytes)),
            duration(pool.mean(lambda row: row.ms)),
        ],
    )


def _fallbacks(replicas: Replicas, places: Places) -> list[RenderableType]:
    pools = pooled(replicas, lambda replica: replica.fallbacks, lambda row: (row.operator, row.line))
    columns = ["operator", "line", ">calls"]
    return _copies("Operators on the CPU", replicas, columns, pools, lambda row: [row.operator, places.shown(row.line)])


def _transfers(replicas: Replicas, places: Places) -> list[RenderableType]:
    pools = pooled(replicas, lambda replica: replica.transfers, lambda row: (row.direction, row.line))
    columns = ["direction", "line", ">count"]
    return _copies("Transfers", replicas, columns, pools, lambda row: [row.direction.replace("_", " "), places.shown(row.line)])


def _devices(replicas: Replicas, places: Places) -> list[RenderableType]:
    pools = pooled(replicas, lambda replica: replica.memory.devices, lambda row: row.device)
    return _section(
        "Memory",
        replicas,
        ["device", ">in use", ">peak", ">of"],
        pools,
        lambda pool: [
            pool.first.device,
            size(pool.mean(lambda row: row.in_use)),
            size(max(row.peak for row in pool.rows)),
            size(pool.first.limit) if pool.first.limit else "unknown",
        ],
    )


def _live(replicas: Replicas, places: Places) -> list[RenderableType]:
    pools = pooled(replicas, lambda replica: replica.memory.live, lambda row: (row.line, row.device, row.shape, row.holder))
    return _section(
        "Largest live buffers",
        replicas,
        ["made at", "held by", "shape", "device", ">count", ">size"],
        _dearest(pools, lambda row: row.nbytes),
        lambda pool: [
            places.shown(pool.first.line),
            pool.first.holder or "",
            pool.first.shape,
            pool.first.device,
            number(pool.mean(lambda row: row.count)),
            size(pool.mean(lambda row: row.nbytes)),
        ],
    )


def _hot_lines(replicas: Replicas, places: Places) -> list[RenderableType]:
    pools = pooled(replicas, lambda replica: replica.hot_lines, lambda row: (row.line, row.phase))
    steps = max((replica.measured_steps for replica in replicas), default=0)
    whole = max((step_ms(replica) * replica.measured_steps for replica in replicas), default=0.0)
    return _section(
        "Hot lines",
        replicas,
        ["line", "phase", ">ms/step" if steps else ">took", ">share"],
        _dearest(pools, lambda row: row.ms),
        lambda pool: [
            places.shown(pool.first.line),
            pool.first.phase,
            duration(pool.mean(lambda row: row.ms) / max(steps, 1)),
            percent(share(pool.mean(lambda row: row.ms), whole)),
        ],
    )


SECTIONS = (_compiles, _syncs, _fallbacks, _transfers, _devices, _live, _hot_lines)
"""In the order in which they are shown."""
