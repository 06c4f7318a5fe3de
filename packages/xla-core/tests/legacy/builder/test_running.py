"""Computations on xla tensors: recorded, cached, differentiated; from modules of others; placeholders and callables."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.core.xla_builder as xb
from torch_xla import _XLAC
from torch_xla.core import xla_op_registry
from torch_xla.experimental import eager_mode_context
from xla_core.engine.tensor.live_buffers import live_buffers

Counts = Any
MATRIX = xb.mkshape("f32", (2, 2))


def layer(x: Any, weight: Any, factor: float = 2.0) -> Any:
    return (x @ weight * factor).tanh()


@pytest.fixture
def inputs() -> list[torch.Tensor]:
    return list(torch.linspace(-0.5, 0.5, 8).reshape(2, 2, 2))


def test_a_computation_among_other_operations(inputs: list[torch.Tensor], counts: Counts) -> None:
    run = xb.xla_computation_as_func(xb.create_computation("layer", layer, (MATRIX, MATRIX), factor=3.0))
    x, weight = (one.to("xla") for one in inputs)
    expected = ((inputs[0] + 1) @ inputs[1] * 3).tanh() * 2
    for _ in range(3):
        out = run(x + 1, weight) * 2
        torch_xla.sync()
        torch.testing.assert_close(out.cpu(), expected)
    assert counts.UncachedCompile <= 1  # none if another test has made the same computation


def test_a_computation_is_traced_once(inputs: list[torch.Tensor]) -> None:
    computation = xb.create_computation("layer", layer, (MATRIX, MATRIX))
    tensors = [one.to("xla") for one in inputs]
    _XLAC._xla_user_computation("layer", tensors, computation)
    before = xb._jax_to_xla_computation_cache_elements()
    for _ in range(2):
        _XLAC._xla_user_computation("layer", tensors, computation)
    assert xb._jax_to_xla_computation_cache_elements() == before
    with jax.default_matmul_precision("highest"):
        _XLAC._xla_user_computation("layer", tensors, computation)
    assert xb._jax_to_xla_computation_cache_elements() == before + 1


@pytest.mark.parametrize("mode", [eager_mode_context(True), torch.no_grad(), torch.autocast("xla", dtype=torch.bfloat16)])
def test_in_other_modes(inputs: list[torch.Tensor], mode: Any) -> None:
    run = xb.xla_computation_as_func(xb.create_computation("layer", layer, (MATRIX, MATRIX)))
    with mode:
        out = run(*[one.to("xla") for one in inputs])
    assert out.dtype is torch.float32
    torch.testing.assert_close(out.cpu(), (inputs[0] @ inputs[1] * 2).tanh())


def test_gradients(inputs: list[torch.Tensor]) -> None:
    op = xla_op_registry.register("layer", layer)
    mine, theirs = [one.to("xla").requires_grad_() for one in inputs], [one.clone().requires_grad_() for one in inputs]
    op(*mine).sum().backward()
    (theirs[0] @ theirs[1] * 2).tanh().sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad)  # type: ignore[union-attr]


def test_a_registered_operation_is_built_once_for_each_shape() -> None:
    built = []

    def scaled(x: Any, y: Any, factor: int = 1) -> Any:
        built.append((x.shape().sizes, factor))
        return (x + y) * factor

    op = xla_op_registry.register("scaled", scaled)
    for size, factor in ((2, 3), (2, 3), (2, 1), (1, 3)):
        ones = torch.ones(size, device="xla")
        assert op(ones, ones, factor=factor).tolist() == [2.0 * factor] * size
    assert built == [([2], 3), ([2], 1), ([1], 3)]


def test_shapes_and_types() -> None:
    tensor = torch.ones(2, 3, dtype=torch.int64, device="xla")
    shape = xb.tensor_shape(tensor)
    assert shape.shape == _XLAC._xla_op_tensor_shape(tensor, "") == {"type": "s64", "sizes": [2, 3]}
    assert (shape.rank, shape.sizes, shape.dtype, shape.is_tuple(), shape.is_dynamic()) == (2, [2, 3], xb.Type.S64, False, False)
    assert shape.as_scalar() == xb.mkshape("s64", ())
    assert xb.mkshape("f32", (2,), (True,)).is_dynamic()
    builder = xb.create_builder("b")
    pair = xb.Op.tuple((xb.Op.zero(builder, "bf16"), xb.Op.one(builder, "pred"))).shape()
    assert (pair.is_tuple(), pair.tuple_size(), pair.tuple_shape(1).dtype) == (True, 2, "pred")
    with pytest.raises(ValueError, match="tuple of 2"):
        _ = pair.sizes
    for dtype in (torch.bool, torch.bfloat16, torch.float64, torch.uint8, torch.complex64):
        assert xb.Op.to_torch_type(xb.Op.from_torch_type(dtype)) is dtype


def test_wide_types_stay_wide() -> None:
    run = xb.xla_computation_as_func(xb.create_computation("wide", lambda x: x.cast("f64") / 3, (xb.mkshape("f32", ()),)))
    out = run(torch.tensor(1.0, device="xla"))
    assert out.dtype is torch.float64 and out.item() == 1 / 3


def _jax_layer(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.lax.erf(x) @ y, (y > 0).astype(jnp.int32)


@pytest.mark.parametrize("kind", ["hlo", "text", "artifact"])
def test_modules_of_others(kind: str, inputs: list[torch.Tensor]) -> None:
    arrays = [jnp.asarray(one.numpy()) for one in inputs]
    lowered = jax.jit(_jax_layer).lower(*arrays)
    hlo: Any = lowered.compiler_ir("hlo")
    module = {
        "hlo": hlo.as_serialized_hlo_module_proto,
        "text": lowered.as_text,
        "artifact": lambda: jax.export.export(jax.jit(lambda x, y: (jnp.tanh(x) @ y, y)))(*arrays).mlir_module_serialized,
    }[kind]()
    make = _XLAC._xla_op_computation_from_module_proto if kind == "hlo" else xb.computation_from_module_proto
    computation = make("theirs", module)
    out = xb.xla_computation_as_func(computation)(*[one.to("xla") * 2 for one in inputs])
    doubled = [2 * one for one in arrays]
    expected = (jnp.tanh(doubled[0]) @ doubled[1], doubled[1]) if kind == "artifact" else _jax_layer(*doubled)
    for one, other in zip(out, expected, strict=True):
        np.testing.assert_allclose(one.cpu().numpy(), other, rtol=1e-5)
    assert "dot" in xb.get_computation_hlo(computation)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match="neither HLO .* nor StableHLO"):
        xb.computation_from_module_proto("bad", b"abc")


def test_low_level_names() -> None:
    builder = _XLAC._xla_op_create_builder("low")
    x = _XLAC._xla_op_param(builder, 0, MATRIX.shape)
    doubled = _XLAC._xla_op_create(builder, "Add", (x, x), {})
    assert _XLAC._xla_op_shape(doubled) == MATRIX.shape and _XLAC._xla_op_builder(doubled) is builder
    computation = _XLAC._xla_op_build("low", doubled)
    assert isinstance(computation, _XLAC.XlaComputation) and isinstance(doubled, _XLAC.XlaOp) and isinstance(builder, _XLAC.XlaBuilder)
    assert "add(" in _XLAC._xla_computation_text(computation)
    (out,) = _XLAC._xla_user_computation("low", [torch.ones(2, 2, device="xla")], computation)
    assert out.tolist() == [[2, 2], [2, 2]]


def test_wrong_tensors_are_refused() -> None:
    run = xb.xla_computation_as_func(xb.create_computation("layer", layer, (MATRIX, MATRIX)))
    with pytest.raises(ValueError, match=r"takes \(f32\[2,2\], f32\[2,2\]\), not \(f32\[3\]\)"):
        run(torch.ones(3, device="xla"))
    with pytest.raises(RuntimeError, match="not an XLA tensor"):
        run(torch.ones(2, 2), torch.ones(2, 2, device="xla"))
    with pytest.raises(TypeError, match="gave a int"):
        xb.create_computation("bad", lambda x: 1, (MATRIX,))
    other = xb.Op.one(xb.create_builder("other"), "f32")
    with pytest.raises(ValueError, match="builder 'other'"):
        xb.create_computation("bad", lambda x: other, (MATRIX,))


def test_placeholders_have_no_values() -> None:
    placeholder = xb.create_placeholder_tensor((2, 3), torch.bfloat16)
    assert (tuple(placeholder.shape), placeholder.dtype, placeholder.device.type) == ((2, 3), torch.bfloat16, "xla")
    assert _XLAC._is_placecholder(placeholder) and not _XLAC._is_placecholder(torch.ones(1, device="xla"))
    assert _XLAC._is_placecholder(_XLAC._xla_create_placeholder_tensor({"type": "s64", "sizes": [2]}))
    doubled = placeholder + placeholder
    assert "bf16[2,3]{1,0} parameter(0)" in _XLAC._get_xla_tensors_hlo([doubled])
    assert "XLAData: placeholder" in _XLAC._get_xla_tensor_debug_info(placeholder)
    assert not any(placeholder is tensor for held in live_buffers() for tensor in held.tensors)
    with pytest.raises(RuntimeError, match="no values"):
        _XLAC._to_dlpack(placeholder)
    for tensor in (placeholder, doubled):
        with pytest.raises(RuntimeError, match="no values"):
            tensor.cpu()


def test_callables_specialize_for_shapes_and_constants() -> None:
    traced = []

    def jax_function(pair: Any, *, factor: int) -> Any:
        traced.append(factor)
        return {"sum": pair[0] + pair[1] * factor}

    def xla_function(pair: Any, *, factor: int) -> Any:
        return jax_function(pair, factor=factor)

    x = torch.arange(3.0, device="xla")
    for made in (xb.JaxCallable(jax_function), xb.XlaCallable(xla_function)):
        traced.clear()
        for factor in (2, 2, 3):
            out = made((x, x), factor=factor)
            assert out["sum"].tolist() == [(1 + factor) * one for one in (0, 1, 2)]
        assert traced == [2, 3]
