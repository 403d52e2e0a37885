"""SGLang's numbers, backwards: from the bytes of a full token to version, model and formats."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from dsv4kv.engines.contract import GIB, Capacity, Deployment
from dsv4kv.engines.logs import Reading, StartupLog, draft_method
from dsv4kv.engines.recover import Recovery, engines_of, possible_deployments
from dsv4kv.engines.sglang.sizes import SglangEngine
from dsv4kv.errors import ConfigError
from dsv4kv.units import format_bytes

V41_DTYPES = ("auto", "fp8_e4m3")
V41_SITES = (("sm_90", None), ("sm_100", "flashmla_mega"))
"""GPUs and backends whose formats of V4.1 differ."""
_ROUNDING = 0.005
_MOST_GUESSED_REQUESTS = 4096
_ROUND = (64, 32, 16, 8, 4, 2, 1)
_CHUNKS = (8192, 16384, 4096, 2048)  # SGLang's defaults, by the GPU's memory
_SMALL_RATIO = 0.05
_PAGE = 256


def recover(log: StartupLog) -> Iterator[Recovery]:
    """Every configuration of SGLang that gives the numbers of a reading."""
    reading = log.smallest
    reported, gib = reading.number("bytes_per_full_token"), reading.number("kv_gib")
    for found, agreeing, price in _configurations(log):
        size = (reading.printed_tokens or 0) * price / GIB
        agrees = gib is None or abs(size - gib) <= 2 * _ROUNDING
        if reported is not None:
            agrees = f"{price:.2f}" == f"{reported:.2f}"
        if agrees:
            # between configurations of one price: drafts only where logged, float32 first
            drafts = int(bool(draft_method(log)) or not found.deployment.draft_layers)
            plain = (drafts, int(found.deployment.state_bytes == 4))
            yield replace(found, score=(int(found.exact), agreeing, *plain))


def nearest(log: StartupLog) -> Iterator[Recovery]:
    """Configurations of SGLang that do not give the numbers exactly; the closest scores best."""
    reported = log.smallest.number("bytes_per_full_token") or 0
    for found, agreeing, price in _configurations(log):
        off = -round(100 * abs(price - reported))
        yield replace(found, score=(agreeing, off), exact=False)


def _configurations(log: StartupLog) -> Iterator[tuple[Recovery, int, float]]:
    """With how well the log's words agree, and the bytes of a full token.

    Of the version the log names, or of those whose line has the same fields.
    """
    (engines, named), reading = engines_of(log), log.smallest
    shown = {name for name in reading.fields if name.endswith("_fixed")}
    priced = "bytes_per_full_token" in reading.fields
    alike = [each for each in engines if priced and shown == set(each.build.fields)]
    for engine, (base, agreeing) in product(
        engines if named else alike or engines, possible_deployments(log)
    ):
        for deployment in _deployments(log, base):
            try:
                price = engine.pools(deployment).bytes_per_full_token
            except ConfigError:  # this version does not serve it
                continue
            yield _found(engine, deployment, reading), agreeing, price


def _deployments(log: StartupLog, base: Deployment) -> Iterator[Deployment]:
    """State formats and window ratios that are possible; what the log prints comes first."""
    asked, limit, reading = log.number("window_ratio"), log.whole("requests"), log.smallest
    requests = reading.whole("running") or (max(1, limit // log.sharers) if limit else None)
    ratios = [asked] if asked else [None, *(_ratios(reading) or [0.1])]
    role = log.text("role")
    stage, first, end = (reading.whole(name) for name in ("stage", "first", "end"))
    overlaps = stage is None and not log.is_on("overlap_off")
    # window slots of running requests are as many as chunks need, where they are printed apart
    chunks = _CHUNKS if "swa_fixed" in reading.fields else _CHUNKS[:1]
    chunks = (batched,) if (batched := log.whole("batched")) else chunks
    for state, ratio, chunk in product((4, 2), ratios, chunks):
        deployment = replace(
            base,
            in_flight_tokens=(1 + overlaps) * chunk,
            state_bytes=state,
            window_ratio=ratio,
            prefix_cache=not log.is_on("radix_off"),
            role=role if role in ("prefill", "decode") else None,
            overlap=overlaps,
            window_slots="own" if log.is_on("own_windows") else None,
            layers=None if first is None or end is None else tuple(range(first, end)),
            stage=stage or 0,
        )
        yield replace(deployment, concurrency=requests or _requests(reading, deployment))


def _ratios(reading: Reading) -> list[float]:
    """The window ratio of fewest digits that gives the pools which are printed."""
    full, slots = reading.whole("full"), reading.whole("swa")
    if not full or not slots:
        return []
    shares = (
        round(n / 1000, 3) for n in sorted(range(1, 1001), key=lambda n: (n % 100 > 0, n % 10 > 0))
    )
    found = (share for share in shares if int(full * share) // _PAGE * _PAGE == slots)
    return [share for share in [next(found, None)] if share]


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
    running, pools = reading.printed_tokens or 0, engine.pools(deployment)
    full = reading.whole("full_token") or running
    reported, price = reading.number("available_bytes"), pools.bytes_per_full_token
    fixed = sum(pools.fixed_bytes(pools.requests(int((reported or 0) * GIB))).values())
    least = full * price + fixed + pools.reserved_bytes(full)
    memory, exact = int(least) + 1, True
    if reported is not None:
        low, high = ((reported + by) * GIB for by in (-_ROUNDING, _ROUNDING))
        memory = int(min(max(least + 1, low), high))
        exact = low < least + pools.page_tokens * price and least < high
    if running < full:  # capped
        memory = int(running * price + fixed + pools.reserved_bytes(running)) + 1
    flight = deployment.in_flight_tokens
    return Recovery(engine, deployment, memory, running, (flight, flight), exact=exact)


# ---- what it means ------------------------------------------------------------------------------


def meaning(log: StartupLog, found: Recovery, capacity: Capacity) -> Iterator[str]:
    reading = log.smallest
    running, full = reading.printed_tokens or 0, reading.whole("full_token") or 0
    if running < full:
        yield (
            f"Memory would hold {full:,} full tokens; {running:,} run: the pool is capped "
            "(max_total_tokens, or the smallest rank)."
        )
    price = reading.number("bytes_per_full_token")
    by = "" if price or reading.number("kv_gib") else f" (by the rules of {found.engine.name})"
    of = " of a rank" * ((log.whole("data_parallel") or 1) > 1)
    engine, one = found.engine, found.deployment
    shared = engine.shared_bytes(one) if found.exact else 0
    at_start = f"; {format_bytes(shared)} of states and windows are allocated at start-up"
    yield (
        f"{running:,} full tokens of {price or float(capacity.unit_bytes):,.2f} B{by} are shared "
        f"by the contexts of all requests{of}{at_start * bool(shared)}."
    )
    steady = engine.request_bytes(one, one.max_context_tokens, in_flight=1 + one.draft_tokens)
    held = round(steady / float(capacity.unit_bytes))
    if found.exact and one.max_context_tokens != held:
        more = " with its windows, which stay allocated: more than run" if held > running else ""
        yield (
            f"In steady decode a request of {one.max_context_tokens:,} tokens takes {held:,} full "
            f"tokens{more}."
        )


def changes(found: Recovery, log: StartupLog) -> Iterator[tuple[str, Deployment]]:
    deployment = found.deployment
    if deployment.window_slots is None:  # frees nothing where the version frees them by default
        what = "SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS=1"
        yield what, replace(deployment, window_slots="freed")
    if deployment.window_ratio is None or deployment.window_ratio > _SMALL_RATIO:
        what = f"--swa-full-tokens-ratio {_SMALL_RATIO}"
        yield what, replace(deployment, window_ratio=_SMALL_RATIO)
    if deployment.state_bytes != 2:
        what = "SGLANG_DSV4_COMPRESS_STATE_DTYPE=bfloat16 (changes numerics)"
        yield what, replace(deployment, state_bytes=2)
    if not deployment.online_state and not deployment.draft_layers:
        what = "SGLANG_OPT_USE_ONLINE_COMPRESS=1 (changes numerics)"
        yield what, replace(deployment, online_state=True)
    if deployment.concurrency and deployment.concurrency > 1:
        half = deployment.concurrency // 2
        what = f"--max-running-requests {half * log.sharers} (no more run)"
        yield what, replace(deployment, concurrency=half)
