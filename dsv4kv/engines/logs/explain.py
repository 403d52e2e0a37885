"""A start-up log explained: the configuration behind it, and what its number means."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

from dsv4kv.engines.contract import Capacity, Deployment, Engine
from dsv4kv.engines.logs.read import Reading, StartupLog, read_log
from dsv4kv.engines.logs.recovery import Recovery, likeliest, recover
from dsv4kv.engines.logs.setups import draft_method, named_model
from dsv4kv.engines.names import family_of, find_engine
from dsv4kv.engines.rule import Launch
from dsv4kv.engines.vllm.sizes import VllmEngine
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import entry_format
from dsv4kv.model.schema import CacheFormats
from dsv4kv.units import format_bytes

How = Literal["read", "inferred", "assumed"]


@dataclass(frozen=True)
class Statement:
    """One thing known of the configuration, and how."""

    what: str
    value: str
    how: How


@dataclass(frozen=True)
class RankSize:
    """What one rank printed."""

    rank: str
    tokens: int | None
    available_gib: float | None


@dataclass(frozen=True)
class Split:
    """One request of full context, in the engine's units (blocks, full tokens).

    Attributes:
        context: For its tokens.
        fixed: For windows and states in steady decode.
        in_flight: On top, for tokens in flight.
        counted: What the engine divides by; the sum of the three.
        held: What it really takes in steady decode.
    """

    context: float
    fixed: float
    in_flight: float
    counted: float
    held: float


@dataclass(frozen=True)
class Fit:
    """Requests of one length that memory holds in steady decode."""

    context_tokens: int
    requests: int

    @property
    def tokens(self) -> int:
        """Tokens of all of them."""
        return self.context_tokens * self.requests


@dataclass(frozen=True)
class Change:
    """Another setting, and what would be printed with it."""

    what: str
    printed_tokens: int
    gain_tokens: int


@dataclass(frozen=True)
class Explanation:
    """A log explained.

    Attributes:
        source: The log.
        engine: Rules that give its numbers.
        seen_in_logs: Those rules were checked against published logs.
        exact: The rules give the log's own integers.
        title: The configuration in a line.
        ranks: What every rank printed, the smallest first; the smallest is explained.
        statements: The configuration, one thing at a time.
        candidates: Other configurations that agree with the log as well.
        printed_tokens: The log's number; None where the engine refused to start.
        shown_tokens: The same number, or what it would have been had it started.
        concurrency: Requests of full context, as the engine counts.
        context_tokens: Full context.
        in_flight_tokens: Tokens in flight.
        unit: ``block`` or ``full token``.
        units: How many there are.
        unit_bytes: Bytes of one.
        cache_bytes: Bytes of the memory they take.
        fixed_bytes: Of every request.
        in_flight_bytes: Of every request on top, reserved.
        bytes_per_token: Of context, padding included.
        padding_bytes_per_token: Of it, what alignment loses.
        split: One request in units.
        fits: What really fits.
        measured: GiB of all but the cache, as the log says, by what they are.
        changes: What would alter the number most, the largest first.
        meaning: The number in sentences.
    """

    source: str
    engine: str
    seen_in_logs: bool
    exact: bool
    title: str
    ranks: tuple[RankSize, ...]
    statements: tuple[Statement, ...]
    candidates: tuple[str, ...]
    printed_tokens: int | None
    shown_tokens: int
    concurrency: float
    context_tokens: int
    in_flight_tokens: int
    unit: str
    units: int
    unit_bytes: float
    cache_bytes: int
    fixed_bytes: int
    in_flight_bytes: int
    bytes_per_token: float
    padding_bytes_per_token: float
    split: Split
    fits: tuple[Fit, ...]
    measured: dict[str, float]
    changes: tuple[Change, ...]
    meaning: tuple[str, ...]


_ECHOED = (
    ("tensor parallel", "tensor_parallel"),
    ("data parallel", "data_parallel"),
    ("pipeline parallel", "pipeline_parallel"),
    ("memory fraction", "memory_fraction"),
    ("cache dtype", "cache_dtype"),
    ("max requests", "requests"),
    ("tokens of a step", "batched"),
)


def state(log: StartupLog, reading: Reading, found: Recovery) -> tuple[Statement, ...]:
    """The configuration: every part read, inferred from the numbers, or assumed."""
    return tuple(_statements(log, reading, found))


def describe(
    reading: Reading, found: Recovery, capacity: Capacity, split: Split
) -> tuple[str, ...]:
    """What the number means, in sentences."""
    sentences = _vllm_meaning if isinstance(found.engine, VllmEngine) else _sglang_meaning
    doubts = [] if found.exact else [_doubt(found)]
    return (*doubts, *sentences(reading, found, capacity, split))


def _statements(log: StartupLog, reading: Reading, found: Recovery) -> Iterator[Statement]:
    deployment, family = found.deployment, found.engine.name.partition(":")[0]
    yield Statement("engine", family, "read")
    yield Statement(
        "rules",
        found.engine.name + (f" (log: {log.version})" if log.version else ""),
        "read" if log.version else "inferred",
    )
    yield Statement("model", deployment.model.name, "read" if named_model(log) else _how(found))
    yield Statement(
        "draft layers", str(deployment.draft_layers), "read" if draft_method(log) else _how(found)
    )
    fp4 = log.text("fp4_indexer")
    yield Statement("indexer", deployment.formats.indexer.name, "read" if fp4 else _how(found))
    context_read = reading.whole("context") or reading.whole("refused_context")
    yield Statement(
        "longest request",
        f"{deployment.max_context_tokens:,} tokens",
        "read" if context_read or log.whole("context") else "assumed",
    )
    if family == "vllm":
        yield _flight(log, found)
        yield Statement("blocks", f"{found.units:,}", _how(found))
    else:
        yield Statement("state", "fp32" if deployment.state_bytes == 4 else "bf16", _how(found))
    for what, name in _ECHOED:
        if value := log.text(name):
            yield Statement(what, value, "read")


def _flight(log: StartupLog, found: Recovery) -> Statement:
    low, high = found.flight_range
    flight = found.deployment.in_flight_tokens
    if high >= found.deployment.max_context_tokens:
        span = f"{low:,} or more give the same"
    elif low == high:
        span = "exactly"
    else:
        span = f"{low:,} to {high:,} give the same"
    batched = log.whole("batched")
    times = f" = {flight // batched} × {batched:,}" if batched and flight % batched == 0 else ""
    return Statement("tokens in flight", f"{flight:,}{times} ({span})", _how(found))


def _how(found: Recovery) -> How:
    return "inferred" if found.exact else "assumed"


def _doubt(found: Recovery) -> str:
    return (
        "No known engine version reproduces this log (fork, limit or unmodelled feature?). "
        f"Closest match: {found.title}; treat what follows as a guess."
    )


def _vllm_meaning(
    reading: Reading, found: Recovery, capacity: Capacity, split: Split
) -> Iterator[str]:
    context, unit = found.deployment.max_context_tokens, float(capacity.unit_bytes)
    if "tokens" in reading.fields:
        yield (
            f"{reading.fields['tokens']} tokens is not a capacity: vLLM computes it as "
            f"{capacity.units:,} blocks ÷ {split.counted:,.0f} blocks per request of {context:,} "
            f"tokens × {context:,}."
        )
    else:
        yield (
            f"The start was refused: one request of {context:,} tokens counts as "
            f"{split.counted:,.0f} blocks, and there are {capacity.units:,}."
        )
    yield (
        f"Of these {split.counted:,.0f} blocks {split.context:,.0f} are context, "
        f"{split.in_flight:,.0f} ({format_bytes(split.in_flight * unit)}) prefill workspace for "
        f"{found.deployment.in_flight_tokens:,} tokens in flight, {split.fixed:,.0f} windows and "
        "states."
    )
    yield (
        f"In steady decode such a request takes {split.held:,.0f} blocks "
        f"({format_bytes(split.held * unit)}); its workspace is then free."
    )


def _sglang_meaning(
    reading: Reading, found: Recovery, capacity: Capacity, split: Split
) -> Iterator[str]:
    full, unit = reading.whole("full_token") or 0, float(capacity.unit_bytes)
    yield (
        f"{full:,} full tokens of {unit:,.2f} B are shared by all requests: their contexts "
        "together cannot be longer."
    )
    states = f", and {format_bytes(split.fixed * unit)} of states" if split.fixed else ""
    held = format_bytes(found.engine.shared_bytes(found.deployment))
    yield (
        f"A request of {found.deployment.max_context_tokens:,} tokens takes {split.context:,.0f} "
        f"full tokens{states}; {held} of states and windows are allocated at start-up."
    )


GIB = 2**30
_SMALL_CHUNK = 2048
_SHORT_CONTEXT = 131_072
_SMALL_RATIO = 0.05

_Trial = tuple[str, Engine, Deployment, int]


def shown_tokens(engine: Engine, deployment: Deployment, available_bytes: int) -> int:
    """The number that is printed, or that would be, had the engine not refused to start."""
    capacity = engine.capacity(deployment, available_bytes)
    if capacity.printed_tokens is not None:
        return capacity.printed_tokens
    return int(capacity.concurrency * deployment.max_context_tokens)


def find_changes(recovery: Recovery, log: StartupLog) -> tuple[Change, ...]:
    """Every change with its gain, the one that alters the number most first."""
    now = shown_tokens(recovery.engine, recovery.deployment, recovery.available_bytes)
    changes = []
    for what, engine, deployment, memory in _trials(recovery):
        try:
            tokens = shown_tokens(engine, deployment, memory)
        except ConfigError:  # the engine does not serve it
            continue
        changes.append(Change(what, tokens, tokens - now))
    family = family_of(recovery.engine.name)
    changes += _replicas(log, family.launch if family else Launch(), now)
    return tuple(
        sorted(
            (change for change in changes if change.gain_tokens),
            key=lambda change: -abs(change.gain_tokens),
        )
    )


def _trials(recovery: Recovery) -> Iterator[_Trial]:
    engine, deployment = recovery.engine, recovery.deployment
    memory, family = recovery.available_bytes, recovery.engine.name.partition(":")[0]
    yield "1 GiB more memory", engine, deployment, memory + GIB
    for what, changed in _common(deployment):
        yield what, engine, changed, memory
    settings = _vllm_changes(deployment) if family == "vllm" else _sglang_changes(deployment)
    for what, changed in settings:
        yield what, engine, changed, memory
    newest = find_engine(family)
    if newest.name != engine.name:
        yield f"the rules of {newest.name}", newest, deployment, memory


def _common(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    if deployment.draft_layers:
        yield "no draft layers", replace(deployment, draft_layers=0, draft_tokens=0)
    if deployment.formats.indexer.name == "fp8" and deployment.arch != "sm_90":
        keys = entry_format("indexer", "mxfp4")
        formats = CacheFormats(deployment.formats.main, deployment.formats.window, keys)
        yield "indexer keys in mxfp4", replace(deployment, formats=formats)


def _vllm_changes(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    context, flight = deployment.max_context_tokens, deployment.in_flight_tokens
    if flight > _SMALL_CHUNK:
        what = f"{_SMALL_CHUNK:,} tokens in flight (max_num_batched_tokens × batches at once)"
        yield what, replace(deployment, in_flight_tokens=_SMALL_CHUNK)
    for other in (_SHORT_CONTEXT, deployment.model.max_context_tokens):
        if other != context:
            yield f"max_model_len {other:,}", replace(deployment, max_context_tokens=other)


def _sglang_changes(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    if deployment.window_ratio is None or deployment.window_ratio > _SMALL_RATIO:
        what = f"swa_full_tokens_ratio {_SMALL_RATIO}"
        yield what, replace(deployment, window_ratio=_SMALL_RATIO)
    if deployment.state_bytes != 2:
        yield "compressor states in bf16", replace(deployment, state_bytes=2)
    if not deployment.online_state and not deployment.draft_layers:
        yield "HCA states online", replace(deployment, online_state=True)
    if deployment.concurrency and deployment.concurrency > 1:
        half = deployment.concurrency // 2
        yield f"max_running_requests {half:,}", replace(deployment, concurrency=half)


def _replicas(log: StartupLog, launch: Launch, now: int) -> list[Change]:
    """The one KV head is replicated: every rank of a tensor-parallel group holds the same."""
    dp = log.whole("data_parallel") or 1
    tp = (log.whole("tensor_parallel") or 1) // (dp if launch.tp_spans_replicas else 1)
    if tp <= 1:
        return []
    count = tp * dp
    what = (
        f"{launch.replicas.format(dp=count, ep=count)} instead of {tp} tensor-parallel ranks a "
        "replica: all replicas together (if as much memory stays free)"
    )
    return [Change(what, now * count, now * (count - dp))]


_CONTEXTS = (4096, 32_768, 131_072, 1_048_576)


def explain_log(path: Path) -> Explanation:
    """Read and explain a start-up log.

    Raises:
        ConfigError: A file that cannot be read, that says nothing of a cache's size, or whose
            model has another cache than DeepSeek-V4.
    """
    return explain_startup(read_log(path))[0]


def explain_startup(log: StartupLog) -> tuple[Explanation, Recovery]:
    """Explain the smallest size of a log; raises ``ConfigError`` as ``explain_log`` does."""
    reading = log.readings[0]
    found = recover(log, reading)
    if not found:
        raise ConfigError(
            f"{log.source}: a size, but not for how many tokens per request, or with settings "
            "that the rules do not serve: give the whole log of the start, with max_model_len."
        )
    best = found[0]
    if not best.exact and named_model(log) is None:
        raise ConfigError(
            f"{log.source}: not understood: its numbers follow from no known rules, and it does "
            "not say which model it is of: give the log from its first line, with the arguments."
        )
    others = tuple(other.title for other in likeliest(found)[1:]) if best.exact else ()
    return _explanation(log, reading, best, others), best


def _explanation(
    log: StartupLog, reading: Reading, best: Recovery, others: tuple[str, ...]
) -> Explanation:
    engine, deployment = best.engine, best.deployment
    capacity = engine.capacity(deployment, best.available_bytes)
    costs = engine.costs(deployment)
    marginal = sum((cost.marginal_bytes for cost in costs), Fraction(0))
    padding = sum((cost.padding_bytes for cost in costs), Fraction(0))
    split = _split(best)
    return Explanation(
        source=log.source,
        engine=engine.name,
        seen_in_logs=engine.seen_in_logs,
        exact=best.exact,
        title=best.title,
        ranks=tuple(_rank_size(other) for other in log.readings),
        statements=state(log, reading, best),
        candidates=others,
        printed_tokens=printed_tokens(reading),
        shown_tokens=shown_tokens(engine, deployment, best.available_bytes),
        concurrency=float(capacity.concurrency),
        context_tokens=deployment.max_context_tokens,
        in_flight_tokens=deployment.in_flight_tokens,
        unit="block" if isinstance(engine, VllmEngine) else "full token",
        units=capacity.units,
        unit_bytes=float(capacity.unit_bytes),
        cache_bytes=capacity.cache_bytes,
        fixed_bytes=sum(cost.fixed_bytes for cost in costs),
        in_flight_bytes=sum(cost.in_flight_bytes for cost in costs),
        bytes_per_token=float(marginal + padding),
        padding_bytes_per_token=float(padding),
        split=split,
        fits=_fits(best, capacity.cache_bytes),
        measured=log.memory,
        changes=find_changes(best, log),
        meaning=describe(reading, best, capacity, split),
    )


def printed_tokens(reading: Reading) -> int | None:
    """The number of tokens that a rank printed; None where it refused to start."""
    return reading.whole("tokens") or reading.whole("full_token")


def _rank_size(reading: Reading) -> RankSize:
    memory = reading.number("available_gib") or reading.number("available_bytes")
    return RankSize(reading.rank, printed_tokens(reading), memory)


def _split(found: Recovery) -> Split:
    """One request of full context in units; windows and states need some even in steady decode."""
    engine, deployment = found.engine, found.deployment
    context, steady = deployment.max_context_tokens, 1 + deployment.draft_tokens
    if isinstance(engine, VllmEngine):
        layout = engine.layout(deployment)
        own = layout.groups[0].blocks(context, 0)
        quiet = engine.blocks_counted(found.with_flight(steady).deployment, context)
        counted = engine.blocks_counted(deployment, context)
        held = layout.blocks(context, steady)
        return Split(own, quiet - own, counted - quiet, counted, held)
    capacity = engine.capacity(deployment, found.available_bytes)
    held_bytes = engine.request_bytes(deployment, context, in_flight=steady)
    unit, needed = float(capacity.unit_bytes), float(capacity.units_per_request)
    fixed = sum(cost.fixed_bytes for cost in engine.costs(deployment)) / unit
    return Split(needed, fixed, 0.0, needed + fixed, held_bytes / unit)


def _fits(found: Recovery, cache_bytes: int) -> tuple[Fit, ...]:
    """Requests of several lengths in steady decode, up to the longest that may be asked for."""
    engine, deployment = found.engine, found.deployment
    free = cache_bytes - engine.shared_bytes(deployment)
    longest = deployment.max_context_tokens
    lengths = [length for length in _CONTEXTS if length < longest]
    return tuple(
        Fit(
            length,
            max(0, free)
            // engine.request_bytes(deployment, length, in_flight=1 + deployment.draft_tokens),
        )
        for length in (*lengths, longest)
    )
