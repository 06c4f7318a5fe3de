"""What recording costs: microseconds of Python per operation on `xla`, beside a bare wrapper-subclass dispatch in the same run.

A case is prepared outside the clock (fresh, computed inputs), then `count` operations run under it; the best of all repeats
counts, and the repeats go round all cases, so that a busy moment hits none of them alone. Nothing is executed under the clock but
in the cases that say so.
"""

import gc
import operator
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import torch_xla
import torch_xla.core.xla_model as xm
from harness import STEADY, Row, rerun_with, wide_console, write_results

SHAPE = (8, 8)
HOST = torch.device("cpu")
BARE = "bare wrapper"

Action = Callable[[], object]
MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class Goal:
    """An upper bound in microseconds, or in bare dispatches."""

    text: str
    limit: float
    of_ratio: bool = False

    def met(self, micros: float, ratio: float) -> bool:
        """Whether a row keeps it."""
        return (ratio if self.of_ratio else micros) <= self.limit


GOALS = {
    "add": Goal("≤ 1.6 × bare", 1.6, of_ratio=True),
    "add, autograd": Goal("≤ 7.5 µs", 7.5),
    "layer_norm": Goal("≤ 9 µs", 9),
    "in-place add": Goal("≤ 8 µs", 8),
    "view of a view": Goal("≤ 10 µs", 10),
    "item of a pending (a + b).sum()": Goal("≤ 55 µs", 55),
    "upload of 1 MiB": Goal("≤ 0.29 ms", 290),
    "Adam, 100 parameters": Goal("≤ 1.5 ms", 1_500),
    "Adam, foreach=False, 100 parameters": Goal("≤ 4 ms", 4_000),
    "sync per operation of a repeated 1000-operation graph, beyond jax.jit": Goal("≤ 0.5 µs", 0.5),
    "empty sync": Goal("≤ 5 µs", 5),
    "import torch_xla, beyond torch and jax": Goal("≤ 150 ms", 150_000),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; `--quick` takes little of everything."""

    operations: int
    parameters: int
    graph: int
    repeats: int


FULL = Sizes(operations=100, parameters=100, graph=1000, repeats=25)
QUICK = Sizes(operations=20, parameters=4, graph=40, repeats=2)


@dataclass(frozen=True, slots=True)
class Case:
    """`prepare` builds fresh inputs and returns what runs under the clock: `count` operations."""

    name: str
    prepare: Callable[[], Action]
    count: int


class Bare(torch.Tensor):
    """The least a tensor written in Python can do: every operation returns a new wrapper of the same shape."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Tensor:  # type: ignore[override]
        return bare()


def bare(requires_grad: bool = False) -> Tensor:
    """A new wrapper."""
    tensor: Tensor = torch.Tensor._make_wrapper_subclass(Bare, SHAPE, dtype=torch.float32, device=HOST, requires_grad=requires_grad)
    return tensor


def settle() -> None:
    """Runs what is pending and waits for it."""
    torch_xla.sync(wait=True)
    xm.wait_device_ops()


def given(*shape: int, requires_grad: bool = False) -> Tensor:
    """A computed tensor on the device."""
    return torch.full(shape, 0.5).to(torch_xla.device()).requires_grad_(requires_grad)


def repeated(operation: Callable[[Tensor, Tensor], object], count: int, make: Callable[[], Tensor]) -> Callable[[], Action]:
    """The same operation `count` times on the same two inputs, results dropped."""

    def prepare() -> Action:
        settle()
        left, right = make(), make()

        def run() -> None:
            for _ in range(count):
                operation(left, right)

        return run

    return prepare


def backward(count: int) -> Callable[[], Action]:
    """Backward through a chain of `count` ReLUs."""

    def prepare() -> Action:
        settle()
        start = given(*SHAPE, requires_grad=True)
        end, seed = start, given(*SHAPE)
        for _ in range(count):
            end = end.relu()
        return lambda: torch.autograd.backward(end, seed)

    return prepare


def optimizer_step(make: MakeOptimizer, parameters: int, eager: bool = False) -> Callable[[], Action]:
    """One optimizer step with its state in place and computed gradients. The results are dropped: nothing is compiled.

    eager: the same step of eager torch on the CPU, which computes, too.
    """

    def weights_on(device: torch.device) -> list[Tensor]:
        weights = [torch.full((16, 16), 0.5).to(device).requires_grad_() for _ in range(parameters)]
        for weight in weights:
            weight.grad = torch.full((16, 16), 0.1).to(device)
        return weights

    on_host = make(weights_on(HOST))
    on_host.step()
    state = on_host.state_dict()

    def prepare() -> Action:
        optimizer = make(weights_on(HOST if eager else torch_xla.device()))
        optimizer.load_state_dict(state)
        settle()
        return optimizer.step

    return prepare


def view_of_view(count: int) -> Callable[[], Action]:
    """Views of one view."""

    def prepare() -> Action:
        settle()
        view = given(*SHAPE).view(16, 4)

        def run() -> None:
            for _ in range(count):
                view.t()

        return run

    return prepare


def read_computed(count: int) -> Callable[[], Action]:
    """`.item()` on one value that was computed before."""

    def prepare() -> Action:
        value = given(*SHAPE).sum()
        settle()

        def run() -> None:
            for _ in range(count):
                value.item()

        return run

    return prepare


def read_pending() -> Action:
    """Records `(a + b).sum()`, runs it and reads it."""
    left, right = given(*SHAPE), given(*SHAPE)
    settle()
    return lambda: (left + right).sum().item()


def read_pending_jax() -> Action:
    """The same of a jitted function."""
    jitted, left, right = jax.jit(lambda a, b: (a + b).sum()), jnp.full(SHAPE, 0.5), jnp.full(SHAPE, 0.5)
    jitted(left, right).block_until_ready()
    settle()
    return lambda: jitted(left, right).item()


def layer_norms(count: int, requires_grad: bool) -> Callable[[], Action]:
    """Layer normalisation with weight and bias."""

    def prepare() -> Action:
        settle()
        rows, weight, bias = given(*SHAPE, requires_grad=requires_grad), given(SHAPE[1]), given(SHAPE[1])

        def run() -> None:
            for _ in range(count):
                torch.nn.functional.layer_norm(rows, (SHAPE[1],), weight, bias)

        return run

    return prepare


def of_one_mebibyte(count: int, transfer: Callable[[Tensor], object]) -> Callable[[], Action]:
    """`transfer` of tensors of 1 MiB on the host, one after the other."""

    def prepare() -> Action:
        settle()
        hosts = [torch.ones(1 << 18) for _ in range(count)]

        def run() -> None:
            for host in hosts:
                transfer(host)

        return run

    return prepare


def empty_syncs(count: int) -> Callable[[], Action]:
    """Syncs with nothing pending."""

    def prepare() -> Action:
        settle()

        def run() -> None:
            for _ in range(count):
                torch_xla.sync()

        return run

    return prepare


def chain(value: Any, others: list[Any], length: int) -> Any:
    """`length` pointwise operations, of torch tensors or JAX arrays alike."""
    turns = (operator.add, operator.mul, operator.sub)
    for place in range(length):
        value = turns[place % 3](value, others[place % len(others)])
    return value


def repeated_graph(length: int) -> tuple[Callable[[], Action], Callable[[], Action]]:
    """The blocked sync of an already compiled `length`-operation graph, and the same chain as a blocked `jax.jit` call.

    Both come right after recording the chain: it leaves cold caches, which alone make the same jitted call ten times slower.
    """
    start, others = given(*SHAPE), [given(*SHAPE) for _ in range(8)]
    alive: list[Tensor] = []
    jitted = jax.jit(lambda value, *rest: chain(value, list(rest), length))
    arrays = [jnp.full(SHAPE, 0.5, dtype=jnp.float32) for _ in range(9)]

    def prepare() -> Action:
        alive.clear()
        settle()
        alive.append(chain(start, others, length))
        return settle

    def prepare_jax() -> Action:
        prepare()
        return lambda: jitted(*arrays).block_until_ready()

    for _ in range(3):
        prepare()()
        prepare_jax()()
    return prepare, prepare_jax


def build_cases(sizes: Sizes) -> list[Case]:
    """All cases, the yardstick first."""
    n = sizes.operations
    cases = [Case(BARE, repeated(torch.add, n, bare), n), Case(f"{BARE}, autograd", repeated(torch.add, n, lambda: bare(True)), n)]
    pointwise: dict[str, Callable[[Tensor, Tensor], object]] = {
        "add": lambda a, b: a + b,
        "matmul": lambda a, b: a @ b,
        "reduction": lambda a, b: a.sum(),
        "view": lambda a, b: a.view(16, 4),
    }
    for name, operation in pointwise.items():
        cases.append(Case(name, repeated(operation, n, lambda: given(*SHAPE)), n))
        cases.append(Case(f"{name}, autograd", repeated(operation, n, lambda: given(*SHAPE, requires_grad=True)), n))
    cases += [
        Case("in-place add", repeated(lambda a, b: a.add_(b), n, lambda: given(*SHAPE)), n),
        Case("view of a view", view_of_view(n), n),
        Case("cast to bfloat16", repeated(lambda a, b: a.to(torch.bfloat16), n, lambda: given(*SHAPE)), n),
        Case("clone", repeated(lambda a, b: a.clone(), n, lambda: given(*SHAPE)), n),
        Case("contiguous of a transpose", repeated(lambda a, b: a.t().contiguous(), n, lambda: given(*SHAPE)), n),
        Case("empty", repeated(lambda a, b: torch.empty(SHAPE, device="xla"), n, lambda: given(*SHAPE)), n),
        Case("random fill", repeated(lambda a, b: a.normal_(), n, lambda: given(*SHAPE)), n),
        Case("relu, backward", backward(n), n),
        Case("item of a computed value", read_computed(n), n),
        Case("layer_norm", layer_norms(n, requires_grad=False), n),
        Case("layer_norm, autograd", layer_norms(n, requires_grad=True), n),
        Case("item of a pending (a + b).sum()", read_pending, 1),
        Case("item of a jitted (a + b).sum()", read_pending_jax, 1),
        Case("upload of 1 MiB", of_one_mebibyte(8, lambda host: host.to("xla")), 8),
        Case("1 MiB, jax.device_put of a copy", of_one_mebibyte(8, lambda host: jax.device_put(host.numpy().copy())), 8),
        Case("empty sync", empty_syncs(n), n),
    ]
    adam = partial(torch.optim.Adam, lr=1e-3)
    optimizers: dict[str, MakeOptimizer] = {
        "Adam": adam,
        "Adam, foreach=False": partial(adam, foreach=False),
        "Adam, fused=True": partial(adam, fused=True),
        "SGD": partial(torch.optim.SGD, lr=1e-3),
    }
    for name, make in optimizers.items():
        cases.append(Case(f"{name}, {sizes.parameters} parameters", optimizer_step(make, sizes.parameters), 1))
        cases.append(Case(f"{name}, {sizes.parameters} parameters, eager torch", optimizer_step(make, sizes.parameters, eager=True), 1))
    graph, graph_jax = repeated_graph(sizes.graph)
    cases += [Case("repeated graph, xla", graph, 1), Case("repeated graph, jax.jit", graph_jax, 1)]
    return cases


def measure(cases: list[Case], repeats: int) -> dict[str, float]:
    """Best seconds per operation, by case. Three runs in a row in each round: the first one finds cold caches."""
    best = {case.name: float("inf") for case in cases}
    for _ in range(repeats):
        gc.collect()
        for case in cases:
            for _ in range(3):
                action = case.prepare()
                start = time.perf_counter()
                action()
                took = (time.perf_counter() - start) / case.count
                best[case.name] = min(best[case.name], took)
                del action
    return best


def import_seconds(repeats: int) -> float:
    """Best time of `import torch_xla` in a fresh process that has imported torch and jax, from compiled bytecode as installers leave it."""
    cached = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    line = re.compile(r"^import time:\s+\d+ \|\s+(\d+) \| torch_xla$", re.MULTILINE)
    best = float("inf")
    for _ in range(repeats + 1):  # the first one may compile
        command = [sys.executable, "-X", "importtime", "-c", "import torch, jax\nimport torch_xla"]
        done = subprocess.run(command, env=cached, capture_output=True, text=True, check=True)
        found = line.search(done.stderr)
        if found is None:
            raise RuntimeError("python -X importtime did not report torch_xla: is something else importing it at start-up?")
        best = min(best, int(found.group(1)) / 1e6)
    return best


def rows_of(best: dict[str, float], sizes: Sizes, imported: float) -> list[Row]:
    """The table's rows: microseconds, ratio to the bare dispatch, goal, whether it is met."""
    timed = dict(best)
    whole, execution = timed["repeated graph, xla"], timed["repeated graph, jax.jit"]
    timed[f"sync per operation of a repeated {sizes.graph}-operation graph, beyond jax.jit"] = (whole - execution) / sizes.graph
    timed["import torch_xla, beyond torch and jax"] = imported
    rows: list[Row] = []
    for name, seconds in timed.items():
        micros, ratio, goal = 1e6 * seconds, seconds / timed[BARE], GOALS.get(name)
        rows.append({
            "case": name, "us": micros, "ratio": ratio,
            "goal": goal.text if goal is not None else None, "met": goal.met(micros, ratio) if goal is not None else None,
        })  # fmt: skip
    return rows


def show(rows: list[Row], console: Console) -> None:
    """The rich table."""
    table = Table(title="Recording cost (best of all repeats)")
    for heading in ("case", "µs", "× bare", "goal", ""):
        table.add_column(heading, justify="left" if heading in ("case", "goal") else "right")
    for row in rows:
        met = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[row["met"]]  # type: ignore[index]
        table.add_row(str(row["case"]), f"{row['us']:,.2f}", f"{row['ratio']:,.2f}", str(row["goal"] or ""), met)
    console.print(table)


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--repeats", type=click.IntRange(1), help="Rounds over all cases.")
@click.option("--quick", is_flag=True, help="Tiny sizes: does it run at all?")
def main(target: Path | None, repeats: int | None, quick: bool) -> None:
    rerun_with({"PJRT_DEVICE": "CPU", **os.environ, **STEADY})
    sizes = QUICK if quick else FULL
    best = measure(build_cases(sizes), repeats or sizes.repeats)
    rows = rows_of(best, sizes, import_seconds(1 if quick else 5))
    show(rows, wide_console())
    if target is not None:
        write_results(target, "trace", rows, operations=sizes.operations, repeats=repeats or sizes.repeats)


if __name__ == "__main__":
    main()
