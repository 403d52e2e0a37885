"""The answer to a sizing question, in whichever direction it was asked."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, is_dataclass
from fractions import Fraction
from typing import Any, Literal

from dsv4kv.budget import fit
from dsv4kv.budget.inputs import Inputs
from dsv4kv.budget.layout import NODE_GPUS
from dsv4kv.budget.scenario import Scenario, Settings, find_formats, resolve
from dsv4kv.engines import contract as ct
from dsv4kv.engines.names import FAMILIES, flag_for
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.model.config import DSV4Config, build_schedule
from dsv4kv.model.plan import CacheFormats, build_schema, bytes_per_token, cached_bytes
from dsv4kv.units import counted, format_bytes


@dataclass(frozen=True)
class Answer:
    """Everything that is known about one deployment."""

    scenario: Scenario
    context: int  # tokens of a request: as asked, or the most that fit, or the model's limit
    concurrency: int  # concurrent requests: as given, or the most that fit; 1 where none does
    fits: bool
    max_concurrency: int
    max_context: int  # the longest of as many requests as asked, else of one
    use: fit.RankUse  # memory of the tightest GPU
    costs: tuple[ct.PoolCost, ...]
    # one request's entries, keys and windows over all layers, without padding, state and copies:
    # the figure that papers quote
    cached_bytes: int
    token_bytes: Fraction  # marginal bytes of one token of context, without these either
    kv_copies: int  # copies of every request's KV: tensor parallel ranks share one KV head
    stages: tuple[ct.Capacity | None, ...]  # by pipeline stage; None where no cache fits
    host: ct.HostTier | None  # what one GPU's rank keeps in host memory
    sent_bytes: int | None  # of a prompt, from a prefill rank to the decode side
    decode_pool_tokens: int | None  # the smallest pool that never retracts these

    @property
    def capacity(self) -> ct.Capacity | None:
        """The smallest stage's, which all stages take; None where one has nothing left."""
        known = [each for each in self.stages if each]
        if len(known) < len(self.stages):
            return None
        return min(known, key=lambda each: (each.printed_tokens is not None, each.concurrency))

    @property
    def log_lines(self) -> tuple[str, ...]:
        """What the engine prints when it starts; with a pipeline, with the stage before it."""
        scenario, lines = self.scenario, list[str]()
        if fit.lacking_bytes(scenario, self.context):
            return ()
        share = scenario.settings.memory_fraction
        free = scenario.gpu.memory_bytes - int(scenario.settings.reserve / share)
        for stage, found in enumerate(self.stages):
            said = scenario.engine.starved(free, scenario.weight_bytes[stage], share)
            prefix = f"PP{stage} " if len(self.stages) > 1 else ""
            own = found.log_lines if found else filter(None, [said])
            lines += [f"{prefix}{line}" for line in own]
        return tuple(lines)

    @property
    def refused(self) -> bool:
        return _refused(self.capacity) or bool(self.host and self.host.refusal)

    @property
    def spread_bytes(self) -> int:
        """What nine in ten starts are within of the memory for KV; 0 where that is given."""
        if self.scenario.inputs.cache_given:
            return 0
        return self.scenario.kept(self.use.stage, self.context).spread

    @property
    def spread_assumed(self) -> bool:
        """Whether no recorded start of this engine says ``spread_bytes``."""
        reason = self.scenario.kept(self.use.stage, self.context).reason
        return reason == ct.UNMEASURED.reason or bool(self.scenario.engine.family.base)

    @property
    def tokens_between(self) -> tuple[int, int] | None:
        """The printed tokens with as much less and more memory; None where there are none."""
        capacity, spread = self.capacity, self.spread_bytes
        if not spread or capacity is None or capacity.printed_tokens is None:
            return None
        scenario, stage = self.scenario, self.stages.index(capacity)
        replica = scenario.of_replica(self.concurrency)
        deployment = scenario.deployment(stage, self.context, replica)
        memory = fit.available_bytes(scenario, stage, self.context)
        low, high = (
            scenario.engine.capacity(deployment, max(0, memory + change)).printed_tokens or 0
            for change in (-spread, spread)
        )
        return low, high

    @property
    def low_concurrency(self) -> int:
        """Requests of the context that fit in a start with ``spread_bytes`` less."""
        between = self.tokens_between
        if between and between[0] < self.context:
            return 0
        return fit.max_concurrency(self.scenario, self.context, self.spread_bytes)

    @property
    def low_context(self) -> int | None:
        """The longest context in such a start; None unless it is asked for."""
        inputs = self.scenario.inputs
        if not inputs.concurrency or inputs.context or not inputs.gpus:
            return None
        return fit.max_context(self.scenario, self.concurrency, self.spread_bytes)

    @property
    def max_tokens(self) -> int:
        """Tokens of context that fit altogether, in requests of the context."""
        return self.max_concurrency * self.context


def answer(inputs: Inputs) -> Answer:
    """What fits, how many GPUs, or whether both fit; raises ``ConfigError``, ``DoesNotFit``."""
    scenario = _choose(inputs)
    limit = scenario.config.max_context_tokens
    context = inputs.context or limit
    if inputs.context is None and inputs.concurrency is not None and inputs.gpus is not None:
        context = fit.max_context(scenario, inputs.concurrency) or limit
    most = fit.max_concurrency(scenario, context)
    concurrency = inputs.concurrency or max(most, 1)
    use, count = fit.use_of(scenario, context, concurrency), scenario.of_replica(concurrency)
    starts = not fit.lacking_bytes(scenario, context)
    stages = tuple(
        capacity_of(scenario, stage, context, concurrency) if starts else None
        for stage in range(scenario.layout.pp)
    )
    replica = scenario.deployment(use.stage, context, count)
    host = host_of(scenario, replica, stages[use.stage])
    sent = scenario.engine.sent(replica, context) if inputs.role else None
    formats = find_formats(inputs, scenario.config)
    cached, per_token = published_bytes(scenario.config, formats, context)
    refused = any(map(_refused, stages)) or bool(host and host.refusal)
    return Answer(
        scenario=scenario,
        context=context,
        concurrency=concurrency,
        fits=fit.fits(scenario, context, concurrency) and not refused,
        max_concurrency=most,
        max_context=fit.max_context(scenario, inputs.concurrency or 1),
        use=use,
        costs=fit.costs_of(scenario, use.stage, context, concurrency),
        cached_bytes=cached,
        token_bytes=per_token,
        kv_copies=scenario.layout.tp,
        stages=stages,
        host=host,
        sent_bytes=sent.bytes if sent else None,
        decode_pool_tokens=scenario.engine.decode_pool_tokens(replica, count),
    )


def host_of(
    scenario: Scenario, deployment: ct.Deployment, capacity: ct.Capacity | None
) -> ct.HostTier | None:
    """The host pools of one rank; None where none are asked for, or the GPU has no cache."""
    inputs, engine, layout = scenario.inputs, scenario.engine, scenario.layout
    tier = "hisparse" if inputs.hisparse else inputs.host_tier
    if tier is None or capacity is None or not capacity.units:
        return None
    if not inputs.hisparse and tier not in engine.family.host_tiers:
        families = FAMILIES.values()
        tiers = (f"{name} of {each.name}" for each in families for name in each.host_tiers)
        known = ", ".join(tiers)
        raise ConfigError(f"--host-tier {tier}: {engine.name} has none; known are {known}.")
    ranks, replica = min(layout.gpus, NODE_GPUS), layout.tp * layout.pp
    wish = ct.HostWish(
        tier,
        ratio=inputs.host_ratio,
        size_bytes=inputs.host_size,
        memory_bytes=inputs.host_memory,
        layout=inputs.host_layout,
        storage=inputs.host_storage,
        ranks=ranks,
        tp=layout.tp,
        replica_ranks=replica,
        node_replicas=max(1, ranks // replica),
        retention=inputs.retention,
        chunk_tokens=inputs.host_chunk,
    )
    return engine.host_tier(deployment, capacity, wish)


def published_bytes(
    config: DSV4Config, formats: CacheFormats, context_tokens: int
) -> tuple[int, Fraction]:
    """Bytes of one request over all layers, stored once, and of one token of its context.

    Entries, indexer keys and windows; no page padding, no compressor state, no draft layers.
    """
    schemas = [build_schema(config, layer, formats=formats) for layer in build_schedule(config)]
    return cached_bytes(schemas, context_tokens), bytes_per_token(schemas)


def _choose(inputs: Inputs) -> Scenario:
    scenarios = resolve(inputs)
    if len(scenarios) == 1:
        return scenarios[0]
    context, concurrency = scenarios[0].context_tokens, inputs.concurrency or 1
    is_free = inputs.tp is None and inputs.dp is None and inputs.ep is None
    if is_free:
        found = fit.fewest_of_any(inputs, context, concurrency)
    else:
        found = fit.fewest_gpus(scenarios, context, concurrency)
    if found:
        return found
    last, asked = scenarios[-1], counted(concurrency, "request")
    if not fit.within_limit(last, concurrency):
        raise DoesNotFit(f"{asked} do not run concurrently: {limit_sentence(last)}.")
    if lack := lack_sentence(last, context):
        raise DoesNotFit(lack)
    if any(option.fits for option in fit.advise(last, context, concurrency)):
        return last  # which is answered with these options, and a line to paste
    missing = format_bytes(-fit.tightest_free_bytes(last, context, concurrency))
    raise DoesNotFit(
        f"{asked} of {context:,} tokens cannot fit on {last.layout.gpus:,} GPUs "
        f"({last.layout.label}), where the search ends: every GPU lacks {missing}; ask for fewer "
        "or shorter requests, or lay it out with --dp or --pp."
    )


def limit_sentence(scenario: Scenario) -> str:
    """How many requests the engine runs concurrently, and by which of its flags."""
    settings, engine = scenario.settings, scenario.engine
    flag = flag_for(engine.family.name, "request-limit")
    source = "by default" if "request_limit" in settings.assumed else "is given"
    replica = " a replica" if scenario.layout.dp > 1 else ""
    return f"{engine.name} runs {settings.request_limit:,}{replica} ({flag} {source})"


def lack_sentence(scenario: Scenario, context_tokens: int) -> str:
    """Why a server does not start with the memory for KV that is given; empty if it does."""
    if not (lacking := fit.lacking_bytes(scenario, context_tokens)):
        return ""
    weights, gpu, layout = max(scenario.weight_bytes), scenario.gpu, scenario.layout
    reserve = scenario.reserve_bytes(scenario.weight_bytes.index(weights), context_tokens)
    room = gpu.memory_bytes - weights - reserve
    remedy = f"give less than {format_bytes(room)}" if room > 0 else "they alone do not fit"
    return (
        f"{scenario.config.name} does not start on {layout.gpus:,} × {gpu.name} ({layout.label}): "
        f"weights ({format_bytes(weights)}), reserve ({format_bytes(reserve)}) and the KV memory "
        f"given are {format_bytes(lacking)} more than a GPU has "
        f"({format_bytes(gpu.memory_bytes)}); {remedy}."
    )


def capacity_of(
    scenario: Scenario, stage: int, context_tokens: int, concurrency: int
) -> ct.Capacity | None:
    """What fits into the memory of a stage; None where nothing is left for a cache.

    Only an engine that profiles its logits sets them aside.
    """
    memory = fit.available_bytes(scenario, stage, context_tokens)
    if scenario.engine.logits_room != "profiled" and not scenario.inputs.cache_given:
        memory += fit.transient_bytes(scenario, context_tokens)
    if memory <= 0:
        return None
    replica = scenario.of_replica(concurrency)
    return scenario.engine.capacity(scenario.deployment(stage, context_tokens, replica), memory)


def _refused(capacity: ct.Capacity | None) -> bool:
    return bool(capacity and capacity.log_lines and capacity.printed_tokens is None)


@dataclass(frozen=True)
class Assumption:
    """One setting that was not given."""

    input: str
    option: str
    value: Any
    shown: str
    reason: str


def assumptions(scenario: Scenario) -> list[Assumption]:
    family, assumed = scenario.engine.family.name, dict(scenario.settings.assumed)
    if "reserve" in assumed:
        assumed["reserve"] = scenario.kept(0, scenario.context_tokens)
    return [
        Assumption(name, flag_for(family, name.replace("_", "-")), value, _shown(name, value), why)
        for name, (value, why, _) in assumed.items()
    ]


def _shown(name: str, value: Any) -> str:
    if isinstance(value, Fraction):
        return f"{float(value):g}"
    if name in ("reserve", "logits_limit") and value is not None:
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else f"{value or 'none'}"


Kind = Literal["whole", "taken", "part", "more", "left"]


@dataclass(frozen=True)
class Line:
    """One step from a GPU's memory to its KV; a ``part`` is of the line before, ``more`` not."""

    kind: Kind
    what: str
    size_bytes: int
    source: str


def overhead_of(found: Answer) -> ct.Overhead:
    """Memory of the tightest GPU that is neither weights nor cache, as far as it is known."""
    return found.scenario.overhead(found.use.stage, found.context)


def peak_lines(found: Answer) -> Iterator[Line]:
    """What is live on the tightest GPU at the peak of a step; taken and left add up to the whole.

    Every line has a source; nothing says the size of what is in ``overhead_of(found).unknown``.
    """
    scenario, use, overhead = found.scenario, found.use, overhead_of(found)
    left = use.budget - use.weights - use.reserve - use.transient
    what = "for KV" if left >= 0 else "missing for KV"
    if scenario.inputs.cache_given:
        yield Line("left", what, left, "as given")
        return
    yield Line("whole", "memory of the GPU", use.memory, scenario.gpu.memory_source)
    share = f"left free, {1 - float(scenario.settings.memory_fraction):.3g} of it"
    yield Line("taken", share, use.memory - use.budget, _reason(found, "memory_fraction"))
    if not overfull(found):  # a part is never larger than its whole
        for held in overhead.headroom:
            yield Line("part", *held)
        estimated = sum(held.size_bytes for held in overhead.headroom)
        if (over := estimated - (use.memory - use.budget)) > 0:
            yield Line("part", "rounding of the share", -over, "to three digits, by the engine")
        if use.headroom:
            kind: Kind = "part" if estimated + use.headroom < use.memory - use.budget else "more"
            yield Line(kind, "indexer logits", use.headroom, _reason(found, "logits_limit"))
    yield Line("taken", "weights", use.weights, scenario.weights.source)
    if "reserve" in scenario.settings.assumed:
        known = sum(held.size_bytes for held in overhead.reserve)
        for held in overhead.reserve:
            yield Line("taken", *held)
        rest = "the rest of the reserve" if known else "reserve"
        if use.reserve > known:
            yield Line("taken", rest, use.reserve - known, _reason(found, "reserve"))
    else:
        yield Line("taken", "reserve", use.reserve, "as given")
    if use.transient:
        yield Line("taken", "indexer logits", use.transient, _reason(found, "logits_limit"))
    yield Line("left", what, left, "")


def overfull(found: Answer) -> int:
    """Bytes that the engine estimates for what its share leaves free, if that is less; else 0."""
    use = found.use
    wanted = sum(held.size_bytes for held in overhead_of(found).headroom)
    rounded = use.memory // 1000  # engines give their own share with three digits
    return wanted if wanted > use.memory - use.budget + rounded else 0


def _reason(found: Answer, name: str) -> str:
    if name == "reserve":
        return found.scenario.kept(found.use.stage, found.context).reason
    assumed = found.scenario.settings.assumed.get(name)
    return assumed.reason if assumed else "as given"


SCHEMA = "dsv4kv.budget/1"
_UNITS = {
    "hbm": "hbm_bytes",
    "context": "context_tokens",
    "weights": "weights_bytes",
    "reserve": "reserve_bytes",
    "kv_memory": "kv_memory_bytes",
    "logits_limit": "logits_limit_bytes",
    "host_size": "host_size_bytes",
    "host_memory": "host_memory_bytes",
}


def to_document(
    found: Answer, options: list[fit.Option], curve: list[tuple[int, int]]
) -> dict[str, Any]:
    scenario, use = found.scenario, found.use
    inputs, layout, gpu = scenario.inputs, scenario.layout, scenario.gpu
    used = asdict(use) | {"cache": use.cache, "free": use.free}
    return {
        "schema": SCHEMA,
        "model": scenario.config.name,
        "engine": {
            "name": scenario.engine.name,
            "seen_in_logs": scenario.engine.seen_in_logs,
            "kv_spread_bytes": found.spread_bytes,
            "printed_tokens_between": found.tokens_between,
            "capacity": _plain(found.capacity),
            "log_lines": found.log_lines,
        },
        "gpu": {name: value for name, value in asdict(gpu).items() if name != "given_bytes"}
        | {"memory_bytes": gpu.memory_bytes, "memory_source": gpu.memory_source},
        "layout": asdict(layout)
        | {"gpus": layout.gpus, "label": layout.label, "kv_copies": found.kv_copies},
        "inputs": _with_units(inputs),
        "settings": _with_units(scenario.settings),
        "assumed": _plain(assumptions(scenario)),
        "formats": {
            place: getattr(scenario.formats, place).name for place in ("main", "window", "indexer")
        },
        "weights": {
            "copy_bytes": scenario.weights.total_bytes,
            "host_bytes": scenario.weights.host_bytes,
            "parameters": scenario.weights.parameters,
            "source": scenario.weights.source,
        },
        "fits": found.fits,
        "context_tokens": found.context,
        "concurrency": found.concurrency,
        "max_concurrency": found.max_concurrency,
        "low_concurrency": found.low_concurrency,
        "max_context_tokens": found.max_context,
        "low_context_tokens": found.low_context,
        "max_tokens": found.max_tokens,
        "request": _request(found),
        "gpu_memory": {
            name if name == "stage" else f"{name}_bytes": size for name, size in used.items()
        },
        "pools": _plain(list(found.costs)),
        "host": _host(found.host),
        "sent_bytes": found.sent_bytes,
        "decode_pool_tokens": found.decode_pool_tokens,
        "concurrency_by_context": [
            {"context_tokens": tokens, "concurrency": count} for tokens, count in curve
        ],
        "options": [
            {n: value for n, value in vars(option).items() if n not in ("scenario", "inputs")}
            for option in options
        ],
        "prefix": prefix_document(scenario, found.context),
    }


def _request(found: Answer) -> dict[str, Any]:
    return {
        "cached_bytes": found.cached_bytes,
        "token_bytes": float(found.token_bytes),
        "fixed_bytes_per_gpu": sum(cost.fixed_bytes for cost in found.costs),
        "in_flight_bytes_per_gpu": found.use.in_flight,
        "marginal_bytes_per_gpu": float(sum(cost.marginal_bytes for cost in found.costs)),
        "padding_bytes_per_gpu": float(sum(cost.padding_bytes for cost in found.costs)),
    }


def prefix_document(scenario: Scenario, context_tokens: int) -> dict[str, Any] | None:
    """Prefixes of a deployment as plain values, on the ranks of its first stage.

    None for a model whose prefixes are not modelled. Bytes of one token of context that leaves
    the GPU are its entries and indexer keys, without and with the padding of the engine's pages.
    """
    engine, deployment = scenario.engine, scenario.deployment(0, context_tokens)
    if scenario.config.architecture == "flat":
        return None
    try:
        rule, costs = engine.rule(deployment), engine.costs(deployment)
    except ConfigError:
        return None
    context = [cost for cost in costs if cost.pool in ("main", "indexer")]
    useful = sum(cost.marginal_bytes for cost in context)
    return {
        "hit_multiple_tokens": rule.block_tokens,
        "shortest_prompt_tokens": rule.shortest_prompt_tokens,
        "replayed_tokens": rule.replayed_tokens,
        "needs": [asdict(need) for need in rule.needs],
        "offloaded_useful_bytes_per_token": float(useful),
        "offloaded_padded_bytes_per_token": float(
            useful + sum(cost.padding_bytes for cost in context)
        ),
    }


def _host(tier: ct.HostTier | None) -> dict[str, Any] | None:
    if tier is None:
        return None
    pools = [asdict(pool) | {"total_bytes": pool.total_bytes} for pool in tier.pools]
    sums = {"holder_bytes": tier.holder_bytes, "node_bytes": tier.node_bytes}
    return asdict(tier) | {"pools": pools} | sums


def _with_units(values: Inputs | Settings) -> dict[str, Any]:
    plain = _plain(values)
    plain.pop("assumed", None)
    return {_UNITS.get(name, name): value for name, value in plain.items()}


def _plain(value: Any) -> Any:
    """A dataclass, or a list of them, as a document; fractions become floats."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(each) for name, each in vars(value).items()}
    return float(value) if isinstance(value, Fraction) else value
