"""Several servers behind a router: the ``fleet`` section of a replay.

Settings of a router have the router's own names. The descriptions of the fields are the
documentation: ``dsv4kv replay --schema`` prints them.
"""

from collections.abc import Container, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dsv4kv.choices import Choice, explained
from dsv4kv.config.bench import (
    YEAR_S,
    NonNegative,
    OneOf,
    Positive,
    Seconds,
    Section,
    Share,
    Speed,
)
from dsv4kv.engines.names import TRANSFERS

ROUTERS = {
    "round_robin": Choice("one after the other", "replay.fleet.routers:Router"),
    "least_loaded": Choice("the fewest requests", "replay.fleet.routers:LeastLoaded"),
    "consistent_hashing": Choice(
        "by session; also the production stack's session", "replay.fleet.routers:ConsistentHashing"
    ),
    "cache_aware": Choice(
        "SGLang's gateway: the longest prefix by its own past, unless out of balance",
        "replay.fleet.routers:CacheAware",
    ),
    "dynamo": Choice(
        "dynamo's KV router: the least to compute and to decode", "replay.fleet.routers:Dynamo"
    ),
    "dynamo-agentic": Choice("… with --agentic", "replay.fleet.routers:Dynamo"),
    "dynamo-decode": Choice(
        "… for decode replicas: the least to decode", "replay.fleet.routers:DynamoDecode"
    ),
    "llm-d:precise": Choice(
        "llm-d: prefix by events, unused blocks, short queue", "replay.fleet.routers:Llmd"
    ),
    "production-stack:kvaware": Choice(
        "vLLM's: a replica with all of a prompt but 2,000 tokens, else by session",
        "replay.fleet.routers:KvAware",
    ),
    "production-stack:prefixaware": Choice(
        "… the longest prefix in a trie that forgets nothing", "replay.fleet.routers:PrefixAware"
    ),
}
"""Who chooses the replica of a request."""


MOST_REPLICAS = 4096
"""Of a fleet. A router looks at every replica for every request: at this number, hours of trace
take minutes, and at ten times this number, hours."""

Weight = Annotated[float, Field(ge=0, le=10**9)]
Milliseconds = Annotated[float, Field(ge=0, le=YEAR_S * 10**3)]
LimitMs = Annotated[float, Field(gt=0, le=YEAR_S * 10**3)]


class DynamoSection(Section):
    """dynamo's KV router (1.6.1); null takes what the router's name stands for."""

    overlap_score_credit: Weight | None = None
    """What a cached prompt block takes from the cost: 1; agentic 2; decode 0."""
    prefill_load_scale: Weight | None = None
    """Cost of a prompt block to compute: 1; agentic 4; decode 0."""
    decode_active_request_weight: Weight | None = None
    """Cost of a request, in blocks: 0; agentic 64."""
    use_kv_events: bool = True
    """Whether replicas announce what they cache; else the router counts what it sent there, for
    two minutes."""


class GatewaySection(Section):
    """SGLang's gateway (0.5.23); defaults of its command line."""

    cache_threshold: Share = Field(0.3, description="Part of a prompt that must match.")
    balance_abs_threshold: NonNegative = 64
    """Requests that one replica must have more than another to be out of balance."""
    balance_rel_threshold: Weight = Field(1.5, description="And how many times as many.")


class GroupSection(Section):
    """Replicas of a kind."""

    replicas: NonNegative = Field(0, description="How many.")
    settings: tuple[str, ...] = ()
    """In what they differ from the rest of the configuration, each KEY=VALUE as --set takes it:
    cost.gpus=4."""


class TransferSection(Section):
    """How prompts get from a prefill replica to a decode replica."""

    engine: Annotated[str, OneOf(TRANSFERS)] = Field(
        "blocks", description=f"How many bytes and pieces: {explained(TRANSFERS)}."
    )
    gbps: Speed = 50.0
    """Rate at which a rank of a replica sends, in 10^9 B/s; ranks send the same concurrently."""
    setup_ms: Milliseconds = Field(1.0, description="Time before a transfer begins, in ms.")
    descriptor_us: Annotated[float, Field(ge=0, le=10**6)] = 0.5
    """Time of each piece of memory that it names, in µs."""


class SloSection(Section):
    """What a request must keep to count as good; null does not matter."""

    ttft_ms: LimitMs | None = Field(None, description="Time until its first token, in ms.")
    tpot_ms: LimitMs | None = Field(None, description="Mean time per output token (TPOT), in ms.")
    latency_ms: LimitMs | None = Field(None, description="Time until its last token, in ms.")

    @property
    def limits_s(self) -> dict[str, float]:
        """Those that matter, in s by the name of the time."""
        limits = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "latency": self.latency_ms}
        return {name: limit / 1e3 for name, limit in limits.items() if limit is not None}


class FleetSection(Section):
    """Servers behind a router; with none there is one, alone."""

    replicas: NonNegative = 0
    """Replicas, each of them as the rest of the configuration says."""
    mixed: tuple[str, ...] = ()
    """Further ones that differ, a text for each kind, their number first: "4 cost.gpu=b200
    cost.gpus=4"; quotes keep a value with blanks together."""
    prefill: GroupSection = GroupSection()
    """Replicas that compute prompts, instead of replicas; their prompts are sent on."""
    decode: GroupSection = GroupSection()
    """Replicas that decode, in addition to those that compute prompts; they have no tiers."""
    router: Annotated[str, OneOf(ROUTERS)] = Field(
        "round_robin", description=f"Who chooses the replica: {explained(ROUTERS)}."
    )
    decode_router: Annotated[str, OneOf(ROUTERS)] = "dynamo-decode"
    """Who chooses the decode replica."""
    block_tokens: Positive | None = None
    """Tokens of a router's block; null takes the cache's."""
    event_delay_ms: Milliseconds = 0.0
    """Time until a router knows what a replica has cached or evicted, and its queue, in ms."""
    router_session_affinity_ttl_secs: Seconds = 0.0
    """How long a session stays with its replica after it was last used, in s; 0 leaves it to the
    router."""
    sessions: Literal["trace", "think"] = "trace"
    """When a request comes: as the trace says, or a think time after the answer before it."""
    think_s: Seconds | None = None
    """Think time, in s; null takes the trace's: its time since the answer before, or since the
    request before where answers have no times."""
    shared_tiers: tuple[Literal["host", "disk", "remote"], ...] = ()
    """Which of the tiers all replicas have in common."""
    dynamo: DynamoSection = DynamoSection()
    gateway: GatewaySection = GatewaySection()
    transfer: TransferSection = TransferSection()
    slo: SloSection = Field(SloSection(), description="What a request must keep to count as good.")
    gpu_hour_price: Weight | None = None
    """What a GPU costs in an hour, in any money."""

    @property
    def exists(self) -> bool:
        """Whether there is a fleet."""
        return bool(self.replicas or self.mixed or self.prefill.replicas)

    @property
    def is_split(self) -> bool:
        """Whether prompts are computed by some replicas and decoded by others."""
        return bool(self.prefill.replicas)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.prefill.replicas) != bool(self.decode.replicas):
            raise ValueError(
                "prefill.replicas and decode.replicas go together: give both, or replicas for "
                "servers that do both"
            )
        if self.is_split and (self.replicas or self.mixed):
            raise ValueError(
                "replicas do both, prefill.replicas and decode.replicas one of it: give either"
            )
        mixed = (text.split()[:1] for text in self.mixed)
        count = self.replicas + self.prefill.replicas + self.decode.replicas
        count += sum(int(first) for (first,) in filter(None, mixed) if first.isdecimal())
        if count > MOST_REPLICAS:
            raise ValueError(
                f"{count:,} replicas are more than a fleet may have, {MOST_REPLICAS:,}: every "
                "request is routed by looking at all of them. Take a part of them and the trace "
                "as much slower (workload.speed)"
            )
        return self


def unused_setting(fleets: Sequence[FleetSection], tiers: Container[str]) -> str:
    """Why a setting has no effect at any point of a sweep, and what to do; empty if all have.

    Args:
        fleets: Of every point.
        tiers: Those that there are at any point.
    """
    alone = [name for name in FleetSection.model_fields if any(f.changed(name) for f in fleets)]
    if alone and not any(fleet.exists for fleet in fleets):
        return (
            f"fleet.{alone[0]} is given and there is no fleet: give fleet.replicas (1 is a fleet, "
            "too), or leave it out."
        )
    if "think_s" in alone and all(fleet.sessions != "think" for fleet in fleets):
        return "fleet.think_s is given and fleet.sessions is trace: give fleet.sessions=think."
    split = next((name for name in ("decode_router", "transfer") if name in alone), "")
    if split and not any(fleet.is_split for fleet in fleets):
        return (
            f"fleet.{split} is given and no replica decodes for others: give "
            "fleet.prefill.replicas and fleet.decode.replicas, or leave it out."
        )
    absent = [name for fleet in fleets for name in fleet.shared_tiers if name not in tiers]
    if absent:
        return (
            f"fleet.shared_tiers has {absent[0]}, and there is no such tier: give "
            f"tiers.{absent[0]}.capacity_bytes, or leave it out."
        )
    return ""
