"""A replay: hit rate, load and latency first, then memory, tiers and the model of a step."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from dsv4kv.engines.names import FAMILIES, IDEAL, RULES
from dsv4kv.model.presets import load_model, preset_named
from dsv4kv.runs.parts import FleetReplica, ReplayFleet, ReplayResult, ReplayTiers, Reuse
from dsv4kv.runs.quantities import axis_text, clock_factor, swept
from dsv4kv.runs.schema import Case, Latency, RunRecord, Totals
from dsv4kv.runs.statistics import summarize
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view import outcomes as oc
from dsv4kv.view import table as tb
from dsv4kv.view.facts import cache_facts, header, judge_status, layers_text, setting
from dsv4kv.view.plots import Line, lines

_LONG_NS = 1e11  # latencies are in s if one is longer
MAX_LOSSES, MAX_CASES, MAX_FINDINGS, MAX_REPLICAS = 4, 12, 3, 6
"""Rows of an answer; sections have all of them."""
_TIMES = {"queueing": "queue wait", "ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}
LOSSES = {
    "evicted_block": "block evicted",
    "evicted_checkpoint": "checkpoint evicted",
    "no_checkpoint": "no checkpoint there",
    "alignment": "partial block",
    "last_token": "last token of a prompt",
    "replay": "window recomputed",
    "in_flight": "still being computed",
    "draft": "dropped for drafts",
}
"""Why a prompt token that was seen before had to be computed again."""
_STRATEGIES = {
    "ends": "try --strategy ends+junctions",
    "ends+junctions": "try --axis prefix.strategy=zero:bounded,full",
    "zero": "--strategy zero:bounded",
    "zero:bounded": "try --axis prefix.strategy=ends+junctions,full",
}
"""What loses less to windows than a strategy, or, after ``try``, may do so."""
BELOW = {
    "no_window": ("no window and state there", "denser windows: prefix.strategy or retention"),
    "window_evicted": ("window and state evicted", "a larger tier"),
    "evicted": ("evicted", "a larger tier, or another eviction"),
    "not_written": ("not written yet", "write_through, admission 1, a faster tier"),
    "prefetch_timeout": ("fetched too late", "tiers.prefetch wait_complete, a faster tier"),
    "prefetch_limit": ("too much on its way", "a larger first tier, or tiers.prefetch_share"),
    "too_short": ("too little to move", "tiers.load_tokens, tiers.prefetch_tokens"),
    "recomputed": ("faster recomputed", "a faster tier; tiers.compare"),
}
"""Why tokens were not restored from a tier, and the remedy."""
_SERIES = {
    "Blocks": ("own_blocks", "shared_blocks", "cached_blocks"),
    "Requests": ("running", "paused", "waiting"),
}
_NONE = "none by this rule"
_LEAST_BLOCK = 128  # of the toolkit's own cache
_MOST_SHARE = 0.8  # of memory for checkpoints
_TIGHT = 0.25  # from this share on, checkpoint evictions are worth a warning
_IMBALANCED = 1.5  # from here on, a router is no balancer
_SLO = "ttft_p99=2s"
"""What the command that is printed plans for."""
_DRAIN, _GROWTH = 1.1, 3.0
_SYNTHETIC = "a synthetic trace"


def replay_page(record: RunRecord) -> tb.Page:
    """Hit rate, load and latency of a replay, or the best of a sweep; then everything else."""

    def all_of(names: Iterable[object]) -> str:
        return ", ".join(dict.fromkeys(str(name) for name in names if name))

    cases = record.cases
    models = all_of(case.cache.model for case in cases if case.cache) or "no model"
    engines = all_of(setting(case, "server.engine") for case in cases)
    slos = all_of(_slo(case.replay.fleet) for case in cases if case.replay)
    on = f"{models} on {all_of(map(_gpus, cases)) or 'no GPU'}"
    what = f"replay of {record.trace_source or _SYNTHETIC}{swept(cases)}"
    title = ", ".join(filter(None, [on, engines, what, slos]))
    if len(cases) != 1:
        return tb.Page(title, *_sweep(record))
    return tb.Page(
        title, list(_case_answer(record, cases[0])), list(_case_sections(record, cases[0]))
    )


def _gpus(case: Case) -> str:
    gpu = setting(case, "cost.gpu")
    replicas = len(case.replay.fleet.replicas) if case.replay and case.replay.fleet else 0
    gpus = f"{setting(case, 'cost.gpus')} × {gpu}"
    return f"{counted(replicas, 'replica')} of {gpus}" if replicas else gpus


def _slo(fleet: ReplayFleet | None) -> str:
    limits = fleet.slo.items() if fleet and fleet.slo else ()
    return " and ".join(f"{name} ≤ {format_duration(ns)}" for name, ns in limits)


def _case_answer(record: RunRecord, case: Case) -> Iterator[tb.Part]:
    problems = [f for f in (*judge_status(case), *judge_replay(case)) if f.is_problem]
    problems += [tb.warning(text)] if (text := _other_rule(case)) else []
    yield from problems
    result, totals, cache = case.replay, case.totals, case.cache
    if result is None or totals is None or cache is None:
        return
    reuse, late = result.reuse, overload(case)
    sentence = (
        f"{tb.share(reuse.saved_tokens, reuse.prompt_tokens)} of prompt tokens hit the cache"
    )
    for name in () if late else ("ttft", "tpot"):
        if (time := _time(case, name, 50.0)) != tb.ABSENT:
            sentence += f"; median {_TIMES[name]} {time} ms"
    yield tb.strong(f"{sentence}.") if problems else tb.good(f"{sentence}.")
    trace = record.trace_source or _SYNTHETIC
    behind = f" behind {result.fleet.router}" if result.fleet else ""
    yield (
        f"{totals.requests:,} requests of {trace}; {cache.model} on {_gpus(case)}{behind}, prefix "
        f"rule {reuse.rule}."
    )
    offered = {None: "", 0: "all requests offered at the start, "}.get(result.arrived_ns)
    if result.arrived_ns:
        rate = _asked(totals) / result.arrived_ns * 1e9
        offered = f"{tb.number(rate)} requests/s offered, "
    served = tb.number(totals.requests / totals.wall_ns * 1e9) if totals.wall_ns else tb.ABSENT
    yield (
        f"Load: {offered}{served} served; {result.mean_decoding:.1f} decode on average, "
        f"{counted(totals.peak_requests, 'slot')} at the peak."
    )
    if result.fleet:
        factor = clock_factor(case, "queueing")
        yield from ("", _replicas_table(result.fleet, totals, factor, MAX_REPLICAS))
    else:
        yield from ("", _reuse_table(case, reuse, MAX_LOSSES))
    yield from ("", _times_table(case.latencies))
    model = setting(case, "model.preset")
    if record.trace_source and isinstance(model, str):
        yield from _next(case, reuse, trace, model, late=bool(late))


def _next(case: Case, reuse: Reuse, trace: str, model: str, *, late: bool) -> Iterator[tb.Part]:
    lost = reuse.lost_tokens
    if not late and max(lost, key=lambda reason: lost[reason], default="").startswith("evicted"):
        yield from ("", tb.Command.of("dsv4kv", "trace", "mrc", trace, "--model", model))
        return
    family, ruled = FAMILIES.get(RULES.get(reuse.rule, IDEAL).engine.partition(":")[0]), ""
    if setting(case, "server.engine") is None and family is None:
        ruled = "ideal is no engine's rule: --engine sglang takes SGLang's."
    elif setting(case, "server.engine") is None and family and not family.slots:
        ruled = f"--engine {family.name} takes {family.title}'s pools and chunks, too."
    gpu, engine = setting(case, "cost.gpu"), setting(case, "server.engine")
    given = {"--model": model, "--gpu": gpu, "--engine": engine, "--slo": _SLO}
    words = [word for option, text in given.items() if text for word in (option, text)]
    yield from (ruled and tb.dim(ruled), tb.Command.of("dsv4kv", "plan", trace, *words))


def _other_rule(case: Case) -> str:
    """Whose rule it is, where the engine has another one for the model."""
    name, model = case.replay.reuse.rule if case.replay else "", setting(case, "model.preset")
    rule = RULES.get(name, IDEAL)
    family = FAMILIES.get(rule.engine.partition(":")[0])
    if family is None or rule.groups or preset_named(model or "") is None:
        return ""
    kind = load_model(model).kind
    if not any(kind in each.default_for for each in family.rules.values() if each != rule):
        return ""
    own = f"--engine {family.name}"
    return f"{name} is {family.title}'s rule for models without windows; for {model}: {own}"


def _case_sections(record: RunRecord, case: Case) -> Iterator[tb.Section]:
    result, totals, layers = case.replay, case.totals, layers_text([case])
    cache = [cache_facts(case.cache)] if case.cache else []
    if result is None or totals is None:
        yield tb.Section("Run", [header(record)])
        return
    if result.fleet:
        facts = fleet_facts(result.fleet, totals, clock_factor(case, "latency"))
        table = _replicas_table(result.fleet, totals, clock_factor(case, "queueing"))
        yield tb.Section("Fleet", [facts, table])
    if result.fleet or len(result.reuse.lost_tokens) > MAX_LOSSES:
        own = "each replica's own past" if result.fleet else ""
        yield tb.Section("Prefix cache", [_reuse_table(case, result.reuse).noted(own)])
    if result.tiers:
        yield _tiers_section(result.tiers, result.reuse.prompt_tokens)
    memory: list[tb.Part] = [_memory_table(result).noted(layers)]
    seconds = [at / 1e9 for at in result.series.at_ns]
    for title, names in _SERIES.items():
        drawn = [Line(name.split("_")[0], seconds, getattr(result.series, name)) for name in names]
        drawn = [line for line in drawn if any(line.ys)] or drawn
        if seconds and (title == "Blocks" or any(len(set(line.ys)) > 1 for line in drawn)):
            chart = lines(f"{title} over time", drawn, x="virtual time, s", stacked=True)
            memory.append(chart)
    yield tb.Section("Memory", memory)
    yield tb.Section("Scheduling", [_replay_facts(result, totals)])
    sources: dict[str, list[str]] = {}
    for each in result.constants:
        value = f"{each.name} {each.value:,.6g} {each.unit}".strip()
        sources.setdefault(each.source, []).append(value)
    constants = [f"{'; '.join(values)} (source: {name})" for name, values in sources.items()]
    yield tb.Section("Model of a step", constants, "sum over the work of the busiest rank")
    yield tb.Section("Run", [header(record), *cache])


def _asked(totals: Totals) -> int:
    return totals.requests + totals.rejected


def overload(case: Case) -> str:
    """``overloaded: 3.9 requests/s arrive …``; empty where the servers keep up, or it is unknown.

    Overloaded is a replay that takes 10 % longer than its requests take to arrive, and in which
    half of TTFT is queue wait, or the last quarter of requests has three times the first's TTFT.
    """
    result, totals = case.replay, case.totals
    samples = {each.name: each.samples_ns for each in case.latencies}
    ttfts, waits = samples.get("ttft", []), samples.get("queueing", [])
    quarter = len(ttfts) // 4
    if not (result and totals and result.arrived_ns and quarter and waits):
        return ""
    if totals.wall_ns < _DRAIN * result.arrived_ns:
        return ""
    grown = median(ttfts[-quarter:]) >= _GROWTH * median(ttfts[:quarter])
    if not grown and median(waits) < median(ttfts) / 2:
        return ""
    offered = tb.number(_asked(totals) / result.arrived_ns * 1e9)
    served = tb.number(totals.requests / totals.wall_ns * 1e9)
    return (
        f"overloaded: {offered} requests/s arrive, {served} are served: waits grow with the trace"
    )


def _reuse_table(case: Case, reuse: Reuse, limit: int | None = None) -> tb.Table:
    """Every prompt token: new, hit, or lost and to what; at most ``limit`` losses."""
    lost = sorted(reuse.lost_tokens.items(), key=lambda item: -item[1])
    rows = [("new", reuse.prompt_tokens - reuse.seen_tokens, ""), ("hit", reuse.saved_tokens, "")]
    rows += [
        (f"lost: {LOSSES[reason]}", tokens, remedy_of(case, reason))
        for reason, tokens in lost[:limit]
    ]
    if rest := sum(tokens for _, tokens in lost[len(rows) - 2 :]):
        rows.append(("lost: other reasons", rest, "--verbose lists them"))
    note = f"shared in blocks of {reuse.shared_tokens:,} tokens"
    note += "; remedies: server flags" * bool(RULES.get(reuse.rule, IDEAL).engine)
    return _losses_table("Prompt tokens", rows, reuse.prompt_tokens, note)


def _losses_table(
    title: str, rows: Sequence[tuple[str, int, str]], prompt_tokens: int, note: str
) -> tb.Table:
    """Outcomes of prompt tokens, how many there are, and what would change them."""
    heads = ["outcome", "tokens", "share", "remedy"]
    cells = [(what, n, tb.share(n, prompt_tokens, 2), remedy) for what, n, remedy in rows]
    return tb.Table(title, heads, cells, note=note)


def remedy_of(case: Case, reason: str) -> str:
    """What gets lost tokens back, as the command takes it; after ``try`` only a replay can say."""
    applied = case.replay.reuse.rule if case.replay else setting(case, "prefix.rule")
    rule = RULES.get(applied, IDEAL)  # a server's engine has chosen it, if one is given
    waits = setting(case, "prefix.defer") is not False
    plain = {
        "last_token": "none: always computed",
        "in_flight": _NONE if waits else "--set prefix.defer=true",
        "draft": "--set prefix.speculation=none",
    }
    if rule.engine or reason in plain:
        return rule.remedies.get(reason) or plain.get(reason, _NONE)
    if reason in ("no_checkpoint", "replay"):
        return _STRATEGIES.get(setting(case, "prefix.strategy"), "try --strategy ends+junctions")
    if reason != "alignment":
        return _more_memory(case, reason)
    shared = case.replay.reuse.shared_tokens if case.replay else _LEAST_BLOCK
    if shared <= _LEAST_BLOCK:
        return f"none: {_LEAST_BLOCK} is the least"
    own = shared == setting(case, "cache.block_tokens")
    return f"try --set cache.block_tokens={_LEAST_BLOCK}" if own else "none: the trace's blocks"


def _more_memory(case: Case, reason: str) -> str:
    """For what was evicted: more of the cache, or of it for checkpoints; else another way."""
    blocks, limit, held = (
        setting(case, f"cache.{name}")
        for name in ("num_blocks", "num_checkpoints", "checkpoint_share")
    )
    if reason == "evicted_checkpoint" and limit:
        return f"--set cache.num_checkpoints={2 * limit}"
    if reason == "evicted_checkpoint" and not blocks and (held or 1) <= _MOST_SHARE / 2:
        return f"try --set cache.checkpoint_share={2 * held:g}"
    more = f"--set cache.num_blocks={2 * blocks}" if blocks else "more memory: --memory"
    if setting(case, "prefix.strategy") == "full":
        return f"{more}; try --strategy ends+junctions"
    is_lru = setting(case, "prefix.policy") in (None, "lru")
    return more if is_lru else f"{more}; try --policy lru"


def _tiers_section(tiers: ReplayTiers, prompt_tokens: int) -> tb.Section:
    each = {f"lost on {tier.name}": tier.lost_tokens for tier in tiers.tiers}
    lost = each if any(each.values()) else {"lost": tiers.lost_tokens}
    losses = [
        (f"{where}: {BELOW[reason][0]}", tokens, BELOW[reason][1])
        for where, reasons in lost.items()
        for reason, tokens in reasons.items()
    ]
    rows = [("restored", tiers.restored_tokens, ""), *sorted(losses, key=lambda row: -row[1])]
    note = f"{tiers.asked_tokens:,} prompt tokens seen before, without all they need on the GPUs"
    below = _losses_table("Below the GPUs", rows, prompt_tokens, note)
    tail = f", {tiers.tail_bytes:,} B of windows and states" if tiers.tail_bytes else ""

    def mean(waited_ns: int, transfers: int) -> str | None:
        return format_duration(waited_ns / transfers) if transfers else None

    columns: tb.Columns = [
        ("tier", lambda t: t.name),
        ("capacity", lambda t: format_bytes(t.capacity_bytes + (t.tail_capacity_bytes or 0))),
        ("peak", lambda t: format_bytes(t.peak_bytes)),
        ("hit tokens", lambda t: t.hit_tokens),
        ("read", lambda t: format_bytes(t.read_bytes)),
        ("written", lambda t: format_bytes(t.written_bytes)),
        ("moved/useful", lambda t: f"{t.amplification:.2f}" if t.amplification else None),
        ("mean read wait", lambda t: mean(t.read_waited_ns, t.reads)),
        ("mean write wait", lambda t: mean(t.write_waited_ns, t.writes)),
    ]
    note = f"{tiers.context_bytes:,} B for {tiers.object_tokens:,} tokens of context{tail}"
    own = tb.Table("Tiers", columns, tiers.tiers, note=note)
    return tb.Section("Below the GPUs", [below, own])


def _memory_table(result: ReplayResult) -> tb.Table:
    columns: tb.Columns = [
        ("part", lambda pool: pool.name),
        ("units", lambda pool: "unlimited" if pool.units is None else f"{pool.units:,}"),
        ("bytes/unit", lambda pool: pool.unit_bytes),
        ("bytes", lambda p: format_bytes(p.units * p.unit_bytes) if p.units else None),
        ("peak in use", lambda pool: pool.peak_units),
    ]
    note = "blocks in use belong to running requests; the others are cached"
    return tb.Table("Memory", columns, result.pools, note=note)


def _times_table(latencies: Sequence[Latency]) -> tb.Table:
    """Percentiles of times; only those that enough requests carry."""
    known = [each for each in latencies if each.samples_ns]
    clocked = any(each.factor for each in known)
    rows = [(each, summarize(each.samples_ns)) for each in known]
    unit, scale = "ms", 1e6
    if any(row[1].maximum >= _LONG_NS for row in rows):
        unit, scale = "s", 1e9

    def time(nanoseconds: float | None, factor: float | None) -> str | None:
        return None if nanoseconds is None else tb.clocked(nanoseconds / scale, factor)

    def percentile(at: float) -> tb.Column:
        return f"p{at:g}", lambda row: time(row[1].percentiles.get(at), row[0].factor)

    columns: tb.Columns = [
        ("time", lambda row: _TIMES.get(row[0].name, row[0].name)),
        ("requests", lambda row: len(row[0].samples_ns)),
        *map(percentile, (50.0, 90.0, 99.0, 99.9)),
        ("max", lambda row: time(row[1].maximum, row[0].factor)),
        *([("90 % error", lambda row: tb.factor(row[0].factor))] if clocked else []),
    ]
    note = f"simulated, in {unit}; percentiles with < 10 samples above them are omitted"
    return tb.Table("Latency", columns, rows, note=note)


def _time(case: Case, name: str, percentile: float) -> str:
    for latency in case.latencies:
        if latency.name == name and latency.samples_ns:
            found = summarize(latency.samples_ns).percentiles.get(percentile)
            return tb.ABSENT if found is None else tb.clocked(found / 1e6, latency.factor)
    return tb.ABSENT


def _imbalance(case: Case) -> str:
    """``the busiest of 4 replicas …`` where its work makes a hit rate no reason to choose it."""
    fleet = case.replay.fleet if case.replay else None
    if not fleet or (fleet.imbalance or 0) <= _IMBALANCED:
        return ""
    return f"the busiest of {len(fleet.replicas)} replicas works {fleet.imbalance:.2f} × the mean"


def _sweep(record: RunRecord) -> tuple[list[tb.Part], list[tb.Section]]:
    cases = record.cases
    findings = [
        *(each for each in list_replay_findings(record) if each.level != "note"),
        *(tb.warning(f"{axis_text(case)}: {why}") for case in cases if (why := _imbalance(case))),
    ]
    groups = oc.group_launches([c for c in cases if not overload(c) and not _imbalance(c)])
    sentences = list(oc.best_sentences(groups)) or [oc.unchanged_sentence(groups)]
    answer: list[tb.Part] = [tb.strong(each) for each in filter(None, sentences)]
    table = _sweep_table(cases)
    answer += [*findings[:MAX_FINDINGS], "", table.noted(layers_text(cases)).first(MAX_CASES)]
    parts: list[tb.Part] = [*findings, *oc.sweep_charts(oc.group_launches(cases))]
    parts += [table] if len(cases) > MAX_CASES else []
    return answer, [tb.Section("All cases", parts), tb.Section("Run", [header(record)])]


def _sweep_table(cases: Sequence[Case]) -> tb.Table:
    axes = oc.axis_columns(cases, lambda case: case)
    served = [case for case in cases if case.replay and case.totals]

    columns: list[tb.Column] = [
        *axes,
        (
            "hit rate",
            lambda c: tb.share(c.replay.reuse.saved_tokens, c.replay.reuse.prompt_tokens),
        ),
    ]
    if all(case.replay and case.replay.fleet for case in served):
        columns += [
            ("within SLO", lambda c: tb.share(c.replay.fleet.good_requests, _asked(c.totals))),
            ("busiest / mean", lambda c: c.replay.fleet.imbalance),
        ]
    if all(case.replay and case.replay.tiers for case in served):
        columns.append(("restored", lambda c: c.replay.tiers.restored_tokens))
    columns += [
        ("TTFT p50", lambda case: _time(case, "ttft", 50.0)),
        ("TTFT p99", lambda case: _time(case, "ttft", 99.0)),
        ("TPOT p50", lambda case: _time(case, "tpot", 50.0)),
    ]
    if any(map(overload, cases)):
        columns.append(("load", lambda c: tb.mark("warning", "overloaded") if overload(c) else ""))
    worst = max((clock_factor(case, "ttft") or 0 for case in cases), default=0)
    error = f"; 90 % error of TTFT {tb.factor(worst)}" if worst else ""
    return tb.Table("Replays", columns, served, f"simulated times in ms{error}", keys=len(axes))


def list_replay_findings(record: RunRecord) -> Iterator[tb.Finding]:
    """Every case's findings; in a sweep each begins with what distinguishes its case."""
    for case in record.cases:
        prefix = f"{axis_text(case)}: " if case.axis else ""
        for finding in [*judge_status(case), *judge_replay(case)]:
            yield replace(finding, sentence=prefix + finding.sentence)


def judge_replay(case: Case) -> list[tb.Finding]:
    """Warnings and errors of a replay: overload, rejected requests, leaks, lost checkpoints."""
    if case.replay is None or case.totals is None:
        return []
    found = [tb.warning(late)] if (late := overload(case)) else []
    for reason, rejected in case.replay.rejected.items():
        found.append(tb.warning(f"rejected requests: {rejected:,}, {reason}"))
    if outside := case.replay.extrapolated:
        beyond = "; ".join(outside)
        found.append(tb.warning(f"times are extrapolated from the table: {beyond}"))
    if left := case.totals.blocks_left:
        found.append(tb.bad(f"blocks not freed: {left:,}; the cache leaks"))
    reuse = case.replay.reuse
    evicted = reuse.lost_tokens.get("evicted_checkpoint", 0)
    if reuse.seen_tokens and evicted > _TIGHT * reuse.seen_tokens:
        sentence = (
            f"{evicted / reuse.seen_tokens:.0%} of reusable tokens were lost because their "
            "checkpoints were evicted before their blocks; remedy: "
            f"{remedy_of(case, 'evicted_checkpoint')}"
        )
        found.append(tb.warning(sentence))
    return found


def _replay_facts(result: ReplayResult, totals: Totals) -> tb.Facts:
    reuse, work = result.reuse, result.work
    sizes = (result.rounding_bytes, result.padding_bytes, result.remainder_bytes)
    partial, padding, unused = map(format_bytes, sizes)
    rows = {
        "blocks": f"{reuse.found_blocks:,} of {reuse.prompt_blocks:,} whole blocks of prompts "
        f"found, {reuse.evicted_blocks:,} evicted",
        "windows": f"{format_bytes(reuse.kept_bytes)} in {reuse.written_checkpoints:,} "
        f"checkpoints, {reuse.evicted_checkpoints:,} evicted, {reuse.restored_checkpoints:,} "
        "restored",
        "tokens": f"{reuse.computed_tokens:,} prompt tokens computed, {reuse.again_tokens:,} of "
        f"them again after a preemption; {totals.output_tokens:,} generated",
        "scheduling": f"{result.pauses:,} pauses, {result.evictions:,} preemptions, "
        f"{reuse.deferred_requests:,} requests waited for another request's prefix",
        "fragmentation": f"{partial} in partial blocks (peak), {padding} of padding per block, "
        f"{unused} unused",
        "time": f"{format_duration(totals.wall_ns)} in {totals.steps:,} steps, idle for "
        f"{format_duration(work.idle_ns)}",
    }
    if totals.drafted_tokens:
        kept = totals.drafted_tokens - totals.rolled_back_tokens
        rows["drafts"] = f"{totals.drafted_tokens:,} proposed, {kept:,} accepted"
    return tb.Facts(rows)


def fleet_facts(fleet: ReplayFleet, totals: Totals, factor: float | None = None) -> tb.Facts:
    """Hit rate, balance, goodput and cost; ``factor`` is the error of the replay's time."""
    error = "" if factor is None else f" (90 % error {tb.factor(factor)})"
    asked, hours, costs = _asked(totals), fleet.gpu_hours(totals.wall_ns), list[str]()
    for scale, unit in ((1.0, "GPU-hours"), (fleet.gpu_hour_price, "USD")):
        if scale:
            costs.append(f"{tb.clocked(hours * scale, factor)} {unit}")
        if scale and hours and totals.output_tokens:
            each = hours * scale / totals.output_tokens * 1e6
            costs[-1] += f", {tb.clocked(each, factor)} for 10^6 output tokens"
    hits = [
        tb.share(tokens, fleet.prompt_tokens)
        for tokens in (fleet.saved_tokens, fleet.pooled_saved_tokens, fleet.ideal_saved_tokens)
    ]
    roles = [replica.role for replica in fleet.replicas]
    servers = f"{counted(len(roles), 'replica')} behind {fleet.router}"
    if fleet.decode_router is not None:
        servers = (
            f"{roles.count('prefill')} prefill behind {fleet.router}, "
            f"{roles.count('decode')} decode behind {fleet.decode_router}"
        )
    rows = {
        "fleet": f"{servers}; {counted(fleet.gpus, 'GPU')}",
        "hit rate": f"{hits[0]}; one pool of all blocks {hits[1]}, unlimited pool {hits[2]}",
        "duplicates": f"{format_bytes(fleet.repeated_bytes)} of "
        f"{format_bytes(fleet.held_bytes)} cached at the end",
        "costs": f"{'; '.join(costs)}{error}",
    }
    if totals.wall_ns:
        rate = tb.clocked(fleet.good_requests / totals.wall_ns * 1e9, factor)
        rows["goodput"] = f"{rate} requests/s{error}"
        if limits := _slo(fleet):
            part = f"{fleet.good_requests:,} of {asked:,} requests"
            kept = tb.share(fleet.good_requests, asked)
            rows["goodput"] += f"; {part} ({kept}) within {limits}"
    if fleet.imbalance is not None:
        rows["imbalance"] = f"the busiest replica works {fleet.imbalance:.2f} × the mean"
    if sent := sum(replica.sent_bytes for replica in fleet.replicas):
        waited = format_duration(sum(replica.sending_waited_ns for replica in fleet.replicas))
        rows["sent"] = (
            f"{format_bytes(sent)} from each prefill rank to decode replicas; prompts waited "
            f"{waited} in total"
        )
    return tb.Facts(rows)


def _replicas_table(
    fleet: ReplayFleet, totals: Totals, factor: float | None = None, limit: int | None = None
) -> tb.Table:
    """What every replica did, at most ``limit``; ``factor`` is the error of queue waits."""
    digits = 2 if factor else 3
    columns: list[tb.Column] = [
        ("replica", lambda r: r.name),
        ("GPUs", lambda r: r.gpus),
        ("requests", lambda r: r.requests),
        (
            "hit rate",
            lambda r: tb.share(r.saved_tokens, r.prompt_tokens) if _computes(r) else None,
        ),
        ("computed tokens", lambda r: r.computed_tokens),
        ("busy", lambda r: tb.share(r.busy_ns, totals.wall_ns)),
        ("queue wait", lambda r: format_duration(r.queued_ns / max(r.requests, 1), digits)),
        ("peak requests", lambda r: r.peak_requests),
        ("cached", lambda r: format_bytes(r.held_bytes)),
    ]
    if fleet.decode_router is not None:
        columns.append(("sent", lambda r: format_bytes(r.sent_bytes) if _computes(r) else None))
    if any(replica.settings for replica in fleet.replicas):
        columns.append(("settings", lambda r: r.settings))
    error = "" if factor is None else f", 90 % error {tb.factor(factor)}"
    note, rows = f"mean queue wait{error}", fleet.replicas
    if limit:
        note, rows = f"busiest first; {note}", sorted(rows, key=lambda r: -r.busy_ns)
    return tb.Table("Replicas", columns, rows, note=note).first(limit)


def _computes(replica: FleetReplica) -> bool:
    return replica.role != "decode"
