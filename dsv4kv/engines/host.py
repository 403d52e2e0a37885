"""What engines keep of their caches outside the GPU, and send of them: derived from the layout."""

from dataclasses import dataclass
from fractions import Fraction

from dsv4kv.engines.rule import Group, Layout


@dataclass(frozen=True)
class HostWish:
    """What is asked of host memory; None where nothing is.

    Attributes:
        size_bytes: Memory that the tier is given, as its engine counts it.
        memory_bytes: Memory that is free on a node before the engine starts.
        layout: How SGLang lays pages out on the host.
        retention: Tokens between the boundaries whose windows vLLM keeps, in addition to the last;
            0 keeps only the last, None those of every block.
    """

    tier: str
    ratio: Fraction | None = None
    size_bytes: int | None = None
    memory_bytes: int | None = None
    layout: str = "page_first"
    storage: str | None = None
    ranks: int = 1
    tp: int = 1
    replica_ranks: int = 1
    node_replicas: int = 1
    retention: int | None = 0
    chunk_tokens: int | None = None


@dataclass(frozen=True)
class HostPool:
    """One pool of one rank."""

    name: str
    pages: int
    page_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of it."""
        return self.pages * self.page_bytes


@dataclass(frozen=True)
class Sent:
    """What a rank of a prefill side sends of a prompt to its decode side.

    Attributes:
        descriptors: Pieces of memory that they are named as, before neighbours are merged: pages
            of every layer's buffer.
    """

    bytes: int
    descriptors: int


@dataclass(frozen=True)
class HostTier:
    """What one rank, or one replica, keeps in host memory.

    Attributes:
        pools: Its pools, in the order in which they are made.
        copies: Ranks or replicas of a node that have such pools, each its own.
        keeps: What the pools hold, in words and counts.
        holder: Whose the pools are: ``rank``, ``replica`` or ``server``.
        gpu_bytes: What it takes of a GPU outside the cache.
        refusal: Why the engine does not start with it; empty where it does.
    """

    name: str
    pools: tuple[HostPool, ...]
    copies: int
    keeps: dict[str, int]
    holder: str = "rank"
    notes: tuple[str, ...] = ()
    gpu_bytes: int = 0
    refusal: str = ""

    @property
    def holder_bytes(self) -> int:
        """Host memory of one rank or replica."""
        return sum(pool.total_bytes for pool in self.pools)

    @property
    def node_bytes(self) -> int:
        """Host memory of a node."""
        return self.copies * self.holder_bytes


@dataclass(frozen=True)
class Offloaded:
    """What a tier keeps of a prompt: blocks, and windows with states where it can be resumed.

    ``pages`` of a pool are here the objects of one block or place; an operation moves one.

    Attributes:
        context: A block, or as many as ``blocks`` says.
        tail: Windows and states at a place; empty where blocks alone are enough to go on.
        blocks: Blocks of context that are kept and found together.
        ends_inside: Whether the windows and states at its end are in ``context``.
    """

    context: tuple[HostPool, ...]
    tail: tuple[HostPool, ...] = ()
    blocks: int = 1
    ends_inside: bool = False

    @property
    def context_bytes(self) -> int:
        """Bytes of ``blocks`` blocks."""
        return sum(pool.total_bytes for pool in self.context)

    @property
    def tail_bytes(self) -> int:
        """Bytes of one place to resume at."""
        return sum(pool.total_bytes for pool in self.tail)

    def operations(self, contexts: int, tails: int) -> int:
        """Operations that move so many of both."""
        of_context = sum(pool.pages for pool in self.context)
        return contexts * of_context + tails * sum(pool.pages for pool in self.tail)


def objects_of(layout: Layout, align: int = 1) -> Offloaded:
    """Objects of a block of context, and of a boundary's windows and states.

    A block of one pool that all groups share is an object, its bytes a multiple of ``align``; of
    pools apart every pool's part of a block is one.
    """
    full, *others = layout.groups
    behind = [group for group in others if group.cached and not group.ring]
    if not layout.unit_bytes:
        return Offloaded(_pools(full), sum(map(_pools, behind), ()))
    size = -(-layout.unit_bytes // align) * align
    tail = sum(group.needed for group in behind)
    pools = (HostPool("windows and states", tail, size),) if tail else ()
    return Offloaded((HostPool("context", 1, size),), pools)


def _pools(group: Group) -> tuple[HostPool, ...]:
    return tuple(HostPool(each.name, 1, each.block_bytes) for each in group.pieces)


def sent_of(layout: Layout, tokens: int, *, clips: bool = False) -> Sent:
    """What a rank sends of a prompt: whole blocks, of a window those that it covers.

    With ``clips`` it is as many blocks of every window as one may ever cover.
    """
    size = descriptors = 0
    for group in layout.groups:
        grain, blocks = group.block_tokens, -(-tokens // group.block_tokens)
        if group.seen_tokens is not None and clips:
            blocks = min(blocks, -(-(group.seen_tokens + 1) // grain) + 1)
        elif group.seen_tokens is not None:
            blocks -= max(0, tokens - group.seen_tokens) // grain
        size += blocks * group.block_bytes
        descriptors += blocks * group.buffers
    return Sent(size, descriptors)
