"""A start-up log explained: the rules behind its number, its meaning, and its levers."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from dsv4kv.engines.contract import GIB, Deployment, Engine
from dsv4kv.engines.logs import StartupLog, draft_method, named_model
from dsv4kv.engines.names import find_engine, flag_for
from dsv4kv.engines.recover import Recovery, find_recoveries, possible_deployments
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import entry_format
from dsv4kv.units import counted

How = Literal["read", "inferred", "assumed", "given"]
_RESTARTED = "The last start of this log; those before it are not counted."
_CONTEXTS = (4096, 32_768, 131_072, 1_048_576)
_SIZES = {
    *("buffers_mib", "session_mib", "available_gib", "needed_gib"),
    *("bytes_per_full_token", "kv_gib"),
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
    prefilling: int  # that memory holds while one of them is in prefill, as ``budget`` counts

    @property
    def tokens(self) -> int:
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
        return self.gain_tokens > 0 or self.requests is not None


@dataclass(frozen=True)
class Explanation:
    """A log explained."""

    source: str
    engine: str
    seen_in_logs: bool  # these rules were checked against published logs
    exact: bool
    title: str
    ranks: tuple[RankSize, ...]  # what every rank printed, the explained one first
    statements: tuple[Statement, ...]
    candidates: tuple[str, ...]  # other configurations that agree with the log as well
    printed_tokens: int | None  # the log's number; None where it prints none
    refused: bool  # the engine refused to start
    concurrency: float
    context_tokens: int
    in_flight_tokens: int
    unit: str
    units: int
    unit_bytes: float
    cache_bytes: int
    fixed_bytes: int
    in_flight_bytes: int  # reserved on top for the tokens in flight, per request
    bytes_per_token: float
    padding_bytes_per_token: float  # part of ``bytes_per_token`` lost to alignment
    fits: Fits
    measured: dict[str, float]  # GiB of everything but the cache, as the log says
    changes: tuple[Change, ...]
    meaning: tuple[str, ...]  # the number in sentences

    @property
    def replicas(self) -> int:
        """Data-parallel ranks, each with as many tokens; ranks of a replica hold the same."""
        read = {each.what: each.value for each in self.statements}.get("data parallel", "1")
        names = set[str]()
        for number, each in enumerate(self.ranks):
            named, within = re.search(r"DP\d+", each.rank), re.match("TP|PP|EP|ATTN_", each.rank)
            names.add(named[0] if named else "" if within else f"{number}")
        return max(len(names), int(read) if read.isdigit() else 1)


def explain_startup(log: StartupLog) -> tuple[Explanation, Recovery]:
    """Explain the smallest size of a log; raises ``ConfigError`` where it is not understood."""
    reading, unnamed = log.smallest, named_model(log) is None
    found = find_recoveries(log)
    if not found:
        for deployment, _ in possible_deployments(log):
            find_engine(log.family).costs(deployment)  # says what it does not serve
        raise ConfigError(
            f"{log.source}: a size, but not for how many tokens per request, or with settings "
            "that the rules do not serve: give the whole log of the start, with max_model_len."
        )
    best = found[0]
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
    engine, deployment, capacity = best.engine, best.deployment, best.capacity
    costs, fits = engine.costs(deployment), _fits(best, log)
    padding = sum((cost.padding_bytes for cost in costs), Fraction(0))
    marginal = sum((cost.marginal_bytes for cost in costs), padding)
    alike = [each for each in found[1:] if best.exact and each.score == best.score]
    others = [(each, _fits(each, log)) for each in alike if each.engine != engine]
    doubt = (
        "No known engine version reproduces this log (fork, limit or unmodelled feature?). "
        f"Closest are the rules of {engine.name} for {deployment.model.name}. What follows is "
        "what the log itself prints."
    )
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
        statements=tuple(_statements(log, best)),
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
        bytes_per_token=float(marginal),
        padding_bytes_per_token=float(padding),
        fits=fits,
        measured=log.memory,
        changes=_changes_of_all([(best, fits), *others], log) if best.exact else (),
        meaning=(
            *([_RESTARTED] if log.restarts else []),
            *(_others(fits, others) if best.exact else [doubt]),
            *engine.family.load("log").meaning(log, best, capacity),
        ),
    )
    return explanation, best


def _statements(log: StartupLog, found: Recovery) -> Iterator[Statement]:
    deployment, reading = found.deployment, log.smallest
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
    longest = deployment.max_context_tokens
    context = reading.whole("context") or reading.whole("refused_context") or log.whole("context")
    yield known("longest request", f"{longest:,} tokens", context, "assumed")
    if found.engine.unit == "block":
        (low, high), flight = found.flight_range, deployment.in_flight_tokens
        span = "exactly" if low == high else f"{low:,} to {high:,} give the same"
        span = f"{low:,} or more give the same" if high >= longest else span
        step = log.whole("batched")
        times = f" = {flight // step} × {step:,}" if step and flight % step == 0 else ""
        yield known("tokens in flight", f"{flight:,}{times} ({span})", False)
        yield known("blocks", f"{found.units:,}", False)
    else:
        yield known("state", "fp32" if deployment.state_bytes == 4 else "bf16", False)
    for what, name in _ECHOED.items():
        if value := log.text(name):
            yield known(what, value, True)


def _fits(found: Recovery, log: StartupLog) -> Fits:
    """Requests by their length, no more than the rank runs; of no known rules, as printed."""
    engine, deployment, reading = found.engine, found.deployment, log.smallest
    longest = deployment.max_context_tokens
    if engine.unit == "slot":
        return (Fit(longest, *3 * (found.units,)),)
    most = reading.whole("running") or (deployment.concurrency if log.whole("requests") else 0)
    shared = found.units if engine.unit != "block" else 0
    if not (found.exact or shared):
        printed = reading.number("concurrency")
        return (Fit(longest, *3 * (int(printed),)),) if printed else ()
    fits = []
    for length in [*(length for length in _CONTEXTS if length < longest), longest]:
        count = _held(found, length) if found.exact else shared // length
        one = 1 + _held(found, length, prompts=1) if found.exact else count
        fits.append(Fit(length, min(count, most or count), count, min(count, max(1, one))))
    return tuple(fits)


def _others(fits: Fits, others: Sequence[tuple[Recovery, Fits]]) -> Iterator[str]:
    """Versions that print the same and hold another number of requests."""
    ours = {fit.context_tokens: fit.requests for fit in fits}
    for other, theirs in others:
        for fit in reversed(theirs):
            if fit.requests != (own := ours[fit.context_tokens]):
                yield (
                    f"Not certain: {other.engine.name} prints the same and runs "
                    f"{counted(fit.requests, 'request')} of {fit.context_tokens:,} tokens, not "
                    f"{own:,}: add --engine NAME:VERSION."
                )
                return


def _held(found: Recovery, context_tokens: int, *, prompts: int = 0) -> int:
    """Requests in steady decode, next to ``prompts`` that each have a chunk in flight."""
    engine, deployment = found.engine, found.deployment
    steady, chunk = 1 + deployment.draft_tokens, deployment.in_flight_tokens
    free = found.capacity.cache_bytes - engine.shared_bytes(deployment)
    free -= prompts * engine.request_bytes(deployment, context_tokens, in_flight=chunk)
    return max(-1, free // engine.request_bytes(deployment, context_tokens, in_flight=steady))


def _changes_of_all(exact: Sequence[tuple[Recovery, Fits]], log: StartupLog) -> tuple[Change, ...]:
    """The changes of the first, without those that gain by its version alone."""
    changes, *others = (_changes(each, log, fits) for each, fits in exact)
    for theirs in others:
        names = {each.what for each in theirs if each.gains}
        changes = tuple(each for each in changes if each.what in names or not each.gains)
    return changes


def _changes(found: Recovery, log: StartupLog, fits: Fits) -> tuple[Change, ...]:
    """Every change with its gain, the one that alters the number most first; of a cap, none.

    What runs more of the longest requests comes before what prints more tokens. No limit of
    requests is lowered to fewer than memory holds, and no tokens are gained for fewer requests.
    """
    engine, longest = found.engine, fits[-1]
    if engine.unit == "slot":
        return ()
    now = found.shown_tokens
    if uncapped := _uncapped(found, log, now):
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


def _uncapped(found: Recovery, log: StartupLog, printed: int) -> Change | None:
    """Without the flag that lets fewer tokens run than memory holds."""
    reading, memory = log.smallest, found.available_bytes
    full = reading.whole("full_token") or 0
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

    def raised(limit: int) -> Recovery:
        return replace(found, deployment=replace(found.deployment, concurrency=limit))

    def lacks(limit: int) -> bool:
        try:
            held = _held(raised(limit), longest.context_tokens, prompts=1)
            return held < limit - 1 or not raised(limit).shown_tokens
        except ConfigError:  # nothing is left for the cache
            return True

    limits = range(longest.requests + 1, longest.held + 1)
    if place := bisect_left(limits, True, key=lacks):
        limit, tokens = limits[place - 1], raised(limits[place - 1]).shown_tokens
        asked = limit * (log.sharers if engine.shares_limits else 1)
        what = f"{flag_for(engine.family.name, 'request-limit')} {asked}"
        yield Change(what, tokens, tokens - printed, memory, limit)


def _trials(found: Recovery, log: StartupLog) -> Iterator[tuple[str, Engine, Deployment, int]]:
    engine, deployment, memory = found.engine, found.deployment, found.available_bytes
    family, launch = engine.family, engine.family.launch
    if not log.whole("blocks"):  # which are no more with more memory
        name = "kv-memory" if log.whole("kv_memory") else "memory-fraction"
        flag = flag_for(family.name, name)
        yield f"1 GiB more memory ({flag})", engine, deployment, memory + GIB
    if deployment.draft_layers:
        without = replace(deployment, draft_layers=0, draft_tokens=0)
        yield f"without {launch.drafts.partition(' ')[0]}", engine, without, memory
    if deployment.formats.indexer.name == "fp8" and deployment.arch != "sm_90":
        formats = replace(deployment.formats, indexer=entry_format("indexer", "mxfp4"))
        flag = launch.written.get("indexer_format=mxfp4", "indexer keys in mxfp4")
        where = "" if deployment.arch else "sm_100; "
        what = f"{flag.format()} ({where}changes numerics)"
        yield what, engine, replace(deployment, formats=formats), memory
    for what, changed in family.load("log").changes(found, log):
        yield what, engine, changed, memory
    newest = find_engine(family.name)
    if newest.name != engine.name:
        yield f"the rules of {newest.name}", newest, deployment, memory
