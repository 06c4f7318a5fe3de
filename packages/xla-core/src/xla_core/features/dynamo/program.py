"""A recorded graph as data: the program, where its inputs come from, and how to build its results. Running it needs buffers only."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xla_core.base import metrics
from xla_core.base.metrics import Cause
from xla_core.base.private_torch import TreeSpec, tree_unflatten
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.graph import Graph, Inputs
from xla_core.engine.graph.pending_graph import Recorder, Value, buffer_value
from xla_core.engine.placement.sharding import Sharding
from xla_core.engine.runtime import donation, executor, resharding
from xla_core.engine.runtime.executor import ProgramsOfGraph
from xla_core.engine.runtime.source_location import asking_line
from xla_core.engine.runtime.sync import compute
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor, view_of
from xla_core.engine.tracing.origins import Argument, ArgumentItself, Constant, NewStorage, Result, ViewOf
from xla_core.features.dynamo import config
from xla_core.features.dynamo.program_graph import ArgumentNumber

Origin = Result | Argument | Value
"""Where a value comes from: the program's results, an input's data before the call, or a constant value."""


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """A recorded graph: the program, where its inputs come from, and how to build its results.

    avals: shape and dtype of each result of the program.
    sources: for each input storage, the index of an argument that shows it, or the graph's own tensor.
    written: inputs that get another value, by index, with its origin. holders: origins of the new storages' values.
    shardings: requested by the graph for inputs, and (second) for the new storages. programs: compiled programs of the graph.
    """

    recorder: Recorder
    graph: Graph
    inputs: Inputs
    avals: list[Aval]
    sources: list[int | XLATensor]
    written: list[tuple[int, Origin]]
    holders: list[Origin]
    results: list[Any]
    tree: TreeSpec
    shardings: tuple[list[Sharding | None], list[Sharding | None]]
    programs: ProgramsOfGraph = field(default_factory=ProgramsOfGraph)

    def run(self, args: Sequence[Any], tensors: Sequence[Any]) -> Any:
        """The graph's results for arguments with the key of the recording. tensors: the xla tensors behind them."""
        storages = [(tensors[source] if isinstance(source, int) else source)._storage for source in self.sources]
        with self.recorder.lock:
            # Read all before writing any: one input may get another's value.
            before = [storage.value for storage in storages]
            computed = self._execute(before, args)

            def value(origin: Origin) -> Value:
                if isinstance(origin, Argument):
                    return before[origin.index]
                return computed[origin.index] if isinstance(origin, Result) else origin

            for index, origin in self.written:
                storages[index].value = value(origin)
            new = [_storage(value(origin)) for origin in self.holders]
            for holder, sharding in zip([*storages, *new], [*self.shardings[0], *self.shardings[1]], strict=True):
                if sharding is not None:
                    resharding.set_sharding(holder, sharding)
        return tree_unflatten([_result(result, args, storages, new) for result in self.results], self.tree)

    def input_sources(self) -> list[int | XLATensor]:
        """For each buffer that the program takes from an input, the index of an argument that shows it, or the graph's own tensor."""
        return [self.sources[item.index] for item in self.inputs.buffers if isinstance(item, Argument)]

    def _given_away(self, before: list[Value]) -> tuple[int, ...]:
        """Indices of the program's buffers that can be donated: their inputs are marked for it, and are used only once."""
        values = [(index, before[item.index]) for index, item in enumerate(self.inputs.buffers) if isinstance(item, Argument)]
        times = Counter(id(value) for _, value in values)
        # A leaf of the pending graph has an entry there, which other operations may use.
        alone = [(index, value) for index, value in values if value.pending_graph is None and times[id(value)] == 1]
        return tuple(index for index, value in alone if donation.is_marked(value))

    def _execute(self, before: list[Value], args: Sequence[Any]) -> list[Value]:
        if not self.graph.outs:
            return []
        begin = time.perf_counter_ns()
        recorded = self.inputs
        used = [before[item.index] for item in recorded.buffers if isinstance(item, Argument)]
        _make_real([value for value in used if value.buffer is None])
        buffers = [before[item.index].buffer if isinstance(item, Argument) else item for item in recorded.buffers]
        # Each call draws its own random numbers.
        seeds = [self.recorder.draw() for _ in recorded.seeds]
        floats, ints = _numbers(recorded.floats, args), _numbers(recorded.ints, args)
        inputs = Inputs(buffers, floats, recorded.fixed_floats, ints, recorded.fixed_ints, seeds)
        results: list[Any] = []
        ready = _timed("RunCachedGraphInputData", begin)
        if donation.any_marked() and donation.enabled(self.recorder.index):
            graph = replace(self.graph, dead=self._given_away(before))
            executor.execute(self.recorder, graph, inputs, results.extend, Cause.DYNAMO_EXECUTE, asking_line())
            donation.settle()
        else:
            executor.execute(self.recorder, self.graph, inputs, results.extend, Cause.DYNAMO_EXECUTE, asking_line(), self.programs)
        ran = _timed("RunCachedGraph", ready)
        computed = [buffer_value(self.recorder, aval, buffer) for aval, buffer in zip(self.avals, results, strict=True)]
        _timed("RunCachedGraphOutputData", ran)
        return computed


def _numbers(recorded: list[Any], args: Sequence[Any]) -> list[Any]:
    """This call's numbers: read from its CPU tensors, or as recorded."""
    return [args[number.place].item() if type(number) is ArgumentNumber else number for number in recorded]


def _timed(name: str, begin: int) -> int:
    """Add the time since `begin` to a metric, and return the time now."""
    now = time.perf_counter_ns()
    metrics.metric_add(name, now - begin, metrics.Unit.DURATION_NS)
    return now


def _storage(value: Value) -> Storage:
    storage = Storage()
    storage.value = value
    storage.annotations = None
    return storage


def _result(result: Any, args: Sequence[Any], storages: list[Storage], new: list[Storage]) -> Any:
    if isinstance(result, ArgumentItself):
        return args[result.index]
    if isinstance(result, ViewOf):
        storage: Any = result.storage
        return view_of((new if isinstance(storage, NewStorage) else storages)[storage.index], result.spec)
    return result.value.clone() if isinstance(result, Constant) else result


def _make_real(pending: list[Value]) -> None:
    if not pending:
        return
    if config.skip_input_data_check:
        compute(pending, None)
        return
    metrics.counter_add("DynamoSyncInputExecuteTime")
    compute(pending, Cause.DYNAMO_INPUTS)
