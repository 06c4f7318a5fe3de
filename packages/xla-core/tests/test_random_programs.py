"""Random programs of a few dozen lines, as people write them, do on `xla` what they do on the CPU.

After each line both agree on what it raised, and on what is known of each tensor without its values: shape, strides, dtype, autograd; at
the end on values and gradients, and on all that was read on the way.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from graphs_by_torch import graphs_by_torch
from hypothesis import given, note, settings
from random_lines import ends_early, failure, gradient_of, namespace, program, tensors

from xla_core.activation import activate

activate()


def known(tensor: torch.Tensor) -> dict[str, Any]:
    """All that is known of a tensor without its values."""
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]
    facts: dict[str, Any] = {
        "shape": tensor.shape, "dtype": tensor.dtype, "strides": strides, "conj": tensor.is_conj(), "neg": tensor.is_neg(),
    }  # fmt: skip
    try:
        leaf = tensor.is_leaf
    except RuntimeError as error:  # of a view that may not be written to
        return {**facts, "error": type(error)}
    gradient = gradient_of(tensor)
    return {
        **facts, "leaf": leaf, "requires_grad": tensor.requires_grad, "view": tensor._is_view(),
        "grad": None if gradient is None else (gradient.shape, gradient.dtype),
    }  # fmt: skip


def same_values(one: Any, other: Any) -> bool:
    """Whether two tensors, or what was read of them, are equal."""
    one, other = (torch.as_tensor(each).detach().cpu().resolve_conj().resolve_neg() for each in (one, other))
    return one.shape == other.shape and one.dtype == other.dtype and torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)


def kind(error: Exception | None) -> type[Exception] | None:
    """The kind of an error. A call may be wrong in two ways, and a missing kernel is another RuntimeError."""
    return RuntimeError if isinstance(error, NotImplementedError) else None if error is None else type(error)


def lies_as_nowhere_else(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor on the CPU is in a state that `xla` does not have, so that later lines may differ.

    A result that is lazily conjugated (docs/differences.md); a leaf that shows an element twice, whose gradient then is a share; integers
    that are made of booleans.
    """
    if not tensor._is_view():
        return tensor.is_conj()
    twice = any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    of_booleans = tensor._base is not None and tensor._base.dtype is torch.bool and tensor.dtype is not torch.bool
    return of_booleans or (twice and known(tensor).get("leaf", False) and tensor.requires_grad)


def difference(lines: list[str]) -> str | None:
    """Where a program first does something else on `xla`; None if it does the same."""
    found = first_difference(lines)
    return None if found is None or reaches_other_memory(lines) else found


def reaches_other_memory(lines: list[str]) -> bool:
    """Whether a tensor of a program on the CPU lies as nowhere else at any time."""
    cpu = namespace("cpu")
    return any(failure(line, cpu) is None and any(map(lies_as_nowhere_else, tensors(cpu).values())) for line in lines)


def first_difference(lines: list[str]) -> str | None:
    """`difference`, also in programs that reach states of memory that `xla` does not have."""
    cpu, xla = namespace("cpu"), namespace("xla")
    for number, line in enumerate(lines):
        refused, failed = failure(line, cpu), failure(line, xla)
        where = f"line {number} ({line})"
        if kind(refused) is not kind(failed):
            return f"{where}: the CPU raises {refused!r}, xla {failed!r}"
        if refused is not None and ends_early(line):
            return None
        facts = [{name: known(tensor) for name, tensor in tensors(names).items()} for names in (cpu, xla)]
        for name, on_cpu in facts[0].items():
            on_xla = facts[1].get(name)
            if on_cpu != on_xla:
                return f"{where}: {name} is {on_cpu} on the CPU, {on_xla} on xla"
    held = tensors(cpu)
    pairs = [(name, tensor, xla[name]) for name, tensor in held.items()]
    pairs += [(f"{name}.grad", tensor.grad, xla[name].grad) for name, tensor in held.items() if gradient_of(tensor) is not None]
    for name, one, other in [
        *pairs,
        *((f"read {place}", *each) for place, each in enumerate(zip(cpu["reads"], xla["reads"], strict=True))),
    ]:
        if not same_values(one, other):
            return f"{name} is {one!r} on the CPU, {other!r} on xla"
    return None


def check(chance: random.Random, length: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says most of its warnings once, so to whichever device comes first
        lines = program(chance, length)
        note("\n".join(lines))
        found = difference(lines)
    assert found is None, found


CHANCE, LENGTH = st.randoms(use_true_random=False), st.integers(30, 80)


@settings(max_examples=400)
@given(CHANCE, LENGTH)
def test_random_programs_are_recorded_as_the_cpu_runs_them(chance: random.Random, length: int) -> None:
    with graphs_by_torch():
        check(chance, length)


@settings(max_examples=60)
@given(CHANCE, LENGTH)
def test_random_programs_run_on_the_device_as_on_the_cpu(chance: random.Random, length: int) -> None:
    check(chance, length)


@pytest.mark.long
@settings(max_examples=100_000)
@given(CHANCE, LENGTH)
def test_a_hundred_thousand_random_programs_are_recorded_as_the_cpu_runs_them(chance: random.Random, length: int) -> None:
    with graphs_by_torch():
        check(chance, length)


@pytest.mark.long
@settings(max_examples=1000)
@given(CHANCE, LENGTH)
def test_a_thousand_random_programs_run_on_the_device_as_on_the_cpu(chance: random.Random, length: int) -> None:
    check(chance, length)
