"""Engines that size caches: what they are asked, and what they answer in exact integers."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from dsv4kv.engines.rule import EVERYWHERE, Family, Group, Layout, Policy, Rule
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schedule import AttentionType, build_schedule
from dsv4kv.model.schema import CacheFormats

if TYPE_CHECKING:
    from dsv4kv.engines.host import HostTier, HostWish, Offloaded, Sent

MIB, GIB = 2**20, 2**30

LogitsRoom = Literal["share", "profiled", "headroom"]
"""Where the indexer's logits find their memory: in the share of a GPU that may be used, and no
more than a step needs; there, and at their bound before the cache is sized, whatever a step needs;
or in what that share leaves of the GPU."""


@dataclass(frozen=True)
class Machine:
    """The GPUs of a deployment, as an engine looks at them when it starts.

    Attributes:
        gpu: Name of each in the catalogue.
        dp: Replicas in one server, as ranks of its attention.
        kind: Generation of the model: ``v4``, ``v41``, ``flat``.
        arch: What the GPU's kernels are compiled for: ``sm_90``; None where it is not known.
    """

    gpu: str
    memory_bytes: int
    tp: int = 1
    dp: int = 1
    pp: int = 1
    kind: str = "v4"
    arch: str | None = None


@dataclass(frozen=True)
class Default:
    """A value that nobody gave, and whose it is."""

    value: Any
    reason: str


Given = Mapping[str, Any]
"""What is given, by the name of the input; an engine may go by it."""
Defaults = dict[str, Default]
"""By the name of the input: ``memory_fraction``, ``reserve`` (bytes), ``step_tokens`` (as
the engine takes it: SGLang spreads it over its replicas), ``overlap`` (steps), ``request_limit``
(likewise), ``logits_limit`` (bytes), ``window_slots``."""

SHARE, RESERVE = Fraction(9, 10), 4 * GIB
"""Of a GPU, the share that this toolkit takes to be usable; of that, what it keeps for all but
weights and cache."""
UNMEASURED = Default(RESERVE, "activations, graphs, communication: this toolkit's guess")
"""Where an engine measures what is neither weights nor cache, and prints it."""


class Held(NamedTuple):
    """One thing that is held.

    Attributes:
        source: Version and file that say so.
    """

    what: str
    size_bytes: int
    source: str


class Overhead(NamedTuple):
    """All that is known to be held.

    Attributes:
        reserve: In the share of a GPU that may be used.
        headroom: In what that share leaves of the GPU.
        unknown: What no code says the size of: not counted by itself.
    """

    reserve: tuple[Held, ...]
    headroom: tuple[Held, ...]
    unknown: tuple[str, ...]


_MEASURED = (
    "activations of a step",
    "workspaces of experts",
    "CUDA graphs",
    "buffers of NCCL and DeepEP",
    "CUDA context",
)
UNKNOWN = Overhead((), (), _MEASURED)


@dataclass(frozen=True)
class Deployment:
    """One replica of a model on one rank (GPU): what an engine sizes.

    Attributes:
        layers: Indices of the layers this rank holds, draft layers left out; None for all.
        draft_layers: Draft (MTP, DSpark) layers this rank holds: sliding window only.
        max_context_tokens: Longest request (``max_model_len``).
        in_flight_tokens: Tokens one request may have in flight: the chunk budget of a step
            (``max_num_batched_tokens``, ``chunked_prefill_size``) times the batches that run at
            once (vLLM up to 0.25 does not count batches: there it is the chunk budget alone).
        concurrency: Requests to be served at once (``max_num_seqs``, ``max_running_requests``);
            None where it is what is asked for.
        block_tokens: Tokens of context one block covers; None takes the engine's own.
        state_bytes: Bytes of one element of the compressor state: 4 (float32) or 2 (bfloat16).
        online_state: HCA keeps its state as a running softmax.
        window_ratio: SGLang's ``swa_full_tokens_ratio``; None where it is not given.
        arch: What the GPU's kernels are compiled for: ``sm_90``; None where it is not known.
        frees_windows: SGLang gives back the window slots that a running request has left behind;
            None where it is the version's own.
        replays_windows: SGLang's encoder replay: every request of V4.1 has windows of its own.
        bounded_replay: Whether windows of V4.1 are computed again behind a hit (vLLM), or late
            layers run a prompt's last window alone (SGLang); None where it is the version's own.
        hisparse_ratio: Compressed entries of CSA layers for one that is on the GPU (SGLang's
            HiSparse); 1 keeps all of them there.
    """

    model: DSV4Config
    formats: CacheFormats
    max_context_tokens: int
    in_flight_tokens: int
    layers: tuple[int, ...] | None = None
    draft_layers: int = 0
    concurrency: int | None = None
    block_tokens: int | None = None
    state_bytes: int = 4
    online_state: bool = False
    draft_tokens: int = 0
    window_ratio: float | None = None
    arch: str | None = None
    frees_windows: bool | None = None
    replays_windows: bool = False
    bounded_replay: bool | None = None
    prefix_cache: bool = True
    overlap: bool = True
    role: str | None = None
    hisparse_ratio: int = 1
    extra_slots: int = 0
    stage: int = 0


@dataclass(frozen=True)
class PoolCost:
    """What one kind of storage costs on one rank, over all layers of one type.

    Attributes:
        pool: ``main``, ``indexer``, ``window``, ``state`` or ``tables``.
        layer_type: ``swa``, ``csa``, ``hca``, ``dsa``, ``draft`` or ``all``.
        fixed_bytes: Of every request, whatever its length, in steady decode.
        in_flight_bytes: Reserved for every request on top, for the tokens in flight.
        marginal_bytes: Of every token of context, useful bytes only.
        padding_bytes: Of every token of context on top, lost to alignment of full pages.
        shared_bytes: Held once, however many requests run.
    """

    pool: str
    layer_type: str
    layers: int
    fixed_bytes: int = 0
    in_flight_bytes: int = 0
    marginal_bytes: Fraction = Fraction(0)
    padding_bytes: Fraction = Fraction(0)
    shared_bytes: int = 0


@dataclass(frozen=True)
class Capacity:
    """What an engine makes of the memory it is given.

    Attributes:
        cache_bytes: Bytes of the memory that become cache.
        units: Blocks (or, for SGLang, full tokens) that fit.
        unit_bytes: Bytes of one of them, over all layers.
        units_per_request: Of one request of ``max_context_tokens``, reserve included.
        printed_tokens: The number of tokens that the engine prints; None where it prints none.
        concurrency: Requests of ``max_context_tokens`` that fit at once, as the engine counts.
        log_lines: The lines the engine logs, word for word, without prefixes.
        note: Which pool binds, in a sentence; empty where there is one.
    """

    cache_bytes: int
    units: int
    unit_bytes: Fraction
    units_per_request: Fraction
    printed_tokens: int | None
    concurrency: Fraction
    log_lines: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Loading:
    """What an engine loads beyond an even share of the checkpoint; known of V4.

    Attributes:
        copies: Every rank of a tensor parallel group holds whole what cannot be split by heads:
            projections to the query's latent and the KV head, compressors, indexer, router and
            hyper-connections.
        widens_output: The first of the output's two projections is unpacked to bf16.
        draft_heads: Drafts still have an embedding and a head of their own when the cache is
            sized.
    """

    copies: bool = False
    widens_output: bool = False
    draft_heads: bool = False


EVENLY = Loading()


class Engine:
    """One version of an engine: pure functions of a deployment.

    Attributes:
        seen_in_logs: Whether the sizes were checked against published start-up logs; otherwise
            they are derived from the engine's source alone, and every answer says so.
        own: Whether it is this toolkit's cache, which counts requests, not blocks.
        logits_room: Where the indexer's logits of a step find their memory.
        unit: What ``Capacity`` counts: ``block``, ``full token``.
        block_tokens: Tokens of a block where none are given.
        holds_chunks: Whether a running request holds the windows of all of its prompt's last chunk
            (SGLang); else that of its end alone.
        shares_limits: Whether the tokens of a step and the limit of requests are those of all
            replicas.
    """

    family: ClassVar[Family]
    name: str
    seen_in_logs: bool = False
    own: ClassVar[bool] = False
    logits_room: ClassVar[LogitsRoom] = "share"
    unit: ClassVar[str] = "block"
    block_tokens: ClassVar[int] = 128
    holds_chunks: bool = False
    shares_limits: ClassVar[bool] = False

    def costs(self, deployment: Deployment) -> tuple[PoolCost, ...]:
        """Every pool's fixed, in-flight and marginal bytes; raises ``ConfigError``."""
        raise NotImplementedError

    def request_bytes(self, deployment: Deployment, tokens: int, *, in_flight: int) -> int:
        """Bytes that a request of so many tokens takes out of the cache.

        Whole blocks and pages, with the reserve for ``in_flight`` tokens; monotone in both.
        """
        raise NotImplementedError

    def capacity(self, deployment: Deployment, available_bytes: int) -> Capacity:
        """What fits into ``available_bytes`` of one rank; raises ``ConfigError``."""
        raise NotImplementedError

    def shared_bytes(self, deployment: Deployment) -> int:
        """Bytes held once, before any request."""
        del deployment
        return 0

    def blocks(self, deployment: Deployment, units: int) -> tuple[int, int | None]:
        """Blocks of context, and pages of windows where these have a pool of their own."""
        del deployment
        return units, None

    def rule(self, deployment: Deployment, flags: Given | None = None) -> Rule:
        """How prefixes are kept and found, with settings that choose a variant; ``ConfigError``.

        Here every block has the window of its end, and the state of CSA layers.
        """
        del flags
        self.costs(deployment)  # says what the engine does not serve
        model = deployment.model
        block = deployment.block_tokens or self.block_tokens
        groups = [Group("context", block)]
        if model.kind != "flat":
            groups += [Group("window", block, model.window_tokens), Group("csa state", block, 8)]
        return Rule(Layout(tuple(groups), 0, model.window_tokens), EVERYWHERE, Policy())

    def defaults(self, machine: Machine, given: Given) -> Defaults:
        """What the engine takes where nothing is given, on these GPUs; here this toolkit's."""
        del machine, given
        own = "this toolkit's"
        return {
            "memory_fraction": Default(SHARE, own),
            "reserve": UNMEASURED,
            "step_tokens": Default(8192, own),
            "overlap": Default(1, own),
            "logits_limit": Default(512 * MIB, "engines score a chunk in pieces, as vLLM does"),
        }

    def overhead(
        self, deployment: Deployment, step_tokens: int, machine: Machine, given: Given
    ) -> Overhead:
        """What is held on a GPU other than weights and cache, as far as that is known."""
        del deployment, step_tokens, machine, given
        return UNKNOWN

    def loading(self, arch: str | None) -> Loading:
        """What it loads of weights on such a GPU beyond an even share of them."""
        del arch
        return EVENLY

    def stage_layers(self, layers: int, stages: int) -> tuple[int, ...]:
        """How many layers every pipeline stage holds; those left over go to the first stages."""
        size, extra = divmod(layers, stages)
        return tuple(size + (stage < extra) for stage in range(stages))

    def starved(self, free_bytes: int, weight_bytes: int, fraction: Fraction) -> str:
        """What it prints where weights leave nothing for a cache; empty where not known.

        ``free_bytes`` of a GPU were free before its weights; a ``fraction`` may be used.
        """
        del free_bytes, weight_bytes, fraction
        return ""

    def host_tier(
        self, deployment: Deployment, capacity: Capacity, wish: "HostWish"
    ) -> "HostTier":
        """What it keeps in host memory; raises ``ConfigError`` for what it has not, or refuses."""
        del deployment, capacity
        raise ConfigError(f"--host-tier {wish.tier}: {self.name} has none.")

    def objects(
        self, deployment: Deployment, retention: int | None, chunk_tokens: int | None
    ) -> "Offloaded":
        """What a tier keeps of a prompt; in chunks of LMCache, where their tokens are given.

        Raises:
            ConfigError: A layout or blocks that it does not have.
        """
        del deployment, retention, chunk_tokens
        raise ConfigError(f"what {self.name} keeps beyond the GPU is not known.")

    def sent(self, deployment: Deployment, tokens: int) -> "Sent | None":
        """What a rank of a prefill side sends of a prompt; None where that is not known."""
        del deployment, tokens
        return None


DRAFT = "draft"
V4_ONLY = ("v4",)
_RATIOS = {"v4": {0, 4, 128}, "v41": {0, 1, 2}, "flat": {1}}


@dataclass(frozen=True)
class Layer:
    """One layer of the model.

    Attributes:
        kind: ``swa``, ``csa``, ``hca``, ``dsa`` or ``draft``.
        held: Whether this rank holds it.
        ratio: Tokens per compressed entry; 0 without compressed KV.
        owner: Layer whose compressed KV it reads.
        selects: Whether its indexer selects the top k.
    """

    index: int
    kind: str
    held: bool
    ratio: int = 0
    owner: int = -1
    selects: bool = True

    @property
    def owns(self) -> bool:
        """Whether it stores compressed KV of its own."""
        return self.ratio > 0 and self.owner == self.index


@lru_cache(maxsize=256)
def layers_of(
    deployment: Deployment, engine: str, kinds: tuple[str, ...] = V4_ONLY
) -> tuple[Layer, ...]:
    """Every layer of the model and the drafts of this rank, in model order.

    Raises:
        ConfigError: A model whose layout the engine's rules do not describe, or an unknown layer.
    """
    model = deployment.model
    unlike = set(model.compress_ratios) - _RATIOS[model.kind]
    shared = (model.kv_owners is not None) != (model.kind == "v41")
    if model.kind not in kinds or unlike or shared:
        raise ConfigError(
            f"the rules of {engine} are those of DeepSeek-V4 (layers of ratio 0, 4 and 128, each "
            f"with its own cache){_OTHERS if len(kinds) > 1 else ''}, which {model.name} is not: "
            "choose such a model, or the engine dsv4kv."
        )
    wanted = None if deployment.layers is None else set(deployment.layers)
    held = {spec.layer_idx for spec in build_schedule(model, layers=wanted)}
    own = [
        Layer(
            spec.layer_idx,
            AttentionType(spec.attn).value,
            spec.layer_idx in held,
            spec.ratio,
            spec.kv_owner,
            spec.selects,
        )
        for spec in build_schedule(model)
    ]
    drafts = range(model.num_layers, model.num_layers + deployment.draft_layers)
    return (*own, *(Layer(index, DRAFT, held=True) for index in drafts))


_OTHERS = ", of V4.1 (ratio 0, 1 and 2, with owners) and of V3.2"
