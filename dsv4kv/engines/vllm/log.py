"""vLLM's numbers, backwards: from tokens and concurrency to blocks and tokens in flight.

tokens = int(blocks / blocks_per_request × context), so every number of blocks that the memory
allows leaves at most one or two numbers of blocks per request, and they the tokens in flight.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, product

from dsv4kv.engines.contract import GIB, Capacity, Deployment
from dsv4kv.engines.logs import StartupLog
from dsv4kv.engines.recover import Recovery, engines_of, possible_deployments
from dsv4kv.engines.vllm.sizes import VllmEngine
from dsv4kv.errors import ConfigError
from dsv4kv.units import format_bytes

V41_DTYPES = ("auto", "fp8", "fp8_ds_mla", "nvfp4_ds_mla")
V41_SITES = (("sm_90", None), ("sm_100", None), ("sm_100", "FLASHMLA_SPARSE_DSV41"))
"""GPUs and backends whose formats of V4.1 differ."""
_ROUNDING_GIB = 0.005
_DEFAULT_FLIGHT = (2048, 8192, 16384)
_ROUND = (1024, 256, 64, 1)
_SMALL_CHUNK, _SHORT_CONTEXT = 2048, 131_072


@dataclass(frozen=True)
class _Search:
    """A log, and a version with a deployment of one token in flight to try."""

    log: StartupLog
    engine: VllmEngine
    deployment: Deployment
    agreeing: int
    gib: float | None  # that the rank, or a stage of its pipeline, printed

    @property
    def context(self) -> int:
        return self.deployment.max_context_tokens

    @cached_property
    def flights(self) -> list[int]:
        """Tokens in flight that the log's arguments make likely, the likeliest first."""
        batched = self.log.whole("batched")
        if batched is None:
            return []
        stages = self.log.whole("pipeline_parallel") or 1
        batches = [stages + 1, stages, 1]
        if not self.engine.release.batches_counted:
            batches = [1]
        elif self.log.text("async"):
            batches = batches[:1] if self.log.is_on("async") else batches[1:]
        return [count * batched for count in dict.fromkeys(batches)]

    def blocks_counted(self, flight: int) -> int:
        """Blocks of a request with these tokens in flight."""
        flying = replace(self.deployment, in_flight_tokens=flight)
        return self.engine.blocks_counted(flying, self.context)

    @cached_property
    def unit_bytes(self) -> int:
        """Bytes of a block; raises ``ConfigError`` where the version does not serve the setup."""
        return self.engine.layout(self.deployment).unit_bytes

    @property
    def block_range(self) -> range | None:
        """Numbers of blocks that the memory allows, known to a hundredth of a GiB."""
        if reported := self.log.whole("blocks"):
            return range(reported, reported + 1)
        if self.gib is None:
            return None
        low, high = ((self.gib + by) * GIB for by in (-_ROUNDING_GIB, _ROUNDING_GIB))
        return range(max(1, int(low // self.unit_bytes)), int(high // self.unit_bytes) + 1)

    def found(self, memory: int, units: int, flights: tuple[int, int]) -> Recovery:
        """A configuration with the likeliest of equal numbers of tokens in flight."""
        low, high = flights
        likely = (
            each for each in self.flights
            if low <= min(each, high) and (each <= high or high == self.context)
        )  # fmt: skip
        rounded = (high // step * step for step in _ROUND)
        flight = next(likely, None) or next(each for each in rounded if each >= low)
        roundness = next(rank for rank, step in enumerate(_ROUND) if flight % step == 0)
        score = (int(flight in self.flights), self.agreeing, -roundness)
        found = Recovery(self.engine, self.deployment, memory, units, flights, score)
        return found.with_flight(flight)


def _searches(log: StartupLog) -> Iterator[_Search]:
    """The version the log names, or all that word their lines this way, by possible setup."""
    reading = log.smallest
    reported = reading.whole("context") or reading.whole("refused_context")
    context = reported or log.whole("context")
    if context is None:
        return
    engines, named = engines_of(log)
    for engine, (deployment, agreeing) in product(engines, possible_deployments(log)):
        one_line = "tokens" not in reading.fields or engine.release.one_line == reading.one_line
        asked = replace(deployment, max_context_tokens=context, concurrency=log.whole("requests"))
        for gib, staged in _stages(log, engine, asked) if named or one_line else ():
            search = _Search(log, engine, staged, agreeing, gib)
            with suppress(ConfigError):  # this version does not serve it
                _ = search.unit_bytes
                yield search


def _stages(
    log: StartupLog, engine: VllmEngine, deployment: Deployment
) -> Iterator[tuple[float | None, Deployment]]:
    """A rank of every pipeline stage, with the memory that it printed; drafts are on the last."""
    count, reading = log.whole("pipeline_parallel") or 1, log.smallest
    printed = reading.number("available_gib")
    if count == 1:
        yield printed, deployment
        return
    listed = [int(part) for part in (log.text("partition") or "").split(",") if part]
    sizes = listed or engine.stage_layers(deployment.model.num_layers, count)
    ends = list(accumulate(sizes))
    for stage, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        drafts = deployment.draft_layers if end == ends[-1] else 0
        held = tuple(range(end - size, end))
        staged = replace(deployment, layers=held, stage=stage, draft_layers=drafts)
        if stage in reading.stages or not reading.stages:
            yield reading.stages.get(stage, printed), staged


def recover(log: StartupLog) -> Iterator[Recovery]:
    """Every configuration of vLLM that gives the numbers of a reading.

    Where the log prints the tokens of a step, those in flight are a multiple of them.
    """
    solve = _solve_refusal if "refused_context" in log.smallest.fields else _solve
    for search in _searches(log):
        for found in solve(search):
            if found.score[0] or not search.flights:
                yield found


def nearest(log: StartupLog) -> Iterator[Recovery]:
    """Configurations of vLLM that do not give the numbers exactly; the closest scores best."""
    tokens = log.smallest.whole("tokens") or 0
    for search in _searches(log):
        for flight in search.flights or _DEFAULT_FLIGHT:
            needed, context = search.blocks_counted(flight), search.context
            span = search.block_range or range(tokens * needed // context, 0)
            off = abs(span.start * context // needed - tokens)
            memory, score = span.start * search.unit_bytes, (search.agreeing, -off)
            found = search.found(memory, span.start, (flight, flight)).with_flight(flight)
            yield replace(found, score=score, exact=False)


def _solve(search: _Search) -> Iterator[Recovery]:
    for blocks, needed in _pairs(search):
        flights = _span(needed, needed, search.context, search.blocks_counted)
        if flights is not None:
            yield search.found(blocks * search.unit_bytes, blocks, flights)


def _pairs(search: _Search) -> Iterator[tuple[int, int]]:
    """Blocks, and blocks per request, that print the reading's tokens and concurrency."""
    tokens, context = search.log.smallest.whole("tokens"), search.context
    if not tokens:
        return
    span, found = search.block_range, list[tuple[int, int]]()
    if span is not None:
        guesses = ((blocks, blocks * context // tokens) for blocks in span)
        found = [(blocks, guess + by) for blocks, guess in guesses for by in (-1, 0, 1)]
    else:  # no memory: the arguments decide
        for flight in search.flights or _DEFAULT_FLIGHT:
            needed = search.blocks_counted(flight)
            found += [(-(-tokens * needed // context) + by, needed) for by in (-1, 0, 1)]
    reported = search.log.smallest.number("concurrency")
    for blocks, needed in found:
        if blocks < 1 or needed < 1 or int(blocks / needed * context) != tokens:
            continue
        if reported is None or f"{blocks / needed:.2f}" == f"{reported:.2f}":
            yield blocks, needed


def _span(
    low: float, high: float, context: int, count: Callable[[int], float]
) -> tuple[int, int] | None:
    """Fewest and most tokens in flight with which a count is between two numbers."""
    span = range(1, context + 1)
    first, after = bisect_left(span, low, key=count), bisect_right(span, high, key=count)
    return (span[first], span[after - 1]) if after > first else None


def _solve_refusal(search: _Search) -> Iterator[Recovery]:
    """Tokens in flight that need the GiB of a refusal, and let the length fit that it names."""
    reading, engine, context = search.log.smallest, search.engine, search.context
    needed, checked = reading.number("needed_gib"), reading.number("checked_gib")
    if needed is None or checked is None:
        return

    def gib(flight: int) -> float:
        flying = replace(search.deployment, in_flight_tokens=flight)
        return engine.needed_bytes(flying, context) / GIB

    flights = _span(needed - _ROUNDING_GIB, needed + _ROUNDING_GIB, context, gib)
    if flights is None:
        return
    unit = search.unit_bytes
    memory = int(checked * GIB) + (unit if engine.release.null_block else 0)
    found, fitting = search.found(memory, memory // unit, flights), reading.whole("fitting")
    held, more = (
        engine.needed_bytes(found.deployment, (fitting or 0) + by) / GIB for by in (0, 1)
    )
    fits = held <= checked + _ROUNDING_GIB and more > checked - _ROUNDING_GIB
    if fitting is None or fits:
        yield found


# ---- what it means ------------------------------------------------------------------------------


def meaning(log: StartupLog, found: Recovery, capacity: Capacity) -> Iterator[str]:
    """What the number means, in sentences; only sums that give the printed numbers."""
    reading, deployment, engine = log.smallest, found.deployment, found.engine
    assert isinstance(engine, VllmEngine)
    context, unit = deployment.max_context_tokens, float(capacity.unit_bytes)
    if deployment.layers:
        yield _stage_sentence(log, found)
    if not found.exact:
        yield from _printed(log)
        return
    layout, steady = engine.layout(deployment), 1 + deployment.draft_tokens
    own, held = layout.groups[0].blocks(context, 0), layout.blocks(context, steady)
    counted = engine.blocks_counted(deployment, context)
    quiet = engine.blocks_counted(found.with_flight(steady).deployment, context)
    if "tokens" in reading.fields:
        yield (
            f"vLLM prints {capacity.units:,} blocks ÷ {counted:,.0f} blocks per request × "
            f"{context:,} tokens, which is not a capacity."
        )
    else:  # blocks as the check at start-up counts them, whose size may differ from the pool's
        block, needed = (
            engine.checked_block_bytes(deployment),
            engine.needed_bytes(deployment, context),
        )
        checked = int((reading.number("checked_gib") or 0) * GIB)
        null = " without the null block" if engine.release.null_block else ""
        yield (
            f"The start was refused: one request of {context:,} tokens needs {needed // block:,} "
            f"blocks of {block:,} B ({needed / GIB:.2f} GiB), and {checked / GIB:.2f} GiB hold "
            f"{checked // block:,}{null}."
        )
    yield (
        f"{counted:,.0f} blocks: {own:,.0f} context, {counted - quiet:,.0f} prefill workspace "
        f"({format_bytes((counted - quiet) * unit)}), {quiet - own:,.0f} windows and states."
    )
    yield (
        f"In steady decode such a request takes {held:,.0f} blocks "
        f"({format_bytes(held * unit)}); its workspace is then free."
    )


def _printed(log: StartupLog) -> Iterator[str]:
    """What the numbers of no known rules say by themselves."""
    reading = log.smallest
    tokens, concurrency = reading.whole("tokens"), reading.number("concurrency")
    context, batched = reading.whole("context"), log.whole("batched")
    needed, checked = reading.number("needed_gib"), reading.number("checked_gib")
    if "no_memory" in reading.fields:
        yield (
            "The start was refused: weights and activations leave no memory for the cache. Which "
            "layout fits: dsv4kv budget, with the model, --gpu and --engine."
        )
    if needed and checked:
        yield (
            f"The start was refused: one request of {reading.whole('refused_context'):,} tokens "
            f"needs {needed:.2f} GiB, and {checked:.2f} GiB are available."
        )
    if tokens and concurrency and context and f"{tokens / context:.2f}" == f"{concurrency:.2f}":
        step = f"; max_num_batched_tokens is {batched:,}" if batched else ""
        yield f"{tokens:,} tokens are {concurrency:.2f} requests of {context:,} tokens{step}."
    if (log.whole("pipeline_parallel") or 1) > 1:
        return
    sizes: dict[int, tuple[str, set[tuple[int, int]]]] = {}
    for search in _searches(log):
        pairs = sizes.setdefault(search.unit_bytes, (search.engine.name, set()))[1]
        pairs.update(_pairs(search) if search.block_range else ())
    for unit, (name, pairs) in sorted(sizes.items()):
        for blocks, needed in pairs if len(pairs) == 1 else ():
            yield (
                f"With blocks of {unit:,} B, as {name}'s, they are {blocks:,} blocks ÷ {needed:,} "
                f"blocks per request × {context or 0:,}."
            )


def _stage_sentence(log: StartupLog, found: Recovery) -> str:
    if found.exact:
        return f"Pipeline stage {found.deployment.stage} binds: it holds the fewest requests."
    reading = log.smallest
    stages = range(log.whole("pipeline_parallel") or 1)
    sizes = [f"PP{stage} {gib:.2f} GiB" for stage, gib in sorted(reading.stages.items())]
    least = reading.number("available_gib")
    if sizes:
        printed = f"{', '.join(sizes)} printed"
    else:
        printed = f"{least:.2f} GiB or more, of stages not named" if least else "not printed"
    silent = [f"PP{stage}" for stage in stages if stage not in reading.stages]
    binds = "; another stage binds" if sizes and silent else ""
    missing = [f"'Available KV cache memory' of {', '.join(silent)}"] if silent else []
    if not log.text("partition"):
        missing.append("the layers of each stage (VLLM_PP_LAYER_PARTITION)")
    lacks = f" Missing to size it: {' and '.join(missing)}." * bool(missing)
    return f"A pipeline, memory of its stages {printed}{binds}.{lacks}"


def changes(found: Recovery, log: StartupLog) -> Iterator[tuple[str, Deployment]]:
    """Settings that alter the number."""
    deployment, engine = found.deployment, found.engine
    assert isinstance(engine, VllmEngine)
    flight = deployment.in_flight_tokens
    batches, rest = divmod(flight, log.whole("batched") or flight + 1)
    if not batches or rest:  # a log that prints no chunk
        is_off = log.text("async") and not log.is_on("async")
        batches = 1 if is_off or not engine.release.batches_counted else 2
    chunk = _SMALL_CHUNK // batches
    whole = (log.text("chunked") or "").lower() == "false"  # then a chunk is a longest prompt
    if flight > _SMALL_CHUNK and not whole and chunk >= (log.whole("requests") or 0):
        what = f"--max-num-batched-tokens {chunk} ({_SMALL_CHUNK:,} tokens in flight)"
        yield what, replace(deployment, in_flight_tokens=_SMALL_CHUNK)
    if deployment.max_context_tokens > _SHORT_CONTEXT:
        what = f"--max-model-len {_SHORT_CONTEXT}"
        yield what, replace(deployment, max_context_tokens=_SHORT_CONTEXT)
