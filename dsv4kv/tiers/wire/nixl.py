"""NIXL, where it is installed: reads by descriptors over what the machines have (RDMA, TCP, CMA).

Source: nixl 1.5.1, ``nixl._api``. Its wheels ask for torch with CUDA and need neither: without
dependencies (``pip install --no-deps nixl nixl-cu13``) they move the host's memory.
"""

import base64
import os
from collections.abc import Sequence
from importlib import import_module
from time import monotonic, sleep
from typing import Any

import numpy as np

from dsv4kv.errors import StoreUnavailable
from dsv4kv.tiers.wire.memory import Memory
from dsv4kv.tiers.wire.transports import Places

_KIND = "DRAM"


class NixlMissing(StoreUnavailable):
    """It is not installed, or does not load."""


def load() -> Any:
    """NIXL's module; raises ``NixlMissing``."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    try:
        return import_module("nixl._api")
    except (ImportError, OSError) as error:
        raise NixlMissing(
            f"NIXL is not here ({error}): pip install --no-deps nixl nixl-cu13 (-cu12 "
            "where torch has that), on both sides."
        ) from None


def _agent(name: str) -> tuple[Any, str]:
    """An agent whose name no other has."""
    api = load()
    own = f"dsv4kv-{name}-{os.getpid()}-{os.urandom(4).hex()}"
    return api.nixl_agent(own, api.nixl_agent_config(backends=["UCX"])), own


class NixlMemory:
    """A cache's pools, for agents of others to read."""

    def __init__(self, memory: Memory) -> None:
        """Register them; raises ``NixlMissing``."""
        self._agent, self._name = _agent("prefill")
        self._addresses = [address_of(region) for region in memory.regions]
        self._registered = _register(self._agent, memory)

    def describe(self) -> dict[str, Any]:
        """What a reader must know."""
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        return {"name": self._name, "metadata": metadata, "addresses": self._addresses}


class NixlReader:
    """Reads another agent's memory into a cache's own pools."""

    def __init__(self, memory: Memory, sender: dict[str, Any], timeout_s: float) -> None:
        """Connect to the agent that describes itself as ``sender``.

        Raises:
            NixlMissing: There is no NIXL here.
            StoreUnavailable: What it said is none of an agent's.
        """
        self._agent, _ = _agent("decode")
        self._registered = _register(self._agent, memory)
        self._timeout_s = timeout_s
        try:
            self._addresses = np.array(sender["addresses"], dtype=np.int64)
            self._remote = sender["name"]
            self._agent.add_remote_agent(base64.b64decode(sender["metadata"]))
        except Exception as error:  # whatever its bindings raise
            raise StoreUnavailable(f"the sender's NIXL agent is none: {error}.") from None

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """See ``Reader``; NIXL itself refuses what is in no memory of the sender's."""
        if not len(places):
            return
        if places[:, 0].min() < 0 or places[:, 0].max() >= len(self._addresses):
            raise StoreUnavailable("the sender's NIXL agent has no such regions.")
        starts = self._addresses[places[:, 0]] + places[:, 1]
        theirs = np.stack([starts, places[:, 2], np.zeros_like(starts)], axis=1)
        ours = [(address_of(view), len(view), 0) for view in into]
        try:
            self._transfer(ours, [tuple(each) for each in theirs.tolist()])
        except StoreUnavailable:
            raise
        except Exception as error:  # whatever its bindings raise
            raise StoreUnavailable(f"NIXL: {error}.") from None

    def _transfer(self, ours: list[Any], theirs: list[Any]) -> None:
        agent = self._agent
        left, right = agent.get_xfer_descs(ours, _KIND), agent.get_xfer_descs(theirs, _KIND)
        handle = agent.initialize_xfer("READ", left, right, self._remote, b"")
        try:
            agent.transfer(handle)
            deadline = monotonic() + self._timeout_s
            while (state := agent.check_xfer_state(handle)) != "DONE":
                if state == "ERR" or monotonic() > deadline:
                    raise StoreUnavailable(
                        f"NIXL did not read it in {self._timeout_s:g} s: {state}."
                    )
                sleep(0)
        finally:
            agent.release_xfer_handle(handle)


def _register(agent: Any, memory: Memory) -> Any:
    pools = [(address_of(region), len(region), 0, "") for region in memory.regions]
    return agent.register_memory(pools, _KIND)


def address_of(view: memoryview) -> int:
    """Where a view begins."""
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)
