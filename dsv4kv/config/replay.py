"""What ``dsv4kv replay`` runs: a cache, a trace, a scheduler and the cost of a step, as YAML.

The descriptions of the fields are the documentation: ``dsv4kv replay --schema`` prints them.
"""

from collections.abc import Container, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dsv4kv.choices import STRATEGIES, Choice, explained
from dsv4kv.config.bench import (
    POLICY,
    YEAR_S,
    ModelSection,
    NonNegative,
    OneOf,
    Policy,
    Positive,
    RequestsSection,
    Seconds,
    Section,
    Share,
    Speculative,
    Speed,
)
from dsv4kv.engines.names import RULES, TRANSFERS
from dsv4kv.engines.rule import SPECULATIONS
from dsv4kv.model.plan import StateFormat

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
    "dynamo-agentic": Choice("… with --agentic", "replay.fleet.routers:DynamoAgentic"),
    "dynamo-decode": Choice(
        "… for decode replicas: the least to decode", "replay.fleet.routers:DynamoDecode"
    ),
    "llm-d:precise": Choice(
        "llm-d: prefix by events, unused blocks, short queue", "replay.fleet.routers:Llmd"
    ),
}
"""Who chooses the replica of a request."""


MOST_REPLICAS = 4096
"""Of a fleet. A router looks at every replica for every request: at this number, hours of trace
take minutes, and at ten times this number, hours."""

Weight = Annotated[float, Field(ge=0, le=10**9)]
Milliseconds = Annotated[float, Field(ge=0, le=YEAR_S * 10**3)]
LimitMs = Annotated[float, Field(gt=0, le=YEAR_S * 10**3)]


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
    prefill: GroupSection = GroupSection()
    """Replicas that compute prompts, instead of replicas; their prompts are sent on."""
    decode: GroupSection = GroupSection()
    """Replicas that decode, in addition to those that compute prompts; they have no tiers."""
    router: Annotated[str, OneOf(ROUTERS)] = Field(
        "round_robin", description=f"Who chooses the replica: {explained(ROUTERS)}."
    )
    decode_router: Annotated[str, OneOf(ROUTERS)] = "dynamo-decode"
    """Who chooses the decode replica."""
    event_delay_ms: Milliseconds = 0.0
    """Time until a router knows what a replica has cached or evicted, and its queue, in ms."""
    sessions: Literal["trace", "think"] = "trace"
    """When a request comes: as the trace says, or a think time after the answer before it: the
    trace's time since that answer, or since the request before where answers have no times."""
    shared_tiers: tuple[Literal["host", "disk", "remote"], ...] = ()
    """Which of the tiers all replicas have in common."""
    transfer: TransferSection = TransferSection()
    slo: SloSection = Field(SloSection(), description="What a request must keep to count as good.")
    gpu_hour_price: Weight | None = None
    """What a GPU costs in an hour, in any money."""

    @property
    def exists(self) -> bool:
        """Whether there is a fleet."""
        return bool(self.replicas or self.prefill.replicas)

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
        if self.is_split and self.replicas:
            raise ValueError(
                "replicas do both, prefill.replicas and decode.replicas one of it: give either"
            )
        count = self.replicas + self.prefill.replicas + self.decode.replicas
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


WRITE_POLICIES = {
    "write_through": Choice("immediately"),
    "write_through_selective": Choice("when used a second time"),
    "write_back": Choice("when the tier above gives it up"),
}
"""When a tier is given what the one above it has."""

PREFETCH_POLICIES = {
    "best_effort": Choice("what has come so far"),
    "wait_complete": Choice("all, however long it takes"),
    "timeout": Choice("what has come after a second and 0.25 s for each 1,024 tokens"),
}
"""What a request waits for that is fetched from a lower tier."""


class PoolSection(Section):
    """Memory of the cache, of all GPUs together."""

    memory_bytes: Positive | None = 80 * 2**30
    """Slots, checkpoints and blocks together, in bytes; null where num_blocks is given."""
    num_blocks: Positive | None = None
    """Blocks of context, instead of memory_bytes: slots and checkpoints then come on top."""
    block_tokens: Annotated[int, Field(gt=0, multiple_of=128)] | None = None
    """Tokens of context one block covers in every compressed layer; a multiple of 128. null takes
    128, and by an engine's prefix.rule the engine's own: 256; of V4.1 in vLLM 128, or 64 on
    Hopper."""
    state: StateFormat = "ring"
    """HCA compressor state: a ring of 128 rows, or the running softmax (85 times smaller)."""
    max_context_tokens: Positive | None = None
    """Longest request, in tokens; null takes the model's."""
    checkpoint_share: Share = 0.15
    """Part of the memory left after the slots that checkpoints of window and state get, where the
    strategy has any."""
    num_checkpoints: NonNegative | None = None
    """Checkpoints, instead of checkpoint_share; with num_blocks, null is without limit. For SGLang
    rules, pages of windows; null is a tenth of the blocks."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.memory_bytes is None) == (self.num_blocks is None):
            raise ValueError(
                "memory_bytes and num_blocks both size the pool: give one and null for the other"
            )
        return self


class ServerSection(Section):
    """The server that is replayed: its engine sizes the pools, as ``dsv4kv budget`` does.

    They, the tokens of a step and the limit of requests then come from it, and so does prefix.rule
    unless it names one.
    """

    engine: str | None = None
    """Engine and version, sglang:0.5.15; with command null it serves on cost.gpus, in tensor
    parallel. Null where command says, or no server sizes anything."""
    command: str | None = None
    """Its launch command, or a file with one, as ``dsv4kv budget --command`` reads it; flags alone
    where engine says whose."""

    @property
    def given(self) -> bool:
        """Whether a server sizes the pools."""
        return self.engine is not None or self.command is not None


class PrefixSection(Section):
    """What is reused of earlier prompts."""

    reuse: bool = Field(True, description="Whether prompts are cached at all.")
    rule: Annotated[str, OneOf(RULES)] = Field(
        "ideal",
        description="Prefix-cache behaviour, as in ``trace mrc --rule``: "
        f"{explained(RULES)}. Engines are vLLM 0.33 and SGLang 0.5.23, whose "
        "defaults are ``vllm-v4:semantic`` and ``sglang-v4:tail``. An engine's rule evicts the "
        "least recently used; policy and strategy apply to ``ideal`` only.",
    )
    speculation: Annotated[str, OneOf(SPECULATIONS)] = Field(
        "none",
        description="How the engine of an engine's rule drafts, as ``trace mrc --speculation`` "
        f"has it: {explained(SPECULATIONS)}. It changes what hits, and nothing else: "
        "scheduler.speculative says how many drafts there are.",
    )
    policy: Policy = Field("lru", description=POLICY)
    strategy: str = Field(
        "ends+junctions", description=f"Where window and state are kept: {explained(STRATEGIES)}."
    )
    defer: bool = True
    """Let a request wait while another one computes the prefix it needs next. By a rule of vLLM
    it never waits: it finds what is scheduled before it, in the same step too."""


class ArrivalSection(RequestsSection):
    """The requests and when they come."""

    arrivals: Literal["trace", "closed"] = "trace"
    """At the trace's times, or in its order whenever concurrency allows."""
    speed: Speed = 1.0
    """Seconds of the trace that pass in one second of the replay."""
    concurrency: Positive = Field(64, description="Requests in flight with closed arrivals.")
    stagger_s: Seconds = 0.0
    """Seconds from the start of one conversation of a weka folder to the next."""
    max_output_tokens: Positive | None = None
    """Cut longer outputs to this many tokens; null keeps the trace's."""


class SchedulerSection(Section):
    """How requests share the steps."""

    step_tokens: Positive = 8192
    """Token budget of a step: decode tokens first, then prompt chunks."""
    max_requests: Positive = 256
    """Max requests that hold a slot, paused ones included."""
    paused_share: Share = 0.2
    """Part of the blocks that paused requests may keep; beyond it the youngest are
    preempted and recomputed. An engine's prefix.rule pauses no request: it preempts."""
    prompts: Literal["alone", "mixed"] | None = None
    """Whether steps with prompt chunks leave decoding requests out (alone, SGLang's default) or
    take them along (mixed); null does as prefix.rule's engine does, and mixes without one."""
    delay_prompts: bool = False
    """With prompts alone and cost.dp: wait until every rank has a prompt, for 30 steps at most
    (SGLang's enable-prefill-delayer)."""
    speculative: Speculative = Field(Speculative(), description="Speculative decoding.")


class CostSection(Section):
    """How long a step takes, and on what."""

    gpu: str = Field("h200", description="A GPU of the catalogue.")
    gpus: Annotated[int, Field(gt=0, le=65_536)] = 2
    """GPUs that bear a step together."""
    tp: Positive | None = None
    """Ranks that share one request's work, and each hold its whole KV; null takes all GPUs of a
    server that dp and pp leave."""
    dp: Positive | None = None
    """Replicas with requests of their own, which step together: a prompt on one stalls all."""
    pp: Positive | None = Field(None, description="Stages of a pipeline.")
    ep: Positive | None = None
    """Ranks that routed experts are spread over; null takes one without dp, and all with it."""
    experts: Literal["fp4", "nvfp4", "fp8", "bf16"] | None = None
    """Type of the routed experts; null takes the checkpoint's."""
    all_to_all: bool = False
    """Whether tokens reach the experts of other ranks through DeepEP (SGLang's moe-a2a-backend
    deepep)."""
    calibration: str | None = None
    """What dsv4kv replay calibrate stored, by its name or file, instead of the GPU's
    coefficients in configs/gpus."""
    weight_bytes: Positive | None = None
    """Size of all weights in bytes; null derives it from the model's matrices."""


class TierSection(Section):
    """One level of memory below the GPUs'; there is none without a capacity or a ratio."""

    capacity_bytes: Positive | None = None
    """Its memory for what is kept of prompts, in bytes; null where ratio sizes it, or there is no
    such tier."""
    ratio: Annotated[float, Field(gt=0, le=10**6)] | None = None
    """Blocks per GPU block, for context and for windows separately, as SGLang's hicache-ratio;
    instead of capacity_bytes."""
    read_gbps: Speed = Field(50.0, description="What is read from it in a second, in 10^9 B.")
    write_gbps: Speed = Field(50.0, description="What is written to it in a second, in 10^9 B.")
    latency_us: Annotated[float, Field(ge=0, le=YEAR_S * 10**6)] = 10.0
    """Time of one operation whatever its size, in µs: one moves an object of one family."""
    parallel: Positive = Field(16, description="Operations whose latencies overlap.")
    write: Annotated[str, OneOf(WRITE_POLICIES)] = Field(
        "write_through",
        description=f"When something is written to it: {explained(WRITE_POLICIES)}.",
    )
    admission: Positive = 1
    """Offers of a block before it is stored (vLLM's store_threshold)."""
    eviction: Policy = Field("lru", description=POLICY)

    @property
    def exists(self) -> bool:
        """Whether there is such a tier."""
        return self.capacity_bytes is not None or self.ratio is not None

    @property
    def threshold(self) -> int:
        """How often something is offered before it is kept."""
        return max(self.admission, 2 if self.write == "write_through_selective" else 1)

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.capacity_bytes is not None and self.ratio is not None:
            raise ValueError("capacity_bytes and ratio both size the tier: give one")
        return self


class TiersSection(Section):
    """Memory below the GPUs' in which prompts are kept; none by default."""

    host: TierSection = Field(TierSection(), description="Host memory, over PCIe 5.")
    disk: TierSection = TierSection(read_gbps=12.0, write_gbps=6.0, latency_us=100.0)
    """A local disk, an NVMe drive."""
    remote: TierSection = TierSection(read_gbps=20.0, write_gbps=20.0, latency_us=50.0)
    """Another machine's memory, over a network of 200 Gb/s."""
    layout: Literal["engine", "lmcache"] = "engine"
    """How prompts are kept: as prefix.rule's engine lays them out, or by a vLLM rule in LMCache's
    chunks, each with the windows and states of its end."""
    chunk_tokens: Positive = Field(256, description="Tokens of LMCache's chunk.")
    retention_tokens: NonNegative | None = None
    """By a rule of vLLM, tokens between the boundaries whose windows are kept in addition to the
    prompt's last; 0 keeps only the last, null those that the rule keeps on the GPU."""
    compare: bool = True
    """Compute again what would take longer to bring back; the engines never compare."""
    load_tokens: Positive = 10
    """Min tokens of a restore (SGLang's load_back_threshold)."""
    prefetch: Annotated[str, OneOf(PREFETCH_POLICIES)] = Field(
        "timeout",
        description="What comes from below the first tier is fetched into it once a request "
        f"arrives: {explained(PREFETCH_POLICIES)}.",
    )
    prefetch_tokens: Positive = Field(256, description="Min tokens of a fetch.")
    prefetch_share: Share = 0.5
    """Part of the first tier that may be on its way into it."""

    @property
    def levels(self) -> dict[str, TierSection]:
        """Those that there are, the one next to the GPUs first."""
        named = {"host": self.host, "disk": self.disk, "remote": self.remote}
        return {name: tier for name, tier in named.items() if tier.exists}


class ReplayMeasure(Section):
    """How the replay is reported."""

    seed: NonNegative = 0
    """Seed of the accepted drafts and of the synthetic workload."""
    points: Annotated[int, Field(ge=16)] = 512
    """Moments of the series over time that are kept, at most."""


_SIZES = ("memory_bytes", "num_blocks", "num_checkpoints", "checkpoint_share")


class ReplayConfig(Section):
    """A cache, a trace, a scheduler, and what a step costs."""

    name: str = Field("replay", description="Name of the run; part of the record's file name.")
    model: ModelSection = Field(ModelSection(), description="The model whose cache is replayed.")
    cache: PoolSection = PoolSection()
    server: ServerSection = ServerSection()
    """The server that is replayed: its engine sizes the pools; without one, cache does."""
    prefix: PrefixSection = PrefixSection()
    workload: ArrivalSection = ArrivalSection()
    scheduler: SchedulerSection = SchedulerSection()
    cost: CostSection = CostSection()
    tiers: TiersSection = TiersSection()
    fleet: FleetSection = FleetSection()
    measure: ReplayMeasure = ReplayMeasure()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        drafts = self.scheduler.speculative.draft_tokens
        decoding = self.scheduler.max_requests * (1 + drafts)
        if decoding > self.scheduler.step_tokens:
            raise ValueError(
                f"scheduler.step_tokens ({self.scheduler.step_tokens}) is below the {decoding} "
                "tokens that scheduler.max_requests decode in one step: raise the one or lower "
                "the other"
            )
        engine, rule = self.server.engine, self.prefix.rule
        own = f"server.engine {engine!r}" if engine else f"prefix.rule {rule!r}"
        if (engine or rule != "ideal") and (unused := self.prefix.changed("policy", "strategy")):
            raise ValueError(
                f"prefix.{unused} says how the ideal rule works, and {own} has a way of its own: "
                "leave it out, or use ideal"
            )
        if engine and (unused := self.cache.changed(*_SIZES)):
            raise ValueError(
                f"cache.{unused} says how large the cache is, and {own} has a size of its own: "
                "leave it out, or give the flags of the server, --set 'server.command=…'"
            )
        if self.fleet.exists and self.workload.arrivals == "closed":
            raise ValueError(
                "fleet takes requests as they come, or after think times (fleet.sessions think), "
                "and workload.arrivals is closed: take trace"
            )
        if self.cache.state == "online" and drafts:
            raise ValueError(
                "cache.state 'online' cannot roll back rejected drafts: use 'ring', or set "
                "scheduler.speculative.draft_tokens to 0"
            )
        return self
