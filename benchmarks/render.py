"""Turns the JSON files of the benchmarks into Markdown tables, on stdout or into the marked places of a page."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

Results = dict[str, Any]


def table(headings: list[str], rows: list[list[str]], right_from: int = 1) -> str:
    """A Markdown table whose columns are aligned right from `right_from` on."""
    rule = ["---" if place < right_from else "---:" for place in range(len(headings))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [headings, rule, *rows])


def number(value: float | None) -> str:
    """Three significant digits, thousands in full; an empty cell for nothing."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def trace_table(results: Results) -> str:
    """Microseconds per operation, ratio to the bare dispatch, goals."""
    met = {None: "", True: "met", False: "missed"}
    rows = [[row["case"], number(row["us"]), number(row["ratio"]), row["goal"] or "", met[row["met"]]] for row in results["rows"]]
    return table(["case", "µs", "× bare wrapper", "goal", ""], rows)


def steps_table(results: Results) -> str:
    """Milliseconds per step and ratios, a model and contender a row."""
    keys = ("wall_ms", "blocked_ms", "cpu_ms", "wall_vs_jax", "blocked_vs_jax", "cpu_vs_jax", "wall_vs_torch", "first_s", "checking")
    rows = []
    for row in results["rows"]:
        late, met = row.get("late_compiles"), {None: "", True: "met", False: "missed"}[row.get("met")]
        numbers = [number(row.get(key)) for key in keys]
        rows.append([row["model"], row["on"], *numbers, "" if late is None else str(late), row.get("goal", ""), met])
    headings = [
        "model",
        "on",
        "ms",
        "ms, blocked",
        "CPU ms",
        "× jax",
        "× jax, blocked",
        "× jax, CPU time",
        "× torch",
        "first step, s",
        "checking, %",
    ]
    headings += ["late compiles", "goals, × jax", ""]
    return table(headings, rows, right_from=2)


def convolutions_table(results: Results) -> str:
    """Milliseconds beside eager torch, a kind of convolution and pass a row."""
    keys = ("xla_ms", "torch_ms", "vs_torch")
    rows = [[row["convolution"], row["pass"], *(number(row[key]) for key in keys)] for row in results["rows"]]
    return table(["convolution", "pass", "ms", "torch, ms", "× torch"], rows, right_from=2)


def compile_table(results: Results) -> str:
    """Seconds to the end of the first step; then the programs that each optimizer's loop compiles."""
    layers, *loops = results["rows"]
    cells = [str(layers["layers"]), *(number(layers[key]) for key in ("xla_s", "jax_s", "vs_jax")), layers["goal"]]
    first = table(["layers", "s", "jax, s", "× jax", "goal", ""], [[*cells, "met" if layers["met"] else "missed"]])
    return f"{first}\n\n{table(list(loops[0]), [list(map(str, row.values())) for row in loops])}"


def spmd_table(results: Results) -> str:
    """Milliseconds per step, ratios and collectives, a kind of parallelism and contender a row."""
    met = {None: "", True: "met", False: "missed"}
    keys = ("wall_ms", "blocked_ms", "wall_vs_jax", "blocked_vs_jax")
    rows = [
        [row["parallelism"], row["on"], row["collectives"], *(number(row[key]) for key in keys), row.get("goal", ""), met[row.get("met")]]
        for row in results["rows"]
    ]
    headings = ["parallelism", "on", "collectives", "ms", "ms, blocked", "× jax", "× jax, blocked", "goal, × jax", ""]
    return table(headings, rows, right_from=3)


def scale_table(results: Results) -> str:
    """Seconds for shardings of many devices; collectives and bytes of a block that was compiled for fewer."""
    built = [row for row in results["rows"] if "shardings" in row]
    blocks = [row for row in results["rows"] if "shardings" not in row]
    first = table(
        ["mesh", "shardings", "seconds", "parts of one matrix, seconds"],
        [[row["shape"], str(row["shardings"]), number(row["seconds"]), number(row["parts_seconds"])] for row in built],
    )
    keys = ("weight_bytes", "held_bytes", "temporary_bytes", "seconds")
    second = table(
        ["mesh", "devices", "collectives", "weights, bytes", "held by a device", "temporary on a device", "compiled in, s"],
        [[row["mesh"], str(row["devices"]), row["collectives"], *(number(row[key]) for key in keys)] for row in blocks],
        right_from=3,
    )
    return f"{first}\n\n{second}"


def collectives_table(results: Results) -> str:
    """Milliseconds and ratios, a number of replicas and case a row; then the training steps."""
    met = {None: "", True: "met", False: "missed"}
    keys = ("xla_ms", "gloo_ms", "jax_ms", "xla_best_ms", "gloo_best_ms", "jax_best_ms", "vs_gloo", "vs_jax", "vs_one")
    rows = [
        [str(row["replicas"]), row["case"], *(number(row.get(key)) for key in keys), row["goal"] or "", met[row["met"]]]
        for row in results["rows"]
    ]
    headings = ["replicas", "case", "xla, ms", "gloo, ms", "jax, ms", "xla, best", "gloo, best", "jax, best"]
    headings += ["× gloo", "× jax", "× one array", "goal", ""]
    keys = ("own_batch", "step_ms", "digits_per_s", "throughput")
    steps = [[str(row["replicas"]), row["batch"], *(number(row[key]) for key in keys)] for row in results["scaling"]]
    step_headings = ["replicas", "digits network", "batch of each", "ms", "digits/s", "× one replica"]
    return f"{table(headings, rows, right_from=2)}\n\n{table(step_headings, steps, right_from=2)}"


def extras_table(results: Results) -> str:
    """Milliseconds per step without and with an extra."""
    rows = [
        [
            row["model"],
            *(number(row[key]) for key in ("ms", "with_ms")),
            f"{row['with_vs_without']:.3f}",
            row["goal"],
            "met" if row["met"] else "missed",
        ]
        for row in results["rows"]
    ]
    return table(["model", "ms", "ms, with it", "×", "goal", ""], rows)


def loops_table(results: Results) -> str:
    """Seconds, memory and programs of loops without and with syncs."""
    keys = ("turns", "s", "early_mb", "mb", "programs", "sync_s", "sync_mb", "sync_programs", "vs_sync")
    rows = [[row["loop"], *(number(row[key]) for key in keys), row["goal"], "met" if row["met"] else "missed"] for row in results["rows"]]
    headings = ["loop", "turns", "s", "MB after a tenth", "MB", "programs", "s, with syncs", "MB", "programs", "×", "goal", ""]
    return table(headings, rows)


def checkpoint_table(results: Results) -> str:
    """MB/s, peak memory and ratios of saves and loads."""
    met = {None: "", True: "met", False: "missed"}
    keys = ("mb_per_s", "best_mb_per_s", "peak_mb", "vs_safetensors", "vs_safetensors_fsync")
    rows = [[row["case"], row["on"], *(number(row[key]) for key in keys), row["goal"] or "", met[row["met"]]] for row in results["rows"]]
    headings = ["case", "with", "MB/s", "best", "peak, MB", "× safetensors", "× safetensors with fsync", "goal, × safetensors", ""]
    return table(headings, rows, right_from=2)


def replicas_table(results: Results) -> str:
    """Bytes, collectives and seconds of steps of many replicas."""
    rows = [
        [row["way"], f"{row['replicas']:,}", row["collectives"]]
        + [f"{row[key]:,}" for key in ("weight_bytes", "held_bytes", "temporary_bytes")]
        + [number(row["seconds"])]
        for row in results["rows"]
    ]
    headings = ["way", "replicas", "collectives", "weights, bytes", "held by each", "temporary", "compiled in, s"]
    return table(headings, rows, right_from=3)


def job_table(results: Results) -> str:
    """Seconds of each phase of a job, and its coordinator's state after it."""
    keys = ("seconds", "messages", "threads", "cpu")
    rows = [
        [str(row["processes"]), row["after"], *(number(row[key]) for key in keys), number(round(row["bytes"] / 1e6))]
        for row in results["rows"]
    ]
    return table(["processes", "after", "s", "messages so far", "threads", "processor s", "memory, MB"], rows, right_from=2)


def targets_table(results: Results) -> str:
    """Ours divided by JAX's, a step and target a row; what misses its goal is bold. Then what ours takes."""
    goals: dict[str, float] = results["goals"]
    names = {"time": "time", "nbytes": "bytes", "memory": "memory", "copies": "copies", "compile_s": "compiling"}
    rows = []
    for row in results["rows"]:
        if row["by"] == "xla":
            ratios = [(f"{row[f'{key}_vs_jax']:.3f}", row[f"{key}_vs_jax"] <= goal) for key, goal in goals.items()]
            figures = [number(row["time"]), number(row["memory"] / 1e6), number(row["compile_s"])]
            rows.append([row["case"], row["target"], *(text if met else f"**{text}**" for text, met in ratios), *figures])
    headings = [f"{names[key]}, × jax (≤ {goal})" for key, goal in goals.items()]
    return table(["step", "target", *headings, "ms", "MB", "compiled in, s"], rows, right_from=2)


def calibration_table(results: Results) -> str:
    """Measured and estimated seconds, then the memory of a device, a published step and a program a row."""
    rows, memory = [], []
    for row in results["rows"]:
        name = f"{row['model']} on {row['target']} ({row['source']})"
        parts = [f"{row[key]:.3f}" for key in ("cycles_s", "kernels_s", "exposed_s")]
        rows.append([name, row["by"], f"{row['measured_s']:.3f}", f"{row['estimated_s']:.3f}", f"{row['error']:+.1%}", *parts])
        if row.get("memory_vs_jax"):
            memory.append([name, f"{row['memory'] / 2**30:.2f}", f"{row['memory'] / row['memory_vs_jax'] / 2**30:.2f}"])
            memory[-1] += [f"{row['memory_vs_jax'] - 1:+.1%}", f"{row['compile_s'] / 60:.0f} min"]
    headings = ["step", "program", "measured, s", "estimated, s", "error", "compiler's cycles", "Pallas kernels", "links, not covered"]
    first = table(headings, rows, right_from=2)
    return f"{first}\n\n{table(['step', 'a device, GiB', 'by hand in JAX', 'difference', 'compiled in'], memory)}"


def machine_table(all_results: list[Results]) -> str:
    """What the files have in common of their machines, in a line; then kind, command, date and what differs, a file a row."""
    machines = [results["machine"] for results in all_results]
    common = [key for key in machines[0] if all(machine[key] == machines[0][key] for machine in machines)]
    differing = [key for key in machines[0] if key not in common]
    line = ", ".join(f"{key} {machines[0][key]}" for key in common)
    rows = [
        [results["kind"], results["date"], *(str(machine[key]) for key in differing), f"`{results['command']}`"]
        for results, machine in zip(all_results, machines, strict=True)
    ]
    return f"{line}\n\n{table(['kind', 'date', *differing, 'command'], rows, right_from=99)}"


TABLES: dict[str, Callable[[Results], str]] = {
    "trace": trace_table,
    "steps": steps_table,
    "collectives": collectives_table,
    "recording": extras_table,
    "checks": extras_table,
    "loops": loops_table,
    "checkpoint": checkpoint_table,
    "compile": compile_table,
    "convolutions": convolutions_table,
    "spmd": spmd_table,
    "spmd-scale": scale_table,
    "job-start": job_table,
    "replica-scale": replicas_table,
    "targets": targets_table,
    "calibration": calibration_table,
}


def around(text: str, found: re.Match[str]) -> str:
    """`text` between the two markers that were found."""
    return f"{found.group(1)}{text}\n{found.group(2)}"


def insert(page: str, blocks: dict[str, str]) -> str:
    """The page with each block between its markers; raises `click.UsageError` where a page lacks them."""
    for name, text in blocks.items():
        place = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not place.search(page):
            raise click.UsageError(f"the page has no line '<!-- begin {name} -->' followed by '<!-- end {name} -->'")
        page = place.sub(partial(around, text), page)
    return page


@click.command(help=__doc__)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--into", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Replace the marked blocks of this page.")
def main(files: tuple[Path, ...], into: Path | None) -> None:
    all_results: list[Results] = [json.loads(file.read_text()) for file in files]
    for file, results in zip(files, all_results, strict=True):
        if results.get("kind") not in TABLES:
            raise click.UsageError(f"{file.name} is of kind {results.get('kind')}; known are {', '.join(TABLES)}")
    blocks = {"machine": machine_table(all_results)} | {results["kind"]: TABLES[results["kind"]](results) for results in all_results}
    if into is None:
        click.echo("\n\n".join(blocks.values()))
    else:
        into.write_text(insert(into.read_text(), blocks))


if __name__ == "__main__":
    main()
