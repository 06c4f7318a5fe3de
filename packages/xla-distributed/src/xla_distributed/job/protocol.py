"""The protocol between the processes of a job: messages of a JSON header and bytes, over TCP connections authenticated by the job's key.

A message is its length in 8 bytes, big-endian, the header in one line, and the bytes. Nothing that arrives here is ever unpickled. The
reader of a header checks it; bytes are handed on as they are. A process of the job has one connection and blocks on it; the server has
many, and reads them in an event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")
_NONCE, _PROOF = 32, hashlib.sha256().digest_size
BACKLOG = 1024  # all processes of a large job may connect at once
_LARGEST_HEADER = 1 << 20
_TIMEOUT_SECONDS = 20.0  # seconds that the other side has for each part of the proof
Address = tuple[str, int]


class AuthenticationError(Exception):
    """The other side does not know the job's key."""


def listen(host: str) -> socket.socket:
    """A listening socket on one address of this host, on any port that is free. Raises OSError."""
    family, address = _resolved(host, 0)
    return socket.create_server(address, family=family, backlog=BACKLOG)


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Address]:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, (str(address[0]), int(address[1]))


def connect(address: Address, key: bytes) -> socket.socket:
    """A connection to a listener that knows `key`, too. Raises OSError, AuthenticationError."""
    connection = socket.create_connection(address, _TIMEOUT_SECONDS)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # messages are small, and others wait for them
        their_nonce = _received_part(connection, _NONCE)
        own_nonce = os.urandom(_NONCE)
        connection.sendall(_framed(own_nonce + _proof(key, b"caller", their_nonce, own_nonce)))
        if not hmac.compare_digest(_received_part(connection, _PROOF), _proof(key, b"listener", their_nonce, own_nonce)):
            raise AuthenticationError("the listener does not know the job's key")
        connection.settimeout(None)
    except (EOFError, ConnectionError, TimeoutError) as error:
        connection.close()
        raise AuthenticationError(f"the listener refused this process: {error or 'it closed the connection'}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _received_part(connection: socket.socket, size: int) -> bytes:
    return _received(connection, _checked_size(_received(connection, _LENGTH.size), size))


def _checked_size(length: bytes, size: int) -> int:
    # Until the proof is over anybody may be at the other end: no memory without a limit.
    if _LENGTH.unpack(length)[0] != size:
        raise AuthenticationError(f"a proof of {_LENGTH.unpack(length)[0]} bytes where {size} were due")
    return size


async def authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> None:
    """Authenticate a caller: check that it knows `key`, and prove the same to it. Raises AuthenticationError, OSError, EOFError."""
    own_nonce = os.urandom(_NONCE)
    writer.write(_framed(own_nonce))
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            answer = await reader.readexactly(_checked_size(await reader.readexactly(_LENGTH.size), _NONCE + _PROOF))
    except TimeoutError as error:
        raise AuthenticationError(f"no proof came within {_TIMEOUT_SECONDS:.0f} s") from error
    writer.write(_framed(_proof_for(answer, own_nonce, key)))


def answer_caller(connection: socket.socket, key: bytes) -> None:
    """As `authenticate`, for a listener that blocks on the connection."""
    connection.settimeout(_TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own_nonce = os.urandom(_NONCE)
    connection.sendall(_framed(own_nonce))
    connection.sendall(_framed(_proof_for(_received_part(connection, _NONCE + _PROOF), own_nonce, key)))


def _proof_for(answer: bytes, own_nonce: bytes, key: bytes) -> bytes:
    """The listener's proof for a caller's nonce and proof, which is checked."""
    their_nonce, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _proof(key, b"caller", own_nonce, their_nonce)):
        raise AuthenticationError("the caller does not know the job's key")
    return _proof(key, b"listener", own_nonce, their_nonce)


def _proof(key: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    # With the side in it: else a proof that one side gave could be sent back to it as the other's.
    return hmac.digest(key, side + first + second, "sha256")


def message(header: dict[str, Any], body: bytes = b"") -> bytes:
    """A message as it is sent."""
    return _framed(json.dumps(header, separators=(",", ":")).encode() + b"\n" + body)


def _framed(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def send(connection: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    """Send one message. Not to be called by two threads at once for one connection. Raises OSError."""
    connection.sendall(message(header, body))


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The next message. Raises EOFError when the other side is gone, ValueError for what is no message, OSError."""
    return _parsed(_received(connection, _LENGTH.unpack(_received(connection, _LENGTH.size))[0]))


async def read(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """As `receive`, in an event loop."""
    return _parsed(await reader.readexactly(_LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]))


def _received(connection: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    remaining = memoryview(content)
    while remaining:
        count = connection.recv_into(remaining)
        if count == 0:
            raise EOFError("it closed the connection")
        remaining = remaining[count:]
    return bytes(content)


def _parsed(content: bytes) -> tuple[dict[str, Any], bytes]:
    # JSON of one line: the first line end is the header's, whatever the body holds.
    end = content.find(b"\n", 0, _LARGEST_HEADER)
    header = json.loads(content[:end]) if end >= 0 else None
    if not isinstance(header, dict):
        raise ValueError("a message without a header")
    return header, content[end + 1 :]


def pack(parts: list[bytes]) -> tuple[list[int], bytes]:
    """Lengths and concatenation of several payloads, for one message."""
    return [len(part) for part in parts], b"".join(parts)


def unpack(lengths: list[int], body: bytes) -> list[bytes]:
    """Split a body that `pack` concatenated."""
    parts, start = [], 0
    for length in lengths:
        parts.append(body[start : start + length])
        start += length
    return parts
