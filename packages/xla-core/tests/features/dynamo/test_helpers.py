"""The parts of the bridge that backends are built of, and what they say of recorded graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import torch_xla
from torch_xla._dynamo import dynamo_backend2, dynamo_bridge
from torch_xla.core import dynamo_bridge as old_home
from xla_core.base.errors import GraphBreakError

X, Y = torch.arange(12.0).reshape(3, 4), torch.tensor([1.0, 2.0])


def updates(a: torch.Tensor, b: torch.Tensor) -> Any:
    """Writes to one argument, gives back the other, a new tensor, and nothing."""
    a.add_(1)
    return a * 2, None, b


def traced() -> fx.GraphModule:
    return make_fx(updates)(X.clone(), Y)


def test_both_homes_have_the_same_names() -> None:
    assert old_home.__all__ == dynamo_bridge.__all__
    assert all(getattr(old_home, name) is getattr(dynamo_bridge, name) for name in old_home.__all__)
    assert dynamo_bridge.dynamo_debug is False and dynamo_bridge.ptxla_debug is False
    assert dynamo_bridge.is_xla_tensor(X.to("xla")) and not dynamo_bridge.is_xla_tensor(X)


@pytest.mark.parametrize("items", [[], [3], [3, 1, 3, 3, 2, 1]], ids=str)
def test_repeated_items_come_back(items: list[int]) -> None:
    deduper = dynamo_bridge.Deduper()
    once = deduper.dedup(items)
    assert sorted(once) == sorted(set(items))
    assert deduper.recover([f"<{item}>" for item in once]) == [f"<{item}>" for item in items]
    with pytest.raises(RuntimeError, match="call that first"):
        dynamo_bridge.Deduper().recover([1])


@pytest.mark.parametrize("items", [[], [None], [1, 2], [None, 1, None, None, 2, None]], ids=str)
def test_nones_come_back(items: list[Any]) -> None:
    remover = dynamo_bridge.NoneRemover()
    kept = list(items)
    remover.remove_nones(kept)
    assert kept == [item for item in items if item is not None]
    remover.add_nones(kept)
    assert kept == items


def test_inputs_are_found_among_the_arguments() -> None:
    matcher = dynamo_bridge.GraphInputMatcher({11: 1, 12: 0}, [12, 99, 11], ["then a", "held", "then b"], {11, 12, 13})
    assert matcher(["a", "b"]) == ["a", "held", "b"]
    with pytest.raises(KeyError, match="13"):
        dynamo_bridge.GraphInputMatcher({11: 1}, [13], ["then"], {11, 13})(["a"])


def test_inputs_and_constants_are_put_among_the_results() -> None:
    a, b, new = object(), object(), object()
    outputs = [a, new, b]  # of all results those at 0, 2 and 3: constants stand at 1 and 4
    handler = dynamo_bridge.SpecialReturnHandler([a, b], outputs, [False, True], [(7, 1), ("text", 4)])
    assert outputs == [new, b]  # b is written to: the program gives it
    results: list[Any] = ["new", "b"]
    handler.addDumbReturn(["real a", "real b"], results)
    assert results == ["real a", 7, "new", "b", "text"]


def test_arguments_of_inner_graphs_are_collected() -> None:
    inner = make_fx(lambda a: a * 2)(X)
    outer = torch.nn.Module()
    outer.inner = inner
    graph = fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("a"),)))
    x = X.to("xla")
    dynamo_bridge.InputCollector(fx.GraphModule(outer, graph)).run(x)
    (found,) = inner.xla_args  # type: ignore[misc]
    assert found is x


@torch.library.custom_op("xla_core_tests::tripled", mutates_args=(), device_types="cpu")
def tripled(a: torch.Tensor) -> torch.Tensor:
    """An operator that no table of ours can know."""
    return a * 3


@tripled.register_fake
def _(a: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(a)


@pytest.mark.filterwarnings("ignore:.*has no XLA lowering:RuntimeWarning")
def test_fallbacks_are_found_and_counted() -> None:
    model = make_fx(lambda a: torch.ops.xla_core_tests.tripled(a + 1) * 2)(X)
    collector = dynamo_bridge.UnsupportedNodesCollector(model)
    collector.run(X.to("xla"))
    assert [node.target for node in collector.get_unsupported_nodes()] == [torch.ops.xla_core_tests.tripled.default]
    nothing = dynamo_bridge.UnsupportedNodesCollector(traced())
    x = X.to("xla")
    nothing.run(x, Y.to("xla"))
    assert nothing.get_unsupported_nodes() == []
    torch.testing.assert_close(x.cpu(), X)
    with pytest.raises(RuntimeError, match="no single program"):
        model.xla_args = (x,)  # type: ignore[assignment]
        dynamo_bridge.extract_graph_helper(model, {})


def test_fallback_operations_are_listed() -> None:
    torch_xla._XLAC._xla_increment_counter("aten::tests_of_ours", 2)
    assert "aten::tests_of_ours=2" in dynamo_bridge.get_fallback_ops()
    assert all(name.startswith("aten::") for name in dynamo_bridge.get_fallback_ops())


def test_extracted_graphs_say_what_they_are() -> None:
    model, x, y = traced(), X.to("xla"), Y.to("xla")
    with pytest.raises(ValueError, match="xla_args"):
        dynamo_bridge.extract_graph_helper(model, {})
    model.xla_args = (x, y)  # type: ignore[assignment]
    known: dict[Any, Any] = {}
    found = dynamo_bridge.extract_graph_helper(model, known)
    assert known == {(): found}
    assert [(tensor.shape, tensor.dtype) for tensor in found.args_and_out] == [(X.shape, X.dtype)] * 2
    assert (found.arg_index_to_need_update_index, found.xla_args_need_update) == ({0: 0}, [True, False])
    assert found.xla_args_sharding_spec == [None, None] and len(found.graph_hash) == 32
    other = X.to("xla") + 1
    assert found.graph_input_matcher([other, y])[0] is other
    results = ["computed"]
    found.special_return_handler.addDumbReturn([x, y], results)
    found.none_remover.add_nones(results)
    assert results[:2] == ["computed", None] and results[2] is y
    torch.testing.assert_close(x.cpu(), X)


def test_constants_of_extracted_graphs_are_put_among_the_results() -> None:
    model = make_fx(lambda a: (a + 1, torch.arange(3), a))(X)
    model.xla_args = (X.to("xla"),)  # type: ignore[assignment]
    found = dynamo_bridge.extract_graph_helper(model, {})
    results: list[Any] = ["computed"]
    found.special_return_handler.addDumbReturn(["given"], results)
    assert [item.tolist() if isinstance(item, torch.Tensor) else item for item in results] == ["computed", [0, 1, 2], "given"]


@pytest.mark.parametrize("how", ["internal", "helper"])
def test_extracted_graphs_run(how: str) -> None:
    model, x, y = traced(), X.to("xla"), Y.to("xla")
    if how == "internal":
        model.xla_args = (x, y)  # type: ignore[assignment]
        run = dynamo_bridge.extract_internal(model)
    else:
        run = dynamo_bridge.extract_compiled_graph_helper(model, (x, y))
    for turn in range(2):
        product, nothing, same = run(x, y)
        assert nothing is None and same is y
        torch.testing.assert_close(product.cpu(), (X + turn + 1) * 2)
        torch.testing.assert_close(x.cpu(), X + turn + 1)


def test_tensors_are_made_where_they_are_used() -> None:
    model = make_fx(lambda a: a.sum(0) + torch.arange(4).to("xla"), tracing_mode="fake")(X.to("xla"))
    made = [node for node in model.graph.nodes if node.target is torch.ops.aten.arange.default]
    assert [node.kwargs["device"].type for node in made] == ["cpu"]
    dynamo_bridge.XLAConstructorMoverPass()(model.graph)
    made = [node for node in model.graph.nodes if node.target is torch.ops.aten.arange.default]
    assert [node.kwargs["device"].type for node in made] == ["xla"]
    model.recompile()
    torch.testing.assert_close(model(X.to("xla")).cpu(), X.sum(0) + torch.arange(4))


def test_tensors_that_the_cpu_uses_stay_there() -> None:
    class Nothing(dynamo_bridge.XLAConstructorMoverPass):
        def allow_cpu_device(self, node: fx.Node) -> bool:
            """No operation may."""
            return False

    model = make_fx(lambda a: a.sum(0) + torch.arange(4).to("xla"), tracing_mode="fake")(X.to("xla"))
    Nothing()(model.graph)
    assert "device(type='cpu')" in model.graph.python_code("self").src


def test_the_second_name_of_the_backend_trains() -> None:
    torch._dynamo.reset()
    layer = torch.nn.Linear(4, 2)
    theirs, ours = layer(X), torch.compile(layer, backend=dynamo_backend2.dynamo_backend, fullgraph=True)
    theirs.sum().backward()
    wanted = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()
    layer.to("xla")
    found = ours(X.to("xla"))
    found.sum().backward()
    torch.testing.assert_close(found.detach().cpu(), theirs.detach())
    torch.testing.assert_close([parameter.grad.cpu() for parameter in layer.parameters() if parameter.grad is not None], wanted)


def test_shapes_that_need_a_run_are_no_part_of_a_program() -> None:
    model = make_fx(lambda a: torch.ops.xla_core_tests.tripled(a))(X)
    for node in model.graph.nodes:
        node.meta.clear()
    with pytest.raises(GraphBreakError):
        dynamo_bridge.UnsupportedNodesCollector(model).run(X.to("xla"))
