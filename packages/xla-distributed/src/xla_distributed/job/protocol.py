"""The protocol between the processes of a job: messages of a JSON header and bytes, over TCP connections authenticated by the job's key.

Nothing that arrives here is ever unpickled. The reader of a header checks it; bytes are handed on as they are.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
from multiprocessing.connection import Client, Connection
from typing import Any

_NONCE = 32
_LARGEST_HEADER = 1 << 20
_TIMEOUT_SECONDS = 20.0  # seconds that the other side has for each part of the proof
Address = tuple[str, int]


class AuthenticationError(Exception):
    """The other side does not know the job's key."""


def listen(host: str) -> socket.socket:
    """A listening socket on one address of this host, on any port that is free. Raises OSError."""
    family, address = _resolved(host, 0)
    # All processes of a large job may connect at once.
    return socket.create_server(address, family=family, backlog=1024)


def accept(listener: socket.socket) -> Connection:
    """The next connection. Raises OSError when the listener was shut down."""
    accepted, _ = listener.accept()
    return Connection(accepted.detach())


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Address]:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, (str(address[0]), int(address[1]))


def connect(address: Address, key: bytes) -> Connection:
    """A connection to a listener that knows `key`, too. Raises OSError, AuthenticationError."""
    family, found = _resolved(*address)
    connection = Client(found, family=family.name)
    try:
        theirs = _proof_part(connection, _NONCE)
        ours = os.urandom(_NONCE)
        connection.send_bytes(ours + _proof(key, b"caller", theirs, ours))
        answer = _proof_part(connection, hashlib.sha256().digest_size)
        if not hmac.compare_digest(answer, _proof(key, b"listener", theirs, ours)):
            raise AuthenticationError("the listener does not know the job's key")
    except (EOFError, ConnectionError) as error:
        connection.close()
        raise AuthenticationError(f"the listener refused this process: {error or 'it closed the connection'}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def authenticate(connection: Connection, key: bytes) -> None:
    """Authenticate a caller: check that it knows `key`, and prove the same to it. Raises AuthenticationError, OSError, EOFError."""
    ours = os.urandom(_NONCE)
    connection.send_bytes(ours)
    answer = _proof_part(connection, _NONCE + hashlib.sha256().digest_size)
    theirs, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _proof(key, b"caller", ours, theirs)):
        raise AuthenticationError("the caller does not know the job's key")
    connection.send_bytes(_proof(key, b"listener", ours, theirs))


def _proof(key: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    # With the side in it: else a proof that one side gave could be sent back to it as the other's.
    return hmac.digest(key, side + first + second, "sha256")


def _proof_part(connection: Connection, size: int) -> bytes:
    # Until this is over anybody may be at the other end: neither time nor memory without a limit.
    if not connection.poll(_TIMEOUT_SECONDS):
        raise AuthenticationError(f"no proof came within {_TIMEOUT_SECONDS:.0f} s")
    part = connection.recv_bytes(maxlength=size)
    if len(part) != size:
        raise AuthenticationError(f"a proof of {len(part)} bytes where {size} were due")
    return part


def send(connection: Connection, header: dict[str, Any], body: bytes = b"") -> None:
    """Send one message. Not to be called by two threads at once for one connection."""
    connection.send_bytes(json.dumps(header, separators=(",", ":")).encode() + b"\n" + body)


def receive(connection: Connection) -> tuple[dict[str, Any], bytes]:
    """The next message. Raises EOFError when the other side is gone, ValueError for what is no message."""
    message = connection.recv_bytes()
    # JSON of one line: the first line end is the header's, whatever the body holds.
    end = message.find(b"\n", 0, _LARGEST_HEADER)
    header = json.loads(message[:end]) if end >= 0 else None
    if not isinstance(header, dict):
        raise ValueError("a message without a header")
    return header, message[end + 1 :]


def pack(parts: list[bytes]) -> tuple[list[int], bytes]:
    """Lengths and concatenation of several payloads, for one message."""
    return [len(part) for part in parts], b"".join(parts)


def unpack(lengths: list[int], body: bytes) -> list[bytes]:
    """Split what `pack` joined."""
    parts, start = [], 0
    for length in lengths:
        parts.append(body[start : start + length])
        start += length
    return parts
