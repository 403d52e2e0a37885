"""A start-up log explained: the configuration behind it, and what its number means."""

from fractions import Fraction
from pathlib import Path

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.engines.vllm import VllmEngine
from dsv4kv.sizing.logs.changes import find_changes, shown_tokens
from dsv4kv.sizing.logs.explanation import Explanation, Fit, RankSize, Split
from dsv4kv.sizing.logs.meaning import describe, state
from dsv4kv.sizing.logs.parse import Reading, StartupLog, read_log
from dsv4kv.sizing.logs.recovery import Recovery, likeliest, recover

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
