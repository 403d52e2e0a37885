"""Which replica a request goes to: the rules of public routers.

Each is a function of the request and of what is known of every replica. What a router remembers
itself (what it sent where, whose turn it is) it learns by ``sent``.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import exp
from random import Random
from typing import ClassVar, Protocol

from dsv4kv.choices import ROUTERS
from dsv4kv.config.fleet import DynamoSection, FleetSection, GatewaySection, LlmdSection
from dsv4kv.fleet.views import Asked, History, Ring, View

Views = Sequence[View]


class Router(Protocol):
    """Chooses replicas."""

    @property
    def looks(self) -> frozenset[str]:
        """What it wants to know that takes time to find out.

        ``prefix``: what is cached of a prompt; ``blocks``: which are in use.
        """

    def choose(self, asked: Asked, views: Views) -> int:
        """The replica that a request goes to."""

    def sent(self, asked: Asked, replica: int) -> None:
        """It goes there."""


def least(costs: Sequence[float], draw: Random) -> int:
    """The place of the smallest; among equals any."""
    smallest = min(costs)
    places = [place for place, cost in enumerate(costs) if cost == smallest]
    return places[0] if len(places) == 1 else draw.choice(places)


def least_requests(views: Views) -> int:
    """The replica with the fewest requests; among equals the first."""
    return min(range(len(views)), key=lambda place: views[place].requests)


class Plain:
    """What routers that remember nothing have in common."""

    looks: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, section: FleetSection, replicas: int, draw: Random) -> None:
        self.section, self.replicas, self.draw = section, replicas, draw

    def sent(self, asked: Asked, replica: int) -> None:
        """Nothing to remember."""


class RoundRobin(Plain):
    """In turn. Source: every router has it."""

    def __init__(self, section: FleetSection, replicas: int, draw: Random) -> None:
        super().__init__(section, replicas, draw)
        self._next = 0

    def choose(self, asked: Asked, views: Views) -> int:
        """Whose turn it is."""
        self._next += 1
        return (self._next - 1) % len(views)


class AtRandom(Plain):
    """Any, all alike."""

    def choose(self, asked: Asked, views: Views) -> int:
        """Any."""
        return self.draw.randrange(len(views))


class LeastLoaded(Plain):
    """The one with the fewest requests; among equals the first."""

    def choose(self, asked: Asked, views: Views) -> int:
        """The one with the fewest requests."""
        return least_requests(views)


class PowerOfTwo(Plain):
    """Of two different ones at random the one with fewer requests; of equals the first drawn.

    Source: ``sgl-model-gateway/src/policies/power_of_two.rs``, without loads in tokens.
    """

    def choose(self, asked: Asked, views: Views) -> int:
        """The better one of two."""
        if len(views) == 1:
            return 0
        one = self.draw.randrange(len(views))
        other = (one + 1 + self.draw.randrange(len(views) - 1)) % len(views)
        return one if views[one].requests <= views[other].requests else other


# ---- SGLang's gateway ---------------------------------------------------------------------------


def is_imbalanced(loads: Sequence[int], absolute: int, relative: float) -> bool:
    """Whether one replica has so many more requests than another that prefixes do not count."""
    most, fewest = max(loads), min(loads)
    return most - fewest > absolute and most > relative * fewest


_CHARACTERS = 4  # of a token's text, about; the gateway's tree counts them


class CacheAware(Plain):
    """The longest prefix in one tree of its own past, while nobody has far more requests.

    Where several replicas have the longest, the one last sent it (the gateway takes any that its
    map names first). Source: ``sgl-model-gateway/src/policies/cache_aware.rs``; facts of SGLang
    0.5.23.
    """

    defaults: ClassVar[dict[str, float]] = {
        "cache_threshold": 0.3,
        "balance_abs_threshold": 64,
        "balance_rel_threshold": 1.5,
        "max_tree_size": 67_108_864,
        "eviction_interval_secs": 120,
    }
    """The command line's."""

    def __init__(self, section: FleetSection, replicas: int, draw: Random) -> None:
        super().__init__(section, replicas, draw)
        self.rule = self.defaults | section.gateway.given
        self._tree, self._evict_s = History(replicas), self.rule["eviction_interval_secs"]

    def choose(self, asked: Asked, views: Views) -> int:
        """Least requests where that is out of balance or too little is matched."""
        rule = self.rule
        absolute, relative = int(rule["balance_abs_threshold"]), rule["balance_rel_threshold"]
        if is_imbalanced([view.requests for view in views], absolute, relative):
            return least_requests(views)
        found = [self._tree.matched_tokens(asked, place) for place in range(len(views))]
        longest = max(found)
        if longest <= rule["cache_threshold"] * asked.input_tokens:
            return least_requests(views)
        best = [place for place, tokens in enumerate(found) if tokens == longest]
        return max(best, key=lambda place: self._tree.last_used_s(asked, place, longest))

    def sent(self, asked: Asked, replica: int) -> None:
        """Remember it; from time to time forget what was used least recently."""
        self._tree.add(asked, replica)
        if asked.now_s >= self._evict_s and asked.id_tokens:
            self._tree.shrink(int(self.rule["max_tree_size"] // (_CHARACTERS * asked.id_tokens)))
            self._evict_s = asked.now_s + self.rule["eviction_interval_secs"]


class CacheAwareLibrary(CacheAware):
    """The same with the defaults that the gateway has as a library."""

    defaults: ClassVar[dict[str, float]] = {
        "cache_threshold": 0.5,
        "balance_abs_threshold": 32,
        "balance_rel_threshold": 1.1,
        "max_tree_size": 10_000,
        "eviction_interval_secs": 30,
    }


def first_tokens(asked: Asked, tokens: int) -> object:
    """What distinguishes prompts by their first tokens: the id that covers the last of them."""
    if not asked.blocks:
        return asked.session
    return asked.blocks[min(len(asked.blocks), -(-tokens // asked.id_tokens)) - 1]


def carries(load: int, loads: Sequence[int], factor: float) -> bool:
    """Whether a replica may take one more: has at most ``factor`` times the mean with it."""
    return not sum(loads) or load <= (sum(loads) + 1) / len(loads) * factor


class PrefixHash(Plain):
    """By a hash of the first tokens, unless that replica has far more requests than the mean.

    Source: ``sgl-model-gateway/src/policies/prefix_hash.rs``. Ids of a trace that stand for more
    tokens are hashed as a whole.
    """

    def __init__(self, section: FleetSection, replicas: int, draw: Random) -> None:
        super().__init__(section, replicas, draw)
        self._ring = Ring(replicas)

    def choose(self, asked: Asked, views: Views) -> int:
        """The ring's, or the least loaded that may take one more, or the ring's all the same."""
        rule: GatewaySection = self.section.gateway
        first = self._ring.find(first_tokens(asked, rule.prefix_token_count))
        loads = [view.requests for view in views]
        able = [p for p, load in enumerate(loads) if carries(load, loads, rule.load_factor)]
        if first in able or not able:
            return first
        return min(able, key=loads.__getitem__)


class ConsistentHashing(Plain):
    """By a hash of the session.

    Source: ``sgl-model-gateway/src/policies/consistent_hashing.rs``; ``session`` of vLLM's
    production stack does the same.
    """

    def __init__(self, section: FleetSection, replicas: int, draw: Random) -> None:
        super().__init__(section, replicas, draw)
        self._ring = Ring(replicas)

    def choose(self, asked: Asked, views: Views) -> int:
        """The ring's."""
        return self._ring.find(asked.session)


# ---- dynamo -------------------------------------------------------------------------------------


def dynamo_costs(
    rule: DynamoSection, asked: Asked, views: Views, block_tokens: int
) -> list[float]:
    """The cost of every replica, in blocks.

    What is cached is taken from the prompt tokens to compute, and not below zero (``clamp``; the
    documentation of 1.3 lets it be negative). A replica with more prompt tokens to compute than
    the one with the fewest gets less for its prefix (``overlap_score_credit_decay``).
    Source: ai-dynamo 1.6.1, ``lib/kv-router/src/scheduling/selector/default.rs``.
    """
    credit, decay = rule.overlap_score_credit or 0.0, rule.overlap_score_credit_decay or 0.0
    request_blocks = max(1, -(-asked.input_tokens // block_tokens))
    fewest = min(view.prefill_tokens for view in views)
    costs = []
    for view in views:
        excess = (view.prefill_tokens - fewest) / block_tokens / request_blocks
        overlap = credit / (1 + decay * excess) * view.device_tokens
        overlap += rule.host_cache_hit_weight * view.host_tokens
        overlap += rule.disk_cache_hit_weight * view.disk_tokens
        overlap += rule.shared_cache_multiplier * view.shared_tokens
        prefill = (view.prefill_tokens + asked.input_tokens - overlap) / block_tokens
        if rule.clamp:
            prefill = max(0.0, prefill)
        cost = (rule.prefill_load_scale or 0.0) * prefill + view.decode_blocks
        costs.append(cost + (rule.decode_active_request_weight or 0.0) * view.requests)
    return costs


class Dynamo(Plain):
    """dynamo's KV router: prompt tokens to compute, blocks in use and requests, in blocks.

    At ``router_temperature`` 0 the least cost, among equals any; above it P ∝ exp(−cost/range/T).
    Without ``use_kv_events`` it knows what it sent where in the last ``router_ttl_secs``.
    """

    looks: ClassVar[frozenset[str]] = frozenset({"prefix", "blocks"})
    preset: ClassVar[dict[str, float]] = {
        "overlap_score_credit": 1.0,
        "overlap_score_credit_decay": 0.0,
        "prefill_load_scale": 1.0,
        "decode_active_request_weight": 0.0,
    }

    def __init__(self, section: FleetSection, replicas: int, draw: Random) -> None:
        super().__init__(section, replicas, draw)
        given = section.dynamo
        unset = {name: v for name, v in self.preset.items() if getattr(given, name) is None}
        self.rule = given.model_copy(update=unset)
        self._past = History(replicas, given.router_ttl_secs)

    def choose(self, asked: Asked, views: Views) -> int:
        """The least cost, or one by chance."""
        if not self.rule.use_kv_events:
            for place, view in enumerate(views):
                view.device_tokens = self._past.matched_tokens(asked, place)
        costs = dynamo_costs(self.rule, asked, views, self.section.block_tokens or 1)
        if not self.rule.router_temperature:
            return least(costs, self.draw)
        weights = softmin(costs, self.rule.router_temperature)
        return self.draw.choices(range(len(costs)), weights)[0]

    def sent(self, asked: Asked, replica: int) -> None:
        """Remember it, where no events report it."""
        if not self.rule.use_kv_events:
            self._past.add(asked, replica)


def softmin(costs: Sequence[float], temperature: float) -> list[float]:
    """Probabilities of replicas by their costs, the range of which is the unit."""
    low, width = min(costs), max(costs) - min(costs)
    weights = [exp(-(cost - low) / (width * temperature)) if width else 1.0 for cost in costs]
    return [weight / sum(weights) for weight in weights]


class DynamoAgentic(Dynamo):
    """The same with ``--agentic``: prefixes count twice, computing four times, a request 64."""

    preset: ClassVar[dict[str, float]] = {
        "overlap_score_credit": 2.0,
        "overlap_score_credit_decay": 0.0,
        "prefill_load_scale": 4.0,
        "decode_active_request_weight": 64.0,
    }


class DynamoDecode(Dynamo):
    """The same for a decode pool: blocks in use and requests alone."""

    looks: ClassVar[frozenset[str]] = frozenset({"blocks"})
    preset: ClassVar[dict[str, float]] = {
        "overlap_score_credit": 0.0,
        "overlap_score_credit_decay": 0.0,
        "prefill_load_scale": 0.0,
        "decode_active_request_weight": 0.0,
    }


# ---- llm-d --------------------------------------------------------------------------------------


def prefix_score(rule: LlmdSection, tokens: int, matched_tokens: int) -> float:
    """``prefix-cache-scorer``: the part of a prompt's leading blocks that a replica was sent."""
    size, most = rule.block_size_tokens, rule.max_prefix_blocks_to_match
    total = min(tokens // size, most)
    if not total:
        return 0.0
    matched = min(matched_tokens // size, total)
    share, weight = rule.length_weight, matched / total
    if not share:
        return weight
    length = min(1.0, matched * size / rule.max_length_tokens)
    return share * length**2 + (1 - share) * weight


def spread(values: Sequence[float]) -> list[float]:
    """From 0 for the least to 1 for the greatest; 1 for all where they are equal."""
    low, width = min(values), max(values) - min(values)
    return [(value - low) / width if width else 1.0 for value in values]


def load_aware_score(waiting: int, threshold: int) -> float:
    """``load-aware-scorer``: 0.5 without a queue, and less the longer it is."""
    return 0.5 * (1 - min(waiting, threshold) / threshold)


def llmd_scores(rule: LlmdSection, prefixes: Sequence[float], views: Views) -> list[float]:
    """The weighted sum of all scorers, for every replica.

    Source: llm-d-inference-scheduler and gateway-api-inference-extension, ``scorer``: prefixes as
    given, ``kv-cache-utilization-scorer`` 1 − usage, ``queue-scorer`` from 1 for the shortest
    queue to 0 for the longest, ``load-aware-scorer``.
    """
    queues = spread([-view.waiting for view in views])
    return [
        rule.prefix_weight * prefix
        + rule.kv_utilization_weight * (1 - view.usage)
        + rule.queue_weight * queue
        + rule.load_aware_weight * load_aware_score(view.waiting, rule.queue_threshold)
        for prefix, view, queue in zip(prefixes, views, queues, strict=True)
    ]


class Llmd(Plain):
    """llm-d's endpoint picker with its approximate prefix index: what it sent itself."""

    def __init__(self, section: FleetSection, replicas: int, draw: Random) -> None:
        super().__init__(section, replicas, draw)
        self.rule = section.llmd
        self._past = History(replicas)

    def choose(self, asked: Asked, views: Views) -> int:
        """The greatest score; among equals any."""
        scores = llmd_scores(self.rule, self.prefixes(asked, views), views)
        return least([-score for score in scores], self.draw)

    def prefixes(self, asked: Asked, views: Views) -> list[float]:
        """Of what it was sent."""
        return [
            prefix_score(self.rule, asked.input_tokens, self._past.matched_tokens(asked, place))
            for place in range(len(views))
        ]

    def sent(self, asked: Asked, replica: int) -> None:
        """Remember its leading blocks, and of all the most recent."""
        if not asked.id_tokens:
            return
        size = self.rule.block_size_tokens
        self._past.add(asked, replica, size * self.rule.max_prefix_blocks_to_match)
        self._past.shrink(self.rule.lru_capacity_per_server * size // asked.id_tokens)


class LlmdPrecise(Llmd):
    """The same with its index from events: what is on the GPUs counts 1, in host memory 0.8.

    Scores go from 0 for the replica with the least to 1 for the one with the most, of those that
    have anything; the others have 0, too. Source: ``precise_prefix_cache.go``, ``utils.go``.
    """

    looks: ClassVar[frozenset[str]] = frozenset({"prefix"})

    def prefixes(self, asked: Asked, views: Views) -> list[float]:
        """Of what is known to be cached."""
        host = self.rule.cpu_tier_weight
        found = [view.device_tokens + host * view.host_tokens for view in views]
        there = [tokens for tokens in found if tokens] or [0]
        low, width = min(there), max(there) - min(there)
        return [((t - low) / width if width else 1.0) if t else 0.0 for t in found]

    def sent(self, asked: Asked, replica: int) -> None:
        """Events report it."""


# ---- vLLM's production stack --------------------------------------------------------------------

_QPS_WINDOW_S = 60.0


class LeastQps(Plain):
    """The one with the fewest requests a second in the last minute; one that never had any first.

    Source: ``src/vllm_router/routers/routing_logic.py``, ``_qps_routing``.
    """

    def __init__(self, section: FleetSection, replicas: int, draw: Random) -> None:
        super().__init__(section, replicas, draw)
        self._past: list[deque[float]] = [deque() for _ in range(replicas)]
        self._known: set[int] = set()

    def choose(self, asked: Asked, views: Views) -> int:
        """The one with the fewest."""
        counts = []
        for place, times in enumerate(self._past):
            while times and times[0] < asked.now_s - _QPS_WINDOW_S:
                times.popleft()
            counts.append(len(times) if place in self._known else -1)
        return counts.index(min(counts))

    def sent(self, asked: Asked, replica: int) -> None:
        """Count it."""
        self._past[replica].append(asked.now_s)
        self._known.add(replica)


class KvAware(Plain):
    """The one with the longest prefix, where all but the last tokens are cached; else by session.

    Source: the same, ``KvawareRouter``: LMCache's lookup names one replica [?: the one with the
    most is taken here], ``kv_aware_threshold`` 2,000 tokens.
    """

    looks: ClassVar[frozenset[str]] = frozenset({"prefix"})

    def __init__(self, section: FleetSection, replicas: int, draw: Random) -> None:
        super().__init__(section, replicas, draw)
        self._ring = Ring(replicas)

    def choose(self, asked: Asked, views: Views) -> int:
        """The one with the longest prefix, or the session's."""
        found = [view.device_tokens + view.host_tokens for view in views]
        longest = max(found)
        needed = max(0, asked.input_tokens - self.section.stack.kv_aware_threshold)
        if not longest or longest < needed:
            return self._ring.find(asked.session)
        return found.index(longest)


class PrefixAware(Plain):
    """Any of those with the longest prefix in a trie that forgets nothing.

    Source: the same, ``PrefixAwareRouter``; its chunks are 128 characters, the trace's ids here.
    """

    def __init__(self, section: FleetSection, replicas: int, draw: Random) -> None:
        super().__init__(section, replicas, draw)
        self._trie = History(replicas)

    def choose(self, asked: Asked, views: Views) -> int:
        """Any with the longest."""
        found = [self._trie.matched_tokens(asked, place) for place in range(len(views))]
        return least([-tokens for tokens in found], self.draw)

    def sent(self, asked: Asked, replica: int) -> None:
        """Remember it."""
        self._trie.add(asked, replica)


class Affinity:
    """Keeps a session with its replica, for a while after it was last used (dynamo's option)."""

    def __init__(self, router: Router, ttl_s: float) -> None:
        self.router, self.looks = router, router.looks
        self._ttl_s = ttl_s
        self._last: dict[int, tuple[int, float]] = {}

    def choose(self, asked: Asked, views: Views) -> int:
        """The session's replica; the router's where it has none any more."""
        replica, used_s = self._last.get(asked.session, (0, float("-inf")))
        if asked.now_s - used_s <= self._ttl_s:
            return replica
        return self.router.choose(asked, views)

    def sent(self, asked: Asked, replica: int) -> None:
        """Remember where the session is."""
        self._last[asked.session] = replica, asked.now_s
        self.router.sent(asked, replica)


def open_router(name: str, section: FleetSection, replicas: int, draw: Random) -> Router:
    """A router of ``choices.ROUTERS`` for so many replicas, with the section's settings."""
    make: Callable[[FleetSection, int, Random], Router] = ROUTERS[name].load()
    return make(section, replicas, draw)
