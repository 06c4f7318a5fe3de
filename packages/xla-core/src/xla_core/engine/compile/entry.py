"""An entry of the cache on disk: a program and its identity, under one checksum.

`MAGIC`, the SHA-256 of all that follows, the three digests of the `Identity`, and the payload. Entries without this `MAGIC`, of
older versions too, are not used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

MAGIC = b"xla-core program 2\n"
_DIGEST_BYTES = 32


class UnusableError(Exception):
    """An entry, or the folder of entries, cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The key, interface and environment that a stored program is bound to.

    key: the hex digest that names it. interface: its arguments and results (shapes, dtypes, shardings, donation). environment: all else
    that its machine code depends on.
    """

    key: str
    interface: str
    environment: str

    def digests(self) -> tuple[bytes, bytes, bytes]:
        """Digests of environment, program and interface, in the order of an entry."""
        return _digest(self.environment.encode()), bytes.fromhex(self.key), _digest(self.interface.encode())


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def pack(identity: Identity, payload: bytes) -> bytes:
    """The bytes of an entry."""
    bound = b"".join(identity.digests()) + payload
    return MAGIC + _digest(bound) + bound


def unpack(identity: Identity, content: bytes) -> bytes:
    """The payload of an entry. Raises UnusableError if it is damaged, or of another program, interface or environment than `identity`."""
    if not content.startswith(MAGIC):
        raise UnusableError("it was not written by this version's cache")
    checksum, bound = content[len(MAGIC) :][:_DIGEST_BYTES], content[len(MAGIC) + _DIGEST_BYTES :]
    if _digest(bound) != checksum:
        raise UnusableError("it is truncated or damaged")
    problems = (
        "it was made by other versions of the libraries, for another processor or with other flags",
        "it holds another program",
        f"its program takes or gives other shapes, dtypes or shardings than {identity.interface}",
    )
    for expected, problem in zip(identity.digests(), problems, strict=True):
        digest, bound = bound[:_DIGEST_BYTES], bound[_DIGEST_BYTES:]
        if digest != expected:
            raise UnusableError(problem)
    return bound
