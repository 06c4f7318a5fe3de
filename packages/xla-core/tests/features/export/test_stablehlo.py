"""StableHLO of pending work and of exported programs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as dialect
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla import stablehlo
from xla_core.base import metrics
from xla_core.base.errors import GraphBreakError, UnsupportedOperationError


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    """Each test starts with an empty step."""
    torch_xla.sync()


def counter(name: str) -> int:
    return metrics.counter(name)


def data(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).to("xla")


def parsed(bytecode: bytes) -> str:
    """The text of an artifact; raises if it is none."""
    context = ir.Context()
    return str(dialect.deserialize_portable_artifact(context, bytecode))


def test_the_given_tensors_are_the_results_and_stay_pending() -> None:
    tensor = data(1.0, 2.0)
    wanted, other = tensor * 3, tensor.exp()
    before = counter("ExecuteComputation"), counter("UncachedCompile")
    text = xm.get_stablehlo([wanted])
    assert "stablehlo.multiply" in text and "exponential" not in text
    assert "-> (tensor<2xf32>" in text or "-> tensor<2xf32>" in text
    everything = xm.get_stablehlo()
    assert "stablehlo.multiply" in everything and "stablehlo.exponential" in everything
    assert xm.get_stablehlo([]) == everything
    assert (counter("ExecuteComputation"), counter("UncachedCompile")) == before
    torch_xla.sync()
    assert counter("ExecuteComputation") == before[0] + 1
    assert wanted.tolist() == [3.0, 6.0] and other[0].item() == pytest.approx(2.7182817)


def test_asking_does_not_change_the_next_program() -> None:
    def step(ask: bool) -> torch.Tensor:
        result = (data(1.0, 2.0, 5.0) - 1).square().sum()
        if ask:
            xm.get_stablehlo([result])
            xm.get_stablehlo()
        torch_xla.sync()
        return result

    step(False)
    compiled = counter("UncachedCompile")
    assert step(True).item() == 17.0
    assert counter("UncachedCompile") == compiled


def test_computed_tensors_pass_through_and_nothing_pending_is_a_module_too() -> None:
    tensor = data(1.0, 2.0)
    assert "return %arg0" in xm.get_stablehlo([tensor])
    assert "module @" in xm.get_stablehlo()


def test_bytecode_is_the_same_module() -> None:
    tensor = data(1.0, 2.0) * 3
    bytecode = xm.get_stablehlo_bytecode([tensor])
    assert isinstance(bytecode, bytes) and "stablehlo.multiply" in parsed(bytecode)


def test_locations_name_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(3, 5, 29).to("xla")  # of an operation, the line is that of its first call with such shapes
    pending = tensor.sinh()  # this line
    assert "test_stablehlo.py" not in xm.get_stablehlo([pending])
    monkeypatch.setenv("XLA_HLO_DEBUG", "1")
    line = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# this line"))
    assert f"test_stablehlo.py:{line}" in xm.get_stablehlo([pending])


class Several(nn.Module):
    """Constants, nested results, an unused argument, a number."""

    def forward(self, x: torch.Tensor, unused: torch.Tensor, scale: int = 2) -> dict[str, Any]:
        constant = torch.arange(3.0) + torch.tensor([1.0, 2.0, 3.0])
        return {"a": x * scale + constant, "b": [x.sum(), x.to(torch.float64)]}


def small_model() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    return model, torch.arange(8.0).reshape(2, 4)


def test_export_runs_and_survives_a_folder(tmp_path: Path) -> None:
    model, inputs = small_model()
    before = counter("ExecuteComputation")
    exported = stablehlo.exported_program_to_stablehlo(torch.export.export(model, (inputs,)))
    assert counter("ExecuteComputation") == before, "exporting runs nothing"
    expected = model(inputs).detach()
    torch.testing.assert_close(exported(inputs).cpu(), expected)
    torch.testing.assert_close(exported.evaluate("forward", [inputs.to("xla")])[0].cpu(), expected)
    assert "stablehlo.dot_general" in str(exported.get_stablehlo_text())
    exported.save(str(tmp_path))
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()) == [
        *(f"data/{name}" for name in ("0.bias", "0.weight", "2.bias", "2.weight")),
        *(f"functions/forward.{kind}" for kind in ("bytecode", "meta", "mlir")),
        "stablehlo.index.json",
    ]
    loaded = stablehlo.StableHLOGraphModule.load(str(tmp_path))
    torch.testing.assert_close(loaded(inputs).cpu(), expected)
    assert loaded.bundle.stablehlo_funcs == exported.bundle.stablehlo_funcs
    assert "dot_general" in parsed(loaded.get_stablehlo_bytecode("forward"))


def test_export_meta_says_where_inputs_come_from() -> None:
    model, inputs = small_model()
    meta = stablehlo.exported_program_to_stablehlo(torch.export.export(model, (inputs,))).bundle.stablehlo_funcs[0].meta
    found = {
        (location.type_, location.name or location.position): signature
        for location, signature in zip(meta.input_locations, meta.input_signature, strict=True)
    }
    parameter, argument = stablehlo.VariableType.PARAMETER, stablehlo.VariableType.INPUT_ARG
    assert found == {
        (argument, 0): stablehlo.VariableSignature([2, 4], "float32"),
        (parameter, "0.weight"): stablehlo.VariableSignature([8, 4], "float32"),
        (parameter, "0.bias"): stablehlo.VariableSignature([8], "float32"),
        (parameter, "2.weight"): stablehlo.VariableSignature([3, 8], "float32"),
        (parameter, "2.bias"): stablehlo.VariableSignature([3], "float32"),
    }
    assert meta.output_signature == [stablehlo.VariableSignature([2, 3], "float32")]


def test_the_bundle_can_be_copied_and_filled_anew() -> None:
    """As keras does, which puts variables of its own into a copy of what upstream calls `_bundle`."""
    model, inputs = small_model()
    exported = stablehlo.exported_program_to_stablehlo(torch.export.export(model, (inputs,)))
    bundle = copy.deepcopy(exported._bundle)
    bundle.state_dict = {}
    bundle.additional_constants = []
    assert exported.bundle is exported._bundle and exported.bundle.state_dict
    assert bundle.stablehlo_funcs == exported.bundle.stablehlo_funcs


@pytest.mark.parametrize("inline", [True, False])
def test_export_keeps_nesting_constants_and_unused_arguments(inline: bool, tmp_path: Path) -> None:
    model, x, unused = Several(), torch.arange(6.0).reshape(2, 3), torch.ones(1, dtype=torch.bfloat16)
    options = stablehlo.StableHLOExportOptions(inline_all_constant=inline, include_human_readable_text=False)
    stablehlo.save_as_stablehlo(torch.export.export(model, (x, unused), {"scale": 3}), str(tmp_path), options)
    loaded = stablehlo.StableHLOGraphModule.load(str(tmp_path))
    result, expected = loaded(x, unused, scale=3), model(x, unused, scale=3)
    torch.testing.assert_close(result["a"].cpu(), expected["a"])
    assert result["b"][0].item() == 15.0 and result["b"][1].dtype is torch.float64
    assert len(loaded.bundle.additional_constants) == (0 if inline else 1)
    assert loaded.get_stablehlo_text() is None
    ((location, _),) = [entry for entry in loaded.bundle.stablehlo_funcs[0].meta.unused_inputs if entry[0].position == 1]
    assert location == stablehlo.InputLocation.input_arg(1)
    with pytest.raises(ValueError, match="nested"):
        loaded(x)
    with pytest.raises(ValueError, match="argument 0"):
        loaded(x[:1], unused, scale=3)


def test_export_of_a_module_and_of_bfloat16_weights(tmp_path: Path) -> None:
    model, inputs = small_model()
    model, inputs = model.to(torch.bfloat16), inputs.to(torch.bfloat16)
    torch_xla.save_torch_model_as_stablehlo(model, (inputs,), str(tmp_path))
    result = stablehlo.StableHLOGraphModule.load(str(tmp_path))(inputs)
    torch.testing.assert_close(result.cpu(), model(inputs).detach(), rtol=2e-2, atol=2e-2)


def test_export_leaves_pending_work_alone() -> None:
    pending = data(1.0, 2.0) * 3
    model, inputs = small_model()
    text = xm.get_stablehlo()
    stablehlo.exported_program_to_stablehlo(torch.export.export(model, (inputs,)))
    assert xm.get_stablehlo() == text and pending.tolist() == [3.0, 6.0]


def test_a_value_read_while_exporting_is_refused() -> None:
    @torch.library.custom_op("export_test::on_the_cpu", mutates_args=(), device_types="cpu")
    def on_the_cpu(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    on_the_cpu.register_fake(torch.empty_like)

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.export_test.on_the_cpu(x.sin())  # type: ignore[no-any-return]

    with pytest.raises(GraphBreakError, match="exporting needs a value"):
        stablehlo.exported_program_to_stablehlo(torch.export.export(Custom(), (torch.ones(2),)))


def test_options_that_do_nothing_here_are_refused() -> None:
    model, inputs = small_model()
    program = torch.export.export(model, (inputs,))
    options = stablehlo.StableHLOExportOptions()
    options.export_node_metadata = True
    with pytest.raises(UnsupportedOperationError, match="XLA_HLO_DEBUG"):
        stablehlo.exported_program_to_stablehlo(program, options)


def test_custom_operations_become_custom_calls() -> None:
    @torch.library.custom_op("export_test::halved", mutates_args=())
    def halved(x: torch.Tensor, by: int) -> torch.Tensor:
        return x / by

    halved.register_fake(lambda x, by: torch.empty_like(x))

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.export_test.halved(x.sin(), 2).cos()  # type: ignore[no-any-return]

    program = torch.export.export(Custom(), (torch.ones(2, 3),))
    for allowed in ("export_test", "export_test::halved"):
        options = stablehlo.StableHLOExportOptions(custom_ops_allowed_in_graph={allowed})
        text = stablehlo.exported_program_to_stablehlo(program, options).get_stablehlo_text("forward")
        assert 'stablehlo.custom_call @"export_test::halved"' in text or "stablehlo.custom_call @export_test::halved" in text


def test_the_interpreter_runs_an_exported_graph_on_the_device() -> None:
    model, inputs = small_model()
    program = torch.export.export(model, (inputs,))
    placed = [tensor.to("xla") for tensor in (*program.state_dict.values(), inputs)]
    interpreter = stablehlo.XLAExportInterpreter(program.graph_module, torch_xla.device(), set(), None)
    (result,) = interpreter.run(*placed, enable_io_processing=False)
    assert result.device == torch_xla.device()
    torch.testing.assert_close(result.cpu(), model(inputs).detach())


def test_metas_are_json() -> None:
    location = stablehlo.InputLocation.parameter("weight")
    text = json.dumps([location, stablehlo.VariableSignature([2, 3], "float32")], cls=stablehlo.StableHLOJSONSerializer)
    assert json.loads(text, object_hook=stablehlo.stablehlo_obj_hook) == [location, stablehlo.VariableSignature([2, 3], "float32")]
    assert json.loads('{"a": 1}', object_hook=stablehlo.stablehlo_obj_hook) == {"a": 1}


def test_a_bundle_without_weights_is_filled_by_its_owner() -> None:
    model, inputs = small_model()
    options = stablehlo.StableHLOExportOptions()
    options.export_weights = False
    exported = stablehlo.exported_program_to_stablehlo(torch.export.export(model, (inputs,)), options)
    assert exported.bundle.state_dict == {}
    exported.bundle.state_dict = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    torch.testing.assert_close(exported(inputs).cpu(), model(inputs).detach())


class ClientOperations(nn.Module):
    """Operations that JAX lowers to CHLO, which has no portable form."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.erf(), x.acos(), x.topk(2).values, nn.functional.gelu(x), x.tan(), x.asinh(), x.lgamma()


def test_tracing_arguments_may_have_other_shapes() -> None:
    model, inputs = small_model()
    options = stablehlo.StableHLOExportOptions(override_tracing_arguments=(torch.ones(5, 4),))
    exported = stablehlo.exported_program_to_stablehlo(torch.export.export(model, (inputs,)), options)
    x = torch.randn(5, 4)
    torch.testing.assert_close(exported(x).cpu(), model(x).detach())


def test_each_part_is_loaded_when_it_is_used(interpreter: Any) -> None:
    code = """
    import sys
    import torch_xla
    from torch_xla import stablehlo

    def loaded(part):
        return [name for name in sys.modules if name.startswith(f"xla_core.features.export.{part}.")]

    print(loaded("steps"), loaded("torch_export"), "export_step" in dir(stablehlo))
    torch_xla.export_step, torch_xla.load_step
    print(bool(loaded("steps")), loaded("torch_export"))
    stablehlo.StableHLOGraphModule
    print("xla_core.features.export.torch_export.interpreter" in sys.modules, bool(loaded("torch_export")))
    torch_xla.save_as_stablehlo
    print("xla_core.features.export.torch_export.interpreter" in sys.modules)
    """
    assert interpreter(code).splitlines() == ["[] [] True", "True []", "False True", "True"]


def test_operations_of_chlo_serialize_and_run_when_loaded(tmp_path: Path) -> None:
    x = torch.linspace(-0.9, 0.9, 8).reshape(2, 4)
    stablehlo.save_as_stablehlo(torch.export.export(ClientOperations(), (x,)), str(tmp_path))
    for result, expected in zip(stablehlo.StableHLOGraphModule.load(str(tmp_path))(x), ClientOperations()(x), strict=True):
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=1e-5)
    on_device = x.to("xla")
    assert "stablehlo." in parsed(xm.get_stablehlo_bytecode([on_device.erf(), on_device.acos()]))


class Loop(nn.Module):
    """Barriers in a loop, which XLA on the CPU cannot run as one kernel."""

    def forward(self, x: torch.Tensor) -> Any:
        def body(turn: torch.Tensor, x: torch.Tensor) -> Any:
            return turn + 1, torch.ops.xla.optimization_barrier([x * 2 + 1])[0].clone()

        return while_loop(lambda turn, x: turn < 5, body, (torch.tensor(0), x))


def test_barriers_in_loops_run_when_loaded(tmp_path: Path) -> None:
    stablehlo.save_as_stablehlo(torch.export.export(Loop(), (torch.ones(4),)), str(tmp_path))
    turns, x = stablehlo.StableHLOGraphModule.load(str(tmp_path))(torch.ones(4))
    assert turns.item() == 5 and x.tolist() == [63] * 4


def test_a_folder_without_functions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no exported functions"):
        stablehlo.StableHLOGraphModule.load(str(tmp_path))
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "forward.meta").write_text("{}")
    with pytest.raises(ValueError, match="meta"):
        stablehlo.StableHLOGraphModule.load(str(tmp_path))
