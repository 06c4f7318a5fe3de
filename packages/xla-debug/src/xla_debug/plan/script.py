"""Run a script on a target, in a process of its own: `python -m xla_debug.plan.script FILE TARGET STEPS module|file SCRIPT ARGS…`.

The plan is written after each program and step, so that it is there whatever ends the process. After the last step the process ends at
once: nothing that the script would do then, such as saving a model without values, is done.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from xla_debug import core
from xla_debug.plan import estimate
from xla_debug.plan.hardware import SPEEDS
from xla_debug.plan.schema import Plan, ProgramPlan, State, to_json
from xla_debug.secret_values import hide_in_arguments

events, files, graph, metrics, targets, tensors = core.events, core.files, core.graph, core.metrics, core.targets, core.tensors


class Planner:
    """Makes the plan of this process, and writes it to a file."""

    def __init__(self, path: Path, most_steps: int, command: list[str], target: targets.Target) -> None:
        self._path, self._most_steps, self._target = path, most_steps, target
        speed = SPEEDS.get(target.kind)
        peak = speed.flops_bf16 if speed is not None else 0.0
        devices, memory = len(target.devices), target.memory_bytes or 0
        self.plan = Plan(target.name, target.kind, devices, list(target.shape), memory, peak, command)
        self._compiled: events.CompileEvent | None = None
        self._programs: list[ProgramPlan] = []
        self._runs: list[int] = []

    def start(self) -> None:
        """Hear of programs and steps."""
        events.subscribe(self._note, events.CompileEvent)
        events.subscribe(self._synced, events.SyncEvent)
        events.subscribe(self._fell_back, events.FallbackEvent)
        graph.register_wrapper(self._describe)

    def _note(self, event: events.CompileEvent) -> None:
        self._compiled = event

    def _describe(self, recorded: graph.Graph, executable: Any) -> Any:
        event, compiled = self._compiled, getattr(executable, "compiled", None)
        if event is None or compiled is None:
            return executable
        name = event.name or "program"
        known = {"name": name, "line": event.line, "operations": event.num_nodes, "compile_s": event.duration_ns * 1e-9}
        number = len(self._programs)
        mesh = _mesh()
        self.plan = replace(self.plan, mesh=mesh or self.plan.mesh)
        described = estimate.described(compiled, self._target.kind, self._target.devices, mesh, **known)
        self._programs.append(described)
        self._runs.append(0)
        self.write()

        def counted(*arguments: Any) -> Any:
            self._runs[number] += 1
            return executable(*arguments)

        return counted

    def _synced(self, event: events.SyncEvent) -> None:
        if event.kind is not events.SyncKind.STEP or event.cause is None:
            return
        self.plan = replace(self.plan, steps=self.plan.steps + 1, state=_state())
        self.write()
        if self.plan.steps >= self._most_steps:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _fell_back(self, event: events.FallbackEvent) -> None:
        text = f"{event.operator} at {event.line}"
        if text not in self.plan.fallbacks:
            self.plan.fallbacks.append(text)

    def failed(self, error: str) -> None:
        """Note the error with which the script ended."""
        self.plan = replace(self.plan, error=error)
        self.write()

    def write(self) -> None:
        """Write the plan as it is now."""
        programs = [replace(program, runs=runs) for program, runs in zip(self._programs, self._runs, strict=True)]
        self.plan = replace(self.plan, programs=programs)
        with files.atomic_write(self._path) as temporary:
            temporary.write_bytes(to_json(self.plan))


def _mesh() -> dict[str, int]:
    """The axes of the mesh over which the script shards tensors, by name; the finest of several."""
    notes = [kept.note for tensor in _all_of(tensors.XLATensor) if (kept := core.sharding.sharding_of(tensor)) is not None]
    # What SPMD mode notes of a sharding has the user's mesh, whose axes the programs do not know by name.
    meshes = [mesh for note in notes if (mesh := getattr(note, "mesh", None)) is not None]
    return max([dict(mesh.shape()) for mesh in meshes], key=len, default={})


def _state() -> State:
    """What lives on a device between programs. A buffer counts once, for the first of parameters, gradients, optimizers that shows it."""
    parameters = _all_of(torch.nn.Parameter)
    of_parameters = {id(parameter) for parameter in parameters}
    of_gradients = {id(parameter.grad) for parameter in parameters}
    rows = [row for item in _all_of(torch.optim.Optimizer) for row in item.state.values() if isinstance(row, dict)]
    of_optimizers = {id(value) for row in rows for value in row.values()}
    sizes = dict.fromkeys(("parameters", "gradients", "optimizer", "other", "replicated"), 0)
    for live in metrics.live_buffers():
        shown = {id(tensor) for tensor in live.tensors}
        nbytes = live.array.addressable_data(0).nbytes
        kind = next(
            (name for name, ids in zip(sizes, (of_parameters, of_gradients, of_optimizers), strict=False) if ids & shown),
            "other",
        )
        sizes[kind] += nbytes
        sizes["replicated"] += nbytes if kind == "parameters" and live.array.is_fully_replicated else 0
    return State(**sizes)


def _all_of(kind: type[Any]) -> list[Any]:
    """All objects of a class: by their type, since `isinstance` asks some objects themselves."""
    return [item for item in gc.get_objects() if issubclass(type(item), kind)]


def main(arguments: list[str]) -> None:
    """Run the script; its exit code is this process's, 1 if it ends with an error."""
    path, name, steps, kind, script, *rest = arguments
    sys.argv = [script, *rest]
    # Before the script: its own settings of jax must not start devices that are not the target's.
    target = targets.target_named(name)
    planner = Planner(Path(path), int(steps), hide_in_arguments([script, *rest]), target)
    planner.write()
    planner.start()
    try:
        if kind == "module":
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            planner.failed(f"the script ended with exit code {ended.code}")
            raise
    except BaseException as error:
        planner.failed("".join(traceback.format_exception_only(error)).strip())
        raise
    planner.write()


if __name__ == "__main__":
    main(sys.argv[1:])
