"""Objects in a Mooncake store: ``DIGEST/NAME``, sealed, in memory that its members lend.

The package is ``mooncake-transfer-engine-non-cuda`` (without that suffix where there is CUDA), the
protocol TCP, or RDMA by ``MOONCAKE_PROTOCOL=rdma``. What is kept for how long is the master's to
say; this process lends memory only where the place says how much.
"""

import os
import socket
from collections.abc import Sequence
from importlib import import_module
from threading import RLock
from typing import Any

import numpy as np

from dsv4kv.errors import ConfigError, StoreFull, StoreUnavailable
from dsv4kv.tiers.stores.contract import Bytes, Found
from dsv4kv.tiers.stores.namespace import Namespace
from dsv4kv.tiers.stores.seals import SEAL_BYTES, Seals
from dsv4kv.tiers.stores.trips import TRIP_BYTES, trips
from dsv4kv.units import parse_bytes

_BUFFER_BYTES = 4 * TRIP_BYTES  # of the client, for everything that is on its way
_REACHED_S = 5.0
_NO_ROOM = -200  # Mooncake 0.3.13, types.h: NO_AVAILABLE_HANDLE


def open_mooncake(place: str, namespace: Namespace) -> "MooncakeStore":
    """A store of the master at ``[SIZE@]HOST:PORT``; this process lends SIZE."""
    size, _, master = place.rpartition("@")
    return MooncakeStore(master, namespace, lent_bytes=parse_bytes(size) if size else 0)


class MooncakeStore:
    """Objects in the memory of a store's members.

    While one is replaced it cannot be read: threads take turns here, other processes find nothing.
    """

    def __init__(self, master: str, namespace: Namespace, *, lent_bytes: int = 0) -> None:
        """Join.

        Args:
            master: ``HOST:PORT`` of ``mooncake_master``.
            namespace: Whose objects these are.
            lent_bytes: Memory of this process that the store may use.

        Raises:
            ConfigError: The package is not installed, or misses a library.
            StoreUnavailable: The master is not there.
        """
        try:
            store = import_module("mooncake.store")
        except ImportError as error:
            raise ConfigError(
                f"mooncake is not here ({error}): pip install mooncake-transfer-engine-non-cuda; "
                "it needs libibverbs1, librdmacm1, libnl-3-200 and libnl-route-3-200."
            ) from None
        self._master, self._found_damaged = master, list[str]()
        self._seals, self._prefix = Seals(namespace), f"{namespace.digest}/"
        self._client: Any = store.MooncakeDistributedStore()
        self._lock = RLock()
        here = _own_address(master)
        protocol = os.environ.get("MOONCAKE_PROTOCOL", "tcp")
        sizes = lent_bytes, _BUFFER_BYTES
        self._check(self._client.setup(here, "P2PHANDSHAKE", *sizes, protocol, "", master))

    @property
    def damaged(self) -> int:
        """As every store's, found by this process."""
        return len(self._found_damaged)

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """As every store's."""
        for start, end in trips([len(each) for each in data]):
            some = range(start, end)
            sealed = [data[i].tobytes() + self._seals.seal(names[i], data[i]) for i in some]
            with self._lock:
                self._check(self._client.upsert_batch([self._key(names[i]) for i in some], sealed))

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """As every store's."""
        found = np.zeros(len(names), np.bool_)
        for start, end in trips([len(each) for each in into]):
            some = range(start, end)
            with self._lock:
                held = self._client.batch_get_buffer([self._key(names[i]) for i in some])
            for i, buffer in zip(some, held, strict=True):
                found[i] = buffer is not None and self._take(names[i], buffer, into[i])
        if not found.all():
            self._reach()
        return found

    def exists(self, names: Sequence[str]) -> Found:
        """As every store's: a damaged object is there until somebody gets it."""
        there = self._client.batch_is_exist([self._key(name) for name in names]) if names else []
        self._check(min(there, default=0))
        return np.array(there, np.int64) > 0

    def delete(self, names: Sequence[str]) -> None:
        """As every store's: force, or the master keeps what somebody has read lately."""
        if names:
            self._client.batch_remove([self._key(name) for name in names], True)
            self._reach()

    def close(self) -> None:
        """As every store's; what this process has lent goes with it."""
        self._client.close()

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _take(self, name: str, buffer: Any, into: Bytes) -> bool:
        content = np.frombuffer(buffer, np.uint8)
        if self._seals.content(name, content) is None:
            self._found_damaged.append(name)
            self.delete([name])
            return False
        if len(content) != len(into) + SEAL_BYTES:
            return False
        np.copyto(into, content[: len(into)])
        return True

    def _reach(self) -> None:
        """Raise where the master is silent: who asks for objects sees none either way."""
        self._check(min(self._client.batch_is_exist([self._prefix])))

    def _check(self, code: int) -> None:
        if code == _NO_ROOM:
            raise StoreFull(
                f"mooncake at {self._master}: no room for another object: lend more memory, or "
                "delete some."
            )
        if code < 0:
            raise StoreUnavailable(
                f"mooncake at {self._master}: no answer that can be used (error {code}): is "
                "mooncake_master there, and does a member lend memory?"
            )


def _own_address(master: str) -> str:
    """What this machine is called where the master sees it; raises ``StoreUnavailable``."""
    host, _, port = master.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"mooncake: {master!r} is no address: write HOST:PORT.")
    try:
        with socket.create_connection((host, int(port)), _REACHED_S) as there:
            return str(there.getsockname()[0])
    except OSError as error:
        raise StoreUnavailable(
            f"mooncake at {master}: it cannot be reached ({error}): start mooncake_master, or "
            "name another address."
        ) from None
