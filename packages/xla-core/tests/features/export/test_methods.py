"""Several methods of one module in one folder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_xla import stablehlo


class Decoder(nn.Module):
    """Remembers what it is given; `prefill` many tokens, `step` one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.register_buffer("cache", torch.zeros(8, 4), persistent=False)
        self.register_buffer("length", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.arange(8.0), persistent=False)

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        self.cache[: tokens.shape[0]] = self.embed(tokens)
        self.length.fill_(tokens.shape[0])
        return self.cache.sum(0) + self.table[3]

    def step(self, token: torch.Tensor) -> dict[str, torch.Tensor]:
        self.cache.index_copy_(0, self.length[None], self.embed(token)[None])
        self.length += 1
        seen = self.table[:, None] < self.length
        return {"logits": self.embed.weight @ (self.cache * seen).sum(0)}


class Method(nn.Module):
    """One method of a module, as torch.export takes it."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module = module
        self.name = name

    def forward(self, *args: Any) -> Any:
        return getattr(self.module, self.name)(*args)


def programs(decoder: Decoder) -> dict[str, torch.export.ExportedProgram]:
    tokens = torch.tensor([1, 2, 3])
    return {
        "prefill": torch.export.export(Method(decoder, "prefill"), (tokens,)),
        "step": torch.export.export(Method(decoder, "step"), (tokens[0],)),
    }


@pytest.mark.parametrize("inline", [True, False])
def test_methods_share_weights_and_state(inline: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    decoder = Decoder()
    options = stablehlo.StableHLOExportOptions(inline_all_constant=inline)
    exported = stablehlo.exported_programs_to_stablehlo(programs(copy.deepcopy(decoder)), options)
    exported.save(str(tmp_path))
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert files == [
        *([] if inline else ["constants/0"]),
        *("data/module.cache", "data/module.embed.weight", "data/module.length"),
        *(f"functions/{name}.{kind}" for name in ("prefill", "step") for kind in ("bytecode", "meta", "mlir")),
        "stablehlo.index.json",
    ]
    loaded = stablehlo.StableHLOGraphModule.load(str(tmp_path))
    for tokens in (torch.tensor([4, 5, 6]), torch.tensor([0, 9, 1])):
        torch.testing.assert_close(loaded.prefill(tokens).cpu(), decoder.prefill(tokens).detach())
        for token in (torch.tensor(7), torch.tensor(2)):
            expected = decoder.step(token)["logits"].detach()
            torch.testing.assert_close(loaded.step(token)["logits"].cpu(), expected)
    torch.testing.assert_close(loaded.evaluate("prefill", [tokens])[0].cpu(), decoder.prefill(tokens).detach())
    assert "stablehlo.dot_general" in str(loaded.get_stablehlo_text("step")) and loaded.get_stablehlo_bytecode("step")


def test_a_call_needs_to_say_which(tmp_path: Path) -> None:
    decoder, tokens = Decoder(), torch.tensor([1, 2, 3])
    exported = stablehlo.exported_programs_to_stablehlo(programs(decoder))
    for ask in (lambda: exported(tokens), exported.get_stablehlo_text, lambda: exported.evaluate("decode", [tokens])):
        with pytest.raises(KeyError, match="there are prefill, step"):
            ask()
    with pytest.raises(AttributeError, match="decode"):
        exported.decode  # noqa: B018
    both = {**programs(decoder), "forward": torch.export.export(nn.ReLU(), (torch.ones(2),))}
    stablehlo.exported_programs_to_stablehlo(both).save(str(tmp_path))
    assert stablehlo.StableHLOGraphModule.load(str(tmp_path))(-torch.ones(2)).tolist() == [0, 0]


def test_one_method_may_have_any_name_and_replaces_others(tmp_path: Path) -> None:
    stablehlo.exported_programs_to_stablehlo(programs(Decoder())).save(str(tmp_path))
    stablehlo.exported_programs_to_stablehlo({"score": torch.export.export(nn.ReLU(), (torch.ones(2),))}).save(str(tmp_path))
    loaded = stablehlo.StableHLOGraphModule.load(str(tmp_path))
    assert loaded(-torch.ones(2)).tolist() == loaded.score(-torch.ones(2)).tolist() == [0, 0]


def test_one_tensor_of_two_names_is_written_once() -> None:
    decoder = Decoder()
    whole = torch.export.export(Method(decoder, "prefill"), (torch.tensor([1, 2, 3]),))
    table = torch.export.export(decoder.embed, (torch.tensor([1]),))
    exported = stablehlo.exported_programs_to_stablehlo({"prefill": whole, "embed": table})
    assert [name for name in exported.bundle.state_dict if "weight" in name] == ["module.embed.weight"]
    torch.testing.assert_close(exported.embed(torch.tensor([3])).cpu(), decoder.embed(torch.tensor([3])).detach())


def test_constants_of_one_name_are_each_methods_own() -> None:
    class Adds(nn.Module):
        def __init__(self, number: float) -> None:
            super().__init__()
            self.constant = torch.tensor([number])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.constant.add_(1)
            return x + self.constant

    modules = {"one": Adds(1.0), "two": Adds(2.0)}
    exported = stablehlo.exported_programs_to_stablehlo(
        {name: torch.export.export(each, (torch.ones(1),)) for name, each in modules.items()}
    )
    for _ in range(2):
        for name, module in modules.items():
            assert exported.evaluate(name, [torch.ones(1)])[0].tolist() == module(torch.ones(1)).tolist()


def test_what_cannot_be_methods_of_one_module() -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(2),))
    export = stablehlo.exported_programs_to_stablehlo
    with pytest.raises(ValueError, match="different tensors 'weight'"):
        export({"one": program, "two": torch.export.export(nn.Linear(2, 2), (torch.ones(2),))})
    for name in ("two words", "../up", "save", "evaluate", "__call__", "_placed", ""):
        with pytest.raises(ValueError, match="cannot be a method"):
            export({name: program})
    with pytest.raises(ValueError, match="no programs"):
        export({})
    options = stablehlo.StableHLOExportOptions(override_tracing_arguments=(torch.ones(2),))
    with pytest.raises(ValueError, match="override_tracing_arguments"):
        export({"one": program, "two": program}, options)
    export({"one": program}, options)


class Past(nn.Module):
    """Reads its weight past the module, as keras does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.variables = {"weight": self.weight.data}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.variables["weight"]


@pytest.mark.parametrize("dims", [None, ({0: torch.export.Dim("rows", min=1)},)], ids=["fixed", "open"])
def test_a_weight_that_is_also_a_constant_goes_by_the_name_that_the_graph_uses(dims: Any) -> None:
    module, x = Past(), torch.ones(3, 2)
    exported = torch.export.export(module, (x,), dynamic_shapes=dims)
    used = [
        str(spec.target)
        for spec, node in zip(exported.graph_signature.input_specs, exported.graph.find_nodes(op="placeholder"), strict=True)
        if node.users and spec.kind.name != "USER_INPUT"
    ]
    assert used and used != ["weight"]
    program = stablehlo.exported_program_to_stablehlo(exported)
    (function,) = program.bundle.stablehlo_funcs
    named = {each.name for each in function.meta.input_locations if each.type_ is stablehlo.VariableType.PARAMETER}
    assert "weight" not in named and named == set(program.bundle.state_dict)
    assert program(x).tolist() == (x * module.weight).tolist()
