"""What engines keep of their caches outside the GPU, and send of them: derived from the layout."""

from dataclasses import dataclass
from fractions import Fraction

from dsv4kv.engines.rule import Layout


@dataclass(frozen=True)
class HostWish:
    """The host memory that is asked for.

    Attributes:
        size_bytes: Memory that the tier is given, as its engine counts it.
        memory_bytes: Memory that is free on a node before the engine starts.
        retention: Tokens between the windows that vLLM keeps in addition to the last; None keeps
            every block's.
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
        """Bytes of the pool."""
        return self.pages * self.page_bytes


@dataclass(frozen=True)
class Sent:
    """What a rank of a prefill side sends of a prompt, in pages of layers' buffers."""

    bytes: int
    descriptors: int


@dataclass(frozen=True)
class HostTier:
    """What one rank or replica keeps in host memory.

    Attributes:
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
    """What a tier keeps of a prompt; a pool's ``pages`` are objects, moved one at a time.

    Attributes:
        context: Of ``blocks`` blocks, which are kept and found together.
        tail: Windows and states at a place to resume at; empty where none are needed.
        ends_inside: The windows and states at its end are in ``context``.
    """

    context: tuple[HostPool, ...]
    tail: tuple[HostPool, ...] = ()
    blocks: int = 1
    ends_inside: bool = False

    @property
    def context_bytes(self) -> int:
        """Bytes of the blocks."""
        return sum(pool.total_bytes for pool in self.context)

    @property
    def tail_bytes(self) -> int:
        """Bytes of one place to resume at."""
        return sum(pool.total_bytes for pool in self.tail)

    def operations(self, contexts: int, tails: int) -> int:
        """Operations that move contexts and tails."""
        of_context = sum(pool.pages for pool in self.context)
        return contexts * of_context + tails * sum(pool.pages for pool in self.tail)


def objects_of(layout: Layout, align: int = 1) -> Offloaded:
    """Objects of a block of context, and of a boundary's windows and states.

    In one pool for all groups a block is an object, its bytes a multiple of ``align``; in separate
    pools every part of a block is one.
    """
    full, *others = layout.groups
    behind = [group for group in others if group.cached and not group.ring]
    if not layout.unit_bytes:
        context, places = (
            tuple(HostPool(each.name, 1, each.block_bytes) for g in groups for each in g.pieces)
            for groups in ([full], behind)
        )
        return Offloaded(context, places)
    size = -(-layout.unit_bytes // align) * align
    tail = sum(group.needed for group in behind)
    pools = (HostPool("windows and states", tail, size),) if tail else ()
    return Offloaded((HostPool("context", 1, size),), pools)


def sent_of(layout: Layout, tokens: int, *, clips: bool = False) -> Sent:
    """Bytes of a prompt that a rank sends: whole blocks, and those that a window covers.

    With ``clips`` as many blocks of a window as it may ever cover.
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
