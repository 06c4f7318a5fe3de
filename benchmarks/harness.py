"""What the benchmark scripts share: the machine they ran on, their JSON files, the environment they re-run themselves in."""

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

STEADY = {"OMP_WAIT_POLICY": "PASSIVE", "XLA_TIERED_COMPILATION": "0"}
"""Without the first torch's idle threads spin, and everything measured beside them is several times too slow; without the second programs
compile in the background while others are measured."""

Row = dict[str, str | int | float | bool | None]


def rerun_with(settings: dict[str, str]) -> None:
    """Replaces this process by the same command with `settings` in its environment, unless they are there already."""
    missing = {name: value for name, value in settings.items() if os.environ.get(name) != value}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **missing})


def machine() -> dict[str, str | int | float]:
    """Processor, cores this process may use, load, and the versions that decide the numbers."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
    }


def processor() -> str:
    """The processor's name as the system tells it."""
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Hardware"):
                return value.strip()
    return platform.processor() or platform.machine()


def wide_console() -> Console:
    """A console that does not squeeze tables where the output is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 130)


def print_tables(title: str, rows: list[Row], headings: tuple[str, ...]) -> None:
    """A table for each heading, of the rows that have it."""
    console = wide_console()
    for heading in headings:
        chosen = [row for row in rows if heading in row]
        table = Table(title=title)
        for name in chosen[0]:
            table.add_column(name, justify="right")
        for row in chosen:
            table.add_row(*[f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()])
        console.print(table)


def command() -> str:
    """The command line without the folders in it."""
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *(Path(word).name for word in sys.argv[1:])])


def write_results(path: Path, kind: str, rows: list[Row], **facts: object) -> None:
    """One JSON file: kind, date, command, machine, further facts, rows."""
    content: dict[str, Any] = {
        "kind": kind,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command(),
        "machine": machine(),
        **facts,
        "rows": rows,
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
