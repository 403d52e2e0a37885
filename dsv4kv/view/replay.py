"""A replay: hit rate, load and latency first, then memory, tiers and the model of a step."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from dsv4kv.engines.names import FAMILIES, IDEAL, RULES, chosen_rule
from dsv4kv.model.presets import load_model, preset_named
from dsv4kv.runs.parts import FleetReplica, ReplayFleet, ReplayResult, ReplayTiers, Reuse
from dsv4kv.runs.quantities import axis_names, axis_text, clock_factor, swept
from dsv4kv.runs.schema import Case, Latency, RunRecord, Totals
from dsv4kv.runs.statistics import summarize
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view import outcomes as oc
from dsv4kv.view import table as tb
from dsv4kv.view.facts import cache_facts, header, judge_status, layers_text, setting
from dsv4kv.view.plots import Line, lines
from dsv4kv.view.quantity import (
    format_clocked,
    format_factor,
    format_number,
    format_setting,
    quantity,
    round_up,
    share,
)

_LONG_NS = 1e11  # latencies are in s if one is longer
MAX_LOSSES, MAX_CASES, MAX_FINDINGS, MAX_REPLICAS = 4, 12, 3, 6
"""Rows of an answer; sections have all of them."""
_TIMES = {"queueing": "queue wait", "ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}
_CLOCKS = {
    "stated": "overhead + bytes / bandwidth + arithmetic / rate",
    "model": "sum over the work of the busiest rank",
}
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
_NONE = "none by this rule"
_LEAST_BLOCK = 128  # of the toolkit's own cache
_MOST_SHARE = 0.8  # of memory for checkpoints
_TIGHT = 0.25  # from this share on, checkpoint evictions are worth a warning
_IMBALANCED = 1.5  # from here on, a router is no balancer
_LIMIT_S = 2.0
"""Limit of TTFT to plan for."""
_DRAIN, _GROWTH = 1.1, 3.0


def replay_page(record: RunRecord) -> tb.Page:
    """Hit rate, load and latency of a replay, or the best of a sweep; then everything else."""
    title = _title(record)
    if len(record.cases) != 1:
        return tb.Page(title, list(_sweep_answer(record)), list(_sweep_sections(record)))
    (case,) = record.cases
    return tb.Page(title, list(_case_answer(record, case)), list(_case_sections(record, case)))


def _title(record: RunRecord) -> str:
    """``v4-flash on 8 × h200, sglang: replay of day.jsonl, ttft ≤ 2.00 s``."""

    def all_of(names: Iterable[object]) -> str:
        return ", ".join(dict.fromkeys(str(name) for name in names if name))

    models = all_of(case.cache.model for case in record.cases if case.cache)
    engines = all_of(setting(case, "server.engine") for case in record.cases)
    slos = all_of(_slo(case.replay.fleet) for case in record.cases if case.replay)
    trace = record.trace_source or "a synthetic trace"
    words = [f"{models or 'no model'} on {all_of(map(_gpus, record.cases)) or 'no GPU'}", engines]
    return ", ".join(filter(None, [*words, f"replay of {trace}{swept(record.cases)}", slos]))


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
    problems += [tb.Finding("warning", text)] if (text := _other_rule(case)) else []
    yield from problems
    result, totals, cache = case.replay, case.totals, case.cache
    if result is None or totals is None or cache is None:
        return
    reuse, late = result.reuse, overload(case)
    sentence = f"{share(reuse.saved_tokens, reuse.prompt_tokens)} of prompt tokens hit the cache"
    for name in () if late else ("ttft", "tpot"):
        if (time := _time(case, name, 50.0)) != tb.ABSENT:
            sentence += f"; median {_TIMES[name]} {time} ms"
    yield tb.Text(f"{sentence}.", "strong") if problems else tb.Finding("good", f"{sentence}.")
    trace = record.trace_source or "a synthetic trace"
    behind = f" behind {result.fleet.router}" if result.fleet else ""
    yield (
        f"{totals.requests:,} requests of {trace}; {cache.model} on {_gpus(case)}{behind}, prefix "
        f"rule {reuse.rule}."
    )
    offered = {None: "", 0: "all requests offered at the start, "}.get(result.arrived_ns)
    if result.arrived_ns:
        rate = _asked(totals) / result.arrived_ns * 1e9
        offered = f"{format_number(rate)} requests/s offered, "
    served = format_number(totals.requests / totals.wall_ns * 1e9) if totals.wall_ns else tb.ABSENT
    yield (
        f"Load: {offered}{served} served; {result.mean_decoding:.1f} requests decode on average, "
        f"{counted(totals.peak_requests, 'slot')} at the peak."
    )
    if result.fleet:
        factor = clock_factor(case, "queueing")
        yield from ("", _replicas_table(result.fleet, totals, factor, MAX_REPLICAS))
    else:
        yield from ("", _reuse_table(case, reuse, MAX_LOSSES))
    yield from ("", _times_table(case.latencies))
    model, gpu = setting(case, "model.preset"), setting(case, "cost.gpu")
    if record.trace_source and isinstance(model, str):  # what answers the next question
        most = max(reuse.lost_tokens, key=lambda reason: reuse.lost_tokens[reason], default="")
        kinds = ["--gpu", gpu] if gpu else []
        slo = f"ttft_p99={_LIMIT_S if late else _kept_s(case):g}s"
        after = ["plan", trace, "--model", model, *kinds, "--slo", slo]
        if not late and most.startswith("evicted"):
            after = ["trace", "mrc", trace, "--model", model]
        ruled = f"ideal is no engine's rule; {_rule_of_plan(model)} is plan's:"
        differs = after[0] == "plan" and reuse.rule == "ideal"
        yield from (tb.Text(ruled, "dim") if differs else "", tb.Command.of("dsv4kv", *after))


def _rule_of_plan(model: str) -> str:
    """The option for the rule of SGLang, ``plan``'s default; of a preset alone."""
    if preset_named(model) is None:
        return "--rule NAME"
    return f"--rule {chosen_rule(FAMILIES['sglang'], load_model(model).kind, {})}"


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
    own = chosen_rule(family, kind, {})
    return f"{name} is {family.title}'s rule for models without windows; for {model}: --rule {own}"


def _kept_s(case: Case) -> float:
    """A limit of TTFT that this server keeps by the clock's error."""
    known = [each for each in case.latencies if each.name == "ttft" and each.samples_ns]
    worst = [
        summarize(each.samples_ns).percentiles.get(99.0, max(each.samples_ns))
        * (each.factor or 1.0)
        for each in known
    ]
    return max([_LIMIT_S, *(round_up(ns / 1e9) for ns in worst)])


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
        below = _below_table(result.tiers, result.reuse.prompt_tokens)
        yield tb.Section("Below the GPUs", [below, _tiers_table(result.tiers)])
    series = result.series
    seconds = [at / 1e9 for at in series.at_ns]
    charts: list[tb.Part] = []
    for title, names in (
        ("Blocks", ("own_blocks", "shared_blocks", "cached_blocks")),
        ("Requests", ("running", "paused", "waiting")),
    ):
        drawn = [Line(name.split("_")[0], seconds, getattr(series, name)) for name in names]
        drawn = [line for line in drawn if any(line.ys)] or drawn
        if seconds and (not charts or any(len(set(line.ys)) > 1 for line in drawn)):
            chart = lines(f"{title} over time", drawn, x="virtual time, s", stacked=True)
            charts.append(chart)
    yield tb.Section("Memory", [_memory_table(result).noted(layers), *charts])
    yield tb.Section("Scheduling", [_replay_facts(result, totals)])
    yield tb.Section("Model of a step", _constants(result), _CLOCKS.get(result.clock, ""))
    yield tb.Section("Run", [header(record), *cache])


def _constants(result: ReplayResult) -> list[str]:
    """Constants of the clock, a sentence for each source."""
    rows: dict[str, list[str]] = {}
    for each in result.constants:
        value = f"{each.name} {each.value:,.6g} {each.unit}".strip()
        rows.setdefault(each.source, []).append(value)
    return [f"{'; '.join(values)} (source: {source})" for source, values in rows.items()]


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
    offered = _asked(totals) / result.arrived_ns * 1e9
    served = totals.requests / totals.wall_ns * 1e9
    return (
        f"overloaded: {format_number(offered)} requests/s arrive, {format_number(served)} are "
        "served, so queue wait and TTFT grow with the length of the trace"
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
    note = f"prompts share blocks of {reuse.shared_tokens:,} tokens"
    note += "; remedies are flags of the server" * bool(RULES.get(reuse.rule, IDEAL).engine)
    return losses_table("Prompt tokens", rows, reuse.prompt_tokens, note)


def losses_table(
    title: str, rows: Sequence[tuple[str, int, str]], prompt_tokens: int, note: str
) -> tb.Table:
    """Outcomes of prompt tokens, how many there are, and what would change them."""
    return tb.Table(
        title,
        ["outcome", "tokens", "share", "remedy"],
        [(what, f"{n:,}", share(n, prompt_tokens, 2), remedy) for what, n, remedy in rows],
        note=note,
    )


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
    return _smaller_blocks(case) if reason == "alignment" else _more_memory(case, reason)


def _smaller_blocks(case: Case) -> str:
    shared = case.replay.reuse.shared_tokens if case.replay else _LEAST_BLOCK
    if shared <= _LEAST_BLOCK:
        return f"none: {_LEAST_BLOCK} is the least"
    if shared == setting(case, "cache.block_tokens"):
        return f"try --set cache.block_tokens={_LEAST_BLOCK}"
    return "none: the trace's blocks"


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


def _below_table(tiers: ReplayTiers, prompt_tokens: int) -> tb.Table:
    each = {f"lost on {tier.name}": tier.lost_tokens for tier in tiers.tiers}
    lost = each if any(each.values()) else {"lost": tiers.lost_tokens}
    losses = [
        (f"{where}: {BELOW[reason][0]}", tokens, BELOW[reason][1])
        for where, reasons in lost.items()
        for reason, tokens in reasons.items()
    ]
    rows = [("restored", tiers.restored_tokens, ""), *sorted(losses, key=lambda row: -row[1])]
    note = f"{tiers.asked_tokens:,} prompt tokens seen before, without all they need on the GPUs"
    return losses_table("Below the GPUs", rows, prompt_tokens, note)


def _tiers_table(tiers: ReplayTiers) -> tb.Table:
    tail = f", {tiers.tail_bytes:,} B of windows and states" if tiers.tail_bytes else ""

    def mean(waited_ns: int, transfers: int) -> str:
        return format_duration(waited_ns / transfers) if transfers else tb.ABSENT

    columns: tb.Columns = [
        ("tier", lambda t: t.name),
        ("capacity", lambda t: format_bytes(t.capacity_bytes + (t.tail_capacity_bytes or 0))),
        ("peak", lambda t: format_bytes(t.peak_bytes)),
        ("hit tokens", lambda t: f"{t.hit_tokens:,}"),
        ("read", lambda t: format_bytes(t.read_bytes)),
        ("written", lambda t: format_bytes(t.written_bytes)),
        ("moved/useful", lambda t: f"{t.amplification:.2f}" if t.amplification else tb.ABSENT),
        ("mean read wait", lambda t: mean(t.read_waited_ns, t.reads)),
        ("mean write wait", lambda t: mean(t.write_waited_ns, t.writes)),
    ]
    note = f"{tiers.context_bytes:,} B for {tiers.object_tokens:,} tokens of context{tail}"
    return tb.Table("Tiers", columns, tiers.tiers, note=note)


def _memory_table(result: ReplayResult) -> tb.Table:
    columns: tb.Columns = [
        ("part", lambda pool: pool.name),
        ("units", lambda pool: "unlimited" if pool.units is None else f"{pool.units:,}"),
        ("bytes/unit", lambda pool: f"{pool.unit_bytes:,}"),
        ("bytes", lambda p: format_bytes(p.units * p.unit_bytes) if p.units else tb.ABSENT),
        ("peak in use", lambda pool: f"{pool.peak_units:,}"),
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

    def time(nanoseconds: float | None, factor: float | None) -> str:
        return tb.ABSENT if nanoseconds is None else format_clocked(nanoseconds / scale, factor)

    def percentile(name: str) -> tb.Read:
        at = float(name.removeprefix("p"))
        return lambda row: time(row[1].percentiles.get(at), row[0].factor)

    columns: tb.Columns = [
        ("time", lambda row: _TIMES.get(row[0].name, row[0].name)),
        ("requests", lambda row: f"{len(row[0].samples_ns):,}"),
        *((name, percentile(name)) for name in ("p50", "p90", "p99", "p99.9")),
        ("max", lambda row: time(row[1].maximum, row[0].factor)),
        *([("90 % error", lambda row: format_factor(row[0].factor))] if clocked else []),
    ]
    note = f"simulated, in {unit}; percentiles with < 10 samples above them are omitted"
    return tb.Table("Latency", columns, rows, note=note)


def _time(case: Case, name: str, percentile: float) -> str:
    for latency in case.latencies:
        if latency.name == name and latency.samples_ns:
            found = summarize(latency.samples_ns).percentiles.get(percentile)
            return tb.ABSENT if found is None else format_clocked(found / 1e6, latency.factor)
    return tb.ABSENT


def _sweep_answer(record: RunRecord) -> Iterator[tb.Part]:
    cases, shown = record.cases, _sweep_findings(record)
    fair = [case for case in cases if not overload(case) and not _imbalance(case)]
    groups = oc.group_launches(fair)
    sentences = list(oc.best_sentences(groups)) or [oc.unchanged_sentence(groups)]
    yield from (tb.Text(each, "strong") for each in filter(None, sentences))
    yield from shown[:MAX_FINDINGS]
    table = _sweep_table(cases, axis_names(cases)).noted(layers_text(cases))
    yield from ("", table.first(MAX_CASES))


def _imbalance(case: Case) -> str:
    """``the busiest of 4 replicas …`` where its work makes a hit rate no reason to choose it."""
    fleet = case.replay.fleet if case.replay else None
    if not fleet or (fleet.imbalance or 0) <= _IMBALANCED:
        return ""
    return f"the busiest of {len(fleet.replicas)} replicas works {fleet.imbalance:.2f} × the mean"


def _sweep_findings(record: RunRecord) -> list[tb.Finding]:
    found = [each for each in list_replay_findings(record) if each.level != "note"]
    uneven = [
        f"{axis_text(case)}: {_imbalance(case)}" for case in record.cases if _imbalance(case)
    ]
    return [
        *compare_rules(record.cases),
        *found,
        *(tb.Finding("warning", each) for each in uneven),
    ]


def _sweep_sections(record: RunRecord) -> Iterator[tb.Section]:
    cases = record.cases
    parts: list[tb.Part] = [*_sweep_findings(record), *oc.sweep_charts(oc.group_launches(cases))]
    if len(cases) > MAX_CASES:
        parts.append(_sweep_table(cases, axis_names(cases)))
    yield tb.Section("All cases", parts)
    yield tb.Section("Run", [header(record)])


def _sweep_table(cases: Sequence[Case], axes: dict[str, str]) -> tb.Table:
    """A row for every case that was served: hit rate, load and latency.

    ``axes`` are the swept settings by dotted path, as they are to be shown.
    """
    served = [case for case in cases if case.replay and case.totals]

    def setting_of(path: str) -> tb.Read:
        return lambda c: format_setting(path, c.axis[path]) if path in c.axis else tb.ABSENT

    def kept_slo(case: Case) -> str:
        fleet, totals = case.replay and case.replay.fleet, case.totals
        return share(fleet.good_requests, _asked(totals)) if fleet and totals else tb.ABSENT

    columns: list[tuple[str, tb.Read]] = [
        *((name.replace("_", " "), setting_of(path)) for path, name in axes.items()),
        ("hit rate", lambda c: share(c.replay.reuse.saved_tokens, c.replay.reuse.prompt_tokens)),
    ]
    if all(case.replay and case.replay.fleet for case in served):
        columns.append(("within SLO", kept_slo))
        columns.append(("busiest / mean", lambda c: quantity(c.replay.fleet.imbalance)))
    if all(case.replay and case.replay.tiers for case in served):
        columns.append(("restored", lambda c: quantity(c.replay.tiers.restored_tokens)))
    columns += [
        ("TTFT p50", lambda case: _time(case, "ttft", 50.0)),
        ("TTFT p99", lambda case: _time(case, "ttft", 99.0)),
        ("TPOT p50", lambda case: _time(case, "tpot", 50.0)),
    ]
    if any(map(overload, cases)):
        columns.append(("load", lambda c: tb.mark("warning", "overloaded") if overload(c) else ""))
    worst = max((clock_factor(case, "ttft") or 0 for case in cases), default=0)
    error = f"; 90 % error of TTFT {format_factor(worst)}" if worst else ""
    return tb.Table("Replays", columns, served, f"simulated times in ms{error}", keys=len(axes))


def compare_rules(cases: Sequence[Case]) -> list[tb.Finding]:
    """Which setting of an engine saves most, where a sweep varied rules and nothing else."""
    saved: dict[str, list[tuple[float, str, str]]] = {}
    for case in cases:
        reuse = case.replay.reuse if case.replay else None
        if set(case.axis) == {"prefix.rule"} and reuse and reuse.setting and reuse.prompt_tokens:
            family, hits = reuse.rule.partition(":")[0], reuse.saved_tokens / reuse.prompt_tokens
            saved.setdefault(family, []).append((hits, reuse.setting, reuse.rule))
    ends = [(min(settings), max(settings)) for settings in saved.values()]
    return [
        tb.Finding("note", f"{best[1]} ({best[2]}) saves {best[0] - worst[0]:.1%} of all prompt "
                f"tokens more than {worst[1]}")
        for worst, best in ends
        if best > worst
    ]  # fmt: skip


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
    late = overload(case)
    found = [tb.Finding("warning", late)] if late else []
    found += [
        tb.Finding("warning", f"rejected requests: {rejected:,}, {reason}")
        for reason, rejected in case.replay.rejected.items()
    ]
    if outside := case.replay.extrapolated:
        beyond = "; ".join(outside)
        found.append(tb.Finding("warning", f"times are extrapolated from the table: {beyond}"))
    if left := case.totals.blocks_left:
        found.append(tb.Finding("bad", f"blocks not freed: {left:,}; the cache leaks"))
    reuse = case.replay.reuse
    evicted = reuse.lost_tokens.get("evicted_checkpoint", 0)
    if reuse.seen_tokens and evicted > _TIGHT * reuse.seen_tokens:
        remedy = remedy_of(case, "evicted_checkpoint")
        found.append(
            tb.Finding(
                "warning",
                f"{evicted / reuse.seen_tokens:.0%} of reusable tokens were lost because their "
                f"checkpoints were evicted before their blocks; remedy: {remedy}",
            )
        )
    return found


def _replay_facts(result: ReplayResult, totals: Totals) -> tb.Facts:
    reuse, work = result.reuse, result.work
    partial, padding, unused = (
        format_bytes(size)
        for size in (result.rounding_bytes, result.padding_bytes, result.remainder_bytes)
    )
    rows = {
        "blocks": (
            f"{reuse.found_blocks:,} of {reuse.prompt_blocks:,} whole blocks of prompts found, "
            f"{reuse.evicted_blocks:,} evicted"
        ),
        "windows": (
            f"{format_bytes(reuse.kept_bytes)} in {reuse.written_checkpoints:,} checkpoints, "
            f"{reuse.evicted_checkpoints:,} evicted, {reuse.restored_checkpoints:,} restored"
        ),
        "tokens": (
            f"{reuse.computed_tokens:,} prompt tokens computed, {reuse.again_tokens:,} of them "
            f"again after a preemption; {totals.output_tokens:,} generated"
        ),
        "scheduling": (
            f"{result.pauses:,} pauses, {result.evictions:,} preemptions, "
            f"{reuse.deferred_requests:,} requests waited for another request's prefix"
        ),
        "fragmentation": (
            f"{partial} in partial blocks (peak), {padding} of padding per block, {unused} unused"
        ),
        "time": (
            f"{format_duration(totals.wall_ns)} in {totals.steps:,} steps, idle for "
            f"{format_duration(work.idle_ns)}"
        ),
    }
    if totals.drafted_tokens:
        kept = totals.drafted_tokens - totals.rolled_back_tokens
        rows["drafts"] = f"{totals.drafted_tokens:,} proposed, {kept:,} accepted"
    return tb.Facts(rows)


def fleet_facts(fleet: ReplayFleet, totals: Totals, factor: float | None = None) -> tb.Facts:
    """Hit rate, balance, goodput and cost; ``factor`` is the error of the replay's time."""
    error = "" if factor is None else f" (90 % error {format_factor(factor)})"
    asked = totals.requests + totals.rejected
    hours, each = fleet.gpu_hours(totals.wall_ns), hours_per_million(fleet, totals)
    costs = [
        f"{format_clocked(hours * scale, factor)} {unit}"
        + (f", {format_clocked(each * scale, factor)} for 10^6 output tokens" if each else "")
        for scale, unit in ((1.0, "GPU-hours"), (fleet.gpu_hour_price, "USD"))
        if scale
    ]
    hits = [
        share(tokens, fleet.prompt_tokens)
        for tokens in (fleet.saved_tokens, fleet.pooled_saved_tokens, fleet.ideal_saved_tokens)
    ]
    rows = {
        "fleet": _name_servers(fleet),
        "hit rate": f"{hits[0]}; one pool of all blocks {hits[1]}, unlimited pool {hits[2]}",
        "duplicates": (
            f"{format_bytes(fleet.repeated_bytes)} of {format_bytes(fleet.held_bytes)} cached at "
            "the end"
        ),
        "costs": f"{'; '.join(costs)}{error}",
    }
    if totals.wall_ns:
        rate = format_clocked(fleet.good_requests / totals.wall_ns * 1e9, factor)
        rows["goodput"] = f"{rate} requests/s{error}"
        if limits := _slo(fleet):
            part = f"{fleet.good_requests:,} of {asked:,} requests"
            part += f" ({share(fleet.good_requests, asked)})"
            rows["goodput"] += f"; {part} within {limits}"
    if fleet.imbalance is not None:
        rows["imbalance"] = f"the busiest replica works {fleet.imbalance:.2f} × the mean"
    if sent := sum(replica.sent_bytes for replica in fleet.replicas):
        waited = format_duration(sum(replica.sending_waited_ns for replica in fleet.replicas))
        rows["sent"] = (
            f"{format_bytes(sent)} from each prefill rank to decode replicas; prompts waited "
            f"{waited} in total"
        )
    return tb.Facts(rows)


def _name_servers(fleet: ReplayFleet) -> str:
    """``2 replicas behind dynamo; 16 GPUs``."""
    roles = [replica.role for replica in fleet.replicas]
    servers = f"{counted(len(roles), 'replica')} behind {fleet.router}"
    if fleet.decode_router is not None:
        servers = (
            f"{roles.count('prefill')} prefill behind {fleet.router}, "
            f"{roles.count('decode')} decode behind {fleet.decode_router}"
        )
    return f"{servers}; {counted(fleet.gpus, 'GPU')}"


def hours_per_million(fleet: ReplayFleet, totals: Totals) -> float | None:
    """GPU-hours for a million output tokens."""
    hours = fleet.gpu_hours(totals.wall_ns)
    return hours / totals.output_tokens * 1e6 if totals.output_tokens else None


def _replicas_table(
    fleet: ReplayFleet, totals: Totals, factor: float | None = None, limit: int | None = None
) -> tb.Table:
    """What every replica did, at most ``limit``; ``factor`` is the error of queue waits."""
    digits = 2 if factor else 3
    columns: list[tuple[str, tb.Read]] = [
        ("replica", lambda r: r.name),
        ("GPUs", lambda r: str(r.gpus)),
        ("requests", lambda r: f"{r.requests:,}"),
        (
            "hit rate",
            lambda r: share(r.saved_tokens, r.prompt_tokens) if _computes(r) else tb.ABSENT,
        ),
        ("computed tokens", lambda r: f"{r.computed_tokens:,}"),
        ("busy", lambda r: share(r.busy_ns, totals.wall_ns)),
        ("queue wait", lambda r: format_duration(r.queued_ns / max(r.requests, 1), digits)),
        ("peak requests", lambda r: f"{r.peak_requests:,}"),
        ("cached", lambda r: format_bytes(r.held_bytes)),
    ]
    if fleet.decode_router is not None:
        columns.append(
            ("sent", lambda r: format_bytes(r.sent_bytes) if _computes(r) else tb.ABSENT)
        )
    if any(replica.settings for replica in fleet.replicas):
        columns.append(("settings", lambda r: r.settings))
    error = "" if factor is None else f", 90 % error {format_factor(factor)}"
    rows = fleet.replicas
    if limit:
        rows = sorted(rows, key=lambda replica: -replica.busy_ns)
    note = f"busiest first; mean queue wait{error}" if limit else f"mean queue wait{error}"
    table = tb.Table("Replicas", columns, rows, note=note)
    return table.first(limit)


def _computes(replica: FleetReplica) -> bool:
    return replica.role != "decode"
