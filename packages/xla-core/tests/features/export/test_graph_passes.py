"""Passes over graphs with open sizes keep what they compute."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

from torch_xla import stablehlo
from torch_xla.experimental import unbounded_dynamism_export as passes
from torch_xla.experimental import xla_dynamic_reshape_ops as reshape

aten = torch.ops.aten
_TABLE = torch.arange(12.0).reshape(6, 2)


def _rows(count: int, *more: int) -> torch.Tensor:
    return torch.randn(count, 4, *more, generator=torch.Generator().manual_seed(count))


def _norms(x: torch.Tensor) -> Any:
    return functional.layer_norm(x, (4,), torch.ones(4) * 2, torch.ones(4)), functional.group_norm(x[:, :, None], 2, torch.ones(4) * 3)


def _parts(x: torch.Tensor) -> Any:
    return x.split([1, 3], 1), x[:, -1], x[:, 2], x[:], x.unsqueeze(1), x.unsqueeze(-1)


def _looked_up(x: torch.Tensor) -> Any:
    return functional.embedding(x.long().abs() % 6, _TABLE)


def _shaped(x: torch.Tensor) -> Any:
    return torch.ones(1, 4).expand(x.shape[0], 4) + x, x.reshape(x.shape[0] * 2, 2), x.flatten()


# A function, the pass, and the operations that are none afterwards, or are there afterwards.
CASES: list[tuple[Callable[..., Any], Callable[..., None], set[Any], set[Any]]] = [
    (_norms, passes.decompose_dynamic_native_layer_norm, {aten.native_layer_norm.default}, {aten.native_group_norm.default}),
    (_norms, passes.decompose_dynamic_native_group_norm, {aten.native_group_norm.default}, set()),
    (_parts, passes.decompose_split_with_sizes, {aten.split_with_sizes.default}, {aten.slice.Tensor}),
    (_parts, passes.decompose_dynamic_shape_select, {aten.select.int}, {aten.slice.Tensor}),
    (_parts, passes.dynamic_unsqueeze_to_view, {aten.unsqueeze.default}, {aten.view.default}),
    (_parts, passes.remove_no_op_slice, {aten.slice.Tensor}, set()),
    (_looked_up, passes.flatten_embedding_indices_tensor, set(), {aten.view.default, aten.embedding.default}),
    (_shaped, passes.replace_dynamic_expand_with_xla_op, {aten.expand.default}, {torch.ops.xla.dynamic_expand.default}),
    (_shaped, passes.replace_dynamic_view_with_xla_op, set(), {torch.ops.xla.dynamic_view.default}),
]


def exported(function: Callable[..., Any]) -> ExportedProgram:
    """A program over rows of four numbers, as core ATen operations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, of its pytrees
        program = torch.export.export(
            passes.wrap_func_as_nn_module(function),
            (_rows(3),),
            dynamic_shapes=(({0: Dim("rows", min=2)},),),
        )
        return program.run_decompositions()


def targets(program: ExportedProgram) -> set[Any]:
    return {node.target for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize(("function", "transform", "gone", "there"), CASES, ids=[case[1].__name__ for case in CASES])
def test_a_pass_keeps_the_values(function: Callable[..., Any], transform: Callable[..., None], gone: set[Any], there: set[Any]) -> None:
    program = exported(function)
    assert gone <= targets(program), "else the case shows nothing"
    without_notes = {node for node in program.graph.nodes if "val" not in node.meta}
    transform(program.graph_module)
    assert not gone & targets(program) and there <= targets(program)
    assert {node for node in program.graph.nodes if "val" not in node.meta} <= without_notes
    for rows in (3, 7):
        x = _rows(rows)
        found = program.graph_module(*program.constants.values(), x)
        torch.testing.assert_close(list(found), torch.utils._pytree.tree_leaves(function(x)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [_norms, _parts, _looked_up, _shaped])
def test_all_passes_leave_a_program_that_can_be_exported(function: Callable[..., Any]) -> None:
    program = exported(function)
    assert passes.exported_program_has_symbolic_input_shape(program)
    passes.process_exported_program_with_symbolic_input(program)
    program.validate()
    module = stablehlo.exported_program_to_stablehlo(program)
    for rows in (3, 7):
        x = _rows(rows)
        found = [each.cpu() for each in torch.utils._pytree.tree_leaves(module(x))]
        torch.testing.assert_close(found, torch.utils._pytree.tree_leaves(function(x)), rtol=1e-5, atol=1e-5)


def test_programs_of_fixed_sizes_stay_as_they_are() -> None:
    program = torch.export.export(nn.LayerNorm(4), (torch.ones(2, 4),))
    before = str(program.graph)
    assert not passes.exported_program_has_symbolic_input_shape(program)
    passes.process_exported_program_with_symbolic_input(program)
    assert str(program.graph) == before


@pytest.mark.parametrize(
    ("impl", "pattern", "args"),
    [
        (passes.native_layer_norm_impl, passes.native_layer_norm_pattern, (_rows(3), [4], _rows(1)[0], None, 1e-5)),
        (passes.native_group_norm_impl, passes.native_group_norm_pattern, (_rows(3, 5), None, _rows(1)[0], 3, 4, 5, 2, 1e-5)),
    ],
    ids=["layer", "group"],
)
def test_norms_are_those_of_torch(impl: Callable[..., Any], pattern: Callable[..., Any], args: tuple[Any, ...]) -> None:
    for found, expected in zip(impl(*args), pattern(*args), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_sizes_of_another_tensor(device: str) -> None:
    x, source = torch.arange(6.0, device=device).requires_grad_(), torch.ones(3, 5, device=device)
    viewed = reshape.dynamic_view(x, [0, 2], source, 0, 0, 1)
    assert viewed.tolist() == [[0, 1], [2, 3], [4, 5]]
    expanded = reshape.dynamic_expand(viewed[:1], [0, 2], source, 1, 0)
    assert expanded.shape == (5, 2)
    expanded.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [5, 5, 0, 0, 0, 0]
    with pytest.raises(RuntimeError, match="invalid for input of size|shape"):
        reshape.dynamic_view(x, [0, 2], source, 1, 0, 1)
    with pytest.raises(IndexError):
        reshape.dynamic_expand(x, [0], source, 2, 0)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (reshape.dynamic_view_meta, (torch.ones(6), [0, 2], torch.ones(3), 0, 0, 1)),
        (reshape.dynamic_expand_meta, (torch.ones(1, 2), [0, 2], torch.ones(3), 0, 0)),
    ],
)
def test_what_tracers_see(function: Callable[..., torch.Tensor], args: tuple[Any, ...]) -> None:
    assert function(*args).shape == (3, 2)
