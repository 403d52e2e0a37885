"""vLLM's numbers, backwards: from tokens and concurrency to blocks and tokens in flight.

tokens = int(blocks / blocks_per_request × context), so every number of blocks that the memory
allows leaves at most one or two numbers of blocks per request, and they the tokens in flight.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.logs.read import Reading, StartupLog
from dsv4kv.engines.logs.recovery import Recovery
from dsv4kv.engines.logs.setups import Setup, block_tokens, possible_setups
from dsv4kv.engines.names import engine_family, find_engine
from dsv4kv.engines.vllm.sizes import VllmEngine
from dsv4kv.errors import ConfigError

GIB = 2**30
_ROUNDING_GIB = 0.005
_DEFAULT_FLIGHT = (2048, 8192, 16384)
_ROUND = (1024, 256, 64, 1)


@dataclass(frozen=True)
class _Search:
    """A log's words and one reading's numbers."""

    log: StartupLog
    reading: Reading

    @property
    def context(self) -> int | None:
        reported = self.reading.whole("context") or self.reading.whole("refused_context")
        return reported or self.log.whole("context")

    def batches(self, engine: VllmEngine) -> list[int]:
        """Batches that may run at once; the likeliest first."""
        stages = self.log.whole("pipeline_parallel") or 1
        if not engine.release.batches_counted:
            return [1]
        waits = (self.log.text("async") or "").lower()
        both = [stages + 1, stages, 1]
        return both[1:] if waits == "false" else both[:1] if waits == "true" else both

    def flights(self, engine: VllmEngine) -> list[int]:
        """Tokens in flight that the log's arguments make likely."""
        batched = self.log.whole("batched")
        if batched is None:
            return []
        return [count * batched for count in dict.fromkeys(self.batches(engine))]


def recover_vllm(log: StartupLog, reading: Reading) -> Iterator[Recovery]:
    """Every configuration of vLLM that gives the numbers of a reading."""
    search = _Search(log, reading)
    if search.context is None:
        return
    for engine, setup in product(_engines(log, reading), possible_setups(log)):
        deployment = _deployment(search, setup, search.context)
        try:
            engine.layout(deployment)
        except ConfigError:  # this version does not serve it
            continue
        for found in _solve(search, engine, deployment):
            yield replace(found, score=_score(search, engine, setup, found))


def nearest_vllm(log: StartupLog, reading: Reading) -> Iterator[Recovery]:
    """Configurations of vLLM, none of which gives the numbers; the closest scores best."""
    search = _Search(log, reading)
    context, tokens = search.context, reading.whole("tokens") or 0
    if context is None:
        return
    for engine, setup in product(_engines(log, reading), possible_setups(log)):
        for flight in search.flights(engine) or _DEFAULT_FLIGHT:
            deployment = replace(_deployment(search, setup, context), in_flight_tokens=flight)
            try:
                needed = engine.blocks_counted(deployment, context)
            except ConfigError:
                continue
            span = _block_range(search, engine, deployment) or range(tokens * needed // context, 0)
            off = abs(span.start * context // needed - tokens)
            memory = span.start * engine.layout(deployment).unit_bytes
            found = Recovery(engine, deployment, memory, span.start, (flight, flight))
            yield replace(found, score=(setup.agreeing, -off), exact=False)


def _engines(log: StartupLog, reading: Reading) -> list[VllmEngine]:
    """The version the log names, or all that word their lines this way, the newest first."""
    if log.version:
        try:
            named = find_engine(f"vllm:{log.version}")
        except ConfigError:
            named = None
        if isinstance(named, VllmEngine):
            return [named]
    engines = [find_engine(name) for name in reversed(engine_family("vllm"))]
    return [
        engine
        for engine in engines
        if isinstance(engine, VllmEngine)
        and ("tokens" not in reading.fields or engine.release.one_line == reading.one_line)
    ]


def _deployment(search: _Search, setup: Setup, context: int) -> Deployment:
    return Deployment(
        model=setup.model,
        formats=setup.formats,
        max_context_tokens=context,
        in_flight_tokens=1,
        draft_layers=setup.draft_layers,
        concurrency=search.log.whole("requests"),
        block_tokens=block_tokens(search.log),
        draft_tokens=search.log.whole("draft_tokens") or 0 if setup.draft_layers else 0,
        arch=setup.arch,
    )


def _solve(search: _Search, engine: VllmEngine, deployment: Deployment) -> Iterator[Recovery]:
    if "refused_context" in search.reading.fields:
        yield from _solve_refusal(search, engine, deployment)
        return
    unit = engine.layout(deployment).unit_bytes
    for blocks, needed in _pairs(search, engine, deployment):
        flight = _flights_for(engine, deployment, needed)
        if flight is not None:
            found = Recovery(engine, deployment, blocks * unit, blocks, flight)
            yield found.with_flight(_choose(search, engine, flight))


def _pairs(
    search: _Search, engine: VllmEngine, deployment: Deployment
) -> Iterator[tuple[int, int]]:
    """Blocks, and blocks per request, that print the reading's tokens and concurrency."""
    tokens, context = search.reading.whole("tokens"), deployment.max_context_tokens
    if not tokens:
        return
    span = _block_range(search, engine, deployment)
    if span is not None:
        for blocks in span:
            guess = blocks * context // tokens
            for needed in (guess - 1, guess, guess + 1):
                if _prints(search.reading, blocks, needed, context):
                    yield blocks, needed
        return
    for flight in search.flights(engine) or _DEFAULT_FLIGHT:  # no memory: the arguments decide
        needed = engine.blocks_counted(replace(deployment, in_flight_tokens=flight), context)
        guess = -(-tokens * needed // context)
        for blocks in (guess - 1, guess, guess + 1):
            if _prints(search.reading, blocks, needed, context):
                yield blocks, needed


def _block_range(search: _Search, engine: VllmEngine, deployment: Deployment) -> range | None:
    """Numbers of blocks that the memory allows, known to a hundredth of a GiB."""
    reported = search.log.whole("blocks")
    if reported:
        return range(reported, reported + 1)
    available = search.reading.number("available_gib")
    if available is None:
        return None
    unit = engine.layout(deployment).unit_bytes
    low, high = ((available + by) * GIB for by in (-_ROUNDING_GIB, _ROUNDING_GIB))
    return range(max(1, int(low // unit)), int(high // unit) + 1)


def _prints(reading: Reading, blocks: int, needed: int, context: int) -> bool:
    if blocks < 1 or needed < 1:
        return False
    ratio = blocks / needed
    reported = reading.number("concurrency")
    return int(ratio * context) == reading.whole("tokens") and (
        reported is None or f"{ratio:.2f}" == f"{reported:.2f}"
    )


def _flights_for(
    engine: VllmEngine, deployment: Deployment, needed: int
) -> tuple[int, int] | None:
    """Least and most tokens in flight with which one request needs so many blocks."""

    def count(flight: int) -> int:
        flying = replace(deployment, in_flight_tokens=flight)
        return engine.blocks_counted(flying, deployment.max_context_tokens)

    span = range(1, deployment.max_context_tokens + 1)
    least = bisect_left(span, needed, key=count)
    after = bisect_right(span, needed, key=count)
    return (span[least], span[after - 1]) if after > least else None


def _solve_refusal(
    search: _Search, engine: VllmEngine, deployment: Deployment
) -> Iterator[Recovery]:
    """Tokens in flight that need the GiB of a refusal, and let the length fit that it names."""
    reading, context = search.reading, deployment.max_context_tokens
    needed, checked = reading.number("needed_gib"), reading.number("checked_gib")
    if needed is None or checked is None:
        return

    def gib(flight: int) -> float:
        flying = replace(deployment, in_flight_tokens=flight)
        return engine.needed_bytes(flying, context) / GIB

    span = range(1, context + 1)
    least = bisect_left(span, needed - _ROUNDING_GIB, key=gib)
    after = bisect_right(span, needed + _ROUNDING_GIB, key=gib)
    if after <= least:
        return
    flight = (span[least], span[after - 1])
    unit = engine.layout(deployment).unit_bytes
    memory = int(checked * GIB) + (unit if engine.release.null_block else 0)
    found = Recovery(engine, deployment, memory, memory // unit, flight)
    found = found.with_flight(_choose(search, engine, flight))
    if _lets_fit(engine, found, reading.whole("fitting"), checked):
        yield found


def _lets_fit(
    engine: VllmEngine, found: Recovery, fitting: int | None, checked_gib: float
) -> bool:
    """Whether the length that the refusal names is the longest that the memory can hold."""
    if fitting is None:
        return True
    held, more = (engine.needed_bytes(found.deployment, fitting + by) / GIB for by in (0, 1))
    return held <= checked_gib + _ROUNDING_GIB and more > checked_gib - _ROUNDING_GIB


def _choose(search: _Search, engine: VllmEngine, flight: tuple[int, int]) -> int:
    """Of equal numbers of tokens in flight: what the arguments say, else the roundest."""
    low, high = flight
    for likely in search.flights(engine):
        if low <= min(likely, high) and (likely <= high or high == search.context):
            return likely
    return next(high // step * step for step in _ROUND if high // step * step >= low)


def _score(search: _Search, engine: VllmEngine, setup: Setup, found: Recovery) -> tuple[int, ...]:
    """Arguments that agree, then what the log says of the model, then how round it is."""
    flight = found.deployment.in_flight_tokens
    likely = search.flights(engine)
    agrees = int(flight in likely) if likely else 0
    roundness = next(rank for rank, step in enumerate(_ROUND) if flight % step == 0)
    return (agrees, setup.agreeing, -roundness)
