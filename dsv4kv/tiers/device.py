"""Objects between a GPU's cache and the host: gathered by one launch a family, copied as a whole.

The work goes to a stream of its own, so that decode steps are not held up, and the host's memory
is pinned, so that the GPU copies without the driver's help.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.cache.blocks import Ids
from dsv4kv.ops.cuda.launch import run
from dsv4kv.ops.kernels.objects import Way, plan_objects, pool_table
from dsv4kv.tiers.families import Family
from dsv4kv.tiers.stores.contract import Bytes

Objects = NDArray[np.uint8]
"""uint8[n, layers, piece_bytes]: n objects of a family, each contiguous."""


class Stream(Protocol):
    """Where copies are queued."""

    def turn(self) -> AbstractContextManager[None]:
        """What is launched inside begins after what was launched before, and delays nothing."""

    def settle(self) -> None:
        """Wait until all of it is done."""


class SideStream:
    """A stream other than the one that steps are launched on."""

    def __init__(self, device: torch.device) -> None:
        """On a GPU."""
        make: Any = torch.cuda.Stream
        self._device, self._stream = device, make(device)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """As every stream's."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def settle(self) -> None:
        """As every stream's."""
        self._stream.synchronize()


class Mover:
    """Moves objects of families through a buffer next to the cache. One thread at a time."""

    def __init__(
        self, device: torch.device, stream: Stream, pools: dict[str, list[Tensor]]
    ) -> None:
        """Move what is in ``pools``: uint8[blocks or slots, piece_bytes] of every layer."""
        self._device, self._stream, self._pools = device, stream, pools
        self._tables = {name: pool_table(each) for name, each in pools.items()}
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)

    def room(self, size: int) -> Bytes:
        """uint8[size] of memory that begins at a page, pinned for a GPU."""
        pinned = self._device.type == "cuda"
        room: Bytes = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).numpy()
        return room

    def take(self, family: Family, rows: Ids, into: Objects) -> None:
        """Gather objects, rows int64[layers, n], into the host's memory; they are there then."""
        host, stride = _as_one(family, into)
        if len(host):
            with self._stream.turn():
                buffer = self._move("take", family, rows, len(host), stride)
                host.copy_(buffer, non_blocking=True)
            self._stream.settle()

    def put(self, family: Family, rows: Ids, data: Objects) -> None:
        """The inverse of ``take``."""
        host, stride = _as_one(family, data)
        if len(host):
            with self._stream.turn():
                self._room(len(host)).copy_(host, non_blocking=True)
                self._move("put", family, rows, len(host), stride)
            self._stream.settle()

    def by_pages(self, way: Way, family: Family, rows: Ids, data: Objects) -> None:
        """The same by a copy for every piece: what gathering is compared with."""
        pools, pieces = self._pools[family.name], torch.from_numpy(data)
        with self._stream.turn():
            for layer, pool in enumerate(pools):
                for number, row in enumerate(rows[layer].tolist()):
                    ends = pieces[number, layer], pool[row]
                    target, source = ends if way == "take" else ends[::-1]
                    target.copy_(source, non_blocking=True)
        self._stream.settle()

    def whole(self, way: Way, host: Bytes) -> None:
        """Copy as many bytes between buffer and host, and nothing else: the limit of both."""
        with self._stream.turn():
            ends = torch.from_numpy(host), self._room(len(host))
            target, source = ends if way == "take" else ends[::-1]
            target.copy_(source, non_blocking=True)
        self._stream.settle()

    def _move(self, way: Way, family: Family, rows: Ids, size: int, stride: int) -> Tensor:
        numbers, buffer = torch.from_numpy(rows).to(self._device), self._room(size)
        table = self._tables[family.name]
        run(plan_objects(way, table, numbers, buffer, family.piece_bytes, stride))
        return buffer

    def _room(self, size: int) -> Tensor:
        """The buffer; one that is too small is replaced, when nothing uses it."""
        if len(self._buffer) < size:
            self._buffer = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._buffer[:size]


def _as_one(family: Family, objects: Objects) -> tuple[Tensor, int]:
    """All memory from the first object to the end of the last, and bytes between beginnings."""
    stride = objects.strides[0] if len(objects) > 1 else family.object_bytes
    size = (len(objects) - 1) * stride + family.object_bytes if len(objects) else 0
    return torch.from_numpy(np.lib.stride_tricks.as_strided(objects, (size,), (1,))), stride


def mover_of(device: torch.device, pools: dict[str, list[Tensor]]) -> Mover | None:
    """What moves a cache's objects; None on a CPU, where they are read where they are."""
    return None if device.type == "cpu" else Mover(device, SideStream(device), pools)
