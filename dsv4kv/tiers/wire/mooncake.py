"""Mooncake's transfer engine, where it is installed: reads by descriptors over TCP, or RDMA.

Source: mooncake-transfer-engine 0.3.13, ``mooncake.engine``. The protocol is TCP, or RDMA by
``MOONCAKE_PROTOCOL=rdma``. Its ports ask nobody for a token.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from math import ceil
from typing import Any

import numpy as np

from dsv4kv.errors import StoreUnavailable
from dsv4kv.tiers.wire.memory import Memory
from dsv4kv.tiers.wire.nixl import address_of
from dsv4kv.tiers.wire.transports import Places

_MOST = 512  # stretches at once: its queue for a peer refuses those that find it full


class MooncakeMissing(StoreUnavailable):
    """It is not installed, or does not load."""


def load() -> Any:
    """Mooncake's module; raises ``MooncakeMissing``."""
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    try:
        return import_module("mooncake.engine")
    except (ImportError, OSError) as error:
        raise MooncakeMissing(
            f"Mooncake is not here ({error}): pip install mooncake-transfer-engine-non-cuda "
            "(without that suffix where there is CUDA), on both sides; it needs libibverbs1, "
            "librdmacm1, libnl-3-200 and libnl-route-3-200."
        ) from None


def _engine(host: str, memory: Memory) -> Any:
    """An engine that others reach at ``host``, and may read a cache's pools by."""
    engine = load().TransferEngine()
    protocol = os.environ.get("MOONCAKE_PROTOCOL", "tcp")
    failed = engine.initialize(host, "P2PHANDSHAKE", protocol, "")
    for region in memory.regions:
        failed = failed or engine.register_memory(address_of(region), len(region))
    if failed:
        raise StoreUnavailable(f"Mooncake cannot move this cache's memory at {host} ({failed}).")
    return engine


class MooncakeMemory:
    """A cache's pools, for engines of others to read."""

    def __init__(self, memory: Memory, host: str) -> None:
        """Register them, for those who know this machine as ``host``."""
        self._engine = _engine(host, memory)
        self._addresses = [address_of(region) for region in memory.regions]
        self._at = f"{host}:{self._engine.get_rpc_port()}"

    def describe(self) -> dict[str, Any]:
        """What a reader must know."""
        return {"at": self._at, "addresses": self._addresses}


class MooncakeReader:
    """Reads another engine's memory into a cache's own pools."""

    def __init__(
        self, memory: Memory, sender: dict[str, Any], host: str, timeout_s: float
    ) -> None:
        """Connect to the engine that describes itself as ``sender``; to it we are at ``host``.

        Raises:
            MooncakeMissing: There is no Mooncake here.
            StoreUnavailable: What it said is none of an engine's.
        """
        os.environ["MC_TRANSFER_TIMEOUT"] = str(ceil(timeout_s))
        self._engine, self._timeout_s = _engine(host, memory), timeout_s
        try:
            self._addresses = np.array(sender["addresses"], dtype=np.int64)
            self._at = str(sender["at"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise StoreUnavailable(f"the sender's Mooncake engine is none: {error}.") from None

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """See ``Reader``; Mooncake itself refuses what is in no memory of the sender's."""
        if not len(places):
            return
        if places[:, 0].min() < 0 or places[:, 0].max() >= len(self._addresses):
            raise StoreUnavailable("the sender's Mooncake engine has no such regions.")
        theirs = (self._addresses[places[:, 0]] + places[:, 1]).tolist()
        ours = [address_of(view) for view in into]
        stretches = ours, theirs, places[:, 2].tolist()
        for first in range(0, len(places), _MOST):
            some = [each[first : first + _MOST] for each in stretches]
            if self._engine.batch_transfer_sync_read(self._at, *some):
                raise StoreUnavailable(
                    f"Mooncake did not read from {self._at} in {self._timeout_s:g} s: the sender "
                    "is gone, or has no such memory."
                )
