"""Optimized programs made by hand, as XLA serializes them (`xla/service/hlo.proto` of openxla/xla), for tests of what reads them."""

from __future__ import annotations

from xla_debug.profiling.wire_format import number_field, text_field

_S32, _TUPLE = 4, 13


def array(*dims: int) -> bytes:
    """The shape of an array of s32."""
    return number_field(2, _S32) + b"".join(number_field(3, size) for size in dims)


def tuple_of(*shapes: bytes) -> bytes:
    """The shape of a tuple."""
    return number_field(2, _TUPLE) + b"".join(text_field(4, shape) for shape in shapes)


def op(number: int, opcode: str, shape: bytes, *operands: int, called: tuple[int, ...] = (), more: bytes = b"") -> bytes:
    """An instruction. called: ids of computations; more: further fields."""
    numbers = [number_field(35, number), *[number_field(36, each) for each in operands], *[number_field(38, each) for each in called]]
    return text_field(2, text_field(1, b"x") + text_field(2, opcode.encode()) + text_field(3, shape) + b"".join(numbers) + more)


def element(index: int) -> bytes:
    """The field of `get-tuple-element`."""
    return number_field(13, index)


def position(number: int) -> bytes:
    """The field of a `parameter`."""
    return number_field(9, number)


def integers(*values: int) -> bytes:
    """The field of a `constant`."""
    return text_field(8, b"".join(number_field(4, value) for value in values))


def channel(number: int) -> bytes:
    """The field of a collective."""
    return number_field(26, number)


def target(name: str) -> bytes:
    """The field of a `custom-call`."""
    return text_field(28, name.encode())


def computation(number: int, root: int, *ops: bytes) -> bytes:
    """A computation with the id of its root."""
    return text_field(3, b"".join(ops) + number_field(5, number) + number_field(6, root))


def module(entry: int, *computations: bytes) -> bytes:
    """A program with the id of its first computation."""
    return b"".join(computations) + number_field(6, entry)
