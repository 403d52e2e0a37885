"""Objects in this process's memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

import numpy as np

from dsv4kv.errors import StoreFull, StoreUnavailable
from dsv4kv.tiers.stores.contract import Bytes, Found
from dsv4kv.tiers.stores.namespace import Namespace
from dsv4kv.units import format_bytes, parse_bytes


def open_memory(place: str, namespace: Namespace) -> "MemoryStore":
    """A store of that capacity, ``64GiB`` or ``pinned:64GiB``; it is this process's alone."""
    pinned, colon, size = place.rpartition(":")
    return MemoryStore(parse_bytes(size), pinned=bool(colon) and pinned == "pinned")


_NOTHING = np.empty(0, np.uint8)


class MemoryStore:
    """Objects in host memory.

    They are not sealed: nobody else reaches them, and memory errors are the machine's to find.

    Attributes:
        capacity_bytes: What all objects may come to. While one is replaced both are there.
        pinned: GPUs copy from it without the driver's help.
        used_bytes: What all objects come to.
        damaged: None is ever found.
    """

    damaged = 0

    def __init__(self, capacity_bytes: int, *, pinned: bool = False) -> None:
        """An empty store; memory is taken as objects come."""
        self.capacity_bytes, self.pinned, self.used_bytes = capacity_bytes, pinned, 0
        self._objects: dict[str, Bytes] = {}
        self._lock = RLock()

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """As every store's."""
        for name, each in zip(names, data, strict=True):
            self._keep(name, each)

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """As every store's."""
        found = np.zeros(len(names), np.bool_)
        for place, (name, room) in enumerate(zip(names, into, strict=True)):
            kept = self._objects.get(name)
            if kept is not None and len(kept) == len(room):
                np.copyto(room, kept)
                found[place] = True
        return found

    def exists(self, names: Sequence[str]) -> Found:
        """As every store's."""
        return np.fromiter((name in self._objects for name in names), np.bool_, len(names))

    def delete(self, names: Sequence[str]) -> None:
        """As every store's."""
        for name in names:
            with self._counted():
                gone = self._objects.pop(name, _NOTHING)
                self.used_bytes -= len(gone)

    def close(self) -> None:
        """As every store's; what is kept goes with the last who holds the store."""

    def _keep(self, name: str, data: Bytes) -> None:
        copy = self._room(len(data))
        np.copyto(copy, data)
        with self._counted():
            used = self.used_bytes + len(data) - len(self._objects.get(name, _NOTHING))
            if used > self.capacity_bytes:
                raise StoreFull(
                    f"host memory: {name} of {format_bytes(len(data))} does not fit: "
                    f"{format_bytes(self.used_bytes)} of {format_bytes(self.capacity_bytes)} are "
                    "in use. Delete objects, or give the store more."
                )
            self._objects[name] = copy
            self.used_bytes = used

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Change what is kept, alone; if that is interrupted, count it anew."""
        with self._lock:
            try:
                yield
            except BaseException:
                self.used_bytes = sum(map(len, self._objects.values()))
                raise

    def _room(self, size: int) -> Bytes:
        if not self.pinned:
            return np.empty(size, np.uint8)
        import torch

        try:
            room: Bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        except RuntimeError as error:
            raise StoreUnavailable(
                f"host memory cannot be pinned here ({str(error).splitlines()[0]}): leave it "
                "unpinned, or run where there is a GPU."
            ) from None
        return room
