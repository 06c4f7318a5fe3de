"""How far off a plan's estimates are: published training steps of Llama on TPUs, compiled here and held against what was measured there.

Each is compiled twice, as torch program on `xla` and by hand in JAX under the same shardings, whose memory is compared. Compiling takes
minutes a program; programs are kept in `--cache`, and estimated anew from there. Needs the TPU compiler: `hatch run targets:calibration`.
"""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import jax
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import llama
from harness import Row, wide_console, write_results

TIME_GOAL = 0.15
"""Largest error of an estimated time, relative to the measured one."""
MEMORY_GOAL = 0.03
"""Largest difference of a device's memory to that of the hand-written program."""
BY = ("xla", "jax")


@dataclass(frozen=True, slots=True)
class Case:
    """A published training step. batch: sequences of all devices; seconds: measured; source: who published it; flags: of the compiler."""

    target: str
    size: str
    batch: int
    tokens: int
    setting: llama.Setting
    seconds: float
    source: str
    flags: tuple[str, ...] = ()


LARGE_BLOCKS = "xla_tpu_scoped_vmem_limit_kib=98304"
"""Memory on the chip for a kernel: without it blocks of 2,048 do not compile."""
OVERLAP = (
    LARGE_BLOCKS,
    *(f"xla_tpu_{name}=true" for name in ("use_minor_sharding_for_major_trivial_input", "assign_all_reduce_scatter_layout")),
    "xla_tpu_relayout_group_size_threshold_for_reduce_scatter=1",
    *(f"xla_tpu_{name}=true" for name in ("enable_data_parallel_all_reduce_opt", "data_parallel_opt_different_sized_ops")),
    *(f"xla_tpu_enable_async_collective_fusion{name}=true" for name in ("", "_fuse_all_gather", "_multiple_steps")),
    *(f"{name}=true" for name in ("xla_tpu_overlap_compute_collective_tc", "xla_enable_async_all_gather")),
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce=false",
    *(f"xla_tpu_{name}=true" for name in ("enable_sparse_core_collective_offload_all_reduce", "use_tc_device_shape_on_sc")),
)
"""What torchprime's recipes for such a slice give the compiler, as MaxText's do: collectives beside products."""
MAXTEXT = (
    *OVERLAP,
    *(f"xla_tpu_{name}=true" for name in ("enable_all_experimental_scheduler_features", "enable_scheduler_memory_pressure_tracking")),
    "xla_tpu_host_transfer_overlap_limit=24",
    "xla_max_concurrent_host_send_recv=100",
    "xla_tpu_scheduler_percent_shared_memory_limit=100",
    "xla_latency_hiding_scheduler_rerun=2",
    "xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",
)
"""What MaxText gives the compiler for that step, as far as it changes the program here."""
BFLOAT16 = llama.Setting(kernel="flash")
OFFLOAD = llama.Setting(kernel="splash", mixed=True, offload=True)
CASES = {
    "8b-256": Case("v6e:16x16", "8b", 256, 8192, BFLOAT16, 1.625, "torchprime#16", OVERLAP),
    "8b-512": Case("v6e:16x16", "8b", 512, 8192, BFLOAT16, 2.991, "torchprime#16", OVERLAP),
    "70b-512": Case("v6e:16x16", "70b", 512, 4096, BFLOAT16, 9.48, "torchprime#16", OVERLAP),
    "8b-8": Case("v6e:2x2", "8b", 8, 8192, llama.Setting(kernel="splash"), 2.407, "torchprime, e2e_testing", (LARGE_BLOCKS,)),
    "8b-24": Case("v6e:2x4", "8b", 24, 8192, OFFLOAD, 3.443, "tpu-recipes#34", MAXTEXT),
}


def tiny(case: Case) -> Case:
    """The case with a network of two small layers on four devices."""
    return replace(case, target="v6e:2x2", size="tiny", batch=4, tokens=512)


def by_torch(case: Case) -> Any:
    """The compiled program of a steady step on `xla`."""
    import torch_xla.runtime as xr
    from xla_core.abi.graph import register_wrapper

    compiled: list[Any] = []

    def note(graph: object, program: Any) -> Any:
        compiled.append(program.compiled)
        return program

    xr.use_spmd()
    stop = register_wrapper(note)
    step = llama.training_step(llama.SIZES[case.size], case.batch, case.tokens, case.setting, xr.global_runtime_device_count())
    for _ in range(2):
        step()
    stop()
    return compiled[-1]


def by_hand(case: Case, devices: Any) -> Any:
    """The same in JAX."""
    import llama_jax

    size = llama.SIZES[case.size]
    mesh, arguments = llama_jax.described(size, case.batch, case.tokens, case.setting, devices)
    with jax.default_matmul_precision("default"), jax.enable_x64(False):  # as JAX is without torch beside it
        return llama_jax.training_program(size, case.tokens, case.setting, mesh).lower(*arguments).compile()


def work(case: Case, by: str, folder: Path) -> None:
    """Compile a program, and keep it with the compiler's figures of its memory."""
    import torch_xla
    from xla_debug.plan.estimate import MEMORY

    begin = time.perf_counter()
    with torch_xla.target(case.target) as target:
        compiled = by_torch(case) if by == "xla" else by_hand(case, target.devices)
    stats = compiled.memory_analysis()
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "module.gz").write_bytes(gzip.compress(module))
    facts = {"compile_s": time.perf_counter() - begin, "memory": {name: getattr(stats, figure) for name, figure in MEMORY.items()}}
    (folder / "facts.json").write_text(json.dumps(facts))


def folder_of(cache: Path, case: Case, by: str) -> Path:
    """Where the program of a case is kept: by all that decides it but the version of this project, for which there is `--again`."""
    here = Path(__file__).parent
    sources = [(here / name).read_text() for name in ("llama.py", "llama_jax.py")[: 2 if by == "jax" else 1]]
    versions = [version(name) for name in ("torch", "jax", "libtpu")]
    text = json.dumps([case.target, case.size, case.batch, case.tokens, asdict(case.setting), case.flags, *versions, *sources])
    return cache / f"{case.size}-{case.batch}-{by}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def compiled_in(cache: Path, name: str, case: Case, by: str, options: list[str], console: Console) -> tuple[bytes, dict[str, Any]]:
    """The program of a case, cached or compiled in a process of its own, and its facts. Raises `click.ClickException` if it fails."""
    folder = folder_of(cache, case, by)
    if not (folder / "facts.json").is_file():
        what = f"compiling {name} for {case.target}, {by}"
        if not console.is_terminal:
            console.print(what)
        with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
            progress.add_task(what)
            command = [sys.executable, __file__, "--worker", name, by, str(folder), *options]
            flags = " ".join(f"--{flag}" for flag in case.flags)
            done = subprocess.run(command, env={**os.environ, "LIBTPU_INIT_ARGS": flags}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"{name} by {by} did not compile:\n{done.stderr[-3000:]}")
    return gzip.decompress((folder / "module.gz").read_bytes()), json.loads((folder / "facts.json").read_text())


def row_of(name: str, case: Case, by: str, module: bytes, facts: dict[str, Any]) -> Row:
    """The figures of a program."""
    from xla_core.abi.targets import target_named
    from xla_debug.plan.estimate import of_module

    target = target_named(case.target)
    mesh = {llama.AXIS: len(target.devices)}
    plan = of_module(module, facts["memory"], target.kind, target.devices, mesh, name=name, line=None, operations=0)
    seconds = plan.ms / 1000
    size = llama.SIZES[case.size]
    return {
        "case": name,
        "by": by,
        "model": f"Llama {case.size}, {case.tokens:,} tokens, batch {case.batch}, {case.setting}",
        "target": case.target,
        "source": case.source,
        "flags": " ".join(case.flags),
        "measured_s": case.seconds,
        "estimated_s": seconds,
        "error": seconds / case.seconds - 1,
        "cycles_s": plan.cycles * seconds,
        "kernels_s": plan.kernels * seconds,
        "links_s": plan.links_ms / 1000,
        "exposed_s": plan.exposed_ms / 1000,
        "unknown": plan.unknown,
        "flops": plan.flops,
        "model_flops": size.step_flops(case.batch, case.tokens) / len(target.devices),
        # Temporaries along the schedule: the compiler's own sum counts, in some programs, what it holds on the chip.
        "memory": plan.arguments + plan.results - plan.reused + max(plan.schedule, default=0),
        "compile_s": facts["compile_s"],
    }


def shown(rows: list[Row]) -> Table:
    """The rows for a terminal."""
    table = Table("case", "by", "measured", "estimated", "error", "cycles", "kernels", "links", "exposed", "memory", "× jax", "compiled in")
    for row in rows:
        seconds = [f"{row[key]:.3f} s" for key in ("cycles_s", "kernels_s", "links_s", "exposed_s")]
        memory = [f"{float(row['memory'] or 0) / 2**30:.2f} GiB", f"{row['memory_vs_jax']:.3f}" if row.get("memory_vs_jax") else ""]
        times = [f"{row['measured_s']} s", f"{row['estimated_s']:.3f} s", f"{row['error']:+.1%}"]
        table.add_row(str(row["case"]), str(row["by"]), *times, *seconds, *memory, f"{row['compile_s']:.0f} s")
    return table


@click.command(help=__doc__)
@click.option("--cases", default=",".join(CASES), show_default=True, help="Names, separated by commas.")
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path), default=Path(".cache/calibration"), show_default=True)
@click.option("--again", is_flag=True, help="Compile also what is in the cache.")
@click.option("--quick", is_flag=True, help="Tiny networks.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), default=Path("calibration.json"), show_default=True)
@click.option("--worker", nargs=3, hidden=True)
def main(cases: str, cache: Path, again: bool, quick: bool, path: Path, worker: tuple[str, str, str] | None) -> None:
    if worker is not None:
        case = CASES[worker[0]]
        work(tiny(case) if quick else case, worker[1], Path(worker[2]))
        return
    unknown = set(cases.split(",")) - CASES.keys()
    if unknown:
        raise click.UsageError(f"there is no case {', '.join(sorted(unknown))}; known are {', '.join(CASES)}")
    console, rows = wide_console(), []
    for name in cases.split(","):
        case = tiny(CASES[name]) if quick else CASES[name]
        pair: dict[str, Row] = {}
        for by in BY:
            if again:
                (folder_of(cache, case, by) / "facts.json").unlink(missing_ok=True)
            module, facts = compiled_in(cache, name, case, by, ["--quick"] if quick else [], console)
            pair[by] = row_of(name, case, by, module, facts)
        pair["xla"]["memory_vs_jax"] = float(pair["xla"]["memory"] or 0) / float(pair["jax"]["memory"] or 1)
        rows += pair.values()
        console.print(shown(list(pair.values())))
    console.print(shown(rows))
    write_results(path, "calibration", rows, libtpu=version("libtpu"))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
