"""Exported programs whose inputs have open sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from torch_xla import stablehlo
from xla_core.base.errors import UnsupportedOperationError

Shapes = tuple[tuple[int, ...], ...]


def exported(module: nn.Module | Callable[..., Any], args: tuple[Any, ...], dynamic: Any, **options: Any) -> stablehlo.StableHLOGraphModule:
    if not isinstance(module, nn.Module):
        module = Function(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, of its pytrees
        program = torch.export.export(module.eval(), args, dynamic_shapes=dynamic)
        return stablehlo.exported_program_to_stablehlo(program, stablehlo.StableHLOExportOptions(**options))


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Convolutional(nn.Module):
    """Open batch, height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, groups=2),
            nn.GroupNorm(2, 8),
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.adaptive_avg_pool2d(functional.silu(self.body(x)), 1).flatten(1))  # type: ignore[no-any-return]


class Language(nn.Module):
    """Open batch and length: embeddings, positions, causal attention, a mask from data, the last token's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 16), nn.Embedding(64, 16)
        self.inner, self.outer = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        query, key, value = self.inner(self.norm(x)).view(batch, length, 4, 12).transpose(1, 2).chunk(3, dim=-1)
        seen = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril() & mask[:, None, None, :]
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        x = x + self.outer(mixed.transpose(1, 2).reshape(batch, length, 16))
        logits = x @ self.words.weight.t()
        return logits[:, -1].topk(3).values, functional.log_softmax(logits, -1).gather(2, tokens[..., None]).squeeze(-1).sum(1) / length


def _images(batch: int, height: int, width: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 3, height, width),)


def _tokens(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 11, (batch, length)), torch.arange(length).expand(batch, length) >= 1


_BATCH, _LENGTH = Dim("batch", max=32), Dim("length", max=64)


@pytest.mark.parametrize(
    ("module", "dynamic", "inputs", "sizes"),
    [
        (Convolutional, {"x": {0: _BATCH, 2: Dim("height", min=4), 3: Dim("width", min=4)}}, _images, [(2, 8, 8), (3, 10, 6), (1, 4, 9)]),
        (Language, {"tokens": {0: _BATCH, 1: _LENGTH}, "mask": {0: _BATCH, 1: _LENGTH}}, _tokens, [(2, 5), (3, 9), (1, 2)]),
    ],
    ids=["convolutional", "language"],
)
def test_one_program_for_all_sizes(
    module: type[nn.Module], dynamic: Any, inputs: Callable[..., tuple[torch.Tensor, ...]], sizes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = module().eval()
    exported(model, inputs(*sizes[0]), dynamic).save(str(tmp_path))
    loaded = stablehlo.StableHLOGraphModule.load(str(tmp_path))
    text = loaded.get_stablehlo_text()
    assert text is not None and "tensor<?x" in text
    for size in sizes:
        given = inputs(*size)
        with torch.no_grad():
            expected = model(*given)
        torch.testing.assert_close(torch.utils._pytree.tree_map(lambda item: item.cpu(), loaded(*given)), expected, rtol=1e-5, atol=1e-5)


def _rows(*sizes: int) -> Callable[[int], torch.Tensor]:
    """Makes random numbers with as many rows as asked for."""
    return lambda rows: torch.randn(rows, *sizes)


def _fixed(*sizes: int) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.randn(*sizes)


def _backwards(rows: int) -> torch.Tensor:
    return torch.arange(rows).flip(0)


def _sizes_as_numbers(x: torch.Tensor) -> Any:
    return x / x.shape[0], x * x.shape[0], x.sum() + x.size(0), x.shape[0]


def _factories(x: torch.Tensor) -> Any:
    return torch.arange(x.shape[0]), torch.zeros(x.shape[0], 2), torch.full_like(x, 7)


def _parts(x: torch.Tensor) -> Any:
    return x[1:], x[:-1], x[-1], x[::2], x[:, 1], x.flip(0), x.unflatten(1, (2, 2)), x.split(2, 1)


def _joined(x: torch.Tensor) -> Any:
    return torch.cat([x, x[1:]]), torch.stack([x, x]), x.repeat(2, 1), x.reshape(-1)


def _broadcast(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x + y, x[:, None] - x, y.expand(x.shape[0], -1), torch.where(x > 0, x, y)


def _reduced(x: torch.Tensor) -> Any:
    return x.mean(0), x.var(0), x.std(), x.amax(0), x.argmax(0), x.cumsum(0), x.softmax(0), x.norm()


def _ordered(x: torch.Tensor) -> Any:
    return x.sort(0).values, x.argsort(0), x.median(), x.topk(2, 0).indices


def _looked_up(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x[i], x.index_select(0, i), torch.zeros_like(x).index_add(0, i, x), x.scatter(0, i[:, None], 1.0)


def _multiplied(x: torch.Tensor) -> Any:
    return x @ x.t(), torch.einsum("bi,bj->ij", x, x), torch.addmm(x.new_ones(3), x, x.new_ones(3, 3))


def _decomposed(x: torch.Tensor) -> Any:
    return torch.linalg.matrix_norm(x, "nuc"), torch.linalg.inv(x)


def _in_half_precision(x: torch.Tensor) -> Any:
    return x.to(torch.bfloat16) * 2, x.half().sum(0)


def _pooled(x: torch.Tensor) -> Any:
    return (
        functional.max_pool2d(x, 3, 2, 1, return_indices=True),
        functional.max_pool2d(torch.where(x > 1, -torch.inf, x), 2, 1, 0, 2, return_indices=True),
        functional.avg_pool2d(x, 2, 1, 1, count_include_pad=False),
        functional.avg_pool2d(x, 3, 2, 1, divisor_override=5),
        functional.avg_pool1d(x[:, 0], 3, 2, 1),
    )


def _pooled_to_the_end(x: torch.Tensor) -> Any:
    """By maps of fixed size, so that torch knows whether a window begins in the padding."""
    return functional.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True), functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True)


FUNCTIONS: list[tuple[Callable[..., Any], tuple[Callable[[int], torch.Tensor], ...]]] = [
    (_sizes_as_numbers, (_rows(3),)),
    (_factories, (_rows(3),)),
    (_parts, (_rows(4),)),
    (_joined, (_rows(3),)),
    (_broadcast, (_rows(3), _fixed(1, 3))),
    (_reduced, (_rows(3),)),
    (_ordered, (_rows(3),)),
    (_looked_up, (_rows(3), _backwards)),
    (_multiplied, (_rows(3),)),
    (_decomposed, (_rows(4, 4),)),
    (_in_half_precision, (_rows(3),)),
    (_pooled, (lambda rows: torch.randn(2, 1, rows + 2, rows + 3),)),
    (_pooled_to_the_end, (lambda rows: torch.randn(rows, 1, 4, 2),)),
]


def _open(tensor: torch.Tensor) -> dict[int, Any]:
    return {dim: Dim.AUTO for dim, size in enumerate(tensor.shape) if size > 4 or dim == 0}


@pytest.mark.parametrize(("function", "makers"), FUNCTIONS, ids=[function.__name__ for function, _ in FUNCTIONS])
def test_operations_over_open_sizes(function: Callable[..., Any], makers: tuple[Callable[[int], torch.Tensor], ...]) -> None:
    torch.manual_seed(0)
    given = tuple(maker(5) for maker in makers)
    program = exported(function, given, (tuple(map(_open, given)),))
    for size in (5, 8, 3):
        given = tuple(maker(size) for maker in makers)
        flat = [item.cpu() for item in torch.utils._pytree.tree_leaves(program(*given))]
        expected = [torch.as_tensor(item) for item in torch.utils._pytree.tree_leaves(function(*given))]
        torch.testing.assert_close(flat, expected, rtol=1e-4, atol=1e-5)


def test_sizes_that_follow_from_others() -> None:
    half = Dim("half")
    program = exported(lambda x: x.view(x.shape[0] // 2, 2, 3).sum(1), (torch.ones(6, 3),), (({0: 2 * half},),))
    x = torch.randn(10, 3)
    torch.testing.assert_close(program(x).cpu(), x.view(5, 2, 3).sum(1))
    with pytest.raises(ValueError, match="does not take"):
        program(torch.ones(7, 3))


def test_sizes_out_of_range_or_unlike_each_other_are_refused() -> None:
    batch = Dim("batch", min=2, max=8)
    program = exported(lambda x, y: x + y, (torch.ones(4, 3), torch.ones(4, 3)), (({0: batch}, {0: batch}),))
    assert program(torch.ones(8, 3), torch.ones(8, 3)).shape == (8, 3)
    for wrong in ((torch.ones(9, 3), torch.ones(9, 3)), (torch.ones(1, 3), torch.ones(1, 3)), (torch.ones(3, 3), torch.ones(4, 3))):
        with pytest.raises(ValueError, match="does not take"):
            program(*wrong)
    with pytest.raises(ValueError, match="argument 0"):
        program(torch.ones(4, 2), torch.ones(4, 2))


def test_signatures_name_open_dimensions() -> None:
    program = exported(
        lambda x, y: (x.sum(1), y), (torch.ones(4, 3), torch.ones(2)), (({0: Dim("batch")}, None),), inline_all_constant=False
    )
    meta = program.bundle.stablehlo_funcs[0].meta
    assert meta.input_signature[0] == stablehlo.VariableSignature([-1, 3], "float32", [0])
    assert meta.output_signature == [stablehlo.VariableSignature([-1], "float32", [0]), stablehlo.VariableSignature([2], "float32")]


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda x: x + torch.rand_like(x), "random numbers"),
        (lambda x: torch.rand_like(x) + torch.rand_like(x), "random numbers"),
        (lambda x: x[x > 0], "data decides"),
        (lambda x: x.cummax(0).values, "open sizes"),
    ],
    ids=["random", "twice random", "data", "scan"],
)
def test_what_needs_fixed_sizes_is_refused(function: Callable[..., Any], match: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=match):
        exported(function, (torch.randn(6, 5),), (({0: Dim("rows", min=3), 1: Dim("columns", min=3)},),))


class Counter(nn.Module):
    """Writes to a buffer and to an argument; gives a number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor, out: torch.Tensor, scale: float) -> tuple[torch.Tensor, int, None]:
        self.seen += x.sum(0)
        out.copy_(x * self.weight * scale)
        return x + self.seen, 7, None


def test_programs_of_open_sizes_write_and_give_numbers(tmp_path: Path) -> None:
    model, rows = Counter(), Dim("rows")
    exported(model, (torch.ones(2, 3), torch.ones(2, 3), 2.0), {"x": {0: rows}, "out": {0: rows}, "scale": None}).save(str(tmp_path))
    loaded = stablehlo.StableHLOGraphModule.load(str(tmp_path))
    for size in (2, 5, 4):
        x, out, expected = torch.randn(size, 3), torch.empty(size, 3), torch.empty(size, 3)
        result, number, nothing = loaded(x, out, 2.0)
        torch.testing.assert_close(result.cpu(), model(x, expected, 2.0)[0].detach())
        torch.testing.assert_close(out, expected.detach())
        assert (number, nothing) == (7, None)
    with pytest.raises(ValueError, match="exported for"):
        loaded(x, out, 3.0)


def test_methods_of_open_and_of_fixed_sizes_share_weights() -> None:
    model = nn.Linear(3, 4)
    programs = {
        "any": torch.export.export(model, (torch.ones(2, 3),), dynamic_shapes=({0: Dim("rows")},)),
        "one": torch.export.export(model, (torch.ones(1, 3),)),
    }
    module = stablehlo.exported_programs_to_stablehlo(programs)
    assert sorted(module.bundle.state_dict) == ["bias", "weight"]
    x = torch.randn(6, 3)
    torch.testing.assert_close(module.any(x).cpu(), model(x).detach())
    torch.testing.assert_close(module.one(x[:1]).cpu(), model(x[:1]).detach())


def test_what_has_fixed_sizes_may_draw_and_branch() -> None:
    """In a program that leaves other sizes open."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + torch.cond(y.sum() > 0, lambda y: y * torch.tensor([1.0, 2.0]), lambda y: -y, (y,)), torch.rand(2)

    program = exported(function, (torch.ones(3, 2), torch.ones(2)), (({0: Dim("rows")}, None),))
    for x, y in ((torch.ones(5, 2), torch.ones(2)), (torch.ones(1, 2), -torch.ones(2))):
        result, drawn = program(x, y)
        torch.testing.assert_close(result.cpu(), function(x, y)[0])
        assert drawn.shape == (2,) and not torch.equal(drawn.cpu(), program(x, y)[1].cpu())


@pytest.mark.parametrize("where", [torch.zeros(0, dtype=torch.int64), torch.tensor([2, 5, 6, 13])], ids=["none", "some"])
def test_nan_wins_a_window_as_in_torch(where: torch.Tensor) -> None:
    x = torch.randn(1, 1, 5, 6)
    x.view(-1)[where] = torch.nan
    program = exported(lambda x: functional.max_pool2d(x, 3, 2, 1, return_indices=True), (x,), (({2: Dim("height", min=4)},),))
    found = [each.cpu() for each in program(x)]
    torch.testing.assert_close(found, list(functional.max_pool2d(x, 3, 2, 1, return_indices=True)), equal_nan=True)


def test_an_open_number_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match="open number"):
        exported(lambda x, count: x * count, (torch.ones(3), 5), ((None, Dim.DYNAMIC),))
