"""A start-up log explained: the rules behind its number, its meaning, and its levers."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from dsv4kv.engines.contract import GIB, Deployment, Engine
from dsv4kv.engines.flags import flag_for
from dsv4kv.engines.logs.read import Reading, StartupLog, draft_method, named_model
from dsv4kv.engines.logs.recover import Recovery, likeliest, possible_deployments, recover
from dsv4kv.engines.names import find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import entry_format
from dsv4kv.model.plan import CacheFormats
from dsv4kv.units import counted

How = Literal["read", "inferred", "assumed"]
_CONTEXTS = (4096, 32_768, 131_072, 1_048_576)
_SIZES = {
    "buffers_mib",
    "session_mib",
    "available_gib",
    "needed_gib",
    "bytes_per_full_token",
    "kv_gib",
}
"""Fields that say how many bytes the tokens take."""
_ECHOED = {
    "tensor parallel": "tensor_parallel",
    "data parallel": "data_parallel",
    "pipeline parallel": "pipeline_parallel",
    "memory fraction": "memory_fraction",
    "cache dtype": "cache_dtype",
    "max requests": "requests",
    "tokens of a step": "batched",
}


@dataclass(frozen=True)
class Statement:
    """One setting of the configuration, and how it is known."""

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
class Fit:
    """Requests of one length in steady decode."""

    context_tokens: int
    requests: int  # that run
    held: int  # that memory holds

    @property
    def tokens(self) -> int:
        """Tokens of all of them."""
        return self.context_tokens * self.requests


Fits = tuple[Fit, ...]


@dataclass(frozen=True)
class Change:
    """Another setting, and what would be printed with it.

    ``requests`` of the longest context run with it, where tokens do not say so.
    """

    what: str
    printed_tokens: int
    gain_tokens: int
    available_bytes: int
    requests: int | None = None

    @property
    def gains(self) -> bool:
        """Whether more fits, or more run."""
        return self.gain_tokens > 0 or self.requests is not None


@dataclass(frozen=True)
class Explanation:
    """A log explained.

    Attributes:
        seen_in_logs: These rules were checked against published logs.
        ranks: What every rank printed, the smallest first; the smallest is explained.
        candidates: Other configurations that agree with the log as well.
        printed_tokens: The log's number; None where it prints none.
        refused: The engine refused to start.
        in_flight_bytes: Reserved on top for the tokens in flight, per request.
        padding_bytes_per_token: Part of ``bytes_per_token`` lost to alignment.
        measured: GiB of everything but the cache, as the log says.
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
    refused: bool
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
    fits: Fits
    measured: dict[str, float]
    changes: tuple[Change, ...]
    meaning: tuple[str, ...]

    @property
    def replicas(self) -> int:
        """Data-parallel ranks, each with as many tokens; ranks of a replica hold the same."""
        read = {each.what: each.value for each in self.statements}.get("data parallel", "1")
        names = {_replica_of(each.rank, number) for number, each in enumerate(self.ranks)}
        return max(len(names), int(read) if read.isdigit() else 1)


def _replica_of(rank: str, number: int) -> str:
    if named := re.search(r"DP\d+", rank):
        return named[0]
    within = re.match(r"(?:TP|PP|EP|ATTN_)", rank)
    return "" if within else f"{number}"


def explain_startup(log: StartupLog) -> tuple[Explanation, Recovery]:
    """Explain the smallest size of a log.

    Raises:
        ConfigError: A log that is not understood, or of a model other than DeepSeek-V4 and V4.1.
    """
    reading = log.readings[0]
    found = recover(log, reading)
    if not found:
        for deployment, _ in possible_deployments(log):
            find_engine(log.family).costs(deployment)  # says what it does not serve
        raise ConfigError(
            f"{log.source}: a size, but not for how many tokens per request, or with settings "
            "that the rules do not serve: give the whole log of the start, with max_model_len."
        )
    best, unnamed = found[0], named_model(log) is None
    if not best.exact and unnamed:
        raise ConfigError(
            f"{log.source}: not understood: its numbers follow from no known rules, and it does "
            "not say which model it is of: add --model, or give the log from its first line."
        )
    if unnamed and not _SIZES & set(reading.fields):
        raise ConfigError(
            f"{log.source}: it names no model, and its numbers may be of any: add --model "
            "v4-flash, or give the log from its first line, with the arguments."
        )
    engine, deployment = best.engine, best.deployment
    capacity, costs = best.capacity, engine.costs(deployment)
    marginal = sum((cost.marginal_bytes for cost in costs), Fraction(0))
    padding = sum((cost.padding_bytes for cost in costs), Fraction(0))
    rules = engine.family.load("log")
    doubt = (
        "No known engine version reproduces this log (fork, limit or unmodelled feature?). "
        f"Closest are the rules of {engine.name} for {deployment.model.name}. What follows is "
        "what the log itself prints."
    )
    fits = _fits(best, log, reading)
    alike = likeliest(found)[1:] if best.exact else []
    others = [(o, _fits(o, log, reading)) for o in alike if o.engine != engine]
    explanation = Explanation(
        source=log.source,
        engine=engine.name,
        seen_in_logs=engine.seen_in_logs,
        exact=best.exact,
        title=best.title,
        ranks=tuple(
            RankSize(
                each.rank,
                each.printed_tokens,
                each.number("available_gib") or each.number("available_bytes"),
            )
            for each in log.readings
        ),
        statements=tuple(_statements(log, reading, best)),
        candidates=tuple(other.title for other in alike),
        printed_tokens=reading.printed_tokens,
        refused=reading.refused,
        concurrency=float(capacity.concurrency),
        context_tokens=deployment.max_context_tokens,
        in_flight_tokens=deployment.in_flight_tokens,
        unit=engine.unit,
        units=capacity.units,
        unit_bytes=float(capacity.unit_bytes),
        cache_bytes=capacity.cache_bytes,
        fixed_bytes=sum(cost.fixed_bytes for cost in costs),
        in_flight_bytes=sum(cost.in_flight_bytes for cost in costs),
        bytes_per_token=float(marginal + padding),
        padding_bytes_per_token=float(padding),
        fits=fits,
        measured=log.memory,
        changes=_changes_of_all([(best, fits), *others], log, reading) if best.exact else (),
        meaning=(
            *(_others(fits, others) if best.exact else [doubt]),
            *rules.meaning(log, reading, best, capacity),
        ),
    )
    return explanation, best


def _statements(log: StartupLog, reading: Reading, found: Recovery) -> Iterator[Statement]:
    deployment = found.deployment
    derived: How = "inferred" if found.exact else "assumed"

    def known(what: str, value: str, read: object, otherwise: How = derived) -> Statement:
        return Statement(what, value, "read" if read else otherwise)

    version = f" (log: {log.version})" if log.version else ""
    yield known("engine", found.engine.family.name, True)
    yield known("rules", found.engine.name + version, log.version, "inferred")
    yield known("model", deployment.model.name, named_model(log))
    yield known("draft layers", str(deployment.draft_layers), draft_method(log))
    if found.engine.unit != "slot":
        yield known("indexer", deployment.formats.indexer.name, log.text("fp4_indexer"))
    context = reading.whole("context") or reading.whole("refused_context") or log.whole("context")
    tokens = f"{deployment.max_context_tokens:,} tokens"
    yield known("longest request", tokens, context, "assumed")
    if found.engine.unit == "block":
        yield known("tokens in flight", _flight(log, found), False)
        yield known("blocks", f"{found.units:,}", False)
    else:
        yield known("state", "fp32" if deployment.state_bytes == 4 else "bf16", False)
    for what, name in _ECHOED.items():
        if value := log.text(name):
            yield known(what, value, True)


def _flight(log: StartupLog, found: Recovery) -> str:
    (low, high), flight = found.flight_range, found.deployment.in_flight_tokens
    span = "exactly" if low == high else f"{low:,} to {high:,} give the same"
    if high >= found.deployment.max_context_tokens:
        span = f"{low:,} or more give the same"
    batched = log.whole("batched")
    times = f" = {flight // batched} × {batched:,}" if batched and flight % batched == 0 else ""
    return f"{flight:,}{times} ({span})"


def _fits(found: Recovery, log: StartupLog, reading: Reading) -> Fits:
    """Requests by their length, no more than the rank runs; of no known rules, as printed."""
    engine, deployment = found.engine, found.deployment
    longest = deployment.max_context_tokens
    if engine.unit == "slot":
        return (Fit(longest, found.units, found.units),)
    most = reading.whole("running") or (deployment.concurrency if log.whole("requests") else 0)
    shared = found.units if engine.unit != "block" else 0
    if not (found.exact or shared):
        printed = reading.number("concurrency")
        return (Fit(longest, int(printed), int(printed)),) if printed else ()
    fits = []
    for length in [*(length for length in _CONTEXTS if length < longest), longest]:
        count = _held(found, length) if found.exact else shared // length
        fits.append(Fit(length, min(count, most or count), count))
    return tuple(fits)


def _others(fits: Fits, others: Sequence[tuple[Recovery, Fits]]) -> Iterator[str]:
    """Versions that print the same and hold another number of requests."""
    ours = {fit.context_tokens: fit.requests for fit in fits}
    for other, theirs in others:
        for fit in reversed(theirs):
            if fit.requests != ours[fit.context_tokens]:
                requests = counted(fit.requests, "request")
                yield (
                    f"Not certain: {other.engine.name} prints the same and runs {requests} of "
                    f"{fit.context_tokens:,} tokens, not {ours[fit.context_tokens]:,}: add "
                    "--engine NAME:VERSION."
                )
                return


def _held(found: Recovery, context_tokens: int, *, prompts: int = 0) -> int:
    """Requests in steady decode, next to ``prompts`` that each have a chunk in flight."""
    engine, deployment = found.engine, found.deployment
    steady, chunk = 1 + deployment.draft_tokens, deployment.in_flight_tokens
    free = found.capacity.cache_bytes - engine.shared_bytes(deployment)
    free -= prompts * engine.request_bytes(deployment, context_tokens, in_flight=chunk)
    return max(0, free) // engine.request_bytes(deployment, context_tokens, in_flight=steady)


def _changes_of_all(
    exact: Sequence[tuple[Recovery, Fits]], log: StartupLog, reading: Reading
) -> tuple[Change, ...]:
    """The changes of the first, without those that gain by its version alone."""
    changes, *others = (_changes(each, log, reading, fits) for each, fits in exact)
    for theirs in others:
        names = {each.what for each in theirs if each.gains}
        changes = tuple(each for each in changes if each.what in names or not each.gains)
    return changes


def _changes(found: Recovery, log: StartupLog, reading: Reading, fits: Fits) -> tuple[Change, ...]:
    """Every change with its gain, the one that alters the number most first; of a cap, none.

    What runs more of the longest requests comes before what prints more tokens. No limit of
    requests is lowered to fewer than memory holds, and no tokens are gained for fewer requests.
    """
    engine, longest = found.engine, fits[-1]
    if engine.unit == "slot":
        return ()
    now = found.shown_tokens
    if uncapped := _uncapped(found, log, reading, now):
        return (uncapped,)
    running, changes = list[Change](), list[Change]()
    for what, rules, deployment, memory in _trials(found, log):
        limit = deployment.concurrency
        if limit and limit != found.deployment.concurrency and limit < longest.held:
            continue
        other = replace(found, engine=rules, deployment=deployment, available_bytes=memory)
        try:
            tokens = other.shown_tokens
            held = [_held(other, fit.context_tokens) for fit in fits]
        except ConfigError:  # the engine does not serve it
            continue
        gain = tokens - now
        if not gain and held[-1] > longest.held == longest.requests:
            running.append(Change(what, tokens, gain, memory, held[-1]))
        elif gain < 0 or (
            gain and all(n >= fit.requests for n, fit in zip(held, fits, strict=True))
        ):
            changes.append(Change(what, tokens, gain, memory))
    changes.sort(key=lambda change: -abs(change.gain_tokens))
    return (*_raised_limit(found, log, longest, now), *running, *changes)


def _uncapped(found: Recovery, log: StartupLog, reading: Reading, printed: int) -> Change | None:
    """Without the flag that lets fewer tokens run than memory holds."""
    full, memory = reading.whole("full_token") or 0, found.available_bytes
    if found.units < full:
        what = "without the cap of full tokens (--max-total-tokens)"
        return Change(what, full, full - found.units, memory)
    if log.whole("blocks") and (gib := reading.number("available_gib")):
        memory = int(gib * GIB)
        tokens = replace(found, available_bytes=memory).shown_tokens
        if tokens > printed:
            what = "without --num-gpu-blocks-override"
            return Change(what, tokens, tokens - printed, memory)
    return None


def _raised_limit(
    found: Recovery, log: StartupLog, longest: Fit, printed: int
) -> Iterator[Change]:
    """The limit with which as many requests run as memory holds, one of them in prefill."""
    engine, memory = found.engine, found.available_bytes
    flag = flag_for(engine.family.name, "request-limit")
    low, high = longest.requests, longest.held
    best = None
    while low < high and flag:
        limit = (low + high + 1) // 2
        raised = replace(found, deployment=replace(found.deployment, concurrency=limit))
        try:
            tokens = raised.shown_tokens
        except ConfigError:  # nothing is left for the cache
            tokens = 0
        if tokens and _held(raised, longest.context_tokens, prompts=1) >= limit - 1:
            low, best = limit, (limit, tokens)
        else:
            high = limit - 1
    if best:
        limit, tokens = best
        what = f"{flag} {limit * (log.sharers if engine.shares_limits else 1)}"
        yield Change(what, tokens, tokens - printed, memory, limit)


def _trials(found: Recovery, log: StartupLog) -> Iterator[tuple[str, Engine, Deployment, int]]:
    engine, deployment, memory = found.engine, found.deployment, found.available_bytes
    launch = engine.family.launch
    rules = engine.family.load("log")
    if not log.whole("blocks"):  # which are no more with more memory
        name = "kv-memory" if log.whole("kv_memory") else "memory-fraction"
        flag = flag_for(engine.family.name, name)
        yield f"1 GiB more memory ({flag})", engine, deployment, memory + GIB
    if deployment.draft_layers:
        without = replace(deployment, draft_layers=0, draft_tokens=0)
        yield f"without {launch.drafts.partition(' ')[0]}", engine, without, memory
    if deployment.formats.indexer.name == "fp8" and deployment.arch != "sm_90":
        keys = entry_format("indexer", "mxfp4")
        formats = CacheFormats(deployment.formats.main, deployment.formats.window, keys)
        flag = launch.written.get("indexer_format=mxfp4", "indexer keys in mxfp4")
        what = f"{flag.format()} (changes numerics)"
        yield what, engine, replace(deployment, formats=formats), memory
    for what, changed in rules.changes(deployment, log):
        yield what, engine, changed, memory
    newest = find_engine(engine.family.name)
    if newest.name != engine.name:
        yield f"the rules of {newest.name}", newest, deployment, memory
