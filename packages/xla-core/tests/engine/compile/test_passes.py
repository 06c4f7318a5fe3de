"""Passes that change programs: what they compute against CPU torch, when they run, what a verifier refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as replaced
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla.core import xla_model as xm
from xla_core.abi.graph import Graph, insert_before, register_pass, remove, replace
from xla_core.abi.metrics import counter
from xla_core.abi.texts import graph_text
from xla_core.base import errors
from xla_core.engine.compile import disk


@contextmanager
def registered(graph_pass: Callable[[Graph], Any]) -> Iterator[None]:
    end = register_pass(graph_pass)
    try:
        yield
    finally:
        end()


def fuse_addmm(graph: Graph) -> Graph:
    """add(mm(a, b), c) as addmm(c, a, b)."""
    for operation in reversed(list(graph.operations())):
        if operation.target != "aten::add.Tensor":
            continue
        (product, other), named = graph.arguments(operation)
        made = graph.maker(product)
        if made is not None and made.target == "aten::mm" and not named:
            (a, b), _ = graph.arguments(made)
            graph = replace(graph, operation, "aten::addmm", other, a, b)
            if not graph.users(product) and product.slot not in graph.outs:
                graph = remove(graph, made)
    return graph


def texts(graph: Graph) -> list[str]:
    return [operation.target for operation in graph.operations()]


def watching(seen: list[list[str]]) -> Callable[[Graph], None]:
    return lambda graph: seen.append(texts(graph))


def test_a_fusion_computes_what_torch_does(counts: Any) -> None:
    seen: list[list[str]] = []
    a, b, c = torch.randn(3, 4), torch.randn(4, 229), torch.randn(229)  # as in no other test, whose numbers would be known
    there = [tensor.to("xla") for tensor in (a, b, c)]
    with registered(fuse_addmm), registered(watching(seen)):
        for number in range(3):
            result = ((there[0] @ there[1] + there[2]).relu() * (number + 1.5)).cpu()
            torch.testing.assert_close(result, (a @ b + c).relu() * (number + 1.5))
    assert seen[0] == ["aten::addmm", "aten::relu", "aten::mul.Tensor"]
    assert len(seen) == counts.UncachedCompile == 2, "at compilation only: first, and when the number changed"


def test_gradients_and_steps_in_place(counts: Any) -> None:
    """An in-place sum is fused, too, in the dtype that it writes; a step that runs again donates as before."""

    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 20).reshape(4, 5).to(device))
        x, bias = torch.linspace(0, 2, 12).reshape(3, 4).to(device), torch.ones(5, device=device)
        losses = []
        for _ in range(3):
            out = torch.mm(x, weight)
            out = out.add_(bias)
            loss = (out**2).sum()
            loss.backward()
            with torch.no_grad():
                weight -= 0.01 * weight.grad
            weight.grad = None
            losses.append(loss.detach())
            torch_xla.sync()
        return [float(loss) for loss in losses]

    seen: list[list[str]] = []
    with registered(fuse_addmm), registered(watching(seen)):
        found = train("xla")
    assert any("aten::addmm" in program for program in seen)
    torch.testing.assert_close(found, train("cpu"))


def test_insertion_and_removal() -> None:
    def rewrite(graph: Graph) -> Graph:
        for operation in reversed(list(graph.operations())):
            args, _ = graph.arguments(operation)
            if operation.target == "aten::sin":
                graph, doubled = insert_before(graph, operation, "aten::mul.Scalar", args[0], 2)
                sine = next(each for each in graph.operations() if each.target == "aten::sin")
                graph = replace(graph, sine, "aten::sin", *graph.results_of(doubled))
            elif operation.target == "aten::neg":
                graph = remove(graph, operation, instead=args[0])
        return graph

    x = torch.linspace(0, 1, 7)
    with registered(rewrite):
        y = x.to("xla") + 1
        first, second, third = y.sin(), y.neg(), torch.aminmax(y.neg())
        torch_xla.sync()
        torch.testing.assert_close(first.cpu(), (2 * (x + 1)).sin())
        torch.testing.assert_close([second.cpu(), *(each.cpu() for each in third)], [x + 1, (x + 1).min(), (x + 1).max()])
    torch.testing.assert_close(y.sin().cpu(), (x + 1).sin())


def test_random_operations_keep_their_random_inputs() -> None:
    def less(graph: Graph) -> Graph:
        for operation in graph.operations():
            if operation.target == "aten::bernoulli.p":
                args, _ = graph.arguments(operation)
                graph = replace(graph, operation, "aten::bernoulli.p", args[0], 1.0)
        return graph

    x = torch.zeros(100, device="xla")
    with registered(less):
        ones = torch.bernoulli(x, 0.5)
        rest = torch.rand(3, device="xla")
        assert ones.sum().item() == 100 and 0 < rest[0].item() < 1


def test_programs_are_those_of_the_passes_registered_now() -> None:
    def to_cosine(graph: Graph) -> Graph:
        for operation in graph.operations():
            if operation.target == "aten::sin":
                graph = replace(graph, operation, "aten::cos", graph.arguments(operation)[0][0])
        return graph

    x = torch.linspace(0, 1, 13)
    y = x.to("xla")
    torch.testing.assert_close(y.sin().cpu(), x.sin())
    for _ in range(2):
        before = counter("UncachedCompile")
        with registered(to_cosine):
            torch.testing.assert_close(y.sin().cpu(), x.cos())
        torch.testing.assert_close(y.sin().cpu(), x.sin())
    assert counter("UncachedCompile") == before, "both are found again"


def test_programs_on_disk_are_those_that_passes_made(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from xla_core.engine.compile.cache import programs

    def to_cosine(graph: Graph) -> Graph:
        for operation in graph.operations():
            if operation.target == "aten::sinh":
                graph = replace(graph, operation, "aten::cosh", graph.arguments(operation)[0][0])
        return graph

    monkeypatch.setattr(disk, "_active", disk.DiskCache(tmp_path, False))
    x = torch.linspace(0, 1, 11)
    y = x.to("xla")
    hits = counter("PersistentCacheHit")
    for _ in range(2):
        torch.testing.assert_close(y.sinh().cpu(), x.sinh())
        with registered(to_cosine):
            torch.testing.assert_close(y.sinh().cpu(), x.cosh())
        programs().clear()
    assert counter("PersistentCacheHit") == hits + 2


def test_data_that_is_wrong_is_reported_with_the_right_operation() -> None:
    """The error word names slots of the program that ran."""
    x, index = torch.arange(6.0, device="xla"), torch.tensor([1, 9], device="xla")
    with registered(fuse_addmm):
        product = x.reshape(2, 3) @ x.reshape(3, 2) + x[:2]
        with pytest.raises(IndexError, match=r"aten\.index_select, recorded at .*test_passes"):
            (torch.index_select(x, 0, index).sum() + product.sum()).item()
        xm.wait_device_ops()


def test_what_fails_in_a_changed_program_does_not_take_the_rest_along(custom_op: Any) -> None:
    fails = custom_op("fails_in_pass(Tensor x) -> Tensor", lambda x: x.clone(), lambda context, x: x[:1])
    a, b, c = torch.randn(3, 4), torch.randn(4, 3), torch.randn(3)
    with registered(fuse_addmm):
        good, bad = a.to("xla") @ b.to("xla") + c.to("xla"), fails(c.to("xla"))
        with pytest.raises(errors.LoweringError, match="fails_in_pass"):
            torch_xla.sync()
        torch.testing.assert_close(good.cpu(), a @ b + c)
        with pytest.raises(errors.LoweringError):
            bad.cpu()


def no_result(graph: Graph) -> Any:
    return 3


def raising(graph: Graph) -> Graph:
    raise KeyError("missing")


def on_purpose(graph: Graph) -> Graph:
    raise errors.TooManyGraphsError("enough")


def first(graph: Graph) -> Any:
    return next(graph.operations())


def without_result(graph: Graph) -> Graph:
    return replaced(graph, outs=graph.outs[1:])


def without_input(graph: Graph) -> Graph:
    return replaced(graph, entries=graph.entries[1:], outs=tuple(slot - 1 for slot in graph.outs))


def other_donations(graph: Graph) -> Graph:
    return replaced(graph, dead=(*graph.dead, 0))


def other_result(graph: Graph) -> Graph:
    return replaced(graph, outs=(0,) * len(graph.outs))


def reads_later(graph: Graph) -> Graph:
    entry: Any = graph.entries[first(graph).slot]
    return replaced(
        graph,
        entries=(*graph.entries[: first(graph).slot], (entry[0], len(graph.entries), *entry[2:]), *graph.entries[first(graph).slot + 1 :]),
    )


def other_shape(graph: Graph) -> Graph:
    return replace(graph, first(graph), "aten::sum", graph.arguments(first(graph))[0][0])


def removes_the_used(graph: Graph) -> Graph:
    return remove(graph, first(graph))


def takes_itself(graph: Graph) -> Graph:
    return replace(graph, first(graph), "aten::neg", *graph.results_of(first(graph)))


def draws(graph: Graph) -> Graph:
    return insert_before(graph, first(graph), "aten::rand_like", graph.arguments(first(graph))[0][0])[0]


def unknown(graph: Graph) -> Graph:
    return replace(graph, first(graph), "aten::no_such_operation")


def stale(graph: Graph) -> Graph:
    operation = first(graph)
    changed, _ = insert_before(graph, operation, "aten::neg", graph.arguments(operation)[0][0])
    return remove(changed, operation)


@pytest.mark.parametrize(
    ("graph_pass", "error", "text"),
    [
        (no_result, errors.PluginError, r"test_passes\.no_result makes no legal program: it gave 3"),
        (raising, errors.PluginError, r"test_passes\.raising raised KeyError: 'missing'"),
        (on_purpose, errors.TooManyGraphsError, "enough"),
        (without_result, errors.PluginError, "without_result makes no legal program: the program has 1 results, not 0"),
        (without_input, errors.PluginError, "without_input makes no legal program: .*"),
        (other_donations, errors.PluginError, "other_donations makes no legal program: .*"),
        (other_result, errors.PluginError, r"result 0 of the program is f32\[3\], not f32\[2,3\]"),
        (reads_later, errors.PluginError, "reads_later makes no legal program: .*reads a later slot"),
        (other_shape, errors.PluginError, r"aten::sum gives f32\[\], aten.*f32\[2,3\]"),
        (removes_the_used, errors.PluginError, "has users: say which value they get instead"),
        (takes_itself, errors.PluginError, "is not computed before"),
        (draws, errors.PluginError, "draws random numbers"),
        (unknown, errors.PluginError, "unknown makes no legal program: .*no operation named 'aten::no_such_operation'"),
        (stale, errors.PluginError, "look it up again"),
    ],
)
def test_what_is_no_legal_program_is_refused_with_the_name_of_the_pass(graph_pass: Any, error: type[Exception], text: str) -> None:
    x = torch.arange(6.0).reshape(2, 3).to("xla")
    total = x.tanh().sum(0)
    with registered(graph_pass), pytest.raises(error, match=text):
        total.cpu()
    torch.testing.assert_close(total.cpu(), x.cpu().tanh().sum(0))


def test_what_acts_on_others_stays(custom_op: Any) -> None:
    send = custom_op("sent_by_pass(Tensor x) -> Tensor", lambda x: x + 1, lambda context, x: x + 1, has_side_effects=True)
    x = torch.ones(3, device="xla")
    target = "xla_core_tests::sent_by_pass"

    def effects(graph: Graph) -> list[Any]:
        return [operation for operation in graph.operations() if operation.target == target]

    def replaces(graph: Graph) -> Graph:
        return replace(graph, effects(graph)[0], "aten::neg", graph.arguments(effects(graph)[0])[0][0])

    def removes(graph: Graph) -> Graph:
        return remove(graph, effects(graph)[0], instead=graph.arguments(effects(graph)[0])[0][0])

    def brings_in(graph: Graph) -> Graph:
        return insert_before(graph, effects(graph)[0], target, graph.arguments(effects(graph)[0])[0][0])[0]

    def swaps(graph: Graph) -> Graph:
        entry: Any = graph.entries[effects(graph)[0].slot]
        return replaced(graph, entries=tuple((entry[0], *each[1:]) if type(each) is tuple else each for each in graph.entries))

    for graph_pass in (replaces, removes, brings_in, swaps):
        sent = send(x.neg())
        with registered(graph_pass), pytest.raises(errors.PluginError, match="side effects"):
            sent.cpu()
        assert sent.tolist() == [0.0, 0.0, 0.0]


def test_numbers_go_on_as_inputs() -> None:
    """The scale of a sum, which changes from step to step, becomes the beta of the product."""

    def fuse_scaled(graph: Graph) -> Graph:
        for operation in reversed(list(graph.operations())):
            args, named = graph.arguments(operation)
            if operation.target == "aten::add.Tensor" and set(named) == {"alpha"}:
                made = graph.maker(args[0])
                assert made is not None
                graph = replace(graph, operation, "aten::addmm", args[1], *graph.arguments(made)[0], beta=named["alpha"])
        return graph

    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5)
    there = [tensor.to("xla") for tensor in (a, b, c)]
    seen: list[list[str]] = []
    with registered(fuse_scaled), registered(watching(seen)):
        for scale in (0.5, 2.0, 7.0, 11.0):
            found = torch.add(there[0] @ there[1], there[2], alpha=scale)
            torch.testing.assert_close(found.cpu(), torch.add(a @ b, c, alpha=scale))
    assert len(seen) == 2 and "aten::addmm" in seen[0]


def test_a_graph_prints_as_before_and_is_not_changed() -> None:
    def keeps(graph: Graph) -> None:
        before = graph_text(graph)
        fuse_addmm(graph)
        assert graph_text(graph) == before

    a = torch.ones(2, 2, device="xla")
    with registered(keeps):
        assert (a @ a + a).tolist() == [[3.0, 3.0], [3.0, 3.0]]
