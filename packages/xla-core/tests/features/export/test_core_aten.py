"""Every overload of torch's core ATen list, exported alone and loaded from a folder: it gives the values of the CPU, or is refused.

Samples are those of torch's database of operators, where one of its entries calls the overload, else those of the table below.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_xla import stablehlo
from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import operation_names

Sample = tuple[tuple[Any, ...], dict[str, Any]]

# How many samples of each dtype an entry of the database gives, at most.
MOST = {torch.float32: 2, torch.int64: 1, torch.bool: 1, torch.complex64: 1, torch.bfloat16: 1}


def overload(name: str) -> Any:
    """The overload `softmax.int` or `relu`."""
    base, _, rest = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), rest or "default")


def _core() -> list[str]:
    names = sorted(name.removeprefix("aten::") for name in operation_names() if name.startswith("aten::"))
    return [name for name in names if torch.Tag.core in overload(name).tags]


CORE = _core()


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal numbers, by themselves or times three as integers."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (values if dtype.is_floating_point or dtype.is_complex else values * 3).to(dtype)


def call(*args: Any, **kwargs: Any) -> Sample:
    """One sample."""
    return args, kwargs


X, Y, WHOLE = numbers(3, 4), numbers(3, 4, seed=1), numbers(3, 4, dtype=torch.int64)
IMAGE, VOLUME, INDEX = numbers(2, 3, 6, 7), numbers(1, 2, 5, 4, 6), torch.tensor([[0, 2, 1, 0], [1, 1, 0, 2]])
ROWS = torch.tensor([1, 0, 2, 1, 0])
MOMENTS = (numbers(3), numbers(3, seed=1), numbers(3, seed=2), numbers(3, seed=3).abs())


def _scalars(*others: Any) -> list[Sample]:
    return [*[call(tensor, other) for other in others for tensor in (X, WHOLE)], call(X.to(torch.bfloat16), others[0])]


def _normalized(tensor: torch.Tensor, axes: list[int]) -> list[torch.Tensor]:
    mean = tensor.mean(axes)
    return [mean, (tensor.var(axes, unbiased=False) + 1e-5).rsqrt()]


_ROWS_STATISTICS = [each[..., None] for each in _normalized(X, [1])]
_GROUP_STATISTICS = _normalized(IMAGE[:, :2].reshape(2, 2, 42), [2])

SAMPLES: dict[str, list[Sample]] = {
    "_adaptive_avg_pool2d": [call(IMAGE, [3, 2]), call(IMAGE, [1, 1]), call(IMAGE[0], [6, 4])],
    "_adaptive_avg_pool2d_backward": [call(numbers(2, 3, 3, 2), IMAGE), call(numbers(2, 3, 1, 1), IMAGE)],
    "_adaptive_avg_pool3d": [call(VOLUME, [2, 3, 4]), call(VOLUME, [1, 1, 1])],
    "_cdist_forward": [call(X, numbers(5, 4), p, mode) for p, mode in ((2.0, None), (1.0, None), (3.0, 1), (float("inf"), None), (2.0, 2))],
    "_embedding_bag": [
        call(X, ROWS, torch.tensor([0, 2]), False, mode, False, weights)
        for mode, weights in ((0, None), (0, numbers(5)), (1, None), (2, None))
    ],
    "_fft_c2r": [call(X.to(torch.complex64), [1], 2, 6), call(X.to(torch.complex128), [0, 1], 0, 7)],
    "_fft_r2c": [call(X, [1], 0, True), call(X.double(), [0, 1], 1, False)],
    "_local_scalar_dense": [call(X[0, 0])],
    "_log_softmax": [call(X, 1, False), call(X.double(), 0, False), call(X.to(torch.bfloat16), -1, False)],
    "_native_batch_norm_legit.no_stats": [call(IMAGE, *MOMENTS[:2], True, 0.1, 1e-5), call(IMAGE, None, None, True, 0.1, 1e-5)],
    "_native_batch_norm_legit_no_training": [call(IMAGE, *MOMENTS, 0.1, 1e-5), call(IMAGE, None, None, *MOMENTS[2:], 0.1, 1e-3)],
    "_pdist_forward": [call(X), call(X, 1.0), call(X.double(), 0.0)],
    "_softmax": [call(X, 1, False), call(X.double(), 0, False), call(X.to(torch.bfloat16), -1, False)],
    "_to_copy": [call(X, dtype=dtype) for dtype in (torch.bool, torch.int32, torch.bfloat16, torch.complex64, None)],
    "adaptive_avg_pool1d": [call(numbers(2, 3, 8), [3]), call(numbers(3, 8), [1])],
    "add.Scalar": [*_scalars(2, 2.5), call(X, 2, 3), call(WHOLE, True)],
    "alias": [call(X), call(WHOLE)],
    "as_strided": [
        call(X, [2, 3], [1, 2], 1),
        call(WHOLE, [2, 2, 2], [4, 0, 1]),
        call(X, [], [], 5),
        call(X.to(torch.complex64), [3, 3], [3, 1]),
    ],
    "atan2.out": [call(X, Y, out=torch.zeros(3, 4)), call(X, Y[0], out=torch.zeros(3, 4, dtype=torch.float64))],
    "avg_pool1d": [call(numbers(2, 3, 8), [3], [2], [1]), call(numbers(3, 8), [2], [], 0, True, False)],
    "avg_pool2d_backward": [
        call(numbers(2, 3, 3, 4), IMAGE, [2, 2], [2, 2], [0, 1], False, True, None),
        call(numbers(2, 3, 3, 4), IMAGE, [3, 3], [2, 2], [1, 1], False, False, None),
        call(numbers(2, 3, 2, 2), IMAGE, [3, 3], [3, 3], [0, 0], False, True, 5),
    ],
    "bitwise_and.Scalar": [call(WHOLE, 5), call(WHOLE > 0, True)],
    "bitwise_or.Scalar": [call(WHOLE, 5), call(WHOLE > 0, True)],
    "bitwise_xor.Scalar": [call(WHOLE, 5), call(WHOLE > 0, True)],
    "clamp": [call(X, -0.5, 0.5), call(X, None, 0), call(WHOLE, 0), call(WHOLE, -1.5, 1.5)],
    "col2im": [
        call(numbers(2, 12, 16), [5, 6], [2, 3], [1, 1], [0, 0], [1, 1]),
        call(numbers(1, 8, 9), [5, 5], [2, 2], [2, 2], [1, 1], [2, 2]),
    ],
    "convolution": [
        call(IMAGE, numbers(4, 3, 3, 3), numbers(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        call(IMAGE, numbers(6, 1, 3, 2), None, [2, 1], [1, 1], [1, 2], False, [0, 0], 3),
        call(IMAGE, numbers(3, 2, 3, 3), numbers(2), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
        call(numbers(2, 3, 8), numbers(4, 3, 3), None, [1], [1], [1], False, [0], 1),
        call(VOLUME, numbers(3, 2, 2, 2, 2), None, [1, 1, 1], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1),
    ],
    "convolution_backward": [
        call(numbers(2, 4, 4, 5), IMAGE, numbers(4, 3, 3, 3), [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]),
        call(numbers(2, 6, 3, 7), IMAGE, numbers(6, 1, 3, 2), None, [2, 1], [1, 1], [1, 2], False, [0, 0], 3, [True, True, False]),
        call(numbers(2, 2, 12, 14), IMAGE, numbers(3, 2, 3, 3), [2], [2, 2], [1, 1], [1, 1], True, [1, 1], 1, [True, True, True]),
    ],
    "copy": [call(X, Y), call(WHOLE, X), call(X, WHOLE[0])],
    "div.Scalar": _scalars(2, 2.5),
    "div.Scalar_mode": [call(tensor, 2, rounding_mode=mode) for tensor in (X, WHOLE) for mode in ("floor", "trunc", None)],
    "elu": [call(X), call(X, 0.5, 2.0, 3.0)],
    "embedding": [call(X, INDEX), call(X.to(torch.bfloat16), ROWS, 1), call(X.double(), torch.tensor(2, dtype=torch.int32))],
    "embedding_dense_backward": [call(numbers(5, 4), ROWS, 3, -1, False), call(numbers(5, 4), ROWS, 3, 1, True)],
    "eq.Scalar": _scalars(1, 0.5),
    "fmod.Scalar": _scalars(2, -1.5),
    "ge.Scalar": _scalars(1, 0.5),
    "gt.Scalar": _scalars(1, 0.5),
    "index.Tensor": [
        call(X, [torch.tensor([2, -1]), None]),
        call(X, [INDEX[:, :2], torch.tensor([1, 0])]),
        call(VOLUME, [None, None, ROWS % 2, None, ROWS]),
    ],
    "le.Scalar": _scalars(1, 0.5),
    "lt.Scalar": _scalars(1, 0.5),
    "max_pool2d_with_indices": [call(IMAGE, [2, 2]), call(IMAGE, [3, 2], [1, 2], [1, 0], [1, 2], True), call(IMAGE[0], [2, 2], [1, 1])],
    "max_pool3d_with_indices": [call(VOLUME, [2, 2, 2]), call(VOLUME, [3, 2, 2], [1, 2, 1], [1, 0, 1], [1, 1, 2], True)],
    "mul.Scalar": _scalars(2, 2.5),
    "native_dropout": [call(X, 0.5, True), call(X, 0.5, False), call(X, 0.0, True), call(X, 1.0, True)],
    "native_group_norm_backward": [
        call(numbers(2, 2, 6, 7), IMAGE[:, :2].contiguous(), *_GROUP_STATISTICS, numbers(2), 2, 2, 42, 2, [True, True, True])
    ],
    "native_layer_norm_backward": [
        call(Y, X, [4], *_ROWS_STATISTICS, weight, bias, [True, weight is not None, bias is not None])
        for weight, bias in ((numbers(4), numbers(4)), (None, None))
    ],
    "ne.Scalar": _scalars(1, 0.5),
    "pow.Tensor_Scalar": [*_scalars(2, 3.0), call(X.abs(), -0.5)],
    "pow.Scalar": [call(2, X), call(2.5, WHOLE), call(3, WHOLE.abs())],
    "rand": [call([3, 4]), call([1000], dtype=torch.float64)],
    "randn": [call([3, 4]), call([1000], dtype=torch.bfloat16)],
    "randperm": [call(9), call(5, dtype=torch.int32)],
    "reflection_pad1d": [call(X, [1, 2]), call(numbers(2, 3, 4), [3, -1])],
    "reflection_pad2d": [call(IMAGE, [1, 2, 3, 0]), call(IMAGE[0], [-1, 1, 0, 2])],
    "reflection_pad3d": [call(VOLUME, [1, 2, 3, 0, 1, 1]), call(VOLUME[0], [1, 1, 1, 1, 1, 1])],
    "remainder.Scalar": _scalars(2, -1.5),
    "replication_pad2d": [call(IMAGE, [1, 2, 3, 0]), call(IMAGE[0], [-1, 1, 0, 2])],
    "replication_pad3d": [call(VOLUME, [1, 2, 3, 0, 1, 1]), call(VOLUME[0], [1, 1, 1, 1, 1, 1])],
    "resize_": [call(X, [2, 3]), call(X, [12]), call(WHOLE, [4, 3])],
    "scatter.value": [call(X, 0, INDEX, 2.5), call(WHOLE, 1, INDEX, 7)],
    "sub.Scalar": [*_scalars(2, 2.5), call(X, 2, 3)],
    "sym_is_contiguous": [call(X), call(X.t())],
    "sym_numel": [call(X)],
    "sym_size.int": [call(X, 1)],
    "sym_storage_offset": [call(X), call(X[1])],
    "sym_stride.int": [call(X, 0), call(X.t(), 0)],
    "upsample_bilinear2d.vec": [call(IMAGE, [9, 5], False, None), call(IMAGE, [9, 5], True, None), call(IMAGE, None, False, [2.0, 0.5])],
    "upsample_nearest2d.vec": [call(IMAGE, [9, 5], None), call(IMAGE, None, [2.0, 1.5])],
    "var.dim": [call(X, [1]), call(X, None, False, True), call(X.double(), [0, 1], True)],
}

WIDE = {torch.bfloat16: torch.float64, torch.float32: torch.float64, torch.complex64: torch.complex128}
RANDOM = ("native_dropout", "rand", "randn", "randperm")
REFUSED = {"nonzero": "nonzero.*data decides", "_local_scalar_dense": "_local_scalar_dense.*data decides"}
UNSPECIFIED = {"empty.memory_format", "empty_strided"}
# Sizes are numbers in an exported program: it calls none of these.
SIZES = {"sym_is_contiguous", "sym_numel", "sym_size.int", "sym_storage_offset", "sym_stride.int"}
# Which of several equal elements indices name is up to the implementation. Beside it the place of `dim`.
PICKED = {"sort": 1, "topk": 2}
# Statistics saved for the gradient are float32 here for inputs of half precision too.
NOT_IN_HALF = {"_native_batch_norm_legit", "native_layer_norm"}


class _Calls(TorchDispatchMode):
    """Keeps the calls of one overload."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        self.target = target
        self.samples: list[Sample] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is self.target:
            self.samples.append(_copied((args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def _copied(tree: Any) -> Any:
    return pytree.tree_map(lambda item: item.detach().clone() if isinstance(item, torch.Tensor) else item, tree)


@cache
def _database() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


def _from_database(name: str) -> Iterator[Sample]:
    base = name.partition(".")[0]
    for entry in _database():
        if base not in (entry.name, entry.aten_name, entry.aten_backward_name):
            continue
        for dtype, most in MOST.items():
            if dtype in entry.dtypes:
                calls = _Calls(overload(name))
                made = iter(entry.sample_inputs_func(entry, "cpu", dtype, requires_grad=False))
                for sample in itertools.islice(made, 2 * most):
                    with calls, torch.no_grad():
                        entry.op(sample.input, *sample.args, **sample.kwargs)
                if isinstance(made, Generator):
                    made.close()  # here, and not in the middle of something else
                yield from calls.samples[:: max(1, len(calls.samples) // most)][:most]


def samples_of(name: str) -> list[Sample]:
    """What to call an overload with: the same numbers in each run."""
    torch.manual_seed(0)
    found = SAMPLES[name] if name in SAMPLES else list(_from_database(name))
    if name in NOT_IN_HALF:
        found = [sample for sample in found if all(tensor.dtype is not torch.bfloat16 for tensor in tensors_of(sample))]
    return found


class Calls(nn.Module):
    """Calls one overload with each sample; takes their tensors, flat."""

    def __init__(self, name: str, samples: list[Sample]) -> None:
        super().__init__()
        self.name = name
        flat, self.nesting = pytree.tree_flatten(samples)
        self.places = [place for place, item in enumerate(flat) if isinstance(item, torch.Tensor)]
        self.rest = [None if isinstance(item, torch.Tensor) else item for item in flat]

    def forward(self, *tensors: torch.Tensor) -> Any:
        flat = list(self.rest)
        for place, tensor in zip(self.places, tensors, strict=True):
            flat[place] = tensor
        return [self.call(*args, **kwargs) for args, kwargs in pytree.tree_unflatten(flat, self.nesting)]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The result for one sample: of what can differ, that which is the same everywhere."""
        if self.name == "resize_":  # of a tensor of its own: arguments keep their sizes
            args = (args[0].clone(), *args[1:])
        result = overload(self.name)(*args, **kwargs)
        if self.name == "_embedding_bag":
            return result[0]  # the others are for the gradient, and empty where the CPU's kernel needs none
        if self.name in PICKED:
            dim = args[PICKED[self.name]] if len(args) > PICKED[self.name] else kwargs.get("dim", -1)
            return result[0], args[0].gather(dim, result[1]) if args[0].dim() else result[1]
        return result


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [item for item in pytree.tree_leaves(tree) if isinstance(item, torch.Tensor)]


def exported(name: str, samples: list[Sample], folder: Path) -> stablehlo.StableHLOGraphModule:
    """A module that does nothing but call the overload, out of a folder."""
    program = torch.export.export(Calls(name, samples), tuple(tensors_of(_copied(samples))))
    assert name in SIZES or [node for node in program.graph.nodes if node.target is overload(name)], "the overload is called"
    stablehlo.save_as_stablehlo(program, str(folder), stablehlo.StableHLOExportOptions(include_human_readable_text=False))
    return stablehlo.StableHLOGraphModule.load(str(folder))


def near(found: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> None:
    """Equal to the CPU's, or else to what it computes in double precision: the CPU rounds, too."""
    try:
        torch.testing.assert_close(found, expected, equal_nan=True)
    except AssertionError:
        if expected.dtype not in WIDE:
            raise
        torch.testing.assert_close(found, exact.to(expected.dtype), equal_nan=True)


def _wide(samples: list[Sample]) -> list[Sample]:
    return pytree.tree_map(lambda item: item.to(WIDE.get(item.dtype, item.dtype)) if isinstance(item, torch.Tensor) else item, samples)


ALONE = [name for name in CORE if name not in RANDOM]


@pytest.mark.filterwarnings("ignore::UserWarning")
# Each is compiled: half of them here, all in the long tests.
@pytest.mark.parametrize("name", [*ALONE[::2], *[pytest.param(name, marks=pytest.mark.long) for name in ALONE[1::2]]])
def test_core_aten(name: str, tmp_path: Path) -> None:
    samples = samples_of(name)
    assert samples, f"no sample calls aten.{name}: add a line to SAMPLES"
    if name in REFUSED:
        with pytest.raises(UnsupportedOperationError, match=REFUSED[name]):
            exported(name, samples, tmp_path)
        return
    loaded = exported(name, samples, tmp_path)
    given, wanted, exact = tensors_of(_copied(samples)), tensors_of(_copied(samples)), tensors_of(_wide(_copied(samples)))
    found = loaded(*given), given
    expected = Calls(name, samples)(*wanted), wanted
    truth = Calls(name, samples)(*exact), exact
    for one, other, third in zip(*[pytree.tree_leaves(tree) for tree in (found, expected, truth)], strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other and type(one) is type(other)
        elif name in UNSPECIFIED:
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
        else:
            near(one.cpu(), other, third)


@pytest.mark.parametrize("name", RANDOM)
def test_random_core_aten(name: str, tmp_path: Path) -> None:
    """Of the CPU's shapes, dtypes and distribution; another draw at each call, the same ones for the same seed."""
    samples = SAMPLES[name]
    loaded = exported(name, samples, tmp_path)

    def draw() -> list[Any]:
        return pytree.tree_map(lambda item: item.cpu(), loaded(*tensors_of(samples)))  # type: ignore[no-any-return]

    torch.manual_seed(1)
    first, second = draw(), draw()
    for one, other in zip(tensors_of(first), tensors_of(Calls(name, samples)(*tensors_of(samples))), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert not all(map(torch.equal, tensors_of(first), tensors_of(second)))
    torch.manual_seed(1)
    torch.testing.assert_close(draw(), first, rtol=0, atol=0)
    LIKE_THE_CPU[name](first)


def _uniform(results: list[torch.Tensor]) -> None:
    assert all(((each >= 0) & (each < 1)).all() for each in results)
    torch.testing.assert_close(results[1].sort().values, torch.linspace(0, 1, 1000, dtype=torch.float64), rtol=0, atol=0.08)


def _normal(results: list[torch.Tensor]) -> None:
    expected = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(1000) + 0.5) / 1000)[50:-50]
    torch.testing.assert_close(results[1].float().sort().values[50:-50], expected, rtol=0, atol=0.3)


def _permutation(results: list[torch.Tensor]) -> None:
    for each in results:
        assert each.sort().values.tolist() == list(range(len(each)))


def _dropout(results: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for (output, mask), scale in zip(results, (2.0, 1.0, 1.0, 0.0), strict=True):
        torch.testing.assert_close(output, X * mask * scale)
    assert [bool(mask.all()) for _, mask in results] == [False, True, True, False]
    assert 0 < results[0][1].sum() < X.numel() and not results[3][1].any()


LIKE_THE_CPU: dict[str, Any] = {"rand": _uniform, "randn": _normal, "randperm": _permutation, "native_dropout": _dropout}


def test_an_argument_keeps_its_size() -> None:
    class Resizes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten.resize_.default(x, [2, 3])  # type: ignore[no-any-return]

    with pytest.raises(UnsupportedOperationError, match="argument 0 another shape"):
        stablehlo.exported_program_to_stablehlo(torch.export.export(Resizes(), (X.clone(),)))
