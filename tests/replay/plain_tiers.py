"""Tiers below the GPU, told plainly beside a replay, call by call.

A tier is a list of objects that is searched from end to end. An object is a block of context, or
the windows and states behind one (``("tail", block)``); what was used longest ago goes first, no
block before those behind it, and its tail goes with it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil
from typing import Any

from dsv4kv.core.served import Hit, Served
from dsv4kv.replay.build import Replay
from dsv4kv.replay.tier import Tier
from dsv4kv.replay.tiers import TIMEOUT_PER_1024_S, TIMEOUT_S, Tiers

Key = int | tuple[str, int]


@dataclass
class Thing:
    """An object: bytes, the block before it, when it can be read, and when it was used."""

    key: Any
    size: int
    parent: int | None
    ready: float
    used: int
    turn: int


class PlainTier:
    """One tier."""

    def __init__(self, tier: Tier, sizes: dict[bool, int], operations: dict[bool, int]) -> None:
        self.section, self.sizes, self.operations = tier.section, sizes, operations
        room, apart = tier.sizes
        self.apart = apart is not None
        self.room = {True: room, False: room if apart is None else apart}
        self.things: list[Thing] = []
        self.now, self.turns = 0, count()
        self.free = {"read": 0.0, "write": 0.0}
        self.moved = {"read": 0, "write": 0}

    def get(self, key: Any) -> Thing | None:
        return next((thing for thing in self.things if thing.key == key), None)

    def readable(self, key: Any, at: float) -> bool:
        thing = self.get(key)
        return thing is not None and thing.ready <= at

    def held(self, is_block: bool) -> int:
        alike = [t for t in self.things if not self.apart or isinstance(t.key, int) == is_block]
        return sum(thing.size for thing in alike)

    def is_leaf(self, key: Any) -> bool:
        return not any(thing.parent == key for thing in self.things)

    def use(self, key: Any) -> None:
        thing = self.get(key)
        assert thing
        thing.used = self.now
        if self.is_leaf(key):
            thing.turn = next(self.turns)

    def put(self, key: Any, parent: int | None, ready: float) -> list[Any]:
        is_block, gone = isinstance(key, int), list[Any]()
        size = self.sizes[is_block]
        if size > self.room[is_block]:
            return []
        while self.held(is_block) + size > self.room[is_block]:
            gone += self.evict(is_block)
        self.things.append(Thing(key, size, parent, ready, self.now, next(self.turns)))
        return gone

    def evict(self, is_block: bool) -> list[Any]:
        alike = [t for t in self.things if not self.apart or isinstance(t.key, int) == is_block]
        leaves = [thing for thing in alike if self.is_leaf(thing.key)]
        first = min(leaves, key=lambda thing: (thing.used, thing.turn))
        gone = [first.key]
        if isinstance(first.key, int) and self.get(("tail", first.key)):
            gone.append(("tail", first.key))
        for key in gone:
            self.drop(key)
        return gone

    def drop(self, key: Any) -> None:
        thing = self.get(key)
        assert thing
        self.things.remove(thing)
        parent = self.get(thing.parent) if thing.parent is not None else None
        if parent and self.is_leaf(parent.key):
            parent.turn = next(self.turns)

    def move(self, way: str, now: float, keys: Sequence[Any]) -> tuple[float, float]:
        """When a transfer begins and ends."""
        begin = max(now, self.free[way])
        operations = sum(self.operations[isinstance(key, int)] for key in keys)
        size = sum(self.sizes[isinstance(key, int)] for key in keys)
        gbps = self.section.read_gbps if way == "read" else self.section.write_gbps
        rounds = ceil(operations / self.section.parallel)
        self.free[way] = begin + (rounds * (self.section.latency_us / 1e6) + size / (gbps * 1e9))
        self.moved[way] += size
        return begin, self.free[way]


class PlainTiers:
    """Does all that tiers do, and compares what comes of it."""

    def __init__(self, replay: Replay) -> None:
        """Watch a replay that has not begun."""
        tiers = replay.tiers
        assert isinstance(tiers, Tiers)
        self.real, self.section = tiers, replay.config.tiers
        self.clock, self.compute_s = replay.scheduler.clock, tiers._compute_s
        objects = tiers.stored.objects
        self.tails, self.inside = bool(objects.tail), objects.ends_inside
        self.chunk, self.tokens = objects.blocks, tiers._tokens
        sizes = {True: objects.context_bytes, False: objects.tail_bytes}
        operations = {True: objects.operations(1, 0), False: objects.operations(0, 1)}
        self.tiers = [PlainTier(tier, sizes, operations) for tier in tiers.tiers]
        self.offers: Counter[Any] = Counter()
        self.parents: dict[int, int | None] = {}
        self.done: Counter[int] = Counter()
        self.asks: dict[int, dict[str, Any]] = {}
        self.on_the_way = self.asked = self.restored = 0
        self._really = tiers.offer, tiers.forget, tiers.fetch, tiers.restore
        for name in ("offer", "forget", "fetch", "restore"):
            setattr(tiers, name, getattr(self, name))

    def units(self, served: Served, blocks: int) -> list[int]:
        keys = served.keys[:blocks]
        return [keys[end - 1] for end in range(self.chunk, len(keys) + 1, self.chunk)]

    # ---- writing --------------------------------------------------------------------------------

    def offer(self, served: Served, blocks: int, tails: Sequence[int]) -> None:
        keys = self.units(served, blocks)
        done = self.done[served.number]
        new: list[Any] = keys[done:]
        behind = [("tail", int(served.keys[place - 1])) for place in tails]
        self.done[served.number] = max(done, len(keys))
        for number in range(done, len(keys)):
            self.parents[keys[number]] = keys[number - 1] if number else None
        self.offers.update([*new, *behind])
        when = self.clock.now_s
        for place, tier in enumerate(self.tiers if new or behind else []):
            tier.now += 1
            missing = []
            for key in [*new, *behind]:
                if tier.get(key):
                    tier.use(key)
                elif self.offers[key] >= tier.section.threshold and self.has_room(tier, key):
                    missing.append(key)
            if missing and tier.section.write != "write_back":
                when = self.write(place, missing, when)
        self._really[0](served, blocks, tails)
        self.check()

    def has_room(self, tier: PlainTier, key: Any) -> bool:
        return tier.sizes[isinstance(key, int)] <= tier.room[isinstance(key, int)]

    def write(self, place: int, keys: Sequence[Any], now: float) -> float:
        _, end = self.tiers[place].move("write", now, keys)
        for key in keys:
            self.put(place, key, end)
        return end

    def put(self, place: int, key: Any, ready: float) -> None:
        parent = self.parents.get(key) if isinstance(key, int) else None
        gone = self.tiers[place].put(key, parent, ready)
        if gone and place + 1 < len(self.tiers):
            below = self.tiers[place + 1]
            if below.section.write == "write_back":
                self.write_back(place + 1, gone)

    def write_back(self, place: int, keys: Sequence[Any]) -> None:
        tier = self.tiers[place]
        new = [k for k in keys if not tier.get(k) and self.has_room(tier, k)]
        new = [k for k in new if self.offers[k] >= tier.section.admission]
        if new:
            tier.now += 1
            self.write(place, new, self.clock.now_s)

    def forget(self, blocks: Sequence[int], tails: Sequence[int]) -> None:
        if self.tiers[0].section.write == "write_back":
            self.write_back(0, [*(("tail", key) for key in tails), *reversed(blocks)])
        self._really[1](blocks, tails)
        self.check()

    # ---- reading --------------------------------------------------------------------------------

    def best(self, keys: Sequence[int], reach: int, there: Any) -> int:
        """Objects behind the last of which there are windows and states, where they are needed."""
        if not (self.tails or self.inside):
            return reach
        places = [0]
        for place in range(1, reach + 1):
            key = keys[place - 1]
            if there(key if self.inside else ("tail", key)):
                places.append(place)
        return places[-1]

    def needed(self, keys: Sequence[int], first: int, best: int) -> list[Any]:
        found: list[Any] = list(keys[first:best])
        if self.tails:
            found.append(("tail", keys[best - 1]))
        elif self.inside and not found:
            found.append(keys[best - 1])
        return found

    def fetch(self, served: Served, found: int, usable: int) -> None:
        self._really[2](served, found, usable)
        if len(self.tiers) == 1:
            return
        now, keys, host = self.clock.now_s, self.units(served, usable), self.tiers[0]

        def anywhere(key: Any) -> bool:
            lower = any(tier.readable(key, now) for tier in self.tiers[1:])
            return host.get(key) is not None or lower

        first = reach = found // self.chunk
        while reach < len(keys) and anywhere(keys[reach]):
            reach += 1
        best = self.best(keys, reach, anywhere)
        least = 0 if self.tails or self.inside else first
        wanted = self.needed(keys, first, best) if best > least else []
        missing = [key for key in wanted if not host.get(key)]
        present = [key for key in wanted if host.get(key)]
        late = [key for key in present if not host.readable(key, now)]
        host.now += 1
        for key in present:
            host.use(key)
        there = best * self.chunk
        tokens = (there - found if there > found else there) * self.tokens
        ask = self.asks[served.number] = {
            "since": now, "own": {}, "late": late, "tokens": tokens, "bytes": 0,
        }  # fmt: skip
        size = sum(host.sizes[isinstance(key, int)] for key in missing)
        most = self.section.prefetch_share * host.room[True]
        if missing and tokens >= self.section.prefetch_tokens and self.on_the_way + size <= most:
            self.on_the_way += size
            ask["bytes"] = size
            for tier in self.tiers[1:]:
                its = [k for k in missing if k not in ask["own"] and tier.readable(k, now)]
                if not its:
                    continue
                begin, end = tier.move("read", now, its)
                for number, key in enumerate(its, start=1):
                    tier.use(key)
                    ask["own"][key] = begin + (end - begin) * number / len(its)
                    self.put(0, key, ask["own"][key])
            host.move("write", now, list(ask["own"]))
        self.check()

    def restore(self, served: Served, hit: Hit, usable: int) -> Hit:
        now, host = self.clock.now_s, self.tiers[0]
        at, keys = self.settle(self.asks.pop(served.number, None), now), self.units(served, usable)
        first = reach = hit.found // self.chunk
        while reach < len(keys) and host.readable(keys[reach], at):
            reach += 1
        best = self.best(keys, reach, lambda key: host.readable(key, at))
        resumed, ready = hit.resumed, at
        if best * self.chunk > hit.resumed:
            needed = self.needed(keys, first, best)
            begin, end = hit.resumed * self.tokens, best * self.chunk * self.tokens
            if end - begin >= self.section.load_tokens:
                before = dict(host.free), dict(host.moved)
                _, there = host.move("read", at, needed)
                if self.section.compare and self.compute_s(begin, end) < there - now:
                    host.free, host.moved = before
                else:
                    resumed, ready = best * self.chunk, there
                    host.now += 1
                    for key in needed:
                        host.use(key)
        if served.admitted_s is None:
            self.restored += (resumed - hit.resumed) * self.tokens
            known = [key in self.offers for key in keys] + [False]
            ends = max(known.index(False) * self.chunk, reach * self.chunk, resumed)
            self.asked += max(0, ends - hit.resumed) * self.tokens
        found = self._really[3](served, hit, usable)
        assert (found.resumed, served.ready_s) == (resumed, ready)
        self.check()
        return found

    def settle(self, ask: dict[str, Any] | None, now: float) -> float:
        if ask is None:
            return now
        host = self.tiers[0]
        kept = [thing for key in (*ask["own"], *ask["late"]) if (thing := host.get(key))]
        end = max((thing.ready for thing in kept), default=now)
        limit = ask["since"] + TIMEOUT_S + TIMEOUT_PER_1024_S * ask["tokens"] / 1024
        until = {"best_effort": now, "wait_complete": end, "timeout": min(end, limit)}
        at: float = max(now, until[self.section.prefetch])
        for key, there in ask["own"].items():
            thing = host.get(key)
            if thing and there > at and thing.ready == there:
                host.drop(key)
        self.on_the_way -= ask["bytes"]
        return at

    def check(self) -> None:
        """The same objects, to be read from the same moments, and the same bytes moved."""
        for plain, real in zip(self.tiers, self.real.tiers, strict=True):
            shelf = real._items
            assert {thing.key: thing.ready for thing in plain.things} == {
                key: item.ready_s for key, item in shelf.items()
            }
            assert plain.moved == {
                "read": real.read.moved_bytes, "write": real.write.moved_bytes,
            }  # fmt: skip
        asked, restored = self.real.asked_tokens, self.real.restored_tokens
        assert (asked, restored) == (self.asked, self.restored)
        lost = sum(tier.lost.total() for tier in self.real.tiers)
        assert asked == restored + lost
        assert restored == sum(tier.hit_tokens for tier in self.real.tiers)
