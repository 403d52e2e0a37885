"""What follows an object's bytes where others can reach them: proof that they are its own, whole.

A seal is ``dsv4kv01``, the length in bytes as u64 and 128 bits of XXH3, little-endian; the hash
is seeded by namespace and name, so another object's bytes do not pass under this one's name. It
finds accidents: whoever means to forge it can.

In a file objects have zeros before their seals, so that each takes a multiple of 4,096 bytes. Of
several in one file the last page is a table, sealed as they are: for each the hash of its name,
where it begins, and its length, as u64.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import xxhash

from dsv4kv.tiers.stores.contract import Bytes
from dsv4kv.tiers.stores.lanes import ALIGNED, round_up
from dsv4kv.tiers.stores.namespace import Namespace

_SEAL = struct.Struct("<8sQ16s")
_MAGIC = b"dsv4kv01"
SEAL_BYTES = _SEAL.size
_ROW = struct.Struct("<QQQ")
MOST_OBJECTS = (ALIGNED - SEAL_BYTES) // _ROW.size
"""In a table."""
_TABLE = ""  # its name, which no object has


class Seals:
    """Seals of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        """Seals that no other namespace's objects have."""
        self._seed = int(namespace.digest[:16], 16)

    def seal(self, name: str, data: Bytes) -> bytes:
        """The seal of an object, ``SEAL_BYTES`` long."""
        return _SEAL.pack(
            _MAGIC, data.nbytes, xxhash.xxh3_128_digest(data.data, self.hash_of(name))
        )

    def hash_of(self, name: str) -> int:
        """Of a name in this namespace."""
        return xxhash.xxh3_64_intdigest(name.encode(), self._seed)

    def table(self, names: Sequence[str], sizes: Sequence[int]) -> tuple[Bytes, bytes]:
        """Of objects that follow on each other: rows and their seal."""
        starts = accumulate(map(held, sizes), initial=0)
        rows = zip(map(self.hash_of, names), starts, sizes, strict=False)
        page = np.frombuffer(b"".join(_ROW.pack(*row) for row in rows), np.uint8)
        return page, self.seal(_TABLE, page)

    def places(self, page: Bytes) -> dict[int, tuple[int, int]]:
        """Where objects begin and their lengths, by the hash of their names.

        Nothing if that is no table.
        """
        rows = self.content(_TABLE, page)
        if rows is None:
            return {}
        return {key: (at, size) for key, at, size in _ROW.iter_unpack(rows.tobytes())}

    def content(self, name: str, sealed: Bytes) -> Bytes | None:
        """What is before zeros and a seal, whatever its length; None if that is not its seal."""
        if sealed.nbytes < SEAL_BYTES:
            return None
        seal = sealed[-SEAL_BYTES:].tobytes()
        data = sealed[: min(_SEAL.unpack(seal)[1], sealed.nbytes - SEAL_BYTES)]
        return data if seal == self.seal(name, data) else None


def held(size: int) -> int:
    """Bytes of a file that an object of ``size`` bytes takes."""
    return round_up(size + SEAL_BYTES)
