"""What follows an object's bytes where others can reach them: proof that they are its own, whole.

A seal is ``dsv4kv01``, the length in bytes as u64 and 128 bits of XXH3, little-endian; the hash
is seeded by namespace and name, so another object's bytes do not pass under this one's name. It
finds accidents: whoever means to forge it can.
"""

import struct

import xxhash

from dsv4kv.tiers.stores.contract import Bytes
from dsv4kv.tiers.stores.namespace import Namespace

_SEAL = struct.Struct("<8sQ16s")
_MAGIC = b"dsv4kv01"
SEAL_BYTES = _SEAL.size


class Seals:
    """Seals of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        """Seals that no other namespace's objects have."""
        self._seed = int(namespace.digest[:16], 16)

    def seal(self, name: str, data: Bytes) -> bytes:
        """The seal of an object, ``SEAL_BYTES`` long."""
        seed = xxhash.xxh3_64_intdigest(name.encode(), self._seed)
        return _SEAL.pack(_MAGIC, data.nbytes, xxhash.xxh3_128_digest(data.data, seed))

    def holds(self, name: str, content: Bytes) -> bool:
        """Whether these are an object, anything and its seal, whatever its length."""
        if content.nbytes < SEAL_BYTES:
            return False
        seal = content[-SEAL_BYTES:].tobytes()
        length = _SEAL.unpack(seal)[1]
        return length <= content.nbytes - SEAL_BYTES and seal == self.seal(name, content[:length])
