"""SGLang's numbers, backwards: from the bytes of a full token to version, model and formats."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.logs.read import Reading, StartupLog
from dsv4kv.engines.logs.recovery import Recovery
from dsv4kv.engines.logs.setups import Setup, block_tokens, draft_method, possible_setups
from dsv4kv.engines.names import engine_family, find_engine
from dsv4kv.engines.sglang.sizes import SglangEngine
from dsv4kv.errors import ConfigError

GIB = 2**30
_ROUNDING = 0.005
_MOST_GUESSED_REQUESTS = 4096
_ROUND = (64, 32, 16, 8, 4, 2, 1)
_DEFAULT_CHUNK = 8192


def recover_sglang(log: StartupLog, reading: Reading) -> Iterator[Recovery]:
    """Every configuration of SGLang that gives the numbers of a reading."""
    reported = reading.number("bytes_per_full_token")
    if reported is None:
        return
    for engine, setup in product(_engines(log, reading), possible_setups(log)):
        for deployment in _deployments(log, reading, setup):
            try:
                bytes_per_token = engine.pools(deployment).bytes_per_full_token
            except ConfigError:  # this version does not serve it
                continue
            if f"{bytes_per_token:.2f}" == f"{reported:.2f}":
                found = _found(engine, deployment, reading)
                score = (int(found.exact), setup.agreeing, *_plainness(log, deployment))
                yield replace(found, score=score)


def nearest_sglang(log: StartupLog, reading: Reading) -> Iterator[Recovery]:
    """Configurations of SGLang, none of which gives the numbers; the closest scores best."""
    reported = reading.number("bytes_per_full_token") or 0
    for engine, setup in product(_engines(log, reading), possible_setups(log)):
        for deployment in _deployments(log, reading, setup):
            try:
                pools = engine.pools(deployment)
            except ConfigError:
                continue
            off = abs(pools.bytes_per_full_token - reported)
            found = _found(engine, deployment, reading)
            yield replace(found, score=(setup.agreeing, -round(100 * off)), exact=False)


def _engines(log: StartupLog, reading: Reading) -> list[SglangEngine]:
    """The version the log names, or those whose line has the same fields, the newest first."""
    if log.version:
        try:
            named = find_engine(f"sglang:{log.version}")
        except ConfigError:
            named = None
        if isinstance(named, SglangEngine):
            return [named]
    engines = [find_engine(name) for name in reversed(engine_family("sglang"))]
    known: list[SglangEngine] = [e for e in engines if isinstance(e, SglangEngine)]
    shown = {name for name in reading.fields if name.endswith("_fixed")}
    return [engine for engine in known if shown == set(engine.build.fields)] or known


def _deployments(log: StartupLog, reading: Reading, setup: Setup) -> Iterator[Deployment]:
    """State formats and window ratios that are possible; what the log prints comes first."""
    reported = log.number("window_ratio")
    ratios = [reported] if reported else [None, 0.1]
    replicas = log.whole("data_parallel") or 1
    limit, overlaps = log.whole("requests"), not log.is_on("overlap_off")
    requests = max(1, limit // replicas) if limit else None
    stage, first, end = (reading.whole(name) for name in ("stage", "first", "end"))
    overlaps = overlaps and stage is None
    for state, ratio in product((4, 2), ratios):
        deployment = Deployment(
            model=setup.model,
            formats=setup.formats,
            max_context_tokens=log.whole("context") or setup.model.max_context_tokens,
            in_flight_tokens=(1 + overlaps) * (log.whole("batched") or _DEFAULT_CHUNK),
            draft_layers=setup.draft_layers,
            concurrency=requests,
            state_bytes=state,
            draft_tokens=log.whole("draft_tokens") or 0 if setup.draft_layers else 0,
            block_tokens=block_tokens(log),
            window_ratio=ratio,
            arch=setup.arch,
            prefix_cache=not log.is_on("radix_off"),
            overlap=overlaps,
            replays_windows=log.is_on("own_windows"),
            layers=None if first is None or end is None else tuple(range(first, end)),
            stage=stage or 0,
        )
        yield replace(deployment, concurrency=requests or _requests(reading, deployment))


def _requests(reading: Reading, deployment: Deployment) -> int | None:
    """The request limit that follows from the bytes of HCA states; of several, the roundest."""
    reported = reading.number("c128_state_fixed")
    hca = deployment.model.compress_ratios.count(128)
    if not reported or not hca:
        return None
    ring, spare = (256, 2.5) if deployment.draft_layers else (128, 3.0)  # rows; further requests
    one = ring * 2 * deployment.model.head_dim * deployment.state_bytes * hca
    low, high = (int((reported + by) * GIB / one - spare) for by in (-_ROUNDING, _ROUNDING))
    if not 0 < high <= _MOST_GUESSED_REQUESTS:
        return None
    return next(high // step * step for step in _ROUND if high // step * step >= max(1, low))


def _found(engine: SglangEngine, deployment: Deployment, reading: Reading) -> Recovery:
    """Memory that gives the log's full tokens, exact where it is also what the log shows."""
    full = reading.whole("full_token") or 0
    pools = engine.pools(deployment)
    reported = reading.number("available_bytes")
    guess = int((reported or 0) * GIB)
    fixed = sum(pools.fixed_bytes(pools.requests(guess)).values())
    least = full * pools.bytes_per_full_token + fixed + pools.reserved_bytes(full)
    most = least + pools.page_tokens * pools.bytes_per_full_token
    if reported is None:
        return _recovery(engine, deployment, int(least) + 1, full)
    low, high = ((reported + by) * GIB for by in (-_ROUNDING, _ROUNDING))
    memory = int(min(max(least + 1, low), high))
    return _recovery(engine, deployment, memory, full, exact=low < most and least < high)


def _recovery(
    engine: SglangEngine, deployment: Deployment, memory: int, full: int, *, exact: bool = True
) -> Recovery:
    flight = deployment.in_flight_tokens
    return Recovery(engine, deployment, memory, full, (flight, flight), exact=exact)


def _plainness(log: StartupLog, deployment: Deployment) -> tuple[int, int]:
    """Between configurations of one price: drafts only where logged, float32 first."""
    drafts = 1 if draft_method(log) or not deployment.draft_layers else 0
    return (drafts, int(deployment.state_bytes == 4))
