"""Every operation of autocast's lists: the program computes in the listed precision, and gives the values of the CPU."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import torch_xla
from xla_core.engine.tensor.interop import graph_of
from xla_core.ops import families
from xla_core.ops.facts import Autocast
from xla_core.ops.table import AUTOCAST, absent_operations

HALF, SINGLE = torch.bfloat16, torch.float32
_draw = torch.Generator().manual_seed(3)


def some(*shape: int) -> torch.Tensor:
    """Values that bf16 has exactly, of both signs."""
    return torch.randint(-8, 9, shape, generator=_draw) / 8


SQUARE, BATCH, LINE, IMAGE, CUBE = some(4, 4), some(2, 4, 4), some(4), some(2, 3, 6, 6), some(1, 2, 4, 4, 4)
POSITIVE, CHANCES, ONES = torch.eye(4) * 8 + 1, torch.tensor([0.25, 0.5, 0.75, 0.125]), torch.ones(4)
CLASSES, ROWS = torch.tensor([1, 0, 3, 2]), torch.tensor([2, 0])
PLAIN_CONVOLUTION = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)

SAMPLES: dict[str, tuple[Any, ...]] = {
    "matmul": (SQUARE, SQUARE),
    "mm": (SQUARE, SQUARE),
    "mv": (SQUARE, LINE),
    "bmm": (BATCH, BATCH),
    "addmm": (SQUARE, SQUARE, SQUARE),
    "addmv": (LINE, SQUARE, LINE),
    "addbmm": (SQUARE, BATCH, BATCH),
    "baddbmm": (BATCH, BATCH, BATCH),
    "addr": (SQUARE, LINE, LINE),
    "linear": (SQUARE, SQUARE, LINE),
    "einsum": ("ij,ij->i", [SQUARE, SQUARE]),
    "chain_matmul": ([SQUARE, SQUARE, SQUARE],),
    "linalg_multi_dot": ([SQUARE, SQUARE, SQUARE],),
    "linalg_vecdot": (SQUARE, SQUARE),
    "scaled_dot_product_attention": (BATCH, BATCH, BATCH),
    "conv1d": (some(2, 3, 8), some(4, 3, 3)),
    "conv2d": (IMAGE, some(4, 3, 3, 3)),
    "conv3d": (CUBE, some(3, 2, 2, 2, 2)),
    "conv_transpose1d": (some(2, 3, 8), some(3, 4, 3)),
    "conv_transpose2d": (IMAGE, some(3, 4, 3, 3)),
    "conv_transpose3d": (CUBE, some(2, 3, 2, 2, 2)),
    "convolution": (IMAGE, some(4, 3, 3, 3), None, *PLAIN_CONVOLUTION),
    "_convolution": (IMAGE, some(4, 3, 3, 3), None, *PLAIN_CONVOLUTION, False, False, True, True),
    "conv_tbc": (some(5, 2, 3), some(3, 3, 4), LINE),
    "relu": (SQUARE,),
    "prelu": (SQUARE, torch.tensor([0.25])),
    "max_pool2d": (IMAGE, [2, 2]),
    "batch_norm": (IMAGE, None, None, None, None, True, 0.1, 1e-5, False),
    "softmax": (SQUARE, -1),
    "log_softmax": (SQUARE, -1),
    "prod": (SQUARE,),
    "cdist": (SQUARE, some(3, 4)),
    "trace": (SQUARE,),
    "binary_cross_entropy": (CHANCES, ONES),
    "binary_cross_entropy_with_logits": (LINE, ONES),
    "cosine_embedding_loss": (SQUARE + 2, SQUARE, ONES),
    "cross_entropy_loss": (SQUARE, CLASSES),
    "ctc_loss": (some(5, 2, 4), torch.tensor([[1, 2], [2, 3]]), torch.tensor([5, 5]), torch.tensor([2, 2])),
    "hinge_embedding_loss": (LINE, ONES),
    "huber_loss": (LINE, ONES),
    "kl_div": (LINE, CHANCES),
    "l1_loss": (LINE, ONES),
    "margin_ranking_loss": (LINE, ONES, ONES),
    "mse_loss": (LINE, ONES),
    "multi_margin_loss": (SQUARE, CLASSES),
    "multilabel_margin_loss": (SQUARE, torch.zeros(4, 4, dtype=torch.int64)),
    "nll_loss": (SQUARE, CLASSES),
    "nll_loss2d": (some(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)),
    "nll_loss_nd": (SQUARE, CLASSES),
    "poisson_nll_loss": (LINE, CHANCES, True, False, 1e-8, 1),
    "smooth_l1_loss": (LINE, ONES),
    "soft_margin_loss": (LINE, ONES),
    "triplet_margin_loss": (SQUARE + 2, SQUARE, SQUARE - 2),
    "cholesky": (POSITIVE,),
    "cholesky_inverse": (POSITIVE,),
    "cholesky_solve": (SQUARE, POSITIVE),
    "linalg_cholesky": (POSITIVE,),
    "linalg_cholesky_ex": (POSITIVE,),
    "inverse": (POSITIVE,),
    "linalg_inv": (POSITIVE,),
    "linalg_inv_ex": (POSITIVE,),
    "qr": (POSITIVE,),
    "linalg_qr": (POSITIVE,),
    "geqrf": (POSITIVE,),
    "svd": (POSITIVE,),
    "linalg_svd": (POSITIVE,),
    "linalg_svdvals": (POSITIVE,),
    "triangular_solve": (SQUARE, POSITIVE),
    "linalg_solve_triangular": (POSITIVE, SQUARE),
    "reflection_pad1d": (SQUARE, [1, 1]),
    "reflection_pad2d": (IMAGE, [1, 1, 1, 1]),
    "reflection_pad3d": (CUBE, [1] * 6),
    "replication_pad1d": (SQUARE, [1, 1]),
    "replication_pad2d": (IMAGE, [1, 1, 1, 1]),
    "replication_pad3d": (CUBE, [1] * 6),
}
NAMED = {"linalg_solve_triangular": {"upper": True}}
# Orthogonal factors are one of several, by the signs and the order of their columns.
NOT_UNIQUE = ("svd", "linalg_svd")


def moved(item: Any, dtype: torch.dtype, device: str = "xla") -> Any:
    """Floating tensors in a dtype, all on a device."""
    if isinstance(item, list) and isinstance(item[0], torch.Tensor):
        return [moved(one, dtype, device) for one in item]
    if not isinstance(item, torch.Tensor):
        return item
    return item.to(device, dtype) if item.is_floating_point() else item.to(device)


def floating(result: Any) -> list[torch.Tensor]:
    """The floating tensors among results."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    return [tensor for tensor in results if tensor.is_floating_point()]


def computed_in(results: list[torch.Tensor]) -> set[torch.dtype]:
    """The floating dtypes that the operations of the program take, casts aside."""
    graph = graph_of(results)
    taken = [graph.operand(slot) for operation in graph.operations() if operation.target != "aten::_to_copy" for slot in operation.operands]
    return {operand.dtype for operand in taken if operand.dtype is not None and operand.dtype.is_floating_point}


def listed(choice: Autocast) -> list[str]:
    """The operators of aten that the op table gives this choice of autocast."""
    families.load()
    return [operator.removeprefix("aten::") for operator, chosen in AUTOCAST.items() if chosen is choice]


LISTED = [(name, SINGLE, HALF) for name in listed(Autocast.LOWER)] + [(name, HALF, SINGLE) for name in listed(Autocast.FLOAT32)]


def test_each_sample_is_of_a_listed_operator() -> None:
    """And each listed operator has one, but those that this torch lacks."""
    assert SAMPLES.keys() - {name.removeprefix("aten::") for name in absent_operations()} == {name for name, *_ in LISTED}


@pytest.mark.filterwarnings("ignore:.*has no XLA lowering:RuntimeWarning", "ignore:.*is deprecated:UserWarning")
@pytest.mark.parametrize(("name", "given", "wanted"), LISTED, ids=[name for name, *_ in LISTED])
def test_the_program_computes_in_the_listed_precision(name: str, given: torch.dtype, wanted: torch.dtype) -> None:
    function, named = getattr(torch.ops.aten, name), NAMED.get(name, {})
    args = [moved(arg, given) for arg in SAMPLES[name]]
    torch_xla.sync()
    with torch.autocast("xla", dtype=HALF), torch.no_grad():
        ours = floating(function(*args, **named))
    assert {tensor.dtype for tensor in ours} == {wanted}
    if name != "scaled_dot_product_attention":  # torch itself computes the sums of products of that one in f32
        assert computed_in(ours) <= {wanted}
    theirs = floating(function(*[moved(arg, wanted, "cpu") for arg in SAMPLES[name]], **named))
    close = {"rtol": 2e-2, "atol": 2e-2} if wanted is HALF else {"rtol": 1e-3, "atol": 1e-4}
    for mine, yours in zip(ours, theirs, strict=True):
        if name not in NOT_UNIQUE or mine.dim() == 1:
            torch.testing.assert_close(mine.cpu(), yours, **close)


@pytest.mark.parametrize("name", listed(Autocast.WIDEST))
def test_the_program_computes_in_the_widest_precision(name: str) -> None:
    mixed = [[SQUARE.to(HALF), SQUARE]] if name != "index_copy" else [SQUARE, 0, ROWS, some(2, 4).to(HALF)]
    on_device = [
        [one.to("xla") for one in item] if isinstance(item, list) else moved(item, getattr(item, "dtype", SINGLE)) for item in mixed
    ]
    torch_xla.sync()
    with torch.autocast("xla", dtype=HALF):
        (ours,) = floating(getattr(torch.ops.aten, name)(*on_device))
    assert ours.dtype is SINGLE and computed_in([ours]) == {SINGLE}
    theirs = getattr(torch.ops.aten, name)(*[moved(item, SINGLE, "cpu") for item in mixed])
    torch.testing.assert_close(ours.cpu(), theirs)


def operand_dtypes(text: str, operation: str) -> set[str]:
    """The dtypes that the operands of an operation have in the text of a program."""
    made = {found["name"]: found["dtype"] for found in re.finditer(r"(?P<name>[\w.]+) = (?P<dtype>\w+)\[", text)}
    taken = [found[1].split(", ") for found in re.finditer(rf" {operation}\(([^)]*)\)", text)]
    return {made[name] for names in taken for name in names}


def test_the_text_of_the_program_shows_it() -> None:
    x, y = SQUARE.to("xla"), SQUARE.to("xla", HALF)
    torch_xla.sync()
    with torch.autocast("xla", dtype=HALF):
        product, chances = torch.einsum("ij,jk->ik", x, x), torch.softmax(y, -1)
    assert operand_dtypes(torch_xla._XLAC._get_xla_tensors_hlo([product]), "dot") == {"bf16"}
    assert operand_dtypes(torch_xla._XLAC._get_xla_tensors_hlo([chances]), "exponential") == {"f32"}
