"""A replay on a terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dsv4kv.engines.names import RULES
from dsv4kv.measure.statistics import summarize
from dsv4kv.runs.quantities import axis_names, axis_text, clock_factor
from dsv4kv.runs.replay import ReplayResult, ReplayTiers, ReplayWork, Reuse
from dsv4kv.runs.schema import Case, Latency, RunRecord, Totals
from dsv4kv.units import format_bytes, format_duration
from dsv4kv.view.cells import (
    format_clocked,
    format_factor,
    format_number,
    show_setting,
)
from dsv4kv.view.facts import cache_facts, header, layers_text
from dsv4kv.view.findings import judge_status
from dsv4kv.view.fleet import fleet_parts, hours_per_million
from dsv4kv.view.table import ABSENT, Facts, Finding, Part, Table, names, numbers, prose

_REASONS = {
    "evicted_block": ("block evicted", "more memory, or another prefix.policy"),
    "evicted_checkpoint": ("checkpoint evicted", "a larger cache.checkpoint_share"),
    "no_checkpoint": ("no checkpoint there", "prefix.strategy ends+junctions or periodic"),
    "alignment": ("partial block", "smaller blocks"),
    "last_token": ("last token of a prompt", "always computed"),
    "replay": ("window computed again", "a prefix.strategy with checkpoints"),
    "collision_guard": ("equal hash, other tokens", "a stronger hash"),
    "in_flight": ("just being computed", "prefix.defer"),
    "draft": ("unused for drafts", "prefix.speculation dspark or none"),
}


def name_loss(reason: str) -> str:
    """A reason in words."""
    return _REASONS[reason][0]


def name_remedy(rule: str, reason: str) -> str:
    """What gets tokens back that were lost for a reason."""
    known = RULES[rule].remedies if rule in RULES else {}
    return known.get(reason, _REASONS[reason][1])


def compare_rules(cases: Sequence[Case]) -> list[Finding]:
    """Which setting of an engine saves most, where a sweep went over rules and nothing else."""
    saved: dict[str, list[tuple[float, str, str]]] = {}
    for case in cases:
        if set(case.axis) != {"prefix.rule"} or case.replay is None:
            continue
        reuse = case.replay.reuse
        if reuse.setting and reuse.prompt_tokens:
            share = reuse.saved_tokens / reuse.prompt_tokens
            family = reuse.rule.partition(":")[0]
            saved.setdefault(family, []).append((share, reuse.setting, reuse.rule))
    found = []
    for settings in saved.values():
        (worst, other, _), (best, setting, rule) = min(settings), max(settings)
        if best > worst:
            gain = f"{best - worst:.1%} of all prompt tokens"
            found.append(Finding("note", f"{setting} ({rule}) wins back {gain} over {other}"))
    return found


_PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_TIMES = {
    "queueing": "until a slot",
    "ttft": "until the first token",
    "tpot": "a further token",
    "latency": "until the last token",
}
_NS_TO_MS = 1e-6


def reuse_table(reuse: Reuse) -> Table:
    """Every token of the prompts: computed for the first time, saved, or lost, and to what."""
    rule = f"prefix.rule {reuse.rule}, " if reuse.rule != "ideal" else ""
    new = reuse.prompt_tokens - reuse.seen_tokens
    rows = [("seen for the first time", new, ""), ("saved", reuse.saved_tokens, "")]
    lost = sorted(reuse.lost_tokens.items(), key=lambda item: -item[1])
    rows += [
        (f"lost: {name_loss(reason)}", count, name_remedy(reuse.rule, reason))
        for reason, count in lost
    ]
    whole = reuse.prompt_tokens
    return Table(
        "Prompt tokens",
        [
            *names("what became of them"),
            *numbers("tokens", "share"),
            *prose("what gets them back"),
        ],
        [
            (what, f"{count:,}", f"{count / whole:.2%}" if whole else ABSENT, remedy)
            for what, count, remedy in rows
        ],
        note=f"{rule}prompts share blocks of {reuse.shared_tokens:,} tokens",
    )


BELOW = {
    "no_window": ("no window and state there", "denser windows: prefix.strategy or retention"),
    "window_evicted": ("window and state evicted", "a larger tier"),
    "evicted": ("evicted", "a larger tier, or another eviction"),
    "not_written": ("not written yet", "write_through, admission 1, a faster tier"),
    "prefetch_timeout": ("fetched too late", "tiers.prefetch wait_complete, a faster tier"),
    "prefetch_limit": ("too much on its way", "a larger first tier, or tiers.prefetch_share"),
    "too_short": ("too little to move", "tiers.load_tokens, tiers.prefetch_tokens"),
    "recomputed": ("faster computed again", "a faster tier; tiers.compare"),
}
"""Why tokens were not brought back from below the GPUs, and what gets them back."""


def below_table(tiers: ReplayTiers, prompt_tokens: int) -> Table:
    """What was asked of tiers: brought back, or not, and why."""
    apart = len(tiers.tiers) > 1 and any(tier.lost_tokens for tier in tiers.tiers)
    lost = {f"lost on {tier.name}": tier.lost_tokens for tier in tiers.tiers}
    if not apart:
        lost = {"lost": tiers.lost_tokens}
    rows = [("brought back", tiers.restored_tokens, "")]
    rows += sorted(
        [
            (f"{where}: {BELOW[reason][0]}", count, BELOW[reason][1])
            for where, reasons in lost.items()
            for reason, count in reasons.items()
        ],
        key=lambda row: -row[1],
    )
    return Table(
        "Below the GPUs",
        [
            *names("what became of them"),
            *numbers("tokens", "share"),
            *prose("what gets them back"),
        ],
        [(what, f"{n:,}", _share(n, prompt_tokens), remedy) for what, n, remedy in rows],
        note=f"{tiers.asked_tokens:,} prompt tokens cached once, and not on the GPUs with what it "
        "takes to go on",
    )


def tiers_table(tiers: ReplayTiers) -> Table:
    """What every tier held, gave and moved."""
    tail = f", {tiers.tail_bytes:,} B a place to resume at" if tiers.tail_bytes else ""
    return Table(
        "Tiers",
        [
            *names("tier"),
            *numbers("capacity", "most held", "hit tokens", "read", "written"),
            *numbers("moved/useful"),
            *numbers("a read waits", "a write waits", minor=True),
        ],
        [
            (
                tier.name,
                format_bytes(tier.capacity_bytes + (tier.tail_capacity_bytes or 0)),
                format_bytes(tier.peak_bytes),
                f"{tier.hit_tokens:,}",
                format_bytes(tier.read_bytes),
                format_bytes(tier.written_bytes),
                ABSENT if tier.amplification is None else f"{tier.amplification:.2f}",
                _mean_wait(tier.read_waited_ns, tier.reads),
                _mean_wait(tier.write_waited_ns, tier.writes),
            )
            for tier in tiers.tiers
        ],
        note=f"{tiers.context_bytes:,} B for {tiers.object_tokens:,} tokens of context{tail}",
    )


def tier_tables(result: ReplayResult) -> Iterator[Part]:
    """What is below the GPUs; nothing where nothing is."""
    if result.tiers:
        yield ""
        yield below_table(result.tiers, result.reuse.prompt_tokens)
        yield ""
        yield tiers_table(result.tiers)


def _mean_wait(waited_ns: int, transfers: int) -> str:
    return format_duration(waited_ns / transfers) if transfers else ABSENT


def memory_table(result: ReplayResult) -> Table:
    """The parts of the memory, and the most of each that was in use."""
    return Table(
        "Memory",
        [*names("part"), *numbers("units", "bytes/unit", "bytes", "most in use")],
        [
            (
                pool.name,
                "as wanted" if pool.units is None else f"{pool.units:,}",
                f"{pool.unit_bytes:,}",
                ABSENT if pool.units is None else format_bytes(pool.units * pool.unit_bytes),
                f"{pool.peak_units:,}",
            )
            for pool in result.pools
        ],
        note="blocks in use are those of requests; the others are cached",
    )


def times_table(latencies: Sequence[Latency]) -> Table:
    """Percentiles of times; only those that enough requests carry."""
    known = [each for each in latencies if each.samples_ns]
    clocked = any(each.factor for each in known)
    return Table(
        "Times",
        [
            *names("time"),
            *prose("meaning", minor=True),
            *numbers("requests", "p50", "p90", "p99", "p99.9", "max"),
            *(numbers("9 in 10 within") if clocked else ()),
        ],
        [
            (
                each.name,
                _TIMES.get(each.name, ""),
                f"{len(each.samples_ns):,}",
                *_percentiles(each),
                *([format_factor(each.factor)] if clocked else ()),
            )
            for each in known
        ],
        note="of the model, in ms; a percentile needs ten requests beyond it",
    )


def constants_table(result: ReplayResult) -> Table:
    """Everything the times depend on."""
    return Table(
        "Model of a step",
        [*prose("constant"), *numbers("value"), *prose("source")],
        [
            (each.name, f"{each.value:,.6g} {each.unit}".strip(), each.source)
            for each in result.constants
        ],
        note=_CLOCKS[result.clock],
    )


_CLOCKS = {
    "stated": "overhead + bytes / bandwidth + arithmetic / rate",
    "model": "of the rank with the most to do, all added up",
    "table": "looked up for the rank with the most to do",
    "aiconfigurator": "looked up for the rank with the most to do",
}


def sweep_table(cases: Sequence[Case], axes: dict[str, str]) -> Table:
    """A row for every case: what was saved, and what requests waited.

    ``axes`` are the swept settings by dotted path, as they are to be shown.
    """
    tiers = any(case.replay and case.replay.tiers for case in cases)
    fleets = any(case.replay and case.replay.fleet for case in cases)
    return Table(
        "Replays",
        [
            *numbers(*(name.replace("_", " ") for name in axes.values())),
            *numbers("saved tokens"),
            *(numbers("of one pool", "good", "GPU-h/10^6", "imbalance") if fleets else ()),
            *(numbers("brought back", "moved/useful") if tiers else ()),
            *numbers("found blocks", "lost to blocks", "lost to checkpoints", minor=True),
            *numbers("kept", "pauses", minor=True),
            *numbers("ttft p50", "ttft p99", "tpot p50"),
        ],
        [
            (
                *(_setting(case, path) for path in axes),
                *_sweep_cells(case, tiers=tiers, fleets=fleets),
            )
            for case in cases
        ],
        note=f"times of the model, in ms{_errors(cases)}",
        keys=len(axes),
    )


def _errors(cases: Sequence[Case]) -> str:
    """What the clocks of a sweep are right within, at worst."""
    worst = {
        name: max((clock_factor(case, name) or 0 for case in cases), default=0)
        for name in ("ttft", "tpot")
    }
    said = ", ".join(f"{name} {format_factor(factor)}" for name, factor in worst.items() if factor)
    return f"; {said} (9 in 10)" if said else ""


def _setting(case: Case, path: str) -> str:
    return show_setting(path, case.axis[path]) if path in case.axis else ABSENT


def _tier_cells(result: ReplayResult) -> list[str]:
    """What came back from below, and what all tiers moved for a useful byte."""
    if result.tiers is None:
        return [ABSENT, ABSENT]
    found = result.tiers.tiers
    useful = sum(tier.useful_bytes for tier in found)
    moved = sum(tier.read_bytes + tier.written_bytes for tier in found)
    return [
        _share(result.tiers.restored_tokens, result.reuse.prompt_tokens),
        f"{moved / useful:.2f}" if useful else ABSENT,
    ]


def _fleet_cells(case: Case) -> list[str]:
    """What one ideal pool would save, what kept the SLO, what tokens cost, how even it was."""
    fleet = case.replay.fleet if case.replay else None
    if fleet is None or case.totals is None:
        return [ABSENT] * 4
    hours = hours_per_million(fleet, case.totals)
    return [
        _share(fleet.ideal_saved_tokens, fleet.prompt_tokens),
        _share(fleet.good_requests, case.totals.requests + case.totals.rejected)
        if fleet.slo
        else ABSENT,
        ABSENT if hours is None else format_number(hours),
        ABSENT if fleet.imbalance is None else f"{fleet.imbalance:.2f}",
    ]


def _sweep_cells(case: Case, *, tiers: bool, fleets: bool) -> list[str]:
    if case.replay is None:
        return [case.status] + [ABSENT] * (8 + 2 * tiers + 4 * fleets)
    reuse = case.replay.reuse
    lost = reuse.lost_tokens
    checkpoints = lost.get("evicted_checkpoint", 0) + lost.get("no_checkpoint", 0)
    checkpoints += lost.get("replay", 0)
    return [
        _share(reuse.saved_tokens, reuse.prompt_tokens),
        *(_fleet_cells(case) if fleets else ()),
        *(_tier_cells(case.replay) if tiers else ()),
        _share(reuse.found_blocks, reuse.prompt_blocks),
        _share(lost.get("evicted_block", 0), reuse.prompt_tokens),
        _share(checkpoints, reuse.prompt_tokens),
        format_bytes(reuse.kept_bytes) if reuse.rule == "ideal" else ABSENT,
        f"{case.replay.pauses:,}",
        _time(case, "ttft", 50.0),
        _time(case, "ttft", 99.0),
        _time(case, "tpot", 50.0),
    ]


def _percentiles(latency: Latency) -> list[str]:
    summary = summarize(latency.samples_ns)
    found = [summary.percentiles.get(percentile) for percentile in _PERCENTILES]
    return [_milliseconds(value, latency.factor) for value in [*found, summary.maximum]]


def _time(case: Case, name: str, percentile: float) -> str:
    for latency in case.latencies:
        if latency.name == name and latency.samples_ns:
            found = summarize(latency.samples_ns).percentiles.get(percentile)
            return _milliseconds(found, latency.factor)
    return ABSENT


def _milliseconds(nanoseconds: float | None, factor: float | None) -> str:
    return ABSENT if nanoseconds is None else format_clocked(nanoseconds * _NS_TO_MS, factor)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ABSENT


_TIGHT = 0.25  # from here on what was lost to checkpoints is worth a sentence


def report_replay(record: RunRecord) -> Iterator[Part]:
    """The facts, tables and findings of a replay."""
    if len(record.cases) == 1:
        return _report_case(record, record.cases[0])
    return _report_sweep(record)


def _report_case(record: RunRecord, case: Case) -> Iterator[Part]:
    layers = layers_text([case])
    yield from judge_status(case)
    yield header(record)
    fleet = case.replay.fleet if case.replay else None
    if case.cache:
        rows = dict(cache_facts(case.cache).rows)
        if fleet and any(replica.settings for replica in fleet.replicas):
            rows["cache"] = f"{rows['cache']}, of {fleet.replicas[0].name}"
        yield Facts(rows)
    if case.replay and case.totals:
        yield ""
        yield reuse_table(case.replay.reuse).noted("each replica's own past" if fleet else "")
        yield ""
        if fleet:
            yield from fleet_parts(fleet, case.totals, case)
            yield ""
        yield memory_table(case.replay).noted(layers)
        yield ""
        yield times_table(case.latencies).noted(layers)
        yield from tier_tables(case.replay)
        yield ""
        yield constants_table(case.replay)
        yield ""
        yield replay_facts(case.replay, case.totals)
        yield ""
    yield from judge_replay(case)


def _report_sweep(record: RunRecord) -> Iterator[Part]:
    yield header(record)
    yield ""
    table = sweep_table(record.cases, axis_names(record.cases))
    yield table.noted(layers_text(record.cases))
    found = [each for each in list_replay_findings(record) if each.level != "note"]
    if findings := [*compare_rules(record.cases), *found]:
        yield ""
        yield from findings


def list_replay_findings(record: RunRecord) -> Iterator[Finding]:
    """Every case's findings; in a sweep each begins with what distinguishes its case."""
    for case in record.cases:
        prefix = f"{axis_text(case)}: " if case.axis else ""
        for finding in [*judge_status(case), *judge_replay(case)]:
            yield replace(finding, sentence=prefix + finding.sentence)


def judge_replay(case: Case) -> list[Finding]:
    """What a replay says about itself."""
    if case.replay is None or case.totals is None:
        return []
    found = [
        Finding("warning", f"rejected requests: {count:,}, {reason}")
        for reason, count in case.replay.rejected.items()
    ]
    if outside := case.replay.extrapolated:
        beyond = "; ".join(outside)
        found.append(Finding("warning", f"times are extrapolated from the table: {beyond}"))
    if left := case.totals.blocks_left:
        found.append(Finding("bad", f"blocks still held at the end: {left:,}; the cache leaks"))
    lost = case.replay.reuse.lost_tokens
    evicted, seen = lost.get("evicted_checkpoint", 0), case.replay.reuse.seen_tokens
    if seen and evicted > _TIGHT * seen:
        found.append(
            Finding(
                "warning",
                f"{evicted / seen:.0%} of what could be saved was lost because checkpoints were "
                "evicted while their blocks stayed; what gets it back: "
                + name_remedy(case.replay.reuse.rule, "evicted_checkpoint"),
            )
        )
    return found


def _windows_text(reuse: Reuse) -> str:
    if reuse.rule != "ideal":
        return (
            f"where prefix.rule {reuse.rule} keeps them; {reuse.restored_checkpoints:,} prefixes "
            "resumed after them"
        )
    return (
        f"{reuse.written_checkpoints:,} checkpoints written, "
        f"{reuse.evicted_checkpoints:,} evicted, {reuse.orphaned_checkpoints:,} gone with "
        f"their block; {format_bytes(reuse.kept_bytes)} kept; "
        f"{reuse.restored_checkpoints:,} prefixes brought back"
    )


def _moved_text(work: ReplayWork) -> str:
    parts = {
        "weights": work.weight_bytes,
        "scores": work.score_bytes,
        "top-k": work.select_bytes,
        "attention": work.attend_bytes,
        "gathers": work.gather_bytes,
        "writes": work.update_bytes,
        "checkpoints": work.copy_bytes,
    }
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)


def replay_facts(result: ReplayResult, totals: Totals) -> Facts:
    """What happened, in a line each."""
    reuse, work = result.reuse, result.work
    rows = {
        "requests": (
            f"{totals.requests:,} served, {totals.peak_requests:,} in slots at the peak, "
            f"{result.mean_decoding:.1f} decoding on average, "
            f"{reuse.resumed_requests:,} resumed after a prefix"
        ),
        "blocks": (
            f"{reuse.found_blocks:,} of {reuse.prompt_blocks:,} whole blocks of prompts found, "
            f"{reuse.evicted_blocks:,} evicted"
        ),
        "windows": _windows_text(reuse),
        "computed": (
            f"{reuse.computed_tokens:,} prompt tokens, {reuse.again_tokens:,} of them again "
            f"after an eviction; {totals.output_tokens:,} tokens out"
        ),
        "scheduling": (
            f"{result.pauses:,} pauses, {result.evictions:,} starts over, "
            f"{reuse.deferred_requests:,} requests waited for another one's prefix"
        ),
        "moved": _moved_text(work),
        "lost room": (
            f"{format_bytes(result.rounding_bytes)} by rounding up to blocks at the peak, "
            f"{format_bytes(result.padding_bytes)} of padding in every block, "
            f"{format_bytes(result.remainder_bytes)} left over"
        ),
        "time": (
            f"{format_duration(totals.wall_ns)} in {totals.steps:,} steps, idle for "
            f"{format_duration(work.idle_ns)}"
        ),
    }
    if totals.drafted_tokens:
        kept = totals.drafted_tokens - totals.rolled_back_tokens
        rows["drafts"] = f"{totals.drafted_tokens:,} proposed, {kept:,} accepted"
    return Facts(rows)
