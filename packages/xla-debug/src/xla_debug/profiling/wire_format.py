"""Encode and decode protocol buffers, as far as profiles and requests for them need it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

_FIXED = {1: 8, 5: 4}  # wire type → bytes


def varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def text_field(number: int, value: bytes) -> bytes:
    """Encode a field of bytes, a text or a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def number_field(number: int, value: int) -> bytes:
    """Encode a field of a number that is not negative."""
    return varint(number << 3) + varint(value)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of an encoded message in order: the field's number and its value, bytes unless it is a varint.

    Raises ValueError if the message is cut off, or is none.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = _varint_at(message, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint_at(message, position)
            yield key >> 3, value
            continue
        if kind == 2:
            size, position = _varint_at(message, position)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"field {key >> 3} is of wire type {kind}, which messages no longer use")
        if position + size > end:
            raise ValueError(f"field {key >> 3} is cut off: it has {size} bytes, and {end - position} are left")
        yield key >> 3, message[position : position + size]
        position += size


class Message:
    """A decoded message, with its fields by their numbers. Raises ValueError if the message is cut off, or is none."""

    __slots__ = ("_fields",)

    def __init__(self, message: bytes) -> None:
        self._fields: defaultdict[int, list[int | bytes]] = defaultdict(list)
        for number, value in fields(message):
            self._fields[number].append(value)

    def number(self, field: int) -> int:
        """The number in a field, 0 if it has none."""
        return next((value for value in self._fields.get(field, ()) if isinstance(value, int)), 0)

    def numbers(self, field: int) -> list[int]:
        """The numbers in a repeated field, packed or not."""
        numbers = []
        for value in self._fields.get(field, ()):
            if isinstance(value, int):
                numbers.append(value)
                continue
            position = 0
            while position < len(value):
                number, position = _varint_at(value, position)
                numbers.append(number)
        return numbers

    def parts(self, field: int) -> list[bytes]:
        """The values of a repeated field of bytes, texts or messages."""
        return [value for value in self._fields.get(field, ()) if isinstance(value, bytes)]

    def part(self, field: int) -> bytes:
        """The bytes in a field, empty if it is missing."""
        return next(iter(self.parts(field)), b"")

    def text(self, field: int) -> str:
        """The text in a field; bytes that are not Unicode become U+FFFD."""
        return self.part(field).decode(errors="replace")


def _varint_at(message: bytes, position: int) -> tuple[int, int]:
    """Decode the number at a position; also gives the position behind it."""
    value = shift = 0
    for index in range(position, min(position + 10, len(message))):
        byte = message[index]
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, index + 1
    raise ValueError(f"no number ends within ten bytes from byte {position} on")
