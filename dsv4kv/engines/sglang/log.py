"""SGLang's numbers, backwards: from the bytes of a full token to version, model and formats."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from dsv4kv.engines.contract import GIB, Capacity, Deployment
from dsv4kv.engines.logs.read import Reading, StartupLog, draft_method
from dsv4kv.engines.logs.recover import Recovery, engines_of, possible_deployments
from dsv4kv.engines.sglang.sizes import SglangEngine
from dsv4kv.errors import ConfigError
from dsv4kv.units import format_bytes

V41_DTYPES = ("auto", "fp8_e4m3")
V41_SITES = (("sm_90", None), ("sm_100", "flashmla_mega"))
"""GPUs and backends whose formats of V4.1 differ."""
_ROUNDING = 0.005
_MOST_GUESSED_REQUESTS = 4096
_ROUND = (64, 32, 16, 8, 4, 2, 1)
_DEFAULT_CHUNK = 8192
_SMALL_RATIO = 0.05


def recover(log: StartupLog, reading: Reading) -> Iterator[Recovery]:
    """Every configuration of SGLang that gives the numbers of a reading."""
    reported = reading.number("bytes_per_full_token")
    for found, agreeing, price in _configurations(log, reading):
        if reported is not None and f"{price:.2f}" == f"{reported:.2f}":
            # between configurations of one price: drafts only where logged, float32 first
            drafts = int(bool(draft_method(log)) or not found.deployment.draft_layers)
            plain = (drafts, int(found.deployment.state_bytes == 4))
            yield replace(found, score=(int(found.exact), agreeing, *plain))


def nearest(log: StartupLog, reading: Reading) -> Iterator[Recovery]:
    """Configurations of SGLang that do not give the numbers exactly; the closest scores best."""
    reported = reading.number("bytes_per_full_token") or 0
    for found, agreeing, price in _configurations(log, reading):
        off = -round(100 * abs(price - reported))
        yield replace(found, score=(agreeing, off), exact=False)


def _configurations(log: StartupLog, reading: Reading) -> Iterator[tuple[Recovery, int, float]]:
    """With how well the log's words agree, and the bytes of a full token.

    Of the version the log names, or of those whose line has the same fields.
    """
    engines, named = engines_of(log)
    shown = {name for name in reading.fields if name.endswith("_fixed")}
    alike = [each for each in engines if shown == set(each.build.fields)]
    for engine, (base, agreeing) in product(
        engines if named else alike or engines, possible_deployments(log)
    ):
        for deployment in _deployments(log, reading, base):
            try:
                price = engine.pools(deployment).bytes_per_full_token
            except ConfigError:  # this version does not serve it
                continue
            yield _found(engine, deployment, reading), agreeing, price


def _deployments(log: StartupLog, reading: Reading, base: Deployment) -> Iterator[Deployment]:
    """State formats and window ratios that are possible; what the log prints comes first."""
    reported = log.number("window_ratio")
    limit, replicas = log.whole("requests"), log.whole("data_parallel") or 1
    requests = max(1, limit // replicas) if limit else None
    stage, first, end = (reading.whole(name) for name in ("stage", "first", "end"))
    overlaps = stage is None and not log.is_on("overlap_off")
    for state, ratio in product((4, 2), [reported] if reported else [None, 0.1]):
        deployment = replace(
            base,
            in_flight_tokens=(1 + overlaps) * (log.whole("batched") or _DEFAULT_CHUNK),
            state_bytes=state,
            window_ratio=ratio,
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
    full, pools = reading.whole("full_token") or 0, engine.pools(deployment)
    reported, price = reading.number("available_bytes"), pools.bytes_per_full_token
    fixed = sum(pools.fixed_bytes(pools.requests(int((reported or 0) * GIB))).values())
    least = full * price + fixed + pools.reserved_bytes(full)
    memory, exact = int(least) + 1, True
    if reported is not None:
        low, high = ((reported + by) * GIB for by in (-_ROUNDING, _ROUNDING))
        memory = int(min(max(least + 1, low), high))
        exact = low < least + pools.page_tokens * price and least < high
    flight = deployment.in_flight_tokens
    return Recovery(engine, deployment, memory, full, (flight, flight), exact=exact)


# ---- what it means ------------------------------------------------------------------------------


def split(found: Recovery) -> tuple[float, ...]:
    """Full tokens of a request: context, states, nothing in flight, their sum, as really held."""
    engine, deployment = found.engine, found.deployment
    capacity = engine.capacity(deployment, found.available_bytes)
    unit, needed = float(capacity.unit_bytes), float(capacity.units_per_request)
    steady = 1 + deployment.draft_tokens
    held = engine.request_bytes(deployment, deployment.max_context_tokens, in_flight=steady)
    fixed = sum(cost.fixed_bytes for cost in engine.costs(deployment)) / unit
    return needed, fixed, 0.0, needed + fixed, held / unit


def meaning(
    reading: Reading, found: Recovery, capacity: Capacity, parts: tuple[float, ...]
) -> Iterator[str]:
    """What the number means, in sentences."""
    full, unit = reading.whole("full_token") or 0, float(capacity.unit_bytes)
    context, fixed, *_ = parts
    yield (
        f"{full:,} full tokens of {unit:,.2f} B are shared by all requests: their contexts "
        "together cannot be longer."
    )
    states = f", and {format_bytes(fixed * unit)} of states" if fixed else ""
    held = format_bytes(found.engine.shared_bytes(found.deployment))
    yield (
        f"A request of {found.deployment.max_context_tokens:,} tokens takes {context:,.0f} "
        f"full tokens{states}; {held} of states and windows are allocated at start-up."
    )


def changes(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    """Settings that alter the number."""
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
