"""Messages between the processes of a job: a JSON header and bytes, over TCP connections on which both sides proved the job's key.

Nothing that arrives here is ever unpickled. A header is checked by who reads it; bytes are handed on as they are.
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
_PATIENCE = 20.0  # seconds that the other side has for each part of the proof
Address = tuple[str, int]


class ProofError(Exception):
    """The other side does not know the job's key."""


def listen(host: str) -> socket.socket:
    """A listening socket on one address of this host, on any port that is free. Raises OSError."""
    family, address = _resolved(host, 0)
    return socket.create_server(address, family=family, backlog=1024)


def accept(listener: socket.socket) -> Connection:
    """The next connection. Raises OSError when the listener was shut down."""
    accepted, _ = listener.accept()
    return Connection(accepted.detach())


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Address]:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, (str(address[0]), int(address[1]))


def call(address: Address, key: bytes) -> Connection:
    """A connection to a listener that knows `key`, too. Raises OSError, ProofError."""
    family, found = _resolved(*address)
    connection = Client(found, family=family.name)
    try:
        theirs = _proof_part(connection, _NONCE)
        ours = os.urandom(_NONCE)
        connection.send_bytes(ours + _proof(key, b"caller", theirs, ours))
        answer = _proof_part(connection, hashlib.sha256().digest_size)
        if not hmac.compare_digest(answer, _proof(key, b"listener", theirs, ours)):
            raise ProofError("the listener does not know the job's key")
    except (EOFError, ConnectionError) as error:
        connection.close()
        raise ProofError(f"the listener refused this process: {error or 'it closed the connection'}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def admit(connection: Connection, key: bytes) -> None:
    """Check that a caller knows `key`, and prove the same to it. Raises ProofError, OSError, EOFError."""
    ours = os.urandom(_NONCE)
    connection.send_bytes(ours)
    answer = _proof_part(connection, _NONCE + hashlib.sha256().digest_size)
    theirs, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _proof(key, b"caller", ours, theirs)):
        raise ProofError("the caller does not know the job's key")
    connection.send_bytes(_proof(key, b"listener", ours, theirs))


def _proof(key: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(key, side + first + second, "sha256")


def _proof_part(connection: Connection, size: int) -> bytes:
    if not connection.poll(_PATIENCE):
        raise ProofError(f"no proof came within {_PATIENCE:.0f} s")
    part = connection.recv_bytes(maxlength=size)
    if len(part) != size:
        raise ProofError(f"a proof of {len(part)} bytes where {size} were due")
    return part


def send(connection: Connection, header: dict[str, Any], body: bytes = b"") -> None:
    """One message. Not to be called by two threads at once for one connection."""
    connection.send_bytes(json.dumps(header, separators=(",", ":")).encode() + b"\n" + body)


def receive(connection: Connection) -> tuple[dict[str, Any], bytes]:
    """The next message. Raises EOFError when the other side is gone, ValueError for what is no message."""
    message = connection.recv_bytes()
    end = message.find(b"\n", 0, _LARGEST_HEADER)
    header = json.loads(message[:end]) if end >= 0 else None
    if not isinstance(header, dict):
        raise ValueError("a message without a header")
    return header, message[end + 1 :]


def joined(parts: list[bytes]) -> tuple[list[int], bytes]:
    """Lengths and concatenation of several payloads, for one message."""
    return [len(part) for part in parts], b"".join(parts)


def parted(lengths: list[int], body: bytes) -> list[bytes]:
    """Split what `joined` joined."""
    parts, start = [], 0
    for length in lengths:
        parts.append(body[start : start + length])
        start += length
    return parts
