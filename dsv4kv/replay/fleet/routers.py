"""Which replica a request goes to: the rules of public routers."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from math import inf
from random import Random

from dsv4kv.config.replay import ROUTERS, DynamoSection, FleetSection
from dsv4kv.core.fleet import View
from dsv4kv.core.served import Served

Views = Sequence[View]

PRESETS: dict[str, dict[str, float]] = {
    "dynamo": {"overlap_score_credit": 1.0, "prefill_load_scale": 1.0},
    "dynamo-agentic": {
        "overlap_score_credit": 2.0,
        "prefill_load_scale": 4.0,
        "decode_active_request_weight": 64.0,
    },
    "dynamo-decode": {},
}
"""Settings of dynamo's section that a router's name stands for; the others are 0."""


class History:
    """Blocks by where they were sent; touched last to first, so that prefixes stay."""

    def __init__(self, replicas: int, ttl_s: float | None = None) -> None:
        """``ttl_s`` is how long a block counts; None for good."""
        self._kept: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(replicas)]
        self._ttl_s = ttl_s

    def matched_tokens(self, asked: Served) -> list[int]:
        """Leading tokens of a prompt that each replica was sent before."""
        blocks = asked.trace_blocks
        oldest_s = -1.0 if self._ttl_s is None else asked.arrival_s - self._ttl_s
        return [
            asked.id_tokens
            * bisect_left(blocks, True, key=lambda block: kept.get(block, -2.0) < oldest_s)
            for kept in self._kept
        ]

    def last_used_s(self, asked: Served, replica: int, tokens: int) -> float:
        """When the last of ``tokens`` matched tokens was sent there."""
        if not tokens:
            return -1.0
        return self._kept[replica][asked.trace_blocks[tokens // asked.id_tokens - 1]]

    def add(self, asked: Served, replica: int) -> None:
        kept = self._kept[replica]
        for block in reversed(asked.trace_blocks):
            kept[block] = asked.arrival_s
            kept.move_to_end(block)

    def shrink(self, most_blocks: int) -> None:
        """Keep of every replica the ``most_blocks`` that were used most recently."""
        for kept in self._kept:
            while len(kept) > most_blocks:
                kept.popitem(last=False)


_POINTS = 160  # of a node: as ketama's


class Ring:
    """Consistent hashing: the replica whose point on a ring is next; which one is arbitrary."""

    def __init__(self, replicas: int) -> None:
        points = [(_hash(f"{r}-{n}"), r) for r in range(replicas) for n in range(_POINTS)]
        self._points = sorted(points)
        self._places = [point for point, _ in self._points]

    def find(self, key: object) -> int:
        place = bisect_left(self._places, _hash(str(key)))
        return self._points[place % len(self._points)][1]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


class Router:
    """Chooses the replica of a request, which ``sent`` reports back; this one round robin."""

    # what it has to know: ``requests``; ``prefix``, what is cached of a prompt; ``blocks``, those
    # in use; ``load``, queues and usage. Where empty it gets no views
    looks: frozenset[str] = frozenset()
    by_session = False  # whether it needs the session of a request

    def __init__(self, name: str, section: FleetSection, replicas: int, draw: Random) -> None:
        self.name, self.section, self.replicas, self.draw = name, section, replicas, draw
        self.past = History(replicas)
        self._next = 0

    @cached_property
    def ring(self) -> Ring:
        return Ring(self.replicas)

    def choose(self, asked: Served, views: Views) -> int:
        self._next += 1
        return (self._next - 1) % self.replicas

    def sent(self, asked: Served, replica: int) -> None: ...


class LeastLoaded(Router):
    """The one with the fewest requests; among equals the first."""

    looks = frozenset({"requests"})

    def choose(self, asked: Served, views: Views) -> int:
        return min(range(len(views)), key=lambda place: views[place].requests)


_EVICTION_S = 120.0  # between evictions from the tree: eviction_interval_secs
_TREE_TOKENS = 67_108_864 // 4  # that it keeps of a replica: max_tree_size, 4 characters a token


class CacheAware(LeastLoaded):
    """The longest prefix in one tree of its own past; the fewest requests where that is short.

    Also these where one has more than another by both thresholds; of equal prefixes the one last
    sent. Source: ``sgl-model-gateway/src/policies/cache_aware.rs``; facts of SGLang 0.5.23.
    """

    _evict_s = 0.0  # when it did last

    def choose(self, asked: Served, views: Views) -> int:
        rule, loads = self.section.gateway, [view.requests for view in views]
        most, fewest = max(loads), min(loads)
        is_far = most - fewest > rule.balance_abs_threshold
        found = self.past.matched_tokens(asked)
        longest = max(found)
        if (is_far and most > rule.balance_rel_threshold * fewest) or (
            longest <= rule.cache_threshold * asked.input_tokens
        ):
            return super().choose(asked, views)
        best = [place for place, tokens in enumerate(found) if tokens == longest]
        return max(best, key=lambda place: self.past.last_used_s(asked, place, longest))

    def sent(self, asked: Served, replica: int) -> None:
        self.past.add(asked, replica)
        if asked.arrival_s >= self._evict_s + _EVICTION_S and asked.id_tokens:
            self.past.shrink(_TREE_TOKENS // asked.id_tokens)
            self._evict_s = asked.arrival_s


class ConsistentHashing(Router):
    """By a hash of the session.

    Source: ``sgl-model-gateway/src/policies/consistent_hashing.rs``; ``session`` of vLLM's
    production stack does the same.
    """

    by_session = True

    def choose(self, asked: Served, views: Views) -> int:
        return self.ring.find(asked.session)


_HOST_WEIGHT, _DISK_WEIGHT, _TTL_S = 0.75, 0.25, 120.0
"""Its defaults: what a block in host memory, or on a disk, takes from the cost, and
``router_ttl_secs``."""


def _least(costs: Sequence[float], draw: Random) -> int:
    smallest = min(costs)
    places = [place for place, cost in enumerate(costs) if cost == smallest]
    return places[0] if len(places) == 1 else draw.choice(places)


class Dynamo(Router):
    """dynamo's KV router: prompt tokens to compute, blocks in use and requests, in blocks.

    The least cost, among equals any, as at ``router_temperature`` 0. Without ``use_kv_events`` it
    knows what it sent where in the last two minutes (its ``router_ttl_secs``).
    Source: ai-dynamo 1.6.1, ``lib/kv-router/src/scheduling/selector/default.rs``.
    """

    looks = frozenset({"prefix", "blocks"})

    def __init__(self, name: str, section: FleetSection, replicas: int, draw: Random) -> None:
        super().__init__(name, section, replicas, draw)
        given, preset = section.dynamo.model_dump(), PRESETS[name]
        values = {n: preset.get(n, 0.0) if v is None else v for n, v in given.items()}
        self.rule = DynamoSection(**values)
        self.past = History(replicas, _TTL_S)

    def choose(self, asked: Served, views: Views) -> int:
        if not self.rule.use_kv_events:
            for view, tokens in zip(views, self.past.matched_tokens(asked), strict=True):
                view.device_tokens = tokens
        return _least(self.costs(asked, views), self.draw)

    def costs(self, asked: Served, views: Views) -> list[float]:
        """In blocks; what is cached is taken from the prompt tokens, and not below zero."""
        rule, size, costs = self.rule, self.section.block_tokens or 1, []
        credit, scale = rule.overlap_score_credit or 0.0, rule.prefill_load_scale or 0.0
        for view in views:
            overlap = credit * view.device_tokens + _HOST_WEIGHT * view.host_tokens
            overlap += _DISK_WEIGHT * view.disk_tokens
            prefill = max(0.0, (view.prefill_tokens + asked.input_tokens - overlap) / size)
            active = (rule.decode_active_request_weight or 0.0) * view.requests
            costs.append(scale * prefill + view.decode_blocks + active)
        return costs

    def sent(self, asked: Served, replica: int) -> None:
        if not self.rule.use_kv_events:
            self.past.add(asked, replica)


class DynamoDecode(Dynamo):
    """The same for decode replicas, whose prompts are computed elsewhere."""

    looks = frozenset({"blocks"})


_PREFIX, _UTILIZATION, _QUEUE, _CPU_TIER = 3.0, 2.0, 2.0, 0.8
"""Weights of its scorers, and what a block in host memory counts in the index."""


class Llmd(Router):
    """llm-d's endpoint picker with an index by events; host memory counts ``_CPU_TIER``.

    Source: llm-d-inference-scheduler and gateway-api-inference-extension, ``scorer``:
    ``precise-prefix-cache-scorer`` from 0 for the shortest prefix that there is to 1;
    ``kv-cache-utilization-scorer`` 1 − usage; ``queue-scorer`` from 1 for the shortest queue to 0
    for the longest.
    """

    looks = frozenset({"load", "prefix"})

    def choose(self, asked: Served, views: Views) -> int:
        return _least([-score for score in self.scores(views)], self.draw)

    def scores(self, views: Views) -> list[float]:
        """The weighted sum of all scorers, for every replica."""
        found = [view.device_tokens + _CPU_TIER * view.host_tokens for view in views]
        there = [tokens for tokens in found if tokens] or [0]
        low, width = min(there), max(there) - min(there)
        longest = max(view.waiting for view in views)
        span, scores = longest - min(view.waiting for view in views), []
        for view, tokens in zip(views, found, strict=True):
            prefix = (tokens - low) / width if width else 1.0
            queue = (longest - view.waiting) / span if span else 1.0
            score = _PREFIX * (prefix if tokens else 0.0)
            scores.append(score + _UTILIZATION * (1 - view.usage) + _QUEUE * queue)
        return scores


_KV_AWARE_TOKENS = 2000  # of a prompt that may be computed: kv_aware_threshold


class KvAware(Router):
    """The one with the longest prefix, where all but the last tokens are cached; else by session.

    Source: the same, ``KvawareRouter``: LMCache's lookup names one replica [?: the one with the
    most is taken here].
    """

    looks = frozenset({"prefix"})
    by_session = True

    def choose(self, asked: Served, views: Views) -> int:
        found = [view.device_tokens + view.host_tokens for view in views]
        longest = max(found)
        needed = max(0, asked.input_tokens - _KV_AWARE_TOKENS)
        if not longest or longest < needed:
            return self.ring.find(asked.session)
        return found.index(longest)


class PrefixAware(Router):
    """Any of those with the longest prefix in a trie that forgets nothing.

    Source: the same, ``PrefixAwareRouter``; its chunks are 128 characters, the trace's ids here.
    """

    def choose(self, asked: Served, views: Views) -> int:
        return _least([-tokens for tokens in self.past.matched_tokens(asked)], self.draw)

    def sent(self, asked: Served, replica: int) -> None:
        self.past.add(asked, replica)


class Affinity(Router):
    """Keeps a session with its replica until ``ttl_s`` after its last use (dynamo's option)."""

    by_session = True

    def __init__(self, router: Router, ttl_s: float) -> None:
        self.router, self.looks, self._ttl_s = router, router.looks, ttl_s
        self._last: dict[int, tuple[int, float]] = {}

    def choose(self, asked: Served, views: Views) -> int:
        replica, used_s = self._last.get(asked.session, (0, -inf))
        if asked.arrival_s - used_s <= self._ttl_s:
            return replica
        return self.router.choose(asked, views)

    def sent(self, asked: Served, replica: int) -> None:
        self._last[asked.session] = replica, asked.arrival_s
        self.router.sent(asked, replica)


def open_router(name: str, section: FleetSection, replicas: int, draw: Random) -> Router:
    router: Router = ROUTERS[name].load()(name, section, replicas, draw)
    ttl_s = section.router_session_affinity_ttl_secs
    return Affinity(router, ttl_s) if ttl_s else router
