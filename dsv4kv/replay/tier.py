"""One tier: what it keeps of prompts by a rule, and the transfers into it and out of it.

An object is a block of context, or a tail: the windows and states with which a request resumes
behind a block. Blocks are evicted after those behind them; a tail goes with its block or before.
A transfer takes latency · ⌈operations / parallel⌉ + bytes / bandwidth; in one direction they wait
for each other.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from dsv4kv.config.replay import ReplayConfig, TierSection
from dsv4kv.core.policies import Run, make_policy
from dsv4kv.core.served import Served
from dsv4kv.engines.contract import HostPool, Offloaded
from dsv4kv.engines.formats import PLACES, Site, stored_formats
from dsv4kv.engines.names import find_engine, find_rule
from dsv4kv.engines.rule import NOWHERE, Retention
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import Kept, build_schema, bytes_per_token, choose_formats, families_in
from dsv4kv.replay.memory import MemoryPlan, arch_of, describe_deployment
from dsv4kv.units import format_bytes


@dataclass(frozen=True)
class Stored:
    """What tiers keep."""

    objects: Offloaded  # of a block of context, and of a place to resume at
    useful_bytes: Fraction  # of a token: entries and keys, without padding
    kept: Retention  # where an engine leaves tails; the toolkit's own cache says so itself
    block_tokens: int  # tokens of its blocks

    def places(self, served: Served, before: int, after: int) -> list[int]:
        """Blocks behind which tails stay; SGLang's are ends of chunks and of context found."""
        size, places = self.block_tokens, {served.found, after}
        if not self.kept.chunks:
            places = {place // size for place in self.kept.places(served.prompt_tokens, size)}
        return sorted(place for place in places if before < place <= after)


def find_stored(config: ReplayConfig, memory: MemoryPlan, shared_tokens: int) -> Stored:
    """What is kept by ``prefix.rule``, in shared blocks of ``shared_tokens``."""
    name = config.prefix.rule
    rule = find_rule(name)
    if config.tiers.retention_tokens is not None and "retention" not in rule.flags:
        raise ConfigError(f"tiers.retention_tokens goes with vllm-v4 rules, not with {name}.")
    chunk_tokens = config.tiers.chunk_tokens if config.tiers.layout == "lmcache" else None
    if not rule.engine:
        if chunk_tokens is not None:
            raise ConfigError(f"tiers.layout lmcache goes with rules of vLLM, not with {name}.")
        objects = _own_objects(memory, shared_tokens)
        useful_bytes = bytes_per_token(memory.schemas)
        return Stored(objects, useful_bytes, NOWHERE, memory.block_tokens)
    engine, model, formats = find_engine(rule.engine), memory.model, config.model.formats
    site = Site(engine.name, model, arch_of(config.cost))
    asked = {place: getattr(formats, place) for place in PLACES}
    names = (stored for stored, _ in stored_formats(site, asked).values())
    held, stored_in = (
        describe_deployment(config, model, memory.schemas),
        choose_formats(model, *names),
    )
    deployment = replace(held, formats=stored_in, arch=site.arch)
    objects = engine.objects(deployment, config.tiers.retention_tokens, chunk_tokens)
    kept = NOWHERE if chunk_tokens is not None else rule.retention
    if chunk_tokens is None and not rule.windows:
        objects = replace(objects, tail=())
    elif not kept.chunks and config.tiers.retention_tokens is not None:
        kept = replace(kept, period_tokens=config.tiers.retention_tokens, ends=True)
    schemas = [build_schema(model, each.layer, formats=stored_in) for each in memory.schemas]
    return Stored(objects, bytes_per_token(schemas), kept, memory.block_tokens)


def _own_objects(memory: MemoryPlan, shared_tokens: int) -> Offloaded:
    """Families of this toolkit's cache; what ``full`` keeps with a block goes with it."""
    blocks = shared_tokens // memory.block_tokens
    pages, ends, kind = list[HostPool](), list[HostPool](), memory.strategy.kind
    for each in families_in(memory.schemas):
        if each.kept is Kept.PAGES:
            pages.append(HostPool(each.name, blocks, each.object_bytes))
        elif each.kept is Kept.WINDOW and kind not in ("full", "zero"):
            ends.append(HostPool(each.name, 1, each.object_bytes))
    if kind == "full" and memory.beside_bytes:
        pages.append(HostPool("windows and states", blocks, memory.beside_bytes))
    return Offloaded(tuple(pages), tuple(ends))


class Sizes(NamedTuple):
    """Bytes of a tier for context, and for tails where these have a pool of their own."""

    context_bytes: int
    tail_bytes: int | None


def size_tier(name: str, config: ReplayConfig, memory: MemoryPlan, stored: Stored) -> Sizes:
    """How a tier's memory is divided; raises ``ConfigError``."""
    tier: TierSection = getattr(config.tiers, name)
    objects, policy = stored.objects, find_rule(config.prefix.rule).policy
    sizes = Sizes(tier.capacity_bytes or 0, None)
    if tier.ratio is not None:
        blocks = int(memory.num_blocks * tier.ratio) // objects.context[0].pages
        sizes = Sizes(blocks * objects.context_bytes, None)
        if policy.index != "hashed" and objects.tail:  # vLLM's blocks hold either
            windows = memory.num_blocks
            if memory.num_checkpoints is not None:
                windows = memory.num_checkpoints
            tails = int(windows * tier.ratio) * objects.tail_bytes
            sizes = Sizes(sizes.context_bytes, tails)
    if name == "host" and policy.host_by_ratio and tier.ratio is None:
        raise ConfigError(
            "tiers.host.capacity_bytes: SGLang sizes host memory only by --hicache-ratio for "
            "these models: give tiers.host.ratio."
        )
    if tier.ratio is not None and objects.blocks > 1:
        raise ConfigError(
            f"tiers.{name}.ratio: LMCache's memory is given in bytes: give "
            f"tiers.{name}.capacity_bytes."
        )
    if sizes.context_bytes < objects.context_bytes:
        raise ConfigError(
            f"tiers.{name} has {format_bytes(sizes.context_bytes)}, and one object of context "
            f"takes {format_bytes(objects.context_bytes)}: give it more."
        )
    return sizes


NEVER = float("inf")


def tail_of(block: int) -> Hashable:
    """The key of the tail behind a block."""
    return "tail", block


class Channel:
    """One direction of a tier, or what a replica sends prompts over."""

    def __init__(
        self, gbps: float, latency_us: float, parallel: int = 1, setup_ms: float = 0.0
    ) -> None:
        """``setup_ms`` are of every transfer."""
        self._bytes_per_s, self._setup_s = gbps * 1e9, setup_ms / 1e3
        self._latency_s, self._parallel = latency_us / 1e6, parallel
        self.moved_bytes = 0  # through it so far
        self.transfers = 0  # in which they were
        self.waited_s = 0.0  # time in which they waited for others
        self.free_s = 0.0  # when the last one ends

    def end_s(self, now_s: float, operations: int, size_bytes: int) -> float:
        """When a transfer that is asked for now would end."""
        took_s = self._setup_s + ceil(operations / self._parallel) * self._latency_s
        return max(now_s, self.free_s) + (took_s + size_bytes / self._bytes_per_s)

    def move(self, now_s: float, operations: int, size_bytes: int) -> float:
        """Ask for a transfer; returns when it ends."""
        self.waited_s += max(0.0, self.free_s - now_s)
        self.free_s = self.end_s(now_s, operations, size_bytes)
        self.moved_bytes += size_bytes
        self.transfers += 1
        return self.free_s


class _Room:
    """Bytes, and the policy by which they are made free."""

    def __init__(self, capacity_bytes: int, eviction: str) -> None:
        self.capacity_bytes, self.used_bytes = capacity_bytes, 0
        self.policy = make_policy(eviction)
        self.key_of: dict[Run, Hashable] = {}


@dataclass(slots=True)
class _Object:
    room: _Room
    size_bytes: int
    parent: int | None
    ready_s: float
    run: Run


class Tier:
    """One tier."""

    def __init__(self, name: str, section: TierSection, sizes: Sizes, stored: Stored) -> None:
        self.name, self.section, self.sizes = name, section, sizes
        each = section.latency_us, section.parallel
        self.read, self.write = (
            Channel(gbps, *each) for gbps in (section.read_gbps, section.write_gbps)
        )
        self.hit_tokens = 0  # tokens of prompts that it gave
        self.moved_blocks = 0  # objects of context that it read or wrote
        self.peak_bytes = 0
        self.lost = Counter[str]()  # tokens that it could have given, by why it did not
        self._objects = objects = stored.objects
        self._context_bytes, self._tail_bytes = objects.context_bytes, objects.tail_bytes
        self._items: dict[Hashable, _Object] = {}
        self._children: Counter[Hashable] = Counter()  # blocks behind blocks
        self._context = _Room(sizes.context_bytes, section.eviction)
        self._tails, self._rooms = self._context, [self._context]
        if sizes.tail_bytes is not None:
            self._tails = _Room(sizes.tail_bytes, section.eviction)
            self._rooms.append(self._tails)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def ready_s(self, key: Hashable) -> float:
        """When an object can be read: once it is written; ``NEVER`` where it is not there."""
        item = self._items.get(key)
        return item.ready_s if item else NEVER

    def serve(self) -> None:
        """What follows is done for one request."""
        for room in self._rooms:
            room.policy.serve(0)

    def use(self, key: Hashable) -> None:
        item = self._items[key]
        item.room.policy.touch(item.run)
        self._offer(key)

    def fits(self, key: Hashable) -> bool:
        """Whether it has room for such an object at all."""
        size_bytes, room = self._place(key)
        return size_bytes <= room.capacity_bytes

    def put(self, key: Hashable, parent: int | None, ready_s: float) -> list[Hashable]:
        """Keep an object behind ``parent`` from a moment on; returns what was evicted for it."""
        gone = list[Hashable]()
        size_bytes, room = self._place(key)
        if size_bytes > room.capacity_bytes:
            return gone
        while room.used_bytes + size_bytes > room.capacity_bytes:
            gone += self._evict(room)
        run = Run(None, [], 0, 1)
        self._items[key] = _Object(room, size_bytes, parent, ready_s, run)
        if parent is not None:
            self._children[parent] += 1
            if parent in self._items:
                self._items[parent].run.ticket = 0
        room.used_bytes += size_bytes
        room.key_of[run] = key
        room.policy.admit(run)
        self._offer(key)
        self.peak_bytes = max(self.peak_bytes, sum(room.used_bytes for room in self._rooms))
        return gone

    def drop(self, key: Hashable) -> None:
        item = self._items.pop(key)
        item.room.used_bytes -= item.size_bytes
        del item.room.key_of[item.run]
        item.run.ticket = 0
        if item.parent is not None:
            self._children[item.parent] -= 1
            if not self._children[item.parent]:
                del self._children[item.parent]
                self._offer(item.parent)

    def volume(self, keys: Sequence[Hashable]) -> tuple[int, int]:
        """Operations and bytes of some objects."""
        contexts = sum(isinstance(key, int) for key in keys)
        tails = len(keys) - contexts
        size_bytes = contexts * self._context_bytes + tails * self._tail_bytes
        return self._objects.operations(contexts, tails), size_bytes

    def move(self, channel: Channel, now_s: float, keys: Sequence[Hashable]) -> float:
        """Load or store objects by ``read`` or ``write``; returns when that ends."""
        self.moved_blocks += sum(isinstance(key, int) for key in keys)
        return channel.move(now_s, *self.volume(keys))

    def _place(self, key: Hashable) -> tuple[int, _Room]:
        if isinstance(key, int):
            return self._context_bytes, self._context
        return self._tail_bytes, self._tails

    def _offer(self, key: Hashable) -> None:
        item = self._items.get(key)
        if item and key not in self._children:
            item.room.policy.offer(item.run)

    def _evict(self, room: _Room) -> list[Hashable]:
        run = room.policy.choose()
        key = room.key_of[run]
        room.policy.dropped(run)
        gone = [key]
        if isinstance(key, int) and tail_of(key) in self._items:
            gone.append(tail_of(key))
        for each in gone:
            self.drop(each)
        return gone
