"""Which replica a request goes to: the rules of public routers."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from random import Random

from dsv4kv.config.replay import ROUTERS
from dsv4kv.core.fleet import View, count_leading
from dsv4kv.core.served import Served

Views = Sequence[View]


class History:
    """Blocks by where they were sent; touched last to first, so that prefixes stay."""

    def __init__(self, replicas: int) -> None:
        self._kept: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(replicas)]

    def matched_tokens(self, asked: Served) -> list[int]:
        """Leading tokens of a prompt that each replica was sent before."""
        return [asked.id_tokens * count_leading(asked.trace_blocks, kept) for kept in self._kept]

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

    def __init__(self, replicas: int, block_tokens: int, draw: Random) -> None:
        self.replicas, self.block_tokens, self.draw = replicas, block_tokens, draw
        self._next = 0

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
_MATCHED, _MORE, _TIMES = 0.3, 64, 1.5
"""Defaults of its command line: ``cache_threshold``, the part of a prompt that must match;
``balance_abs_threshold`` and ``balance_rel_threshold``, how many requests more, and how many times
as many, one replica must have to be out of balance."""


class CacheAware(LeastLoaded):
    """The longest prefix in one tree of its own past; the fewest requests where that is short.

    Also these where one has more than another by both thresholds; of equal prefixes the one last
    sent. Source: ``sgl-model-gateway/src/policies/cache_aware.rs``; facts of SGLang 0.5.23.
    """

    def __init__(self, replicas: int, block_tokens: int, draw: Random) -> None:
        super().__init__(replicas, block_tokens, draw)
        self.past = History(replicas)
        self._evict_s = 0.0  # when it did last

    def choose(self, asked: Served, views: Views) -> int:
        loads = [view.requests for view in views]
        most, fewest = max(loads), min(loads)
        found = self.past.matched_tokens(asked)
        longest = max(found)
        out_of_balance = most - fewest > _MORE and most > _TIMES * fewest
        if out_of_balance or longest <= _MATCHED * asked.input_tokens:
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

    def __init__(self, replicas: int, block_tokens: int, draw: Random) -> None:
        super().__init__(replicas, block_tokens, draw)
        self._ring = Ring(replicas)

    def choose(self, asked: Served, views: Views) -> int:
        return self._ring.find(asked.session)


_HOST_WEIGHT, _DISK_WEIGHT = 0.75, 0.25
"""Its defaults: what a block in host memory, or on a disk, takes from the cost."""


def _least(costs: Sequence[float], draw: Random) -> int:
    smallest = min(costs)
    places = [place for place, cost in enumerate(costs) if cost == smallest]
    return places[0] if len(places) == 1 else draw.choice(places)


class Dynamo(Router):
    """dynamo's KV router: prompt tokens to compute, blocks in use and requests, in blocks.

    The least cost, among equals any, as at ``router_temperature`` 0.
    Source: ai-dynamo 1.6.1, ``lib/kv-router/src/scheduling/selector/default.rs``.
    """

    looks = frozenset({"prefix", "blocks"})
    # ``overlap_score_credit``, ``prefill_load_scale`` and ``decode_active_request_weight``: what a
    # cached block takes from the cost, what one to compute costs, and a request
    credit, scale, request_weight = 1.0, 1.0, 0.0

    def choose(self, asked: Served, views: Views) -> int:
        return _least(self.costs(asked, views), self.draw)

    def costs(self, asked: Served, views: Views) -> list[float]:
        """In blocks; what is cached is taken from the prompt tokens, and not below zero."""
        costs = []
        for view in views:
            overlap = self.credit * view.device_tokens + _HOST_WEIGHT * view.host_tokens
            overlap += _DISK_WEIGHT * view.disk_tokens
            tokens = max(0.0, view.prefill_tokens + asked.input_tokens - overlap)
            active = self.request_weight * view.requests
            costs.append(self.scale * (tokens / self.block_tokens) + view.decode_blocks + active)
        return costs


class DynamoAgentic(Dynamo):
    """With ``--agentic``."""

    credit, scale, request_weight = 2.0, 4.0, 64.0


class DynamoDecode(Dynamo):
    """The same for decode replicas, whose prompts are computed elsewhere."""

    looks = frozenset({"blocks"})
    credit, scale, request_weight = 0.0, 0.0, 0.0


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


def open_router(name: str, replicas: int, block_tokens: int, draw: Random) -> Router:
    """``block_tokens``: of a block as the router counts them."""
    router: Router = ROUTERS[name].load()(replicas, block_tokens, draw)
    return router
