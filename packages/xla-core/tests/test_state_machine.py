"""Any mix of operations, views, writes, reads, syncs and gradients gives on `xla` what it gives on the CPU.

Tensors are kept in pairs, one on each device, and every step is done to both. After each step the pairs agree on shape, dtype, autograd
flags and on which of them share memory; at the end of a run, and whenever a value is read, they agree on values and gradients.
Values are small whole numbers, so that agreement is exact and a lost or doubled write shows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from xla_core.activation import activate
from xla_core.base import config
from xla_core.engine.runtime import sync
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.sync import retire, step
from xla_core.engine.tensor.interop import buffer_of

activate()
# Said once in a process, so by whichever side comes first.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Casting complex values to real"),
    pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated"),
]

Tensor = torch.Tensor
Do = Callable[[Tensor], Any]

MOST_PAIRS = 7
SHAPES = [(4,), (2, 3), (3, 4), (2, 3, 4), (), (1, 3), (0, 3), (2, 1, 2)]
DTYPES = [torch.float32, torch.float32, torch.float32, torch.int64, torch.float64, torch.bool, torch.complex64]
# Bit patterns of ordinary float32 and float64 numbers: what an integer view may write into floats.
BITS = {torch.int32: (0, 0x3F800000, -0x40000000), torch.int64: (0, 0x3FF0000000000000), torch.uint8: (0, 64), torch.int16: (0, 0x4000)}

UNARY: dict[str, Do] = {
    "neg": lambda x: x.neg() if x.dtype != torch.bool else x.logical_not(),
    "abs": lambda x: x.abs() if x.dtype != torch.bool else x.clone(),
    "square": lambda x: x * x,
    "eq": lambda x: x == 1,
    "sum": lambda x: x.sum(),
    "rows": lambda x: x.sum(-1, keepdim=True),
    "float": lambda x: x.to(torch.float32) if not x.is_complex() else x.real.clone(),
    "int": lambda x: x.to(torch.int64) if not x.is_complex() else x.imag.clone(),
    "clone": lambda x: x.clone(),
    "scaled": lambda x: x * 3,
    "shifted": lambda x: x + 1,
    "cat": lambda x: torch.cat([x, x]) if x.dim() else x.reshape(1) + 0,
    "gather": lambda x: x[torch.tensor([0, -1, 0], device=x.device)] if x.dim() else x + 0,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "alpha": lambda x, y: torch.add(x, y, alpha=2) if x.dtype != torch.bool or y.dtype != torch.bool else x | y,
    "ne": lambda x, y: x != y,
    "where": lambda x, y: torch.where(x == 0, x, y),
    "outer": lambda x, y: x.reshape(-1, 1) + y.reshape(1, -1),
}
IN_PLACE: dict[str, Do] = {
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(2),
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(-1),
    "neg_": lambda x: x.neg_(),
    "clamp_": lambda x: x.clamp_(-3, 3),
    "masked_fill_": lambda x: x.masked_fill_(x == 2, 5),
    "relu_": lambda x: x.relu_(),
    "iadd": lambda x: x.__iadd__(2),
}
IN_PLACE_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "copy_": lambda x, y: x.copy_(y),
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "sub_": lambda x, y: x.sub_(y, alpha=2),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=2),
    "logical_and_": lambda x, y: x.logical_and_(y),
}
META_IN_PLACE: dict[str, Do] = {
    "t_": lambda x: x.t_(),
    "squeeze_": lambda x: x.squeeze_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "transpose_": lambda x: x.transpose_(0, -1),
}


@dataclass(slots=True, eq=False)
class Pair:
    """The same tensor on both devices. bits: it shows another dtype's bits, so that only chosen patterns may be written."""

    cpu: Tensor
    xla: Tensor
    bits: bool = False


def flags(tensor: Tensor) -> tuple[Any, ...]:
    """All that is known of a tensor but its values; last whether it has a gradient."""
    # A view of a view that autograd forbids to write to cannot even be asked: torch raises.
    leaf, refused = attempt(lambda: tensor.is_leaf)
    has_grad = bool(leaf) and tensor.grad is not None
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]
    return tensor.shape, strides, tensor.dtype, tensor.is_conj(), tensor.is_neg(), type(refused), leaf, tensor.requires_grad, has_grad


def shared(left: Tensor, right: Tensor) -> bool:
    """Whether two CPU tensors show the same memory."""
    return bool(left.untyped_storage()._cdata == right.untyped_storage()._cdata)


def ambiguous(tensor: Tensor) -> bool:
    """Whether elements of a CPU tensor share memory in a way that torch does not refuse: what a write gives is then undefined."""
    places = torch.arange(tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1) + 1)
    used = places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return used.unique().numel() < used.numel()


def attempt(action: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What an action gave, or how it failed."""
    try:
        return action(), None
    except Exception as error:
        return None, error


def same(cpu: Tensor, xla: Tensor) -> None:
    """Assert that values agree exactly."""
    assert xla.device.type == "xla"
    torch.testing.assert_close(xla.detach().cpu(), cpu.detach().resolve_conj().resolve_neg(), rtol=0, atol=1e-30, equal_nan=True)


@st.composite
def views(draw: st.DrawFn, x: Tensor) -> tuple[str, Do]:
    """A view of `x`: mostly a legal one."""
    rank = x.dim()
    dim = draw(st.integers(-rank, rank - 1)) if rank else 0
    size = x.shape[dim] if rank else 1
    other = draw(st.integers(-rank, rank - 1)) if rank else 0
    start, stop, jump = draw(st.integers(-size - 1, size)), draw(st.integers(0, size + 1)), draw(st.integers(1, 3))
    order = tuple(draw(st.permutations(range(rank))))
    strides = draw(st.sampled_from([((2,), (1,)), ((2, 2), (1, 1)), ((2, 2), (0, 1)), ((1, 2), (3, 2)), ((3, 1), (1, 1))]))
    kinds: dict[str, Do] = {
        "transpose": lambda y: y.transpose(dim, other),
        "permute": lambda y: y.permute(order),
        "t": lambda y: y.t(),
        "mT": lambda y: y.mT if y.dim() >= 2 else y.view_as(y),
        "select": lambda y: y.select(dim, start),
        "slice": lambda y: y[(slice(None),) * (dim % rank) + (slice(start, stop, jump),)] if rank else y[...],
        "narrow": lambda y: y.narrow(dim, 0, size // 2),
        "expand": lambda y: y.expand(2, *y.shape),
        "expand_ones": lambda y: y.expand([3 if length == 1 else -1 for length in y.shape]),
        "squeeze": lambda y: y.squeeze(),
        "squeeze_dim": lambda y: y.squeeze(dim),
        "unsqueeze": lambda y: y.unsqueeze(dim),
        "diagonal": lambda y: y.diagonal(jump - 2, dim, other),
        "unfold": lambda y: y.unfold(dim, min(2, size), jump),
        "reshape": lambda y: y.reshape(-1),
        "reshape_pairs": lambda y: y.reshape(2, -1),
        "reshape_back": lambda y: y.reshape(*reversed(y.shape)),
        "flatten": lambda y: y.flatten(0, max(rank - 2, 0)),
        "unflatten": lambda y: y.unflatten(dim, (1, -1)),
        "contiguous": lambda y: y.contiguous(),
        "view_as": lambda y: y.view_as(y),
        "as_strided": lambda y: y.as_strided(*strides, 0),
        "as_strided_here": lambda y: y.as_strided(*strides),
        "swap": lambda y: y.movedim(dim, other),
        "none": lambda y: y[None, ..., None],
        "real": lambda y: torch.view_as_real(y) if y.is_complex() else y.real,
        "imag": lambda y: y.imag if y.is_complex() else y.view_as(y),
        "complex": lambda y: torch.view_as_complex(y),
        "conj": lambda y: y.conj(),
        "detach": lambda y: y.detach(),
        "data": lambda y: y.data,
    }
    name = draw(st.sampled_from(sorted(kinds)))
    return name, kinds[name]


@st.composite
def places(draw: st.DrawFn, x: Tensor) -> tuple[str, Callable[[Tensor], Any]]:
    """An index of `x` to write at; made per device, as index tensors live there."""
    first = x.shape[0] if x.dim() else 1
    row = draw(st.integers(-first - 1, first))
    jump = draw(st.integers(1, 3))
    kinds: dict[str, Callable[[Tensor], Any]] = {
        "row": lambda y: row,
        "slice": lambda y: slice(row, None, jump),
        "all": lambda y: ...,
        "last": lambda y: (..., -1),
        "column": lambda y: (slice(None), 0),
        "mask": lambda y: y == 1,
        "rows": lambda y: torch.tensor([min(max(row, -first), first - 1), 0], device=y.device),
        "pair": lambda y: (torch.tensor([0, -1], device=y.device), slice(None, None, jump)),
        "none": lambda y: (None, ..., slice(0, 1)),
    }
    name = draw(st.sampled_from(sorted(kinds)))
    return name, kinds[name]


class Twins(RuleBasedStateMachine):
    """Pairs of tensors, and what may be done to them."""

    def __init__(self) -> None:
        super().__init__()
        retire(current_recorder())  # nothing that an earlier, failed run left pending
        self.pairs: list[Pair] = []
        self.lent: list[tuple[jax.Array, np.ndarray]] = []

    def pick(self, data: st.DataObject) -> Pair:
        """Any pair."""
        return self.pairs[data.draw(st.integers(0, len(self.pairs) - 1), label="pair")]

    def both(self, on_cpu: Callable[[], Any], on_xla: Callable[[], Any], bits: bool = False) -> bool:
        """Do the same to both devices and keep tensors that come out; False if it is refused, which both must agree on."""
        cpu, refused = attempt(on_cpu)
        xla, failed = attempt(on_xla)
        if refused is not None:
            assert isinstance(failed, type(refused)), f"the CPU raises {refused!r}, xla gives {failed!r} {type(xla)}"
            return False
        if failed is not None:
            raise AssertionError(f"xla fails where the CPU does not: {failed!r}") from failed
        several = isinstance(cpu, (list, tuple))
        assert several == isinstance(xla, (list, tuple))
        for left, right in zip(cpu, xla, strict=True) if several else [(cpu, xla)]:
            if not any(pair.xla is right for pair in self.pairs):
                self.pairs.append(Pair(left, right, bits))
        while len(self.pairs) > MOST_PAIRS:
            del self.pairs[0]
        return True

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        for _ in range(2):
            self.create(data)

    @rule(data=st.data())
    def create(self, data: st.DataObject) -> None:
        shape, dtype = data.draw(st.sampled_from(SHAPES), label="shape"), data.draw(st.sampled_from(DTYPES), label="dtype")
        count = torch.Size(shape).numel()
        tensor = (torch.arange(count) * 5 % 7 - 3).reshape(shape).to(dtype)
        self.both(lambda: tensor, lambda: tensor.to("xla"))

    @rule(data=st.data(), name=st.sampled_from(sorted(UNARY)))
    def compute(self, data: st.DataObject, name: str) -> None:
        pair = self.pick(data)
        if pair.cpu.numel() < 400 and not pair.bits:
            self.both(lambda: UNARY[name](pair.cpu), lambda: UNARY[name](pair.xla))

    @rule(data=st.data(), name=st.sampled_from(sorted(BINARY)))
    def combine(self, data: st.DataObject, name: str) -> None:
        left, right = self.pick(data), self.pick(data)
        if left.cpu.numel() * right.cpu.numel() < 400 and not left.bits and not right.bits:
            self.both(lambda: BINARY[name](left.cpu, right.cpu), lambda: BINARY[name](left.xla, right.xla))

    @rule(data=st.data())
    def view(self, data: st.DataObject) -> None:
        pair = self.pick(data)
        name, do = data.draw(views(pair.cpu), label="view")
        # What as_strided shows beside a view has gradients on the CPU once it is written in place (docs/differences.md).
        if not pair.cpu._is_view() or "as_strided" not in name:
            self.both(lambda: do(pair.cpu), lambda: do(pair.xla), pair.bits)

    @rule(data=st.data(), shape=st.sampled_from([(-1,), (2, -1), (1, -1, 1), (3, 2), (-1, 4)]))
    def plain_view(self, data: st.DataObject, shape: tuple[int, ...]) -> None:
        pair = self.pick(data)
        # What only the CPU's layout forbids works on xla (x.t().view(-1)): only what the CPU can do is compared.
        if attempt(lambda: pair.cpu.view(shape))[1] is None:
            self.both(lambda: pair.cpu.view(shape), lambda: pair.xla.view(shape), pair.bits)

    @rule(data=st.data(), dtype=st.sampled_from([*BITS, torch.float32]))
    def bit_view(self, data: st.DataObject, dtype: torch.dtype) -> None:
        pair = self.pick(data)
        # Whether torch lets an empty or single element be viewed depends on a stride that tells nothing (docs/differences.md).
        telling = pair.cpu.dim() == 0 or (pair.cpu.numel() > 0 and pair.cpu.shape[-1] > 1)
        if pair.cpu.dtype.is_floating_point and dtype in BITS and not pair.cpu.requires_grad and telling:
            self.both(lambda: pair.cpu.view(dtype), lambda: pair.xla.view(dtype), True)

    @rule(data=st.data(), how=st.sampled_from(["split", "chunk", "unbind", "sizes"]))
    def parts(self, data: st.DataObject, how: str) -> None:
        pair = self.pick(data)
        dim = data.draw(st.integers(-2, 1), label="dim")
        kinds: dict[str, Do] = {
            "split": lambda x: x.split(2, dim),
            "chunk": lambda x: x.chunk(2, dim),
            "unbind": lambda x: x.unbind(dim),
            "sizes": lambda x: x.split([1, x.shape[dim] - 1], dim),
        }
        self.both(lambda: kinds[how](pair.cpu), lambda: kinds[how](pair.xla), pair.bits)

    @rule(data=st.data(), name=st.sampled_from(sorted(IN_PLACE)), grad=st.booleans())
    def write(self, data: st.DataObject, name: str, grad: bool) -> None:
        pair = self.pick(data)
        if not pair.bits and not ambiguous(pair.cpu):
            with torch.set_grad_enabled(grad):
                self.both(lambda: IN_PLACE[name](pair.cpu), lambda: IN_PLACE[name](pair.xla))

    @rule(data=st.data(), name=st.sampled_from(sorted(IN_PLACE_BINARY)), grad=st.booleans())
    def write_from(self, data: st.DataObject, name: str, grad: bool) -> None:
        pair, other = self.pick(data), self.pick(data)
        if pair.bits or other.bits or ambiguous(pair.cpu):
            return
        # The CPU refuses some operands that partly overlap, and writes others in an order of its own.
        overlap = shared(pair.cpu, other.cpu) and pair is not other

        def run(x: Tensor, y: Tensor) -> Tensor:
            return IN_PLACE_BINARY[name](x, y.clone() if overlap else y)

        with torch.set_grad_enabled(grad):
            self.both(lambda: run(pair.cpu, other.cpu), lambda: run(pair.xla, other.xla))

    @rule(data=st.data())
    def write_bits(self, data: st.DataObject) -> None:
        pair = self.pick(data)
        if pair.bits and pair.cpu.dtype in BITS and not ambiguous(pair.cpu):
            pattern = data.draw(st.sampled_from(BITS[pair.cpu.dtype]), label="pattern")
            self.both(lambda: pair.cpu.fill_(pattern), lambda: pair.xla.fill_(pattern), True)

    @rule(data=st.data(), number=st.booleans(), grad=st.booleans())
    def assign(self, data: st.DataObject, number: bool, grad: bool) -> None:
        pair, other = self.pick(data), self.pick(data)
        # One number, wherever it goes, is the same in any order.
        if pair.bits or other.bits or (ambiguous(pair.cpu) and not number):
            return
        _, place = data.draw(places(pair.cpu), label="place")

        def put(x: Tensor, other: Tensor) -> Tensor:
            y, where = other.clone(), place(x)
            # How many places a mask means depends on data: only one element fits for certain.
            y = y.sum() if isinstance(where, Tensor) and where.dtype == torch.bool else y.reshape(-1)[:1] if y.dim() > 1 else y
            x[where] = 4 if number else y
            return x

        with torch.set_grad_enabled(grad):
            self.both(lambda: put(pair.cpu, other.cpu), lambda: put(pair.xla, other.xla))

    @rule(data=st.data(), name=st.sampled_from(sorted(META_IN_PLACE)))
    def reshape_in_place(self, data: st.DataObject, name: str) -> None:
        pair = self.pick(data)
        # Torch makes views of what is reshaped in place again by the functions that made them (docs/differences.md).
        if not any(each.cpu._base is pair.cpu for each in self.pairs):
            self.both(lambda: META_IN_PLACE[name](pair.cpu), lambda: META_IN_PLACE[name](pair.xla), pair.bits)

    @rule(data=st.data())
    def set_data(self, data: st.DataObject) -> None:
        pair, other = self.pick(data), self.pick(data)
        # What autograd makes, now or later, of a view or its base whose data was exchanged is an accident: the CPU replays strides,
        # other devices the view's function.
        viewed = pair.cpu._is_view() or any(each.cpu._base is pair.cpu for each in self.pairs)
        if pair.bits == other.bits and not viewed:

            def swap(x: Tensor, y: Tensor) -> Tensor:
                x.data = y
                return x

            self.both(lambda: swap(pair.cpu, other.cpu), lambda: swap(pair.xla, other.xla))

    @rule(data=st.data(), deep=st.booleans())
    def copied(self, data: st.DataObject, deep: bool) -> None:
        pair = self.pick(data)

        make = copy.deepcopy if deep else copy.copy
        self.both(lambda: make(pair.cpu), lambda: make(pair.xla), pair.bits)

    @rule(data=st.data())
    def across(self, data: st.DataObject) -> None:
        pair = self.pick(data)
        self.both(pair.cpu.clone, lambda: pair.xla.to("cpu").to("xla"), pair.bits)

    @rule(data=st.data(), wanted=st.booleans())
    def require_grad(self, data: st.DataObject, wanted: bool) -> None:
        pair = self.pick(data)
        # torch's engine cannot replay a view whose base has since stopped requiring gradients, for any tensor without strided memory.
        # Nor does it know a view that requires gradients while its base does not.
        viewed = any(shared(pair.cpu, other.cpu) for other in self.pairs if other is not pair)
        plain = not pair.cpu._is_view() or (pair.cpu._base is not None and pair.cpu._base.requires_grad)
        if not pair.bits and (plain if wanted else not viewed):
            self.both(lambda: pair.cpu.requires_grad_(wanted), lambda: pair.xla.requires_grad_(wanted))

    @rule(data=st.data(), keep=st.booleans())
    def backward(self, data: st.DataObject, keep: bool) -> None:
        pair = self.pick(data)

        def run(x: Tensor) -> Tensor:
            (torch.view_as_real(x) if x.is_complex() else x).sum().backward(retain_graph=keep)
            return x

        self.both(lambda: run(pair.cpu), lambda: run(pair.xla), pair.bits)

    @rule(data=st.data())
    def forget_grad(self, data: st.DataObject) -> None:
        pair = self.pick(data)
        pair.cpu.grad = pair.xla.grad = None

    @rule()
    def sync(self) -> None:
        step(current_recorder())

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        pair = self.pick(data)
        same(pair.cpu, pair.xla)

    @rule(data=st.data())
    def lend(self, data: st.DataObject) -> None:
        buffer = buffer_of(self.pick(data).xla)
        self.lent.append((buffer, np.array(buffer)))

    @precondition(lambda self: len(self.pairs) > 2)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.pairs.remove(self.pick(data))

    @invariant()
    def flags_agree(self) -> None:
        for pair in self.pairs:
            assert flags(pair.cpu) == flags(pair.xla), (flags(pair.cpu), flags(pair.xla))

    @invariant()
    def sharing_agrees(self) -> None:
        for number, left in enumerate(self.pairs):
            for right in self.pairs[:number]:
                alike = left.xla._storage is right.xla._storage  # type: ignore[attr-defined]
                assert shared(left.cpu, right.cpu) == alike, (left, right)

    def teardown(self) -> None:
        for pair in self.pairs:
            same(pair.cpu, pair.xla)
            if flags(pair.cpu)[-1]:
                assert pair.cpu.grad is not None and pair.xla.grad is not None
                same(pair.cpu.grad, pair.xla.grad)
        step(current_recorder())
        for buffer, numbers in self.lent:
            np.testing.assert_array_equal(buffer, numbers)


def run(examples: int, steps: int) -> None:
    """Try that many random programs of up to that many steps. Pending graphs are cleared of dead operations at every few."""
    with config.override(config.CORE_VERIFY, 1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync, "_COMPACT_FROM", 4)
        run_state_machine_as_test(Twins, settings=settings(max_examples=examples, stateful_step_count=steps))  # type: ignore[no-untyped-call]


def test_random_programs_agree_with_the_cpu() -> None:
    run(60, 25)


@pytest.mark.long
def test_many_random_programs_agree_with_the_cpu() -> None:
    run(2000, 40)
