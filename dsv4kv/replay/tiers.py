"""Tiers below the GPU, counted: what they hold, what they bring back and when, and why not more.

A request is brought back from the first; what is only below it is fetched into it while the
request waits. (The rules: SGLang 0.5.23, ``hicache``; vLLM 0.33, ``v1/kv_offload``.)
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from dsv4kv.config.replay import ReplayConfig, TiersSection
from dsv4kv.core.clock import VirtualClock
from dsv4kv.core.served import Hit, Served
from dsv4kv.engines.names import find_rule
from dsv4kv.errors import ConfigError
from dsv4kv.replay.memory import MemoryPlan
from dsv4kv.replay.tier import NEVER, Stored, Tier, find_stored, size_tier, tail_of

TIMEOUT_S, TIMEOUT_PER_1024_S = 1.0, 0.25  # SGLang's longest wait for a fetch, by its tokens


@dataclass
class Fetch:
    """What a waiting request has asked for from below the first tier."""

    since_s: float  # when
    # what is on its way for it, with the tier that it comes from and when it is there
    own: dict[Hashable, tuple[Tier, float]] = field(default_factory=dict)
    awaited: list[Hashable] = field(default_factory=list)  # of others, what is on its way already
    tokens: int = 0  # that it would save to compute
    refused: str = ""  # why nothing was fetched although there was something; empty where it was


class SharedTiers(dict[str, Tier]):
    """Tiers that several servers have in common, by name, made by the first that is built."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[int, int | None] = {}  # the block before every one that was offered


class Tiers:
    """All tiers, the one next to the GPUs first; see ``Below``."""

    def __init__(
        self,
        tiers: Sequence[Tier],  # they, the one next to the GPUs first
        section: TiersSection,  # how things are fetched
        stored: Stored,  # what they keep
        block_tokens: int,  # tokens of a shared block
        clock: VirtualClock,  # the server's
        # says how long computing a prompt from one token to another takes
        compute_s: Callable[[int, int], float],
        parents: dict[int, int | None],  # the block before every block that was offered
    ) -> None:
        self.tiers = tiers
        self.stored = stored  # what they keep
        self.asked_tokens = 0  # first admissions: cached once, and not resumable on the GPU
        self.restored_tokens = 0  # of these; the others are lost at a tier
        self._section, self._tokens, self._clock = section, block_tokens, clock
        self._compute_s, self._blocks = compute_s, stored.objects.blocks
        # whether going on behind an object of context takes more than it
        self._needs_ends = bool(stored.objects.tail) or stored.objects.ends_inside
        self._offers: Counter[Hashable] = Counter()
        self._kept: dict[Hashable, Tier] = {}  # ever, and where last
        self._parents = parents
        self._fetches: dict[int, Fetch] = {}
        self._on_the_way = 0
        self._first, self._lower = tiers[0], tiers[1:]
        self.fetches, self.object_tokens = bool(self._lower), self._blocks * self._tokens

    def offer(self, served: Served, blocks: int, tails: Iterable[int]) -> None:
        """A prompt's leading blocks are cached, and tails behind some; write what is to be."""
        size, first = self._blocks, served.offered
        keys = served.keys[(first + 1) * size - 1 : blocks : size]
        behind = [tail_of(served.keys[place - 1]) for place in tails]
        served.offered += len(keys)
        if not keys and not behind:
            return
        before = served.keys[first * size - 1] if first else None
        self._parents.update(zip(keys, [before, *keys], strict=False))
        self._offers.update(keys)
        self._offers.update(behind)
        when_s = self._clock.now_s
        for place, tier in enumerate(self.tiers):
            tier.serve()
            new = []
            for key in (*keys, *behind):
                if key in tier:
                    tier.use(key)
                elif self._offers[key] >= tier.section.threshold and tier.fits(key):
                    new.append(key)
            if new and tier.section.write != "write_back":
                when_s = self._store(place, new, when_s)

    def forget(self, blocks: Sequence[int], tails: Sequence[int]) -> None:
        if self._first.section.write == "write_back":
            gone = [*(tail_of(block) for block in tails), *reversed(blocks)]
            self._write_back(0, gone, self._clock.now_s)

    def _write_back(self, place: int, keys: Sequence[Hashable], now_s: float) -> None:
        tier = self.tiers[place]
        new = [key for key in keys if key not in tier and tier.fits(key)]
        new = [key for key in new if self._offers[key] >= tier.section.admission]
        if new:
            tier.serve()
            self._store(place, new, now_s)

    def _store(self, place: int, keys: Sequence[Hashable], now_s: float) -> float:
        tier = self.tiers[place]
        ready_s = tier.move(tier.write, now_s, keys)
        for key in keys:
            self._put(place, key, ready_s)
        return ready_s

    def _put(self, place: int, key: Hashable, ready_s: float) -> None:
        parent = self._parents.get(key) if isinstance(key, int) else None
        gone = self.tiers[place].put(key, parent, ready_s)
        self._kept[key] = self.tiers[place]
        below = place + 1
        if gone and below < len(self.tiers) and self.tiers[below].section.write == "write_back":
            self._write_back(below, gone, self._clock.now_s)

    def fetch(self, served: Served, found: int, usable: int) -> None:
        """A request has come; the GPU holds ``found`` blocks: fetch what is below the first."""
        now_s = self._clock.now_s
        ask = self._fetches[served.number] = Fetch(now_s)
        keys = self._keys(served, usable)
        first = reach = found // self._blocks
        while reach < len(keys) and self._source(keys[reach], now_s):
            reach += 1
        best = self._last_end(keys, reach, lambda key: self._source(key, now_s) is not None)
        host = self._first
        useful = best > (0 if self._needs_ends else first)
        wanted = self._needed(keys, first, best) if useful else []
        missing = [key for key in wanted if key not in host]
        present = [key for key in wanted if key in host]
        ask.awaited = [key for key in present if host.ready_s(key) > now_s]
        there = best * self._blocks  # a tail alone may save as much as all before it
        ask.tokens = (there - found if there > found else there) * self._tokens
        self._use(present)
        if not missing:
            return
        size = self._first.volume(missing)[1]
        most = self._section.prefetch_share * self._first.sizes.context_bytes
        if ask.tokens < self._section.prefetch_tokens:
            ask.refused = "too_short"
        elif self._on_the_way + size > most:
            ask.refused = "prefetch_limit"
        if ask.refused:
            return
        self._on_the_way += size
        for tier in self._lower:
            held = [k for k in missing if k not in ask.own and tier.ready_s(k) <= now_s]
            if not held:
                continue
            begin_s = max(now_s, tier.read.free_s)
            end_s = tier.move(tier.read, now_s, held)
            for number, key in enumerate(held, start=1):
                tier.use(key)
                there_s = begin_s + (end_s - begin_s) * number / len(held)
                ask.own[key] = tier, there_s
                self._put(0, key, there_s)
        self._first.move(self._first.write, now_s, list(ask.own))

    def _settle(self, ask: Fetch | None, now_s: float) -> float:
        """The moment at which fetched objects count; others are dropped."""
        if ask is None:
            return now_s
        host, section = self._first, self._section
        wanted = [*ask.own, *(key for key in ask.awaited if key in host)]
        end_s = max((host.ready_s(key) for key in wanted if key in host), default=now_s)
        limit_s = ask.since_s + TIMEOUT_S + TIMEOUT_PER_1024_S * ask.tokens / 1024
        until_s = {"best_effort": now_s, "wait_complete": end_s, "timeout": min(end_s, limit_s)}
        at_s = max(now_s, until_s[section.prefetch])
        for key, (_, there_s) in ask.own.items():
            if there_s > at_s and host.ready_s(key) == there_s:
                host.drop(key)
        if ask.own:
            self._on_the_way -= self._first.volume(list(ask.own))[1]
        return at_s

    def restore(self, served: Served, hit: Hit, usable: int) -> Hit:
        """Bring back what goes beyond a hit, of ``usable`` blocks; the hit with it."""
        now_s, host = self._clock.now_s, self._first
        ask = self._fetches.pop(served.number, None)
        served.ready_s = at_s = self._settle(ask, now_s)
        keys, size = self._keys(served, usable), self._blocks
        first = reach = hit.found // size
        while reach < len(keys) and host.ready_s(keys[reach]) <= at_s:
            reach += 1
        best = self._last_end(keys, reach, lambda key: host.ready_s(key) <= at_s)
        resumed, refused = hit.resumed, ""
        # what the GPU has and does not resume at, nothing below it makes a hit of
        if needed := self._needed(keys, first, best) if best * size > resumed else []:
            resumed = best * size
            refused = self._refuses(hit.resumed, resumed, needed, at_s)
            if not refused:
                self._use(needed)
                served.ready_s = host.move(host.read, at_s, needed)
        found = hit.resumed if refused else resumed
        if served.admitted_s is None:
            blocks = (hit.resumed, found, resumed)
            self._explain(keys, ask, at_s, reach, blocks, refused)
            self._credit(keys, ask, hit.resumed, first, found)
        if refused:
            return hit
        return Hit(found, max(hit.found, reach * size), max(hit.marked, found))

    def _refuses(self, before: int, after: int, keys: Sequence[Hashable], at_s: float) -> str:
        """Why blocks ``before`` to ``after`` are rather computed; empty if they are not."""
        begin, end = before * self._tokens, after * self._tokens
        if end - begin < self._section.load_tokens:
            return "too_short"
        if not self._section.compare:
            return ""
        there_s = self._first.read.end_s(at_s, *self._first.volume(keys))
        faster = self._compute_s(begin, end) < there_s - self._clock.now_s
        return "recomputed" if faster else ""

    def _explain(
        self,
        keys: Sequence[int],  # objects of context of a prompt
        ask: Fetch | None,  # what was fetched for it
        at_s: float,  # the moment that counts
        reach: int,  # leading objects that are on the GPU or in the first tier then
        # the GPU's hit; what was brought back, and could have been, reaches up to the other two.
        # The rest is lost at the tier that could have given it
        blocks: tuple[int, int, int],
        refused: str,  # why nothing was brought back; empty if it was
    ) -> None:
        """Count what could have been brought back, and why the rest was not."""
        (begun, found, could), size = blocks, self._blocks
        nowhere = ("no_window", self._first)
        lost = Counter[tuple[str, Tier]]()
        known = reach
        while known < len(keys) and keys[known] in self._offers:
            known += 1
        at = found
        if refused:
            lost[refused, self._first] = could - found
            at = could
        there = max(at, reach * size)
        if there > at:  # the context is there
            place = self._last_end(keys, reach, lambda key: key in self._offers) * size
            if place > at:
                reason, tier = self._missing(ask, at_s, self._end_of(keys[place // size - 1]))
                reason = "window_evicted" if reason == "evicted" else reason
                lost[reason, tier] += place - at
            lost[nowhere] += there - max(at, place)
        why = nowhere
        for number in range(reach, known):
            missing = self._missing(ask, at_s, keys[number])
            why = missing if missing[0] else why
            end = max(there, (number + 1) * size)
            lost[why] += end - there
            there = end
        self.asked_tokens += (there - begun) * self._tokens
        self.restored_tokens += (found - begun) * self._tokens
        for (reason, tier), count in lost.items():
            if count:
                tier.lost[reason] += count * self._tokens

    def _missing(self, ask: Fetch | None, at_s: float, key: Hashable) -> tuple[str, Tier]:
        """Why an object cannot be read, empty if it can, and the tier that would have given it."""
        first = self._first
        ready_s = first.ready_s(key)
        if ready_s <= at_s:
            return "", first
        if ask and key in ask.own:
            return "prefetch_timeout", ask.own[key][0]
        if ready_s != NEVER:
            return "not_written", first
        source = self._source(key, ask.since_s) if ask else None
        if ask and source:
            return ask.refused or "no_window", source
        writing = next((tier for tier in self._lower if key in tier), None)
        if writing is None and key in self._kept:
            return "evicted", self._kept[key]
        return "not_written", writing or first

    def _credit(
        self, keys: Sequence[int], ask: Fetch | None, begun: int, first: int, found: int
    ) -> None:
        """Count blocks ``begun`` to ``found`` for tiers; of ``first`` objects only tails."""
        own = ask.own if ask else {}
        needed = self._needed(keys, first, found // self._blocks) if found > begun else []
        for block in range(begun, found):
            unit = block // self._blocks
            key = keys[unit] if unit >= first else needed[-1]
            tier = own[key][0] if key in own else self._first
            tier.hit_tokens += self._tokens

    def _keys(self, served: Served, blocks: int) -> list[int]:
        return served.keys[self._blocks - 1 : blocks : self._blocks]

    def _last_end(self, keys: Sequence[int], reach: int, there: Callable[[Hashable], bool]) -> int:
        """The last of ``reach`` objects that a request can go on behind."""
        while self._needs_ends and reach and not there(self._end_of(keys[reach - 1])):
            reach -= 1
        return reach

    def _end_of(self, key: int) -> Hashable:
        """What has the windows and states behind an object of context."""
        return key if self.stored.objects.ends_inside else tail_of(key)

    def _needed(self, keys: Sequence[int], first: int, best: int) -> list[Hashable]:
        """What it takes to go on behind ``best`` objects where ``first`` are on the GPU."""
        if not self._needs_ends:
            return [*keys[first:best]]
        return list(dict.fromkeys([*keys[first:best], self._end_of(keys[best - 1])]))

    def _source(self, key: Hashable, now_s: float) -> Tier | None:
        """The first tier that has an object; in the first it may still be on its way."""
        if key in self._first:
            return self._first
        return next((tier for tier in self._lower if tier.ready_s(key) <= now_s), None)

    def _use(self, keys: Sequence[Hashable]) -> None:
        self._first.serve()
        for key in keys:
            self._first.use(key)


def build_tiers(
    config: ReplayConfig,
    memory: MemoryPlan,
    shared_tokens: int,
    clock: VirtualClock,
    compute_s: Callable[[int, int], float],
    shared: SharedTiers | None = None,
) -> Tiers | None:
    """The tiers of a configuration, ``shared`` ones too; None where nothing is kept or reused."""
    levels = config.tiers.levels
    if not levels or not config.prefix.reuse:
        return None
    stored = find_stored(config, memory, shared_tokens)
    first, rule = next(iter(levels)), find_rule(config.prefix.rule)
    if levels[first].write == "write_back" and not rule.policy.writes_evicted:
        raise ConfigError(
            f"tiers.{first}.write is write_back: vLLM offloads blocks when they are computed, not "
            "when they are evicted: take write_through or write_through_selective (its "
            "store_threshold of 2), or a rule of SGLang."
        )
    shared, tiers = SharedTiers() if shared is None else shared, list[Tier]()
    for name, section in levels.items():
        own = Tier(name, section, size_tier(name, config, memory, stored), stored)
        is_common = name in config.fleet.shared_tiers
        tiers.append(shared.setdefault(name, own) if is_common else own)
    return Tiers(tiers, config.tiers, stored, shared_tokens, clock, compute_s, shared.parents)
