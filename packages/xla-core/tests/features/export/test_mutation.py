"""Exported programs that write to buffers and arguments, called several times in a row, beside the module on the CPU."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from torch_xla import stablehlo
from xla_core.base.errors import UnsupportedOperationError

Call = tuple[tuple[Any, ...], dict[str, Any]]


# torch's own, where it copies the nesting of a program to decompose it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:erase_node:UserWarning"),  # run_decompositions of torch 2.14
]


def call(*args: Any, **kwargs: Any) -> Call:
    """One call."""
    return args, kwargs


def forms(module: nn.Module, example: Call, functional: bool) -> Iterator[torch.export.ExportedProgram]:
    """The program as torch.export gives it, with in-place operations, and (if torch can) in functional core ATen."""
    args, kwargs = example
    yield torch.export.export(copy.deepcopy(module), args, kwargs)
    if functional:
        yield torch.export.export(copy.deepcopy(module), args, kwargs).run_decompositions()


def saved(program: torch.export.ExportedProgram, folder: Path, **options: Any) -> stablehlo.StableHLOGraphModule:
    """The program, out of a folder."""
    stablehlo.save_as_stablehlo(program, str(folder), stablehlo.StableHLOExportOptions(**options))
    return stablehlo.StableHLOGraphModule.load(str(folder))


def on_cpu(tree: Any) -> Any:
    return pytree.tree_map(lambda item: item.detach().cpu() if isinstance(item, torch.Tensor) else item, tree)


def same(found: Any, expected: Any) -> None:
    """Nesting, types, dtypes and values."""
    found, expected = on_cpu(found), on_cpu(expected)
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def check(module: nn.Module, calls: list[Call], folder: Path, functional: bool = True) -> stablehlo.StableHLOGraphModule:
    """Calls in a row give what the module gives, leave in the arguments what it leaves there, and end with its buffers."""
    for number, program in enumerate(forms(module, copy.deepcopy(calls[0]), functional)):
        loaded, reference = saved(program, folder / str(number)), copy.deepcopy(module)
        for each in calls:
            given, wanted = copy.deepcopy(each), copy.deepcopy(each)
            same(loaded(*given[0], **given[1]), reference(*wanted[0], **wanted[1]))
            same(given, wanted)
        tensors = dict(reference.named_buffers()) | dict(reference.named_parameters())
        for name, array in loaded.bundle.state_dict.items():
            wanted = tensors[name].detach().double().numpy()
            np.testing.assert_allclose(np.asarray(array).astype(np.float64), wanted, rtol=1e-5, atol=1e-6)
    return loaded


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Counts(nn.Module):
    """Writes in place, to a part, by assignment; to buffers of several dtypes; and gives what it has written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("sums", torch.zeros(2, 3, dtype=torch.bfloat16))
        self.register_buffer("unused", torch.ones(2))

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        self.seen.logical_or_(x.sum(0) > 0)
        self.sums[1] += x.sum(0).to(torch.bfloat16)
        self.sums = self.sums * 2
        return {"calls": self.calls, "row": self.sums[1], "x": x}


def test_counters_carry_over(tmp_path: Path) -> None:
    check(Counts(), [call(numbers(2, 3, seed=seed)) for seed in range(4)], tmp_path)


def test_batch_norm_in_train_mode(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 1, 1), nn.BatchNorm2d(1)).train()
    check(module, [call(numbers(3, 2, 5, 5, seed=seed)) for seed in range(3)], tmp_path)


class Cached(nn.Module):
    """Attention over what it has seen, kept in buffers that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 12)
        self.register_buffer("keys", torch.zeros(1, 8, 4), persistent=False)
        self.register_buffer("values", torch.zeros(1, 8, 4), persistent=False)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(token).chunk(3, -1)
        self.keys.index_copy_(1, position, key)
        self.values.index_copy_(1, position, value)
        mask = torch.arange(8) <= position
        scores = (query @ self.keys.mT * self.scale).masked_fill(~mask, float("-inf"))
        return torch.softmax(scores, -1) @ self.values


def test_a_cache_carries_over_and_stays_on_the_device(tmp_path: Path) -> None:
    loaded = check(Cached(), [call(numbers(1, 1, 4, seed=seed), torch.tensor([seed])) for seed in range(5)], tmp_path)
    state = loaded.bundle.state_dict
    assert set(state) == {"project.weight", "project.bias", "keys", "values"}, "the scale is a constant of the program"
    assert isinstance(state["keys"], jax.Array) and isinstance(state["project.weight"], np.ndarray)
    loaded.save(str(tmp_path / "later"))
    later, token = stablehlo.StableHLOGraphModule.load(str(tmp_path / "later")), call(numbers(1, 1, 4, seed=9), torch.tensor([5]))
    copied = copy.deepcopy(loaded)
    same([later(*token[0]), copied(*token[0])], [loaded(*token[0])] * 2)


class Tied(nn.Module):
    """One weight under two names, one buffer under two."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("again", self.total)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        embedded = self.embed(ids)
        self.total += embedded.sum(0)
        return self.head(embedded + self.again)  # type: ignore[no-any-return]


def test_tied_tensors_are_kept_once(tmp_path: Path) -> None:
    calls = [call(torch.tensor([1, 2])), call(torch.tensor([4, 0]))]
    loaded = check(Tied(), calls, tmp_path, functional=False)  # which torch refuses for buffers of two names
    assert len(loaded.bundle.state_dict) == 2


class TiedResults(nn.Module):
    """Gives what it writes to by both of its names, and reads another by the second."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("again", self.total)
        self.weight = nn.Parameter(torch.ones(3))
        self.other = self.weight

    def forward(self, x: torch.Tensor) -> Any:
        self.again.add_(x)
        return self.total, self.again, self.other


def test_tied_tensors_are_given_by_any_name(tmp_path: Path) -> None:
    loaded = check(TiedResults(), [call(numbers(3, seed=seed)) for seed in range(2)], tmp_path, functional=False)
    assert set(loaded.bundle.state_dict) == {"total", "weight"}


class Arguments(nn.Module):
    """Writes to arguments, wherever they are nested, and gives one of them."""

    def forward(self, state: dict[str, Any], x: torch.Tensor, *, step: int, unused: torch.Tensor, names: list[Any]) -> Any:
        state["count"].add_(step)
        state["pair"][0][1:] = x
        names[1].zero_()
        return state["count"], x, None, step, 2.5, True, "text", (state["pair"][1] + names[1],), []


def arguments(step: int = 3) -> Call:
    pair = (numbers(4, 2), torch.full((2,), 2, dtype=torch.int32))
    names = [None, torch.ones(2, dtype=torch.int32)]
    state = {"count": torch.tensor(1), "pair": pair}
    return call(state, numbers(3, 2, seed=1), step=step, unused=torch.ones(0, 2, dtype=torch.complex64), names=names)


def test_arguments_are_written_to(tmp_path: Path) -> None:
    loaded = check(Arguments(), [arguments(), arguments()], tmp_path)
    (state, x), kwargs = arguments()
    strided = torch.zeros(2, 4).t()
    strided.copy_(state["pair"][0])
    expected, given = copy.deepcopy((strided, state["count"])), (strided.to("xla"), state["count"].to("xla"))
    loaded({"count": given[1], "pair": (given[0], state["pair"][1])}, x, **kwargs)
    expected[0][1:] = x
    same(given, (expected[0], expected[1] + 3))
    leaf = state["pair"][0].clone().requires_grad_()
    loaded({**state, "pair": (leaf, state["pair"][1])}, x, **kwargs)
    same(leaf, expected[0])


def test_other_numbers_and_shapes_than_exported_are_refused(tmp_path: Path) -> None:
    loaded = saved(torch.export.export(Arguments(), *arguments()), tmp_path)
    (state, x), kwargs = arguments(4)
    with pytest.raises(ValueError, match="was exported for 3"):
        loaded(state, x, **kwargs)
    with pytest.raises(ValueError, match="argument .* takes complex64"):
        loaded(state, x, **{**kwargs, "step": 3, "unused": torch.ones(1)})
    with pytest.raises(ValueError, match="argument 1 is 3"):
        loaded({**state, "pair": (3, state["pair"][1])}, x, **{**kwargs, "step": 3})
    shared = torch.ones(2, dtype=torch.int32)
    for both in (shared, shared.to("xla")):
        with pytest.raises(ValueError, match="argument 7, which is argument 2 too"):
            loaded({**state, "pair": (state["pair"][0], both)}, x, **{**kwargs, "step": 3, "names": [None, both]})
    assert state["count"].item() == 1, "nothing was written"


class OfDtype(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(2, 3).to(dtype))
        self.constant = torch.tensor([1, 0, 1]).to(dtype)
        self.register_buffer("empty", torch.ones(0, 3).to(dtype))

    def forward(self, x: torch.Tensor) -> Any:
        self.kept.copy_(torch.where(self.constant.to(torch.bool), self.kept, x))
        self.empty.copy_(self.empty.flip(0))
        return self.kept, torch.cat([self.empty, x]), x[:0], self.constant


DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.complex128], ids=str)
def test_dtypes(dtype: torch.dtype, inline: bool, tmp_path: Path) -> None:
    module, x = OfDtype(dtype), numbers(2, 3).mul(3).to(dtype)
    loaded = saved(torch.export.export(copy.deepcopy(module), (x,)), tmp_path, inline_all_constant=inline)
    for given in (x, x.flip(0)):
        same(loaded(given), module(given))
    assert len(loaded.bundle.additional_constants) == (0 if inline else 1)


class WritesAttribute(nn.Module):
    """Its state is a plain tensor, which torch counts among constants."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


def test_plain_tensors_of_a_module_carry_over(tmp_path: Path) -> None:
    module = WritesAttribute()
    loaded = saved(torch.export.export(copy.deepcopy(module), (torch.ones(2),)), tmp_path)
    for _ in range(3):
        same(loaded(torch.ones(2)), module(torch.ones(2)))


@torch.library.custom_op("export_test::count", mutates_args={"calls"})
def count(calls: torch.Tensor, by: torch.Tensor) -> None:
    """A user's operation that writes to what it is given."""
    calls.add_(by.sum())


class WritesThroughViews(nn.Module):
    """Writes to views of an argument and of a buffer, by an operation of its own, and between gradients inside."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        view = x[1:].t()
        view[0] += y
        x.unsqueeze(0).mul_(2)
        x.view(-1)[::2] = 0
        torch.ops.export_test.count(self.calls, y)
        with torch.enable_grad():
            leaf = y.detach().requires_grad_()
            (gradient,) = torch.autograd.grad((leaf**3).sum() * self.calls[0], leaf)
        return x * 1, view.sum(), gradient, self.calls


def test_writes_through_views(tmp_path: Path) -> None:
    calls = [call(numbers(4, 3, seed=seed), numbers(3, seed=seed)) for seed in range(2)]
    check(WritesThroughViews(), calls, tmp_path, functional=False)  # torch's own cannot decompose the gradient


class Regions(nn.Module):
    """Constants and writes inside regions without gradients, of another precision, and branches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            self.seen += x.sum(0) + torch.arange(3.0) + torch.tensor([1.0, 2.0, 3.0])
        with torch.autocast("cpu", torch.bfloat16):
            low = self.linear(x)
        return low, self.seen


def test_regions_of_other_modes(tmp_path: Path) -> None:
    check(Regions(), [call(numbers(2, 3, seed=seed)) for seed in range(2)], tmp_path)


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x + torch.arange(3.0), lambda x: x - torch.tensor([1.0, 2.0, 3.0]), (x,))


def test_constants_of_branches(tmp_path: Path) -> None:
    loaded = saved(torch.export.export(Branches(), (torch.ones(3),)), tmp_path)
    for x in (torch.ones(3), -torch.ones(3)):
        same(loaded(x), Branches()(x))


class Overlaps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        whole = torch.zeros(4)
        self.register_buffer("whole", whole)
        self.register_buffer("part", whole[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.whole += x
        return self.part * 1


def test_state_that_overlaps_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match="whole, which shares memory with part"):
        stablehlo.exported_program_to_stablehlo(torch.export.export(Overlaps(), (torch.ones(4),)))


def test_exporting_copies_the_state_that_calls_write_to() -> None:
    module = Counts()
    exported = stablehlo.exported_program_to_stablehlo(torch.export.export(module, (torch.ones(2, 3),)))
    module(torch.ones(2, 3))
    assert exported(torch.ones(2, 3))["calls"].item() == 1


def test_modules_and_arguments_on_the_device_stay_as_they_are(tmp_path: Path) -> None:
    module, x = Counts(), numbers(2, 3)
    on_device, given = copy.deepcopy(module).to("xla"), x.to("xla")
    loaded = saved(torch.export.export(on_device, (given,)), tmp_path)
    same(loaded(given), module(x))
    assert on_device.calls.item() == 0
    program = torch.export.export(Arguments(), *arguments())
    (state, x), kwargs = on_cpu(arguments())
    traced = pytree.tree_map(lambda item: item.to("xla") if isinstance(item, torch.Tensor) else item, state)
    options = {"override_tracing_arguments": (traced, x), "override_tracing_kwargs": kwargs}
    same(saved(program, tmp_path / "override", **options)(*arguments()[0], **kwargs), Arguments()(*arguments()[0], **kwargs))
    same(traced, state)
    with pytest.raises(ValueError, match="takes 8 arguments, flat, and 1 are given"):
        saved(program, tmp_path, override_tracing_arguments=(x,))


def test_metas_have_a_version_where_they_need_one(tmp_path: Path) -> None:
    saved(torch.export.export(nn.ReLU(), (torch.ones(2),)), tmp_path / "first")
    first = json.loads((tmp_path / "first/functions/forward.meta").read_text())
    assert set(first) == {
        *("name", "stablehlo_version", "input_signature", "output_signature", "input_locations", "unused_inputs"),
        *("input_pytree_spec", "output_pytree_spec"),
    }, "those of programs without writes are as they always were"
    saved(torch.export.export(Counts(), (torch.ones(2, 3),)), tmp_path / "second")
    meta = tmp_path / "second/functions/forward.meta"
    second = json.loads(meta.read_text())
    assert second["format_version"] == 2
    assert [each["name"] for each in second["written"]] == ["calls", "seen", "sums"]
    assert [each["shape"] for each in second["output_signature"]] == [[], [3], [2, 3], [], [3], [2, 3]]
    (tmp_path / "second/stablehlo.index.json").unlink()
    meta.write_text(json.dumps({**second, "format_version": 3, "more": 1}))
    with pytest.raises(ValueError, match="form 3"):
        stablehlo.StableHLOGraphModule.load(str(tmp_path / "second"))


class Draws(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.dropout(x, 0.5, True), torch.rand(4, device=x.device), torch.randn_like(x), torch.randperm(5, device=x.device)


def test_random_numbers_come_from_the_state_of_the_device(tmp_path: Path) -> None:
    x = torch.ones(8)
    before = torch.xla.get_rng_state()  # type: ignore[attr-defined]
    loaded = saved(torch.export.export(Draws(), (x,)), tmp_path)
    assert torch.equal(torch.xla.get_rng_state(), before), "exporting draws nothing"  # type: ignore[attr-defined]
    torch.manual_seed(1)
    first, second = loaded(x), loaded(x)
    assert not torch.equal(first[1].cpu(), second[1].cpu())
    torch.manual_seed(1)
    same(loaded(x), first)
    torch.manual_seed(1)
    same(Draws()(x.to("xla")), first)
    meta = loaded.bundle.stablehlo_funcs[0].meta
    assert meta.input_locations[-1] == stablehlo.InputLocation.seeds()
    assert meta.input_signature[-1] == stablehlo.VariableSignature([4, 2], "uint32")


UNEXPORTABLE: dict[str, tuple[Callable[..., Any], str]] = {
    "nonzero": (lambda x: x.nonzero(), "aten.nonzero"),
    "mask": (lambda x: x[x > 0], "aten.index.Tensor"),
    "item": (lambda x: x + x.sum().item(), "aten.item"),
}


@pytest.mark.parametrize("name", UNEXPORTABLE)
def test_what_depends_on_data_is_refused(name: str) -> None:
    function, match = UNEXPORTABLE[name]

    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    with pytest.raises(UnsupportedOperationError, match=f"{match}.*data decides"):
        stablehlo.exported_program_to_stablehlo(torch.export.export(Module(), (torch.ones(3),)))
