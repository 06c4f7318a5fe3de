"""Every collective over dtypes and groups, each compared with NumPy: the report lists what differs.

The third argument is a platform: collectives are lowered as for it, and run here.
"""

from __future__ import annotations

import functools
import importlib
import operator
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import harness
import torch_xla
import torch_xla._XLAC as lib
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import xla_distributed.collectives.ops
from xla_core.testing import lower_as_for

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)
FEW = (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool)
GROUPS: dict[int, list[Any]] = {
    2: [None, [[0, 1]], [[1, 0]], [[0], [1]]],
    4: [None, [], [[0, 1], [2, 3]], [[2, 0], [1, 3]], [[3, 1, 0, 2]], [[0], [1], [2], [3]]],
}
UNEVEN = [[0], [1, 2, 3]]
Check = tuple[str, torch.Tensor, np.ndarray[Any, Any]]


def given(rank: int, dtype: torch.dtype, shape: tuple[int, ...], salt: int = 0) -> torch.Tensor:
    """The input of a replica: the same on every replica that asks."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    if dtype.is_complex or dtype.is_floating_point:
        return (
            torch.randn(shape, generator=generator).to(dtype)
            if not dtype.is_complex
            else torch.randn(shape, generator=generator, dtype=dtype)
        )
    return torch.randint(0, 2 if dtype is torch.bool else 5, shape, generator=generator).to(dtype)


def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """In a dtype that NumPy has and in which sums are exact enough."""
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return tensor.numpy()


def members(groups: Any, rank: int, count: int) -> list[int]:
    return next(group for group in (groups or [list(range(count))]) if rank in group)


def reduced(kind: str, parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    fold: dict[str, Callable[[Any, Any], Any]] = {
        "sum": np.add,
        "mul": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "and": operator.and_,
        "or": operator.or_,
    }
    return np.asarray(functools.reduce(fold[kind], parts))


def kinds(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype.is_complex:
        return ("sum", "mul")
    return ("sum", "mul", "min", "max") if dtype.is_floating_point else ("sum", "mul", "min", "max", "and", "or")


def reductions(rank: int, count: int, dtypes: tuple[torch.dtype, ...]) -> Iterator[Check]:
    for dtype in dtypes:
        for groups in [*GROUPS[count], *([UNEVEN] if count == 4 else [])]:
            parts = [given(other, dtype, (3, 2)) for other in members(groups, rank, count)]
            for kind in kinds(dtype):
                result = xm.all_reduce(kind, given(rank, dtype, (3, 2)).to("xla"), groups=groups)
                yield f"all_reduce {kind} {dtype} {groups}", result, reduced(kind, [array(part) for part in parts])


def lists(rank: int, count: int) -> Iterator[Check]:
    shapes = [(2, 3), (), (0,), (5,)]
    kind_of = [torch.float32, torch.int64, torch.float32, torch.float32]
    tensors = [given(rank, dtype, shape, place).to("xla") for place, (dtype, shape) in enumerate(zip(kind_of, shapes, strict=True))]
    listed = xm.all_reduce("sum", tensors, scale=0.5)
    assert listed is tensors
    for place, (dtype, shape) in enumerate(zip(kind_of, shapes, strict=True)):
        total = sum(array(given(other, dtype, shape, place)) for other in range(count))
        expected = np.asarray(total * 0.5).astype(array(given(0, dtype, shape, place)).dtype)
        yield f"all_reduce list {place}", tensors[place], expected


def large(rank: int, count: int) -> Iterator[Check]:
    """Arrays that travel in parts, the last of them smaller."""
    size = (6 << 20) + 1001
    groups = GROUPS[count][2]
    mates = members(groups, rank, count)
    parts = [array(given(other, torch.float32, (size,))) for other in range(count)]
    mine = [torch.from_numpy(parts[rank]).to("xla"), given(rank, torch.float32, (2, 500)).to("xla")]
    xm.all_reduce("sum", mine, scale=0.5)
    yield "all_reduce of a large list", mine[0], np.asarray(reduced("sum", parts) * np.float32(0.5))
    everyone = [array(given(other, torch.float32, (2, 500))) for other in range(count)]
    yield "all_reduce of a small one beside it", mine[1], np.asarray(reduced("sum", everyone) * np.float32(0.5))
    least = xm.all_reduce("min", torch.from_numpy(parts[rank]).to("xla"), groups=groups)
    yield "all_reduce min of a large tensor in groups", least, reduced("min", [parts[mate] for mate in mates])
    sent = [torch.from_numpy(parts[rank]).to("xla")]
    xm.collective_broadcast(sent, root_ordinal=1)
    yield "collective_broadcast of a large tensor", sent[0], parts[1]


def flat(rank: int, count: int) -> Iterator[Check]:
    """Arrays of one dimension whose parts are whole tiles of a TPU's memory, and large ones whose parts are not."""
    for dtype in (torch.float32, torch.bfloat16):
        for size in (4096, 70_003 * 4, 100):
            own, parts = given(rank, dtype, (size,)).to("xla"), [array(given(other, dtype, (size,))) for other in range(count)]
            yield f"all_gather {dtype}[{size}]", xm.all_gather(own), np.concatenate(parts)
            long, wholes = own.repeat(count), [np.tile(part, count) for part in parts]
            here = slice(rank * size, (rank + 1) * size)
            yield f"reduce_scatter {dtype}[{size}]", xm.reduce_scatter("sum", long, 0.5, 0, count), sum(wholes)[here] * 0.5


def special(rank: int, count: int) -> Iterator[Check]:
    inf, nan = float("inf"), float("nan")
    rows = [[nan, -0.0, inf, 1.0], [1.0, 0.0, -inf, nan], [-1.0, -0.0, 2.0, 3.0], [0.0, 5.0, nan, 4.0]][:count]
    for kind in ("min", "max"):
        result = xm.all_reduce(kind, torch.tensor(rows[rank], device="xla"))
        yield f"all_reduce {kind} of special values", result, reduced(kind, [np.array(row, np.float32) for row in rows])
    mine = torch.tensor(rows[rank], device="xla")
    xm.collective_broadcast([mine], root_ordinal=1)
    yield "collective_broadcast keeps bits", mine.view(torch.int32), np.array(rows[1], np.float32).view(np.int32)


def moves(rank: int, count: int, dtypes: tuple[torch.dtype, ...]) -> Iterator[Check]:
    for dtype in dtypes:
        for groups in GROUPS[count]:
            group = members(groups, rank, count)
            here, size = group.index(rank), len(group)
            label = f"{dtype} {groups}"
            mine = given(rank, dtype, (4, 8)).to("xla")
            parts = [array(given(other, dtype, (4, 8))) for other in group]
            for dim in (0, -1):
                yield f"all_gather {dim} {label}", xm.all_gather(mine, dim, groups), np.concatenate(parts, dim)
                summed = reduced("sum", parts)
                yield (
                    f"reduce_scatter {dim} {label}",
                    xm.reduce_scatter("sum", mine, 1.0, dim, size, groups),
                    np.split(summed, size, dim)[here],
                )
            exchanged = np.concatenate([np.split(part, size, 1)[here] for part in parts], 0)
            yield f"all_to_all {label}", xm.all_to_all(mine, 1, 0, size, groups), exchanged
        mine = [given(rank, dtype, (2,), 7).to("xla"), given(rank, torch.float32, (), 8).to("xla")]
        xm.collective_broadcast(mine, root_ordinal=count - 1)
        yield f"collective_broadcast {dtype}", mine[0], array(given(count - 1, dtype, (2,), 7))
        pairs = [[source, (source + 1) % count] for source in range(count - 1)]
        source = given(rank - 1, dtype, (3,)) if rank else torch.zeros(3, dtype=dtype)
        yield f"collective_permute {dtype}", xm.collective_permute(given(rank, dtype, (3,)).to("xla"), pairs), array(source)


def variants(rank: int, count: int) -> Iterator[Check]:
    everyone = [array(given(other, torch.float32, (2, 3))) for other in range(count)]
    mine = given(rank, torch.float32, (2, 3)).to("xla")
    for dim in (0, 1, -1):
        yield f"_all_gather_using_all_reduce {dim}", xm._all_gather_using_all_reduce(mine, dim), np.concatenate(everyone, dim)
    output = torch.empty(2 * count, 3, device="xla")
    assert xm.all_gather(mine, 0, output=output) is output
    yield "all_gather into output", output, np.concatenate(everyone, 0)
    for place, result in enumerate(xm.all_gather([mine, mine + 1], 0, pin_layout=False)):
        yield f"all_gather of a list {place}", result, np.concatenate(everyone, 0) + place
    for place, result in enumerate(xm.all_gather_bucketized([mine, mine + 1, mine + 2], 1)):
        yield f"all_gather_bucketized {place}", result, np.concatenate(everyone, 1) + place
    wide = [given(rank, torch.float32, (count, 2), place).to("xla") for place in range(3)]
    sums = [sum(array(given(other, torch.float32, (count, 2), place)) for other in range(count)) for place in range(3)]
    for place, result in enumerate(xm.reduce_scatter_bucketized("sum", wide, 0.5, 0, count)):
        yield f"reduce_scatter_bucketized {place}", result, np.asarray(sums[place] * 0.5)[rank : rank + 1]
    shards = [torch.empty(1, 2, device="xla") for _ in wide]
    assert xm.reduce_scatter("sum", wide, 1.0, 0, count, output=shards, pin_layout=False) is shards
    for place, shard in enumerate(shards):
        yield f"reduce_scatter of a list {place}", shard, np.asarray(sums[place])[rank : rank + 1]
    low = [array(given(other, torch.float32, (count, 2), 0)) for other in range(count)]
    yield "reduce_scatter max", xm.reduce_scatter("max", wide[0], 1.0, 0, count), reduced("max", low)[rank : rank + 1]
    yield "all_reduce keeps its input", mine, everyone[rank]
    yield (
        "all_reduce of integers with a scale",
        xm.all_reduce("sum", torch.tensor([3], device="xla"), scale=0.5),
        np.array([3 * count // 2]),
    )


def low_level(rank: int, count: int) -> Iterator[Check]:
    """The names of the extension module, in the order of arguments of those who call them."""
    mine = given(rank, torch.float32, (4, 8)).to("xla")
    parts = [array(given(other, torch.float32, (4, 8))) for other in range(count)]
    total, rows, here = reduced("sum", parts), np.concatenate(parts, 0), slice(rank * (4 // count), (rank + 1) * (4 // count))
    device = str(mine.device)
    token = lib._get_all_reduce_token(device)
    yield "_xla_all_reduce", lib._xla_all_reduce("sum", mine, 0.5, [], True), total * 0.5
    both = [mine.clone(), mine + 1]
    lib._xla_all_reduce_inplace("sum", both, 1.0, [list(range(count))], True)
    yield "_xla_all_reduce_inplace", both[0] + both[1], 2 * total + count
    yield "_xla_all_gather", lib._xla_all_gather(mine, 0, count, [], True), rows
    output, outputs = torch.empty(4 * count, 8, device="xla"), [torch.empty(4 * count, 8, device="xla") for _ in both]
    token = lib._xla_all_gather_out(output, mine, token, 0, count, [], True)
    yield "_xla_all_gather_out", output, rows
    first, second, token = lib._xla_all_gather_coalesced([mine, mine + 1], token, 0, count, [], True)
    yield "_xla_all_gather_coalesced", second - first, np.ones_like(rows)
    token = lib._xla_all_gather_coalesced_out(outputs, [mine, mine * 2], token, 0, count, [], True)
    yield "_xla_all_gather_coalesced_out", outputs[0] + outputs[1], 3 * rows
    lib._set_all_reduce_token(device, token)
    result, token = lib._xla_reduce_scatter("sum", mine, token, 2.0, 0, count, [], True)
    yield "_xla_reduce_scatter", result, 2 * total[here]
    shard, shards = torch.empty(4 // count, 8, device="xla"), [torch.empty(4 // count, 8, device="xla") for _ in both]
    token = lib._xla_reduce_scatter_out("max", shard, mine, token, 1.0, 0, count, [], True)
    yield "_xla_reduce_scatter_out", shard, reduced("max", parts)[here]
    first, second, token = lib._xla_reduce_scatter_coalesced("sum", [mine, mine * 2], token, 1.0, 0, count, [], True)
    yield "_xla_reduce_scatter_coalesced", first + second, 3 * total[here]
    token = lib._xla_reduce_scatter_coalesced_out("sum", shards, [mine, mine * 2], token, 1.0, 0, count, [], True)
    yield "_xla_reduce_scatter_coalesced_out", shards[1] - shards[0], total[here]
    exchanged, token = lib._xla_all_to_all(mine, token, 1, 0, count, [], True)
    yield "_xla_all_to_all", exchanged, np.concatenate([np.split(part, count, 1)[rank] for part in parts], 0)
    sent, token = lib._xla_collective_permute(mine, token, [[other, (other + 1) % count] for other in range(count)])
    yield "_xla_collective_permute", sent, parts[rank - 1]
    text = lib._get_xla_tensors_text([sent, result])
    assert "xla::collective_permute(" in text and "xla::reduce_scatter(" in text, text
    for wrong in (lambda: lib._xla_all_gather(mine, 0, count + 1, [], True), lambda: lib._xla_send(mine, token, 0)):
        try:
            wrong()
        except (ValueError, NotImplementedError):
            continue
        raise AssertionError("a wrong call was taken")


def work(rank: int, folder: str, which: str, platform: str = "cpu") -> dict[str, Any]:
    for module in pkgutil.iter_modules(xla_distributed.collectives.ops.__path__, "xla_distributed.collectives.ops."):
        importlib.import_module(module.name)  # each registers its operations
    lower_as_for(platform, "xla_distributed")
    count = xr.world_size()
    dtypes = DTYPES if which == "all" else FEW
    checks = [
        *reductions(rank, count, dtypes),
        *lists(rank, count),
        *large(rank, count),
        *flat(rank, count),
        *special(rank, count),
        *moves(rank, count, dtypes),
        *variants(rank, count),
        *low_level(rank, count),
    ]
    torch_xla.sync()  # all as one program
    wrong = []
    for name, result, expected in checks:
        found = array(result.cpu())
        close = dict(rtol=2e-2, atol=2e-2) if result.dtype in (torch.bfloat16, torch.float16) else dict(rtol=1e-5, atol=1e-6)
        if found.shape != expected.shape or not np.allclose(found, expected, equal_nan=True, **close):
            wrong.append(f"{name}: {found} where {expected} was due")
    return {"checks": len(checks), "wrong": wrong}


if __name__ == "__main__":
    harness.main(work)
