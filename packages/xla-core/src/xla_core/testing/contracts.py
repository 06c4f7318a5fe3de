"""Contracts of operations, graph passes and listeners to events, as test classes to subclass.

class TestCube(OperatorContract):
    operator = torch.ops.docs.cube.default

    def samples(self):
        return [((torch.randn(3), 0.5), {})]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from xla_core.base import metrics
from xla_core.base.private_torch import OpOverload, tree_leaves, tree_map
from xla_core.engine.compile.passes import register_pass
from xla_core.engine.graph.text import graph_text
from xla_core.engine.graph.view import GraphView as Graph
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.executor import wait_all
from xla_core.engine.runtime.sync import retire
from xla_core.engine.tensor.interop import graph_of, is_pending, sync
from xla_core.engine.tensor.schema import full_name
from xla_core.ops.table import TABLE
from xla_core.testing.lowering import lower_once

Sample = tuple[tuple[Any, ...], dict[str, Any]]
Program = Callable[[torch.device], Any]


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _moved(tree: Any, device: str) -> Any:
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, tree)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class OperatorContract:
    """An operation that `register_op` brought.

    operator: the overload. samples: its arguments, of CPU tensors, for each case that matters. expected: the right results; torch on the
    CPU unless overridden. numbers: other values of the arguments named in `OpSpec.scalars`, by their place among the sample's
    arguments, for the first sample. rtol, atol: as of `torch.testing.assert_close`.
    """

    operator: OpOverload
    numbers: Mapping[int, float] = {}
    rtol: float | None = None
    atol: float | None = None

    def samples(self) -> Iterable[Sample]:
        """Positional and keyword arguments of calls."""
        raise NotImplementedError

    def expected(self, *args: Any, **kwargs: Any) -> Any:
        """The right results of a call on the CPU."""
        return self.operator(*args, **kwargs)

    def _same(self, found: Any, expected: Any) -> None:
        torch.testing.assert_close(_tensors(_moved(found, "cpu")), _tensors(expected), rtol=self.rtol, atol=self.atol, equal_nan=True)

    def test_it_has_a_row(self) -> None:
        """Once, under its full name."""
        _need(full_name(self.operator) in TABLE, f"{full_name(self.operator)} has no lowering: register_op was not called")

    def test_the_lowering_gives_what_is_right(self) -> None:
        """Values, shapes and dtypes, each as inferred."""
        for args, kwargs in self.samples():
            right = self.expected(*args, **kwargs)
            self._same([one for one in lower_once(self.operator, right, *args, replica=True, **kwargs) if one is not None], right)

    def test_shapes_are_inferred_without_values(self) -> None:
        """On meta tensors, as recording asks."""
        for args, kwargs in self.samples():
            right = _tensors(self.expected(*args, **kwargs))
            found = _tensors(self.operator(*_moved(args, "meta"), **_moved(kwargs, "meta")))
            shapes = [[(tuple(one.shape), one.dtype) for one in each] for each in (found, right)]
            _need(shapes[0] == shapes[1], f"inferred {shapes[0]}, right is {shapes[1]}")

    def test_it_is_recorded_and_nothing_runs(self) -> None:
        """One operation of the pending program, not a call on the CPU."""
        args, kwargs = next(iter(self.samples()))
        sync()
        before = metrics.counter("ExecuteComputation")
        found = _tensors(self.operator(*_moved(args, "xla"), **_moved(kwargs, "xla")))
        _need(all(map(is_pending, found)), "its results are computed at the call")
        targets = [operation.target for operation in graph_of(found).operations()]
        _need(targets.count(full_name(self.operator)) == 1, f"recorded as {targets}")
        _need(metrics.counter("ExecuteComputation") == before, "recording it ran a program")
        # A collective would stay in the graph and run with what the next test computes, without its replicas.
        recorder = current_recorder()
        with recorder.lock:
            retire(recorder)

    def test_it_runs_on_the_device_and_numbers_compile_nothing(self) -> None:
        """Not of collectives, which need their replicas: after its second value, a number is an input."""
        if TABLE[full_name(self.operator)].has_side_effects:
            return
        for args, kwargs in self.samples():
            self._same(self.operator(*_moved(args, "xla"), **_moved(kwargs, "xla")), self.expected(*args, **kwargs))
        args, kwargs = next(iter(self.samples()))
        compiled = []
        for turn in range(4):
            given = [value + turn * self.numbers[place] if place in self.numbers else value for place, value in enumerate(args)]
            before = metrics.counter("UncachedCompile")
            self._same(self.operator(*_moved(given, "xla"), **_moved(kwargs, "xla")), self.expected(*given, **kwargs))
            compiled.append(metrics.counter("UncachedCompile") - before)
        _need(not any(compiled[2:]), f"calls compile {compiled} programs: name in OpSpec.scalars the numbers that shape nothing")


class GraphPassContract:
    """A graph pass.

    programs: by name, functions that compute tensors on a device, and are computed with the pass and on the CPU. changes: the programs,
    by name, that the pass must change. rtol, atol: as of `torch.testing.assert_close`.
    """

    changes: frozenset[str] = frozenset()
    rtol: float | None = None
    atol: float | None = None

    def graph_pass(self, graph: Graph) -> Graph | None:
        """The pass."""
        raise NotImplementedError

    def programs(self) -> Mapping[str, Program]:
        """Each called with a device; makes its own inputs, the same at each call."""
        raise NotImplementedError

    def _seen(self, program: Program) -> list[tuple[Graph, Graph]]:
        """Each graph that the program makes, and what the pass makes of it; compares the results with the CPU."""
        seen: list[tuple[Graph, Graph]] = []

        def watch(graph: Graph) -> Graph:
            seen.append((graph, self.graph_pass(graph) or graph))
            return seen[-1][1]

        sync(wait=True)
        remove = register_pass(watch)
        try:
            found = program(torch.device("xla"))
            sync(wait=True)
            torch.testing.assert_close(
                _tensors(_moved(found, "cpu")), _tensors(program(torch.device("cpu"))), rtol=self.rtol, atol=self.atol, equal_nan=True
            )
        finally:
            remove()
        return seen

    def test_results_are_right(self) -> None:
        """Of every program; and it changes those that it is for."""
        for name, program in self.programs().items():
            changed = any(graph_text(before) != graph_text(after) for before, after in self._seen(program))
            _need(changed or name not in self.changes, f"the pass does not change {name}")

    def test_it_depends_on_nothing_but_the_graph(self) -> None:
        """The same graph twice makes the same program, and stays what it is."""
        for name, program in self.programs().items():
            for before, after in self._seen(program):
                text = graph_text(before)
                again = self.graph_pass(before) or before
                _need(graph_text(again) == graph_text(after), f"{name}: called again, the pass makes another program")
                _need(graph_text(before) == text, f"{name}: the pass changes the graph that it is given")

    def test_it_runs_at_compilation_only(self) -> None:
        """Running a program again calls no pass."""
        calls: list[Graph] = []

        def count(graph: Graph) -> Graph | None:
            calls.append(graph)
            return self.graph_pass(graph)

        remove = register_pass(count)
        try:
            for name, program in self.programs().items():
                counts = []
                for _ in range(3):
                    program(torch.device("xla"))
                    sync(wait=True)
                    counts.append(len(calls))
                _need(counts[1] == counts[2], f"{name}: the pass runs at each step")
        finally:
            remove()


class EventSinkContract:
    """A listener to events: a report, a log, a limit.

    start: begins to listen and gives the function that ends it. It may be called several times in one process.
    """

    def start(self) -> Callable[[], None]:
        """Listen from now on; the function that ends it."""
        raise NotImplementedError

    @staticmethod
    def _work(turn: int) -> list[float]:
        """Something that compiles, runs, transfers, reads and falls back to the CPU."""
        x = torch.arange(4.0).to("xla") + turn
        sync()
        values: list[float] = (x * 2).tolist()
        torch.logcumsumexp(x, 0).sum()  # a lowering or not: both are work
        sync(wait=True)
        wait_all()
        return values

    def _counted(self) -> tuple[list[list[float]], dict[str, int]]:
        names = ("ExecuteComputation", "MarkStep", "UncachedCompile")
        before = {name: metrics.counter(name) for name in names}
        results = [self._work(turn) for turn in range(3)]
        return results, {name: metrics.counter(name) - before[name] for name in names}

    def test_it_hears_everything_without_an_error(self) -> None:
        """An error of a listener is a warning, and it hears no more."""
        end = self.start()
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                self._counted()
        finally:
            end()
        found = [str(each.message) for each in said if "listener to xla's events" in str(each.message)]
        _need(not found, f"it raised: {found}")

    def test_it_changes_no_results_and_runs_nothing(self) -> None:
        """Programs are the same ones, and as many."""
        self._counted()
        alone = self._counted()
        end = self.start()
        try:
            heard = self._counted()
        finally:
            end()
        _need(alone == heard, f"alone {alone}, with the listener {heard}")

    def test_it_ends(self) -> None:
        """Afterwards events cost nothing."""
        before = metrics.listened()
        end = self.start()
        end()
        _need(metrics.listened() == before, "after its end something of it still listens")
