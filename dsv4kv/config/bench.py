"""What ``dsv4kv bench`` runs: a cache, a workload and how to measure it, as one YAML document.

The descriptions of the fields are the documentation: ``dsv4kv config schema`` prints them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic_core import CoreSchema, core_schema

from dsv4kv.choices import BACKENDS, PEERS, TRACE_FORMATS, Choice, explained, listed
from dsv4kv.core.policies import POLICIES
from dsv4kv.model.config import Precision
from dsv4kv.model.formats import FORMATS
from dsv4kv.model.plan import Sharing, StateFormat
from dsv4kv.model.presets import preset_of
from dsv4kv.ops.spec import VARIANTS, explain

INDEXES = {"radix": Choice("to 128 tokens"), "block_hash": Choice("in whole blocks")}
"""How prefixes are found."""


Positive = Annotated[int, Field(gt=0, lt=2**63)]
NonNegative = Annotated[int, Field(ge=0, lt=2**63)]
YEAR_S = 365 * 86_400
Speed = Annotated[float, Field(ge=1e-6, le=10**6)]  # wide, and times stay numbers
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=YEAR_S)]
SecondsAboveZero = Annotated[float, Field(gt=0, le=YEAR_S)]


class OneOf:
    """Validates text as a name of a registry: the type of a key, to pydantic a ``Literal``."""

    def __init__(self, registry: Mapping[str, object], *others: str) -> None:
        """``others`` are allowed before the registry's names."""
        self.names = [*others, *registry]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.literal_schema(self.names)


class Section(BaseModel):
    """A part of the configuration: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(
        allow_inf_nan=False,
        defer_build=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def changed(self, *names: str) -> str:
        """The first of these settings that is not its default; empty if all are."""
        fields = type(self).model_fields
        return next((name for name in names if getattr(self, name) != fields[name].default), "")


class Formats(Section):
    """Entry formats by the place they are stored in; null takes the model's own."""

    main: Annotated[str, OneOf(FORMATS["main"])] | None = None
    """Compressed KV entries of CSA and HCA layers."""
    window: Annotated[str, OneOf(FORMATS["window"])] | None = None
    """Sliding-window entries of every layer."""
    indexer: Annotated[str, OneOf(FORMATS["indexer"])] | None = None
    """Indexer keys of CSA layers."""


class PipelineStage(Section):
    """One stage of a pipeline-parallel deployment: a contiguous share of the layers."""

    stage: NonNegative = Field(0, description="Index of the stage, from 0.")
    stages: Positive = 1
    """Number of stages the layers are split over, as evenly as possible."""

    @model_validator(mode="after")
    def _stage_exists(self) -> Self:
        if self.stage >= self.stages:
            raise ValueError(f"stage {self.stage} of {self.stages}: stages count from 0")
        return self


class ModelSection(Section):
    """The model whose cache is built."""

    preset: Annotated[str, AfterValidator(preset_of)] = "v4-flash"
    """A shipped preset (``v4-flash``, ``v4-pro``) or the path of a Hugging Face config.json."""
    layers: tuple[NonNegative, ...] | None = None
    """Layer indices to hold, or null for all: a few layers let a laptop move real bytes."""
    pipeline: PipelineStage = PipelineStage()
    """Hold only one pipeline stage's layers."""
    draft_layers: bool = Field(False, description="Also hold the checkpoint's draft (MTP) layers.")
    formats: Formats = Field(Formats(), description="Entry formats.")


Policy = Annotated[str, OneOf(POLICIES)]
POLICY = f"What is evicted first, children before their parents: {explained(POLICIES)}."
Windows = Literal["ends", "ends+junctions", "periodic"]


class PrefixSection(Section):
    """Prompts that begin as an earlier one: what is kept of it, and found again."""

    index: Annotated[str, OneOf(INDEXES, "none")] = Field(
        "none", description=f"How prefixes are found: none (not at all), {explained(INDEXES)}."
    )
    policy: Policy = Field("lru", description=POLICY)
    windows: Windows = "ends+junctions"
    """Where windows and compressor states are kept, which a request needs to resume: at the ends
    of prompts, also where an earlier resume fell short, or every ``period_tokens``."""
    period_tokens: Annotated[int, Field(gt=0, multiple_of=128)] = 1024
    """Distance of periodic checkpoints, in tokens; a multiple of 128."""
    checkpoints: Positive = 32
    """Checkpoints of window and state there is room for; the one used longest ago goes first."""


class CacheSection(Section):
    """Geometry and strategies of the cache."""

    block_tokens: Annotated[int, Field(gt=0, multiple_of=128)] = 128
    """Tokens of context one block covers in every compressed layer; a multiple of 128."""
    sharing: Sharing = "model"
    """Who shares a block table: the whole model, the layers of one type, or none."""
    prefix: PrefixSection = PrefixSection()
    """Reuse of prompts that begin as an earlier one."""
    max_context_tokens: Positive = 32768
    """Longest request a table row can hold, in tokens."""
    num_blocks: Positive | None = None
    """Blocks per pool; null sizes the pool for every slot at full context."""
    num_slots: Positive | None = None
    """Max concurrent requests; null takes ``workload.concurrency``."""
    state: StateFormat = "ring"
    """HCA compressor state: a ring of 128 rows, or the running softmax (85 times smaller)."""
    hadamard: bool = True
    """Rotate indexer keys by Hadamard(128) before quantising."""
    rope: Precision = "float32"
    """What position × frequency is formed in: float32 as engines do, which keep cosines and sines
    in a table, or float64."""


class Lengths(Section):
    """A distribution of token counts."""

    kind: Literal["fixed", "uniform", "lognormal"] = "lognormal"
    """Shape of the distribution."""
    mean: Positive = Field(1024, description="Mean (the value itself if ``fixed``), in tokens.")
    sigma: Annotated[float, Field(ge=0, le=10)] = 0.8
    """Log-normal shape parameter (standard deviation of the logarithm)."""
    low: Positive = 1
    """Smallest length; also the lower end of ``uniform``, in tokens."""
    high: Positive = 131072
    """Largest length; also the upper end of ``uniform``, in tokens."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class Synthetic(Section):
    """A generated workload."""

    requests: Annotated[int, Field(gt=0, le=10_000_000)] = 64
    """Number of requests."""
    input: Lengths = Field(Lengths(), description="Prompt lengths.")
    output: Lengths = Field(Lengths(mean=128), description="Generated lengths.")
    arrival_rate: Speed | None = None
    """Poisson arrivals per second; null makes all requests wait from the start (closed loop)."""
    prefix_branches: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Children of each node of the shared-prefix tree; 0 shares nothing."""
    prefix_depth: Annotated[int, Field(gt=0, le=10_000)] = 2
    """Levels of the shared-prefix tree."""
    prefix_tokens: Positive = 512
    """Tokens that one level of the shared-prefix tree adds."""
    hash_block_tokens: Positive = Field(512, description="Tokens that one prefix hash covers.")


class Speculative(Section):
    """Draft tokens verified in one step; rejected ones are rolled back."""

    draft_tokens: NonNegative = 0
    """Drafted tokens per decode step; 0 turns speculation off."""
    acceptance: Share = 0.7
    """Probability that a draft is accepted, given that all before it were."""


class RequestsSection(Section):
    """Which requests."""

    trace: str | None = "builtin:chat"
    """A trace file, ``builtin:chat`` (shipped), or null for the synthetic workload."""
    trace_format: Annotated[str, OneOf(TRACE_FORMATS, "auto")] = "auto"
    """Format of the trace; ``auto`` looks at its first line."""
    synthetic: Synthetic = Field(Synthetic(), description="Used when ``trace`` is null.")
    skip: NonNegative = Field(0, description="Requests to leave out at the start of the trace.")
    limit: Positive | None = Field(None, description="Requests to replay; null replays all.")


PLACED_OUTPUT_TOKENS = 33
"""Of a request whose context is placed: the prompt's last token gives one, 32 steps the others."""


class WorkloadSection(RequestsSection):
    """The requests and how they are served."""

    concurrency: Positive = Field(8, description="Requests in flight.")
    step_tokens: Positive = 2048
    """Token budget of a step: decode tokens first, then prompt chunks."""
    max_output_tokens: Positive | None = None
    """Cut longer outputs to this many tokens; null keeps the trace's."""
    context: Positive | None = None
    """Place ``concurrency`` requests of this many tokens and decode them, instead of serving the
    trace or the synthetic workload: a step over 1M tokens begins in seconds. Entries are random,
    windows and states as served; each decodes 32 tokens, or ``max_output_tokens`` less the first.
    Table rows are at least as long. Null serves prompts."""
    speculative: Speculative = Field(Speculative(), description="Speculative decoding.")
    step: Literal["engine", "gather"] | None = None
    """How decode steps read: ``engine`` scores keys, selects the top k and attends in the pages,
    as engines do; ``gather`` copies what attention reads, dequantised, as prompt chunks do. Null
    takes ``engine`` where model and device have it."""
    decode: Literal["both", "graph", "eager"] = "both"
    """Decode steps on a GPU: as captured graphs, launched operation by operation, or both
    interleaved, so that one run compares them."""
    data: Literal["real", "none"] = "real"
    """``real`` moves bytes through every operation; ``none`` runs the bookkeeping alone."""

    @property
    def source(self) -> str | None:
        """Where the requests come from; None where no trace is read."""
        return None if self.context else self.trace

    @property
    def placed_tokens(self) -> int:
        """Tokens of a placed request at its end; 0 where none is placed."""
        outputs = min(PLACED_OUTPUT_TOKENS, self.max_output_tokens or PLACED_OUTPUT_TOKENS)
        return self.context + outputs - 1 if self.context else 0


if TYPE_CHECKING:  # the registry makes the keys: no checker can know them
    VariantSection = Section
else:
    VariantSection = create_model(
        "VariantSection",
        __base__=Section,
        __doc__="Kernels to compare, by operation; null takes the GPU's best.",
        **{
            name: (Literal[tuple(variants)] | None, Field(None, description=explain(name)))
            for name, variants in VARIANTS.items()
        },
    )


class OpsSection(Section):
    """How the toolkit's own operations are done on a GPU."""

    variant: VariantSection = VariantSection()
    """Kernels to compare, by operation; all give the same bytes, or sums in another order."""


class MeasureSection(Section):
    """How the run is measured and checked."""

    seed: NonNegative = Field(0, description="Seed of inputs, samples and the synthetic workload.")
    warmup_steps: NonNegative = Field(5, description="First steps, whose samples are discarded.")
    verify_every: NonNegative = 20
    """Steps between checks of sampled outputs against the reference; 0 never checks."""
    memcpy_bytes: Annotated[int, Field(ge=2**20)] = 2**28
    """Size of the copy that gives this machine's memcpy bandwidth, in bytes."""
    figures_seconds: SecondsAboveZero = 60.0
    """Most seconds for figures of single operations on a GPU; what they do not suffice for is
    reported as not measured."""
    threads: Positive = Field(1, le=1024, description="Torch threads.")


class BenchConfig(Section):
    """A cache, a workload, and how to measure it."""

    name: str = Field("default", description="Name of the run; part of the record's file name.")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the cache lives; ``auto`` takes a GPU where torch sees one, else the CPU."""
    backend: str | None = Field(
        None,
        description=f"Operations that run: {listed(BACKENDS)}, a peer ({listed(PEERS)}); typed on "
        "the command line also ``module:function``, or your own ``file.py:function``; null takes "
        "the device's own.",
    )
    ops: OpsSection = OpsSection()
    model: ModelSection = ModelSection()
    cache: CacheSection = CacheSection()
    workload: WorkloadSection = WorkloadSection()
    measure: MeasureSection = MeasureSection()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        cache, workload, index = self.cache, self.workload, self.cache.prefix.index
        slots = cache.num_slots
        if slots is not None and workload.concurrency > slots:
            raise ValueError(
                f"workload.concurrency ({workload.concurrency}) is above cache.num_slots "
                f"({slots}): lower the one or raise the other"
            )
        if index != "none" and cache.sharing != "model":
            raise ValueError(
                f"cache.prefix.index {index!r} shares blocks: set cache.sharing to model (it is "
                f"{cache.sharing})"
            )
        if workload.context and index != "none":
            raise ValueError(
                f"workload.context ({workload.context}) places contexts, which share no prefix: "
                "set cache.prefix.index to none, or workload.context to null"
            )
        if workload.context and workload.max_output_tokens == 1:
            raise ValueError(
                "workload.max_output_tokens is 1, and the first token is of the prompt: nothing "
                "would be decoded after workload.context; raise it to at least 2"
            )
        if cache.state == "online" and workload.speculative.draft_tokens:
            raise ValueError(
                "cache.state 'online' cannot roll back rejected drafts: use 'ring', or set "
                "workload.speculative.draft_tokens to 0"
            )
        return self

    @property
    def max_context_tokens(self) -> int:
        """Longest request that a table row holds: a placed one always is."""
        return max(self.cache.max_context_tokens, self.workload.placed_tokens)
