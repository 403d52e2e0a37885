"""A sizing question with everything looked up: model, GPU, layout, weights, formats, engine."""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any

from dsv4kv.budget.gpus import Gpu, load_gpu, plain_memory
from dsv4kv.budget.inputs import DEFAULT_GPU, Inputs
from dsv4kv.budget.layout import Layout, LayoutWish, candidate_layouts
from dsv4kv.budget.weights import Weights, find_weights, model_file
from dsv4kv.engines.contract import Default, Defaults, Deployment, Engine, Machine, Overhead, Start
from dsv4kv.engines.formats import PLACES, Site, stored_formats
from dsv4kv.engines.names import engine_family, find_engine
from dsv4kv.errors import ConfigError, find_name
from dsv4kv.model import presets as ps
from dsv4kv.model.config import AttentionType, DSV4Config, build_schedule
from dsv4kv.model.plan import CacheFormats, choose_formats
from dsv4kv.units import format_bytes

MOST_GPUS = 1024
"""Where the search for enough GPUs ends."""

_LAYER_GPUS = range(1, 17)  # that are tried of an engine without heads to split by


def find_model(name: str) -> DSV4Config:
    """A preset, or a config.json; raises ``ConfigError`` with the nearest names."""
    name = ps.preset_of(name)
    if model_file(name):
        return ps.load_model(name)
    otherwise = ", or the path of a Hugging Face config.json"
    return ps.load_model(find_name(name, ps.preset_names(), "model", otherwise))


def find_gpu(inputs: Inputs) -> Gpu:
    """The GPU named, or the memory given; raises ``ConfigError``."""
    if inputs.hbm is None:
        return load_gpu(inputs.gpu or DEFAULT_GPU)
    if inputs.gpu is not None:
        raise ConfigError(
            f"--gpu {inputs.gpu} and --hbm {format_bytes(inputs.hbm)} both give a GPU's memory: "
            "keep one."
        )
    return plain_memory(inputs.hbm)


def find_formats(inputs: Inputs, config: DSV4Config) -> CacheFormats:
    """Formats of the entries on one rank; raises ``ConfigError`` with the choices."""
    return choose_formats(config, inputs.main_format, inputs.window_format, inputs.indexer_format)


@dataclass(frozen=True)
class Settings:
    """Inputs that decide a deployment's sizes, next to model, GPU and layout."""

    memory_fraction: Fraction
    reserve: int  # bytes of the usable share kept for activations, graphs and communication
    step_tokens: int  # tokens of one step of one replica
    overlap: int
    in_flight_tokens: int
    request_limit: int | None  # requests that one replica runs concurrently; None for any number
    logits_limit: int | None  # bytes that the indexer's logits are cut to; None where they are not
    window_slots: str | None
    extra_slots: int  # requests that a decode side receives while others run
    assumed: Defaults  # defaults that were taken, by the name of the input


@dataclass(frozen=True)
class Scenario:
    """One deployment on a known number of GPUs."""

    inputs: Inputs
    config: DSV4Config
    gpu: Gpu
    layout: Layout
    weights: Weights
    formats: CacheFormats
    engine: Engine
    settings: Settings
    machine: Machine

    @property
    def context_tokens(self) -> int:
        """Tokens of the longest request that is asked for, or of the model's."""
        return self.inputs.context or self.config.max_context_tokens

    @property
    def is_sized(self) -> bool:
        """Whether the memory for KV is given, as this layout's; SGLang's tokens are a cap."""
        inputs, capped = self.inputs, self.engine.logits_room == "headroom"
        return inputs.kv_memory is not None or (inputs.kv_blocks is not None and not capped)

    @property
    def budget_bytes(self) -> int:
        share = 1 if self.engine.shares_rest else self.settings.memory_fraction
        return int(self.gpu.memory_bytes * share)

    @cached_property
    def stages(self) -> tuple[range, ...]:
        """Layers of every pipeline stage, without draft layers."""
        layers, count, given = self.config.num_layers, self.layout.pp, self.inputs.stage_layers
        if given and (len(given), sum(given)) != (count, layers):
            raise ConfigError(
                f"layers of the pipeline's stages are {','.join(map(str, given))}: give {count} "
                f"numbers that add up to the {layers} layers of {self.config.name}."
            )
        sizes = given or self.engine.stage_layers(layers, count)
        ends = [0, *accumulate(sizes)]
        return tuple(range(begin, end) for begin, end in pairwise(ends))

    def deployment(
        self, stage: int, context_tokens: int, concurrency: int | None = None
    ) -> Deployment:
        """What one rank of a stage serves: the request limit, else ``concurrency`` requests."""
        inputs, settings, replay = self.inputs, self.settings, self.inputs.bounded_replay
        return Deployment(
            model=self.config,
            formats=self.formats,
            max_context_tokens=context_tokens,
            in_flight_tokens=settings.in_flight_tokens,
            layers=tuple(self.stages[stage]) if self.layout.pp > 1 else None,
            draft_layers=self.drafts_of(stage),
            concurrency=settings.request_limit or concurrency,
            block_tokens=inputs.block_tokens,
            state_bytes=2 if inputs.state == "bf16" else 4,
            online_state=inputs.state == "online",
            draft_tokens=inputs.draft_tokens,
            arch=self.gpu.arch,
            window_ratio=None if inputs.window_ratio is None else float(inputs.window_ratio),
            window_slots=settings.window_slots,
            bounded_replay=None if replay is None else replay == "on",
            prefix_cache=inputs.prefix_cache == "on",
            overlap=settings.overlap > 1,
            role=inputs.role,
            hisparse_ratio=inputs.hisparse_ratio if inputs.hisparse else 1,
            extra_slots=settings.extra_slots,
            stage=stage,
            cache_dtype=inputs.cache_dtype,
            unified_slots=bool(inputs.unified_slots) or "request_limit" in settings.assumed,
        )

    def start(self, stage: int, context_tokens: int) -> Start:
        """A rank of a stage when its engine starts."""
        deployment, given = self.deployment(stage, context_tokens), _given_in(self.inputs)
        return Start(deployment, self.settings.step_tokens, self.machine, given)

    def overhead(self, stage: int, context_tokens: int) -> Overhead:
        """Memory of a rank of a stage that is neither weights nor cache, as far as it is known."""
        return self.engine.overhead(self.start(stage, context_tokens))

    def kept(self, stage: int, context_tokens: int) -> Default:
        """What a rank keeps for all but weights and cache, with what nine in ten are within.

        As given (then without a spread), estimated, or a guess not below what is known.
        """
        assumed = self.settings.assumed.get("reserve")
        if assumed is None:
            return Default(self.settings.reserve, "as given")
        start, machine = (
            self.start(stage, context_tokens),
            replace(self.machine, dp=self.layout.dp),
        )
        if found := self.engine.reserve(start._replace(machine=machine)):
            return found
        known = sum(held.size_bytes for held in self.engine.overhead(start).reserve)
        return assumed._replace(value=max(assumed.value, known))

    def reserve_bytes(self, stage: int, context_tokens: int) -> int:
        return int(self.kept(stage, context_tokens).value)

    @cached_property
    def weight_bytes(self) -> tuple[int, ...]:
        found = []
        for stage, layers in enumerate(self.stages):
            deployment = self.deployment(stage, self.context_tokens)
            loading = self.engine.loading(deployment, self.settings.step_tokens)
            if self.inputs.expert_parallel:
                loading = replace(loading, expert_step=0)
            drafts = self.drafts_of(stage)
            found.append(self.weights.rank_bytes(self.layout, layers, drafts, loading))
        return tuple(found)

    @cached_property
    def indexed_ratio(self) -> int | None:
        """Fewest tokens of an indexer key; None for a model without indexer."""
        indexed = AttentionType.CSA, AttentionType.DSA
        ratios = [each.ratio for each in build_schedule(self.config) if each.attn in indexed]
        return min(ratios) if ratios and self.formats.indexer.entry_bytes else None

    def of_replica(self, requests: int) -> int:
        """The most of some concurrent requests that one replica has."""
        return -(-requests // self.layout.dp)

    def drafts_of(self, stage: int) -> int:
        return self.inputs.draft_layers if stage == self.layout.pp - 1 else 0


def _given_in(inputs: Inputs) -> dict[str, Any]:
    return {name: value for name, value in vars(inputs).items() if value is not None}


def resolve(inputs: Inputs) -> list[Scenario]:
    """A scenario per layout that the engine takes, from few GPUs to many; or ``ConfigError``."""
    config, gpu, engine = find_model(inputs.model), find_gpu(inputs), find_engine(inputs.engine)
    _refuse(inputs, config, engine, gpu)
    launch = engine.family.launch
    one = launch.program if launch.ranks_are_replicas else ""
    wishes = [LayoutWish(inputs.gpus, inputs.tp, inputs.dp, inputs.pp, inputs.ep, one)]
    if engine.family.by_layers and inputs.tp in (None, 1):
        given = inputs.gpus or inputs.pp
        counts = [given] if given else _LAYER_GPUS
        dp, ep = inputs.dp or 1, inputs.ep
        wishes = [LayoutWish(count, 1, dp, inputs.pp or count, ep) for count in counts]
    weights = find_weights(inputs, config)

    def scenario(layout: Layout) -> Scenario:
        tp, pp, memory = layout.tp, layout.pp, gpu.driver_bytes
        inside = layout.dp if inputs.dp_attention == "on" else 1
        machine = Machine(gpu.name, memory, tp, inside, pp, config.kind, gpu.arch)
        settings = _settle(inputs, engine, machine, layout.dp)
        formats, reasons = _formats(inputs, config, engine, gpu, tp)
        settings = replace(settings, assumed=settings.assumed | reasons)
        return Scenario(inputs, config, gpu, layout, weights, formats, engine, settings, machine)

    found, refused = list[Scenario](), list[ConfigError]()
    for layout in chain.from_iterable(candidate_layouts(config, w, MOST_GPUS) for w in wishes):
        try:
            found.append(scenario(layout))
        except ConfigError as error:
            refused.append(error)
    if refused and not found:
        raise refused[0]
    return found


def _settle(inputs: Inputs, engine: Engine, machine: Machine, replicas: int) -> Settings:
    """Complete the inputs by the engine's own defaults.

    SGLang's step tokens and request limit are for all data-parallel attention ranks of a server.
    """
    if inputs.in_flight_tokens and (inputs.step_tokens or inputs.overlap):
        raise ConfigError(
            "--in-flight-tokens is the tokens of a step times the steps that overlap: give it, or "
            "those."
        )
    given = _given_in(inputs)
    defaults = engine.defaults(machine, given)
    assumed = {name: default for name, default in defaults.items() if name not in given}
    shares = machine.dp if engine.shares_limits else 1
    own, asked = assumed.get("request_limit"), inputs.concurrency or 0
    if own and (asked := -(-asked // (replicas // shares))) > own.value:
        reason = f"as given by --concurrency; {own.value:,} is {own.reason}"
        assumed["request_limit"] = Default(asked, reason)
    known = {name: default.value for name, default in assumed.items()} | given
    step = known["step_tokens"] // shares
    overlap = known["overlap"] if engine.counts_batches else 1
    flight = step * overlap
    if inputs.in_flight_tokens:
        assumed.pop("step_tokens", None)
        flight = inputs.in_flight_tokens
        step = -(-flight // overlap)
    if inputs.cache_given:
        assumed.pop("memory_fraction", None)
    limit = known.get("request_limit")
    return Settings(
        memory_fraction=known["memory_fraction"],
        reserve=known["reserve"],
        step_tokens=max(step, 1),
        overlap=overlap,
        in_flight_tokens=max(flight, 1),
        request_limit=None if limit is None else max(limit // shares, 1),
        logits_limit=known.get("logits_limit"),
        window_slots=known.get("window_slots"),
        extra_slots=known.get("extra_slots", 0),
        assumed=assumed,
    )


def _refuse(inputs: Inputs, config: DSV4Config, engine: Engine, gpu: Gpu) -> None:
    amd, keeps = (gpu.arch or "").startswith("gfx"), inputs.prefix_cache == "on"
    radix = inputs.hisparse and keeps and inputs.role != "decode"
    asked = {  # by the name of a limit: whether it is asked for, and what it is
        "dcp": (inputs.dcp > 1, "decode context parallelism"),
        "prefill_cp": (inputs.prefill_cp > 1, "prefill context parallelism"),
        "hisparse": (inputs.hisparse, "HiSparse"),
        "hisparse_radix": (radix, "HiSparse"),
        "unified_memory": (inputs.unified_memory,
                           "unified memory (pools that borrow from each other)"),
        "unified_kv": (inputs.unified_kv and amd,
                       "unified KV (a ring of windows for every request, on AMD's GPUs)"),
    }  # fmt: skip
    for limit in engine.family.limits:
        given, name = asked[limit.asked]
        if not given or config.kind not in limit.kinds:
            continue
        why = f"what {engine.name} keeps of {config.name} with it is not sized."
        if limit.said and engine.name == engine_family(engine.family.name)[-1]:
            why = f'{engine.name} refuses it for {config.name}: "{limit.said}".'
        raise ConfigError(f"{name}: {why}")


def _formats(
    inputs: Inputs, config: DSV4Config, engine: Engine, gpu: Gpu, tp: int
) -> tuple[CacheFormats, Defaults]:
    asked = {place: getattr(inputs, f"{place}_format") for place in PLACES}
    backend, split = inputs.attention_backend, inputs.role is not None
    site = Site(engine.name, config, gpu.arch, tp, split, backend, inputs.cache_dtype)
    stored = stored_formats(site, asked)
    reasons = {
        f"{place}_format": Default(name, reason)
        for place, (name, reason) in stored.items()
        if reason and not engine.own
    }
    return choose_formats(config, *(stored[place][0] for place in PLACES)), reasons


def fix_layout(scenario: Scenario) -> Inputs:
    layout = scenario.layout
    return replace(
        scenario.inputs, gpus=layout.gpus, tp=layout.tp, dp=layout.dp, pp=layout.pp, ep=layout.ep
    )
