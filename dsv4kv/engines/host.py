"""What an engine keeps of its cache in host memory: pools of one rank, and what they hold."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class HostWish:
    """What is asked of host memory; None where nothing is.

    Attributes:
        tier: ``hicache``, ``native``, ``simple`` or ``lmcache``.
        ratio: Pages of the host for one of the GPU.
        size_bytes: Memory that the tier is given, as its engine counts it.
        memory_bytes: Memory that is free on a node before the engine starts.
        layout: How SGLang lays pages out on the host.
        storage: Where SGLang keeps pages beyond the host.
        ranks: Ranks of one node.
    """

    tier: str
    ratio: Fraction | None = None
    size_bytes: int | None = None
    memory_bytes: int | None = None
    layout: str = "page_first"
    storage: str | None = None
    ranks: int = 1


@dataclass(frozen=True)
class HostPool:
    """One pool of one rank.

    Attributes:
        name: As the engine calls it.
        pages: Pages of it.
        page_bytes: Bytes of a page over all layers.
    """

    name: str
    pages: int
    page_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of it."""
        return self.pages * self.page_bytes


@dataclass(frozen=True)
class HostTier:
    """What one rank keeps in host memory.

    Attributes:
        name: As the engine calls it.
        pools: Its pools, in the order in which they are made.
        copies: Ranks of a node that have such pools, each its own.
        tokens: Tokens of prefixes that it keeps, by what is kept of them; one of each kind holds.
        notes: Sentences on what limits it.
        gpu_bytes: What it takes of a GPU beside the cache.
        refusal: Why the engine does not start with it; empty where it does.
    """

    name: str
    pools: tuple[HostPool, ...]
    copies: int
    tokens: dict[str, int]
    notes: tuple[str, ...] = ()
    gpu_bytes: int = 0
    refusal: str = ""

    @property
    def rank_bytes(self) -> int:
        """Host memory of one rank."""
        return sum(pool.total_bytes for pool in self.pools)

    @property
    def node_bytes(self) -> int:
        """Host memory of all ranks of a node."""
        return self.copies * self.rank_bytes
