"""Prefixes beyond the GPU's memory: stored from a live cache, looked up, restored into one.

A prefix's pages are shared by all prompts that begin as it does; its resume points have windows
and states of their own, and a manifest that is written last. Every object that comes back must
have its digest in the manifest before a request may use it: if one is missing, damaged or
another's, the request's blocks are given back, and it begins at an earlier resume point, or at its
first token.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsv4kv.cache.manager import prepare_forward
from dsv4kv.choices import PREFETCH_POLICIES, choose
from dsv4kv.errors import CacheError
from dsv4kv.model.plan import CHECKPOINT_TOKENS
from dsv4kv.tiers.cache_bytes import CacheBytes
from dsv4kv.tiers.device import Objects
from dsv4kv.tiers.families import Family, Kept
from dsv4kv.tiers.prefixes import Manifest, Prefix, namespace_of, resume_points
from dsv4kv.tiers.stack import Stack, Wanted
from dsv4kv.tiers.stores.contract import Bytes
from dsv4kv.tiers.tier import Node, Tier
from dsv4kv.tiers.windows import Windows

_CHUNK_BYTES = 32 << 20  # moved at a time: enough for many threads of a store, little of memory
_ATTEMPTS = 4  # resume points that are tried before a prompt is computed from its first token
_TIMEOUT_S, _TIMEOUT_S_PER_TOKEN = 1.0, 0.25 / 1024  # SGLang 0.5.23, prefetch policy timeout


@dataclass(frozen=True)
class Found:
    """Where a request can resume.

    Attributes:
        points: Tokens after which everything is there, rising.
        bare: Tokens whose pages are there, to be resumed at by computing the window again, rising.
    """

    points: tuple[int, ...] = ()
    bare: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stored:
    """What a request left.

    Attributes:
        tokens: After which it can be resumed; 0 if it cannot.
        written_bytes: By all tiers together.
    """

    tokens: int
    written_bytes: int


@dataclass(frozen=True)
class Restored:
    """What a request has got back.

    Attributes:
        tokens: That it holds: computing goes on here.
        point: Tokens that were found. Where that is more, the window is computed again up to
            here, and ``Library.complete`` called then.
        exact: Whether the bits are those of a run that never left.
        read_bytes: Read for it.
        failed: Resume points that were tried before, and were not all there.
        pages: Families of pages, their first block and bytes, that ``complete`` puts in place.
    """

    tokens: int = 0
    point: int = 0
    exact: bool = True
    read_bytes: int = 0
    failed: int = 0
    pages: Sequence[tuple[Family, int, Objects]] = field(default=(), repr=False)


@dataclass(frozen=True)
class _Point:
    """A resume point that is being read.

    Attributes:
        prefix: Its prompt.
        manifest: Its manifest.
        whole: Whether it has window and states.
        tiers: That are asked.
    """

    prefix: Prefix
    manifest: Manifest
    whole: bool
    tiers: Sequence[Tier]

    @property
    def tokens(self) -> int:
        """Of the prefix."""
        return self.manifest.tokens


class Library:
    """Prefixes of one cache in a stack of tiers.

    Attributes:
        cache: The cache.
        stack: Its tiers.
        windows: Where windows and states are kept.
        namespace: Of the cache's bytes.
        block_tokens: Of a block.
    """

    def __init__(
        self, cache: CacheBytes, tiers: Sequence[Tier], windows: Windows, *, revision: str
    ) -> None:
        """Put tiers, the fastest first, behind a cache that weights of this revision fill."""
        self.cache, self.stack, self.windows = cache, Stack(tiers), windows
        self.namespace = namespace_of(cache.manager.plan, revision)
        self.block_tokens = cache.manager.plan.schemas[0].block_tokens
        families = cache.families.values()
        self._pages = [family for family in families if family.kept is Kept.PAGES]
        self._tails = [family for family in families if family.kept is not Kept.PAGES]
        block_bytes = sum(family.object_bytes for family in self._pages)
        self._chunk = max(1, _CHUNK_BYTES // max(1, block_bytes))
        self._inside: dict[str, set[int]] = {}  # resume points inside a block, by the key before
        self._rooms: dict[str, Objects] = {}
        self._fetcher = ThreadPoolExecutor(1, "prefetch")

    def close(self) -> None:
        """Fetch no more; the tiers stay."""
        self._fetcher.shutdown(cancel_futures=True)

    def prefix(self, tokens: ArrayLike) -> Prefix:
        """A prompt's token ids as tiers know them."""
        return Prefix(self.namespace, tokens, self.block_tokens)

    def lookup(self, prefix: Prefix, tiers: Sequence[Tier] | None = None) -> Found:
        """After which of a prompt's tokens a request can resume, as some or all tiers have it.

        Inside a block these are the places where a prompt of this library ended or this one does.
        """
        tiers = self.stack.tiers if tiers is None else tiers
        inside = self._places_inside(prefix)
        with_tail, bare = (
            self._manifests(prefix, whole=each, tiers=tiers) for each in (True, False)
        )
        ends = np.flatnonzero(with_tail | bare) + 1
        last = max([*ends[-1:].tolist(), *(n // self.block_tokens for n in inside)], default=0)
        pages = [
            self.stack.exists(prefix.names(family, last * self.block_tokens), tiers)
            for family in self._pages
        ]
        reach = len(resume_points(pages, [], last))
        pages = [found[:reach] for found in pages]
        tails = [
            self._tails_at(prefix, family, with_tail[:reach], tiers) for family in self._tails
        ]
        points, replays = (
            (resume_points(pages, marks, reach) * self.block_tokens).tolist()
            for marks in ([with_tail[:reach], *tails], [bare[:reach]])
        )
        for n in inside:
            if n // self.block_tokens <= reach:
                points += [n] if self._is_there(prefix, n, whole=True, tiers=tiers) else []
                replays += [n] if self._is_there(prefix, n, whole=False, tiers=tiers) else []
        return Found(tuple(sorted(points)), tuple(sorted(replays)))

    def store_prefix(self, prefix: Prefix, slot: int, *, leaving: bool = False) -> Stored:
        """Store what a request holds now: whole pages, and a resume point if one is due here.

        Args:
            prefix: Its tokens so far, or more of its prompt.
            slot: Of the request.
            leaving: The cache gives them up, so that a tier that is written back takes them.

        Raises:
            CacheError: The request has more tokens than the prefix.
        """
        tokens = int(self.cache.manager.tokens[slot])
        if tokens > len(prefix):
            raise CacheError(
                f"slot {slot} has {tokens} tokens and the prefix {len(prefix)}: give the tokens "
                "that the request has."
            )
        before = self._written_bytes()
        whole = tokens in self.windows.places(len(prefix), 0, tokens)
        is_there = False
        with self.stack.serving(prefix.keys):
            for part in self._parts(tokens // self.block_tokens):
                self._store_pages(prefix, slot, part, leaving=leaving)
            if tokens and (whole or self.windows.replay_tokens):
                self._store_point(prefix, slot, tokens, whole=whole, leaving=leaving)
                is_there = self._is_there(prefix, tokens, whole=whole, tiers=self.stack.tiers)
        return Stored(tokens if is_there else 0, self._written_bytes() - before)

    def restore(self, prefix: Prefix, slot: int, *, fetched: "Prefetch | None" = None) -> Restored:
        """Give a request that was just admitted as much of its prompt as can be.

        Args:
            prefix: Its prompt, or as much of it as need not be computed.
            slot: Of the request.
            fetched: What is being fetched for it: then the first tier alone is asked.

        Raises:
            OutOfBlocks: The prefix does not fit into what the cache has free.
            CacheError: The slot holds something already.
            In every case, and whatever exception comes in between, the slot holds nothing.
        """
        if self.cache.manager.tokens[slot]:
            raise CacheError(f"slot {slot} has tokens already: restore before its first step.")
        tiers, failed = self.stack.tiers, 0
        if fetched is not None:
            fetched.settle()
            tiers = tiers[:1]
        try:
            for start, tokens, whole in self._ways(prefix, tiers)[:_ATTEMPTS]:
                with self.stack.serving(prefix.keys):
                    point = self._open(prefix, tokens, whole=whole, tiers=tiers)
                    restored = self._load(point, slot, start, failed) if point else None
                if restored is not None:
                    return restored
                self._give_back(slot)
                failed += 1
            return Restored(failed=failed)
        except BaseException:
            self._give_back(slot)
            raise

    def complete(self, slot: int, restored: Restored) -> None:
        """Put pages in place whose tokens were computed again for their window alone.

        What is computed from the middle of a prompt pools its first groups without the tokens
        before, and a model's later layers see less than a whole window: so it must not stay.

        Raises:
            CacheError: The request has not been computed up to ``restored.point``.
        """
        tokens = int(self.cache.manager.tokens[slot])
        if tokens != restored.point:
            raise CacheError(
                f"slot {slot} has {tokens} tokens: complete it when it has {restored.point}."
            )
        self._put(slot, tokens, restored.pages)

    def prefetch(self, prefix: Prefix, policy: str = "wait_complete") -> "Prefetch":
        """Begin to bring what lower tiers have of a prompt into the first one."""
        return Prefetch(self, prefix, policy, self._fetcher)

    def fetch(self, prefix: Prefix, stop: Event) -> None:
        """Bring the best resume point into the first tier, and the pages before it in order."""
        for _, tokens, whole in self._ways(prefix, self.stack.tiers)[:1]:
            with self.stack.serving(prefix.keys):
                point = self._open(prefix, tokens, whole=whole, tiers=self.stack.tiers)
                if point is None or self._read_own(point) is None:
                    return
            for part in self._parts(tokens // self.block_tokens):
                with self.stack.serving(prefix.keys):
                    if stop.is_set() or self._read_pages(point, part) is None:
                        return

    # What is there

    def _manifests(
        self, prefix: Prefix, *, whole: bool, tiers: Sequence[Tier]
    ) -> NDArray[np.bool_]:
        """Which blocks a manifest ends at; bare ones count where windows are computed again."""
        if not whole and not self.windows.replay_tokens:
            return np.zeros(len(prefix.keys), dtype=np.bool_)
        kind = "manifest" if whole else "pages"
        return self.stack.exists(prefix.block_names(kind, len(prefix.keys)), tiers)

    def _tails_at(
        self, prefix: Prefix, family: Family, marked: NDArray[np.bool_], tiers: Sequence[Tier]
    ) -> NDArray[np.bool_]:
        """At which marked blocks a window or state is there, or not needed."""
        found = marked.copy()
        needed = [
            number
            for number in np.flatnonzero(marked).tolist()
            if family.objects((number + 1) * self.block_tokens)
        ]
        names = [prefix.name(prefix.keys[number], family.name) for number in needed]
        found[needed] = self.stack.exists(names, tiers)
        return found

    def _places_inside(self, prefix: Prefix) -> list[int]:
        """Places inside blocks where this prompt, or one that began as it does, ended."""
        size, places = self.block_tokens, {len(prefix)}
        if self._inside:
            for number, key in enumerate(["", *prefix.keys]):
                places |= {number * size + rest for rest in self._inside.get(key, ())}
        return sorted(n for n in places if n % size and n <= len(prefix))

    def _is_there(
        self, prefix: Prefix, tokens: int, *, whole: bool, tiers: Sequence[Tier]
    ) -> bool:
        """Whether all is there that a resume point does not share with others."""
        if not whole and not self.windows.replay_tokens:
            return False
        node = self._point_node(prefix, tokens, whole=whole)
        return bool(self.stack.exists(node.names, tiers).all())

    def _ways(self, prefix: Prefix, tiers: Sequence[Tier]) -> list[tuple[int, int, bool]]:
        """Tokens held at once, tokens found, and whether with a window: the most first."""
        found = self.lookup(prefix, tiers)
        ways = [(tokens, tokens, True) for tokens in found.points]
        ways += [(self._replay_start(tokens), tokens, False) for tokens in found.bare]
        return sorted((way for way in ways if way[0]), reverse=True)

    def _replay_start(self, tokens: int) -> int:
        """Where computing begins so that it ends with a window: where a group of tokens does."""
        grain = self.block_tokens if self.windows.exact else CHECKPOINT_TOKENS
        return max(0, (tokens - self.windows.replay_tokens) // grain * grain)

    # Nodes

    def _page_node(self, prefix: Prefix, number: int) -> Node:
        key, parent = prefix.keys[number], prefix.keys[number - 1] if number else ""
        names = tuple(prefix.name(key, family.name) for family in self._pages)
        return Node(key, parent, names, tuple(family.object_bytes for family in self._pages))

    def _point_node(self, prefix: Prefix, tokens: int, *, whole: bool) -> Node:
        """A resume point's own objects, and last its manifest."""
        key, blocks = prefix.key(tokens), tokens // self.block_tokens
        own = list(self._own(tokens, whole=whole))
        names = [prefix.name(key, family.name) for family, _ in own]
        sizes = [family.object_bytes for family, _ in own]
        names.append(prefix.manifest_name(tokens, whole=whole))
        sizes.append(Manifest.size(self._families(whole=whole), tokens))
        parent = prefix.keys[blocks - 1] if blocks else ""
        return Node(f"{key}.", parent, tuple(names), tuple(sizes))

    def _own(self, tokens: int, *, whole: bool) -> Iterator[tuple[Family, int]]:
        """Objects that a resume point shares with no other, by number of the family's."""
        for family in self._pages:
            if family.objects(tokens) > tokens // self.block_tokens:
                yield family, tokens // self.block_tokens
        for family in self._tails if whole else ():
            if family.objects(tokens):
                yield family, 0

    def _families(self, *, whole: bool) -> list[Family]:
        return [*self._pages, *(self._tails if whole else ())]

    def _parts(self, blocks: int) -> list[range]:
        return [range(at, min(at + self._chunk, blocks)) for at in range(0, blocks, self._chunk)]

    # Storing

    def _store_pages(self, prefix: Prefix, slot: int, part: range, *, leaving: bool) -> None:
        nodes = [self._page_node(prefix, number) for number in part]
        wanted = self.stack.wanted(nodes, leaving=leaving)
        some = np.flatnonzero(np.any(wanted, axis=0)).tolist()
        if not some:
            return
        objects = []
        for family in self._pages:
            units = self.cache.units(family, slot, part.stop * self.block_tokens)
            objects.append(self._room(family, len(some)))
            self.cache.take(family, units[:, [part[i] for i in some]], objects[-1])
        chosen = [[wants[i] for i in some] for wants in wanted]
        self.stack.write([nodes[i] for i in some], _by_node(objects), chosen)

    def _store_point(
        self, prefix: Prefix, slot: int, tokens: int, *, whole: bool, leaving: bool
    ) -> None:
        """Store what a resume point does not share with others, and last its manifest."""
        node = self._point_node(prefix, tokens, whole=whole)
        wanted = self.stack.wanted([node], leaving=leaving)
        if not np.any(wanted):
            return
        own = dict[str, Bytes]()
        for (family, number), name in zip(
            self._own(tokens, whole=whole), node.names, strict=False
        ):
            data = self.cache.new_objects(family, 1)
            self.cache.take(family, self.cache.units(family, slot, tokens)[:, [number]], data)
            own[name] = data.reshape(-1)
        digests = self._digests(prefix, tokens, own, whole=whole)
        if digests is not None:
            manifest = Manifest(tokens, digests).dump()
            self.stack.write([node], [[*own.values(), manifest]], wanted)
            if tokens % self.block_tokens:
                self._inside.setdefault(node.parent, set()).add(tokens % self.block_tokens)

    def _digests(
        self, prefix: Prefix, tokens: int, own: dict[str, Bytes], *, whole: bool
    ) -> dict[str, list[bytes]] | None:
        """Digests of all objects of a prefix by family; None if one is nowhere."""
        found = dict[str, list[bytes]]()
        for family in self._families(whole=whole):
            digests = self.stack.learn(prefix.names(family, tokens), family.object_bytes, own)
            if digests is None:
                return None
            found[family.name] = digests
        return found

    # Restoring

    def _open(
        self, prefix: Prefix, tokens: int, *, whole: bool, tiers: Sequence[Tier]
    ) -> _Point | None:
        """A resume point by its manifest; None if that is gone or damaged."""
        node, families = self._point_node(prefix, tokens, whole=whole), self._families(whole=whole)
        data = np.empty(node.sizes[-1], dtype=np.uint8)
        for tier in tiers:
            if tier.get(node.names[-1:], [data]).all():
                manifest = Manifest.load(data, families, tokens)
                if manifest is not None:
                    return _Point(prefix, manifest, whole, tiers)
                tier.lose(node, damaged=True)
        return None

    def _load(self, point: _Point, slot: int, start: int, failed: int) -> Restored | None:
        """Restore a request up to ``start``; None if something is not there."""
        manager, size, whole = self.cache.manager, self.block_tokens, start == point.tokens
        own, later = self._read_own(point), list[Placed]()
        if own is not None and not whole:
            again = self._read_pages(point, range(start // size, point.tokens // size))
            own = None if again is None else own
            later = [(f, first, data.copy()) for f, first, data in again or ()] + (own or [])
        if own is None:
            return None
        read_bytes = sum(data.nbytes for _, _, data in own + later)
        prepare_forward(manager, [slot], [0], [start])
        for part in self._parts(start // size if whole else -(-start // size)):
            pages = self._read_pages(point, part)
            if pages is None:
                return None
            read_bytes += sum(data.nbytes for _, _, data in pages)
            self._put(slot, start, pages)
        self._put(slot, start, own if whole else [])
        exact = point.whole or self.windows.exact
        return Restored(start, point.tokens, exact, read_bytes, failed, later)

    def _put(self, slot: int, tokens: int, placed: "Sequence[Placed]") -> None:
        for family, first, data in placed:
            units = self.cache.units(family, slot, tokens)[:, first : first + len(data)]
            self.cache.put(family, units, data)

    def _read_own(self, point: _Point) -> "list[Placed] | None":
        """What a resume point shares with no other; None if something is not there."""
        node = self._point_node(point.prefix, point.tokens, whole=point.whole)
        own = list(self._own(point.tokens, whole=point.whole))
        placed = [(family, number, self.cache.new_objects(family, 1)) for family, number in own]
        into = [data.reshape(-1) for _, _, data in placed]
        digests = [point.manifest.digests[family.name][number] for family, number in own]
        wanted = Wanted(node.names[:-1], digests, [node] * len(own), into)
        if not self.stack.read(wanted, point.tiers):
            return None
        self.stack.offer([node], [[*into, point.manifest.dump()]])
        return placed

    def _read_pages(self, point: _Point, part: range) -> "list[Placed] | None":
        """Whole pages, in memory that the next ones are read into; None if one is not there."""
        nodes = [self._page_node(point.prefix, number) for number in part]
        objects = [self._room(family, len(part)) for family in self._pages]
        names, digests, into = list[str](), list[bytes](), list[Bytes]()
        for at, (family, data) in enumerate(zip(self._pages, objects, strict=True)):
            names += [node.names[at] for node in nodes]
            digests += point.manifest.digests[family.name][part.start : part.stop]
            into += list(data.reshape(len(part), -1))
        wanted = Wanted(names, digests, nodes * len(objects), into)
        if not self.stack.read(wanted, point.tiers):
            return None
        self.stack.offer(nodes, _by_node(objects))
        return [(f, part.start, data) for f, data in zip(self._pages, objects, strict=True)]

    def _give_back(self, slot: int) -> None:
        """Let a slot be as if it had just been admitted."""
        manager = self.cache.manager
        prepare_forward(manager, [slot], [int(manager.tokens[slot])], [0])
        for states in manager.states.values():
            states.reset_slot(slot)

    def _room(self, family: Family, count: int) -> Objects:
        """Memory for objects, used again and again: new pages take longer than what is copied."""
        room = self._rooms.get(family.name)
        if room is None or len(room) < count:
            room = self._rooms[family.name] = self.cache.new_objects(
                family, max(count, self._chunk)
            )
        return room[:count]

    def _written_bytes(self) -> int:
        return sum(tier.totals.stored for tier in self.stack.tiers)


Placed = tuple[Family, int, Objects]
"""Objects of a family, and the number of the first in the prefix."""


def _by_node(objects: Sequence[Objects]) -> list[list[Bytes]]:
    """Bytes of every node's objects, from those of every family."""
    return [[each.reshape(-1) for each in parts] for parts in zip(*objects, strict=True)]


class Prefetch:
    """What is being fetched for a request that waits."""

    def __init__(
        self, library: Library, prefix: Prefix, policy: str, pool: ThreadPoolExecutor
    ) -> None:
        """Begin; ``policy`` is one of ``choices.PREFETCH_POLICIES``."""
        choose(PREFETCH_POLICIES, policy, "a prefetch policy")
        self._stop = Event()
        self._wait_s = {
            "best_effort": 0.0,
            "wait_complete": None,
            "timeout": _TIMEOUT_S + _TIMEOUT_S_PER_TOKEN * len(prefix),
        }[policy]
        self._work: Future[None] = pool.submit(library.fetch, prefix, self._stop)

    def settle(self) -> None:
        """The request is to begin: wait as long as the policy does, and fetch no more then."""
        with suppress(TimeoutError):
            self._work.result(self._wait_s)
        self._stop.set()
        if not self._work.cancel():
            self._work.result()
