"""A plan: the deployment, predicted times, launch commands, the Pareto front, why not others."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dsv4kv.engines.names import sends_of
from dsv4kv.replay.plan.launches import launches
from dsv4kv.replay.plan.question import Question, Slo
from dsv4kv.replay.plan.search import Answer, front
from dsv4kv.replay.plan.trial import Trial
from dsv4kv.units import counted, format_duration
from dsv4kv.view import table as tb
from dsv4kv.view.plots import Bar, bars
from dsv4kv.view.trace import describe_bursts

_ALL_AT_ONCE = 1e6
"""Requests a second that are no rate, but the lack of one."""
_MAX_ROWS, _MAX_NAMES = 4, 6


def plan_page(
    answer: Answer,
    question: Question,
    *,
    gpus: Sequence[str],
    trace: str | None,
    settings: Sequence[str] = (),
) -> tb.Page:
    """The deployment, its predicted times and launch commands; then everything tried.

    ``gpus`` were searched; ``trace`` was named, with ``settings`` of its replays.
    """
    best, tally = answer.best, answer.tally
    parts = list(_found(best, answer, question) if best else _nothing(answer, question))
    near = best or answer.nearest
    shown = near is not None and bool(near.values_s)
    times = [each.arrival_s for each in question.requests]
    parts += describe_bursts(len(times), len(set(times)), max(times) - min(times))
    parts += ["", _front_table(answer, question, _MAX_ROWS)] if shown else []
    pruned = ", ".join(f"{count:,} by {why}" for why, count in tally.pruned.items() if count)
    on = ""
    if answer.window < len(question.requests):
        on = f" on the busiest {answer.window:,} requests (cold cache)"
        on += f", {len(answer.confirmed)} on the full trace"
    left = tally.considered - sum(tally.pruned.values())
    rates = f" at {len(answer.trials):,} rates" if question.exactly and answer.trials else ""
    searched = (
        f"GPUs searched: {', '.join(gpus)}. {tally.considered:,} deployments considered; ruled "
        f"out {pruned or 'none'}; {left:,} simulated{rates}{on}."
    )
    parts += ["", tb.dim(searched)]
    for whose, command in launches(best, question.exact_gpus) if best else ():
        parts += [tb.dim(f"{whose}{':' if command else '.'}")]
        parts += [tb.Command(command)] if command else []
    if best and trace:
        parts += [tb.dim("the same as a replay:"), _replay(best, trace, settings)]
    front: list[tb.Part] = [*_front_chart(answer, question), _front_table(answer, question)]
    sections = [tb.Section("Deployments", front)] if near else []
    sections.append(tb.Section("Rejected", [_rejected_table(tally.reasons)]))
    config = near.kind.server.config if near else None
    words = [
        *([f"{config.model.preset}, {config.server.engine}"] if config else []),
        f"{trace or 'requests of one length'} on {' or '.join(gpus)}",
        _limits(question),
    ]
    return tb.Page(f"Plan: {', '.join(words)}", parts, sections)


def _rejected_table(reasons: Mapping[str, str]) -> tb.Table:
    """Deployments that were ruled out, by the reason."""
    named: dict[str, list[str]] = {}
    for name, why in reasons.items():
        named.setdefault(why, []).append(name)
    columns: tb.Columns = [
        ("reason", lambda row: row[0]),
        ("count", lambda row: len(row[1])),
        ("deployments", lambda row: _some(row[1])),
    ]
    return tb.Table("Rejected", columns, [*named.items()])


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _found(best: Trial, answer: Answer, question: Question) -> Iterator[tb.Part]:
    near = best.near(question.slos)
    times = "; ".join(_predicted(best, question))
    yield tb.Finding(
        "warning" if near else "good",
        f"{_describe(best)} ({_cost(best, question)}) serves {_rate(best)}: {times}.",
    )
    yield (
        f"Hit rate {best.hit_share:.1%} of prompt tokens; a step runs {best.busy_share:.0%} of "
        f"the time; TPOT p99 {format_duration(best.tpot_p99_s * 1e9, 2)}; tightest limit "
        f"{best.tightest(question.slos).label}."
    )
    for slo in question.slos:
        if best.requests * (1 - slo.percent / 100) < 1:
            yield f"{slo.label} of {counted(best.requests, 'request')} is close to the maximum."
    if near:
        limits = [f"{slo.label} ≤ {_seconds(slo.limit_s / best.error(slo))}" for slo in near]
        safe = f"Nothing that was tried is safe, which takes a prediction of {', '.join(limits)}."
        if answer.safer:
            what = _rate(answer.safer) if question.exactly else _cost(answer.safer, question)
            safe = f"Safe: {_describe(answer.safer)}, {what}."
        labels = ", ".join(slo.label for slo in near)
        yield f"{labels}: within the model's error, not safe. {safe}"
    if answer.second:
        rate = f", {_rate(answer.second)}" if question.exactly else ""
        if question.exactly and answer.second.rate > best.rate:
            rate += ": a tie, as rates are searched to within 10 %"
        yield f"Runner-up: {_describe(answer.second)}, {_cost(answer.second, question)}{rate}."


def _predicted(trial: Trial, question: Question) -> Iterator[str]:
    """``predicted ttft_p99 1.5 s of 2.00 s (90 % error ÷1.8 … ×1.8)``."""
    for slo in question.slos:
        unit, scale = _unit(slo)
        value = tb.clocked(trial.values_s[slo.label] * scale, trial.error(slo))
        limit = f"{slo.limit_s * scale:,.6g} {unit}"
        yield f"{slo.label} {value} of {limit} (90 % error {tb.factor(trial.error(slo))})"


def _unit(slo: Slo) -> tuple[str, float]:
    return ("s", 1.0) if slo.limit_s >= 1 else ("ms", 1e3)


def _nothing(answer: Answer, question: Question) -> Iterator[tb.Part]:
    within = f"{'' if question.exactly else 'up to '}{counted(question.most_gpus, 'GPU')}"
    more = "another --gpus, " if question.exactly else "more GPUs (--most-gpus), "
    alone = [slo for slo in question.slos if _least(answer, slo)[0] > slo.limit_s]
    help_ = f"Allow {'' if alone else more}other kinds (--gpu) or more time."
    if answer.confirmed:
        help_ = (
            f"The full trace was tried with the best on its busiest {answer.window:,} requests."
        )
    yield tb.bad(f"No deployment of {within} keeps {_limits(question)}. {help_}")
    if near := answer.nearest:
        times = "; ".join(_predicted(near, question))
        slow = ""
        if question.exactly:
            slow = f" at {_rate(near)} ({near.speed:.3g} × the trace's rate)"
        yield f"Nearest: {_describe(near)}, {_cost(near, question)}{slow}: {times}."
    for slo in alone:
        least_s, server = _least(answer, slo)
        yield f"{slo.label} of a single request is at least {_seconds(least_s)} ({server})."


def _least(answer: Answer, slo: Slo) -> tuple[float, str]:
    """Lower bound of the limited time, in s, and its server."""
    return answer.tally.least_s.get(slo.label, (0.0, ""))


def _limits(question: Question) -> str:
    return ", ".join(f"{slo.label} ≤ {_seconds(slo.limit_s)}" for slo in question.slos)


def _replay(trial: Trial, trace: str, settings: Sequence[str]) -> tb.Command:
    server = trial.kind.server
    engine = server.config.server.engine or ""
    fleet = [f"fleet.{role}.replicas={count}" for role, count in trial.roles.items() if role]
    if fleet:
        fleet.append(f"fleet.transfer.engine={sends_of(engine)}")
    elif trial.units > 1:
        fleet.append(f"fleet.replicas={trial.units}")
    words = [
        *settings,
        f"server.engine={engine}",
        f"server.command={server.command}",
        *([*fleet, f"fleet.router={trial.kind.router}"] if fleet else []),
        *([f"workload.speed={trial.speed!r}"] if trial.speed != 1 else []),
    ]
    gpus = ("--gpu", server.gpu, "--gpus", server.layout.gpus)
    given = (part for word in words for part in ("--set", word))
    return tb.Command.of("dsv4kv", "replay", trace, *gpus, *given)


def _describe(trial: Trial) -> str:
    """``2 × h200 TP8 behind dynamo``; one server is behind nothing."""
    many = next(iter(trial.roles.values())) > 1
    return f"{_servers(trial)} behind {trial.kind.router}" if many else _servers(trial)


def _servers(trial: Trial) -> str:
    """``2 × h200 TP8``, ``2 + 4 × h200 TP8 (prefill + decode)``."""
    counts = " + ".join(map(str, trial.roles.values()))
    roles = " (prefill + decode)" if trial.kind.split else ""
    server = trial.kind.server
    return f"{counts} × {server.label}{roles} {server.variant}".rstrip()


def _cost(trial: Trial, question: Question) -> str:
    gpus = counted(trial.gpus, "GPU")
    return f"{gpus}, {trial.cost:,.2f} USD/h" if question.prices else gpus


def _seconds(value: float) -> str:
    return format_duration(value * 1e9)


def _rate(trial: Trial) -> str:
    """``3.40 requests/s``; all together is no rate."""
    if trial.rate >= _ALL_AT_ONCE:
        return "all concurrent requests"
    return f"{tb.number(trial.rate)} requests/s"


def _against(question: Question) -> tuple[str, Callable[[Trial], float]]:
    if question.exactly:
        return "requests/s", lambda trial: trial.rate
    return "USD/h" if question.prices else "GPUs", lambda trial: trial.cost


def _front(answer: Answer, question: Question) -> list[Trial]:
    sign, of = -1 if question.exactly else 1, _against(question)[1]
    trials = answer.confirmed or answer.trials
    return front(trials, question.slos[0].label, lambda trial: sign * of(trial))


def _front_chart(answer: Answer, question: Question) -> Iterator[tb.Chart]:
    """The first limited time of every deployment of the Pareto front, next to what it costs."""
    first, (name, of) = question.slos[0], _against(question)
    rows = []
    for each in (each for each in _front(answer, question) if each.values_s):
        at_s, error = each.values_s[first.label], each.error(first)
        tone = "" if each.meets else "bad"
        ends = at_s / error, at_s * error
        rows.append(Bar(_servers(each), at_s, f"{tb.number(of(each))} {name}", ends, tone))
    if rows:
        title = f"{first.label} of the Pareto front, with 90 % error; red: misses an SLO"
        yield bars(title, rows, unit="s", dots=True, lines={"limit": first.limit_s})


def _front_table(answer: Answer, question: Question, limit: int | None = None) -> tb.Table:
    """What is named above, then the Pareto front; with a ``limit`` each deployment once."""
    slos, first = question.slos, question.slos[0]
    ends = [e for e in (answer.best, answer.second, answer.safer, answer.nearest) if e]
    rows: dict[object, Trial] = {}
    for each in (e for e in [*ends, *_front(answer, question)] if e.values_s):
        at = () if limit else (each.requests, each.speed)
        rows.setdefault((_describe(each), *at), each)

    def time(slo: Slo) -> tb.Read:
        def read(trial: Trial) -> tb.Number:
            at_s = trial.values_s[slo.label]
            missed = " ✗" if at_s > slo.limit_s else ""  # 2.0 of 2, rounded
            value = at_s * _unit(slo)[1]
            return tb.Number(tb.clocked(value, trial.error(slo)) + missed)

        return read

    def limited(trial: Trial) -> str:
        tight = trial.tightest(slos)
        kept = trial.values_s[tight.label] <= tight.limit_s
        return tight.label if kept else f"{tight.label} missed"

    columns: list[tb.Column] = [
        ("deployment", lambda trial: (tb.Text if trial.meets else tb.dim)(_describe(trial)))
    ]
    if question.exactly:
        columns.append(("requests/s", lambda trial: tb.number(trial.rate)))
    else:
        columns.append(("GPUs", lambda trial: trial.gpus))
        prices = [("USD/h", lambda trial: f"{trial.cost:,.2f}")]
        columns += prices if question.prices else []
    columns += [
        *((f"{slo.label} {_unit(slo)[0]}", time(slo)) for slo in slos),
        ("within SLO", lambda trial: f"{trial.good:.1%}"),
        ("hit rate", lambda trial: f"{trial.hit_share:.1%}"),
        ("busy", lambda trial: f"{trial.busy_share:.0%}"),
    ]
    if not limit:
        columns += [("requests", lambda trial: trial.requests), ("tightest limit", limited)]
    title = f"Answer, runner-up, Pareto front of {_against(question)[0]} and {first.label}"
    return tb.Table(title, columns, list(rows.values()), note="simulated").first(limit)


def dumps(answer: Answer, question: Question) -> str:
    def document(trial: Trial | None) -> dict[str, Any] | None:
        if trial is None:
            return None
        server, roles, exact = trial.kind.server, trial.roles, question.exact_gpus
        return {
            "gpu": server.gpu,
            "layout": server.layout.label,
            "variant": server.variant,
            "router": trial.kind.router,
            "replicas": sum(roles.values()),
            **{f"{role}_replicas": count for role, count in roles.items() if role},
            "gpus": trial.gpus,
            "cost": trial.cost,
            "speed": trial.speed,
            "requests_per_s": trial.rate,
            "seconds": trial.values_s,
            "good_share": trial.good,
            "keeps_all": trial.meets,
            "near": [s.label for s in trial.near(question.slos)] if trial.values_s else None,
            "requests": trial.requests,
            "command": server.command,
            "commands": {whose: line for whose, line in launches(trial, exact) if line},
        }

    found = {
        "best": document(answer.best),
        "runner_up": document(answer.second),
        "safer": document(answer.safer),
        "nearest": document(answer.nearest),
        "least_seconds": {label: least for label, (least, _) in answer.tally.least_s.items()},
        "confirmed": [document(each) for each in answer.confirmed],
        "simulated": [document(each) for each in answer.trials],
        "considered": answer.tally.considered,
        "ruled_out": answer.tally.pruned,
        "reasons": answer.tally.reasons,
        "window_requests": answer.window,
    }
    return json.dumps(found, indent=1)
