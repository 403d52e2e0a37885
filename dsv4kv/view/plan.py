"""A plan: the answer, its launch command, the front, and what became of everything else."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from dsv4kv.planning.question import Question
from dsv4kv.planning.search import Answer, front
from dsv4kv.planning.servers import in_role
from dsv4kv.planning.trial import Trial
from dsv4kv.units import counted, format_duration
from dsv4kv.view.charts.figure import Chart
from dsv4kv.view.charts.front import Place, front_chart
from dsv4kv.view.page.build import Page
from dsv4kv.view.page.sections import Section
from dsv4kv.view.page.write import render_page
from dsv4kv.view.quantity import format_clocked, format_factor, format_number
from dsv4kv.view.table import (
    ABSENT,
    Finding,
    Number,
    Part,
    Table,
    Text,
    bar,
    names,
    numbers,
    prose,
)

_AT_ONCE = 1e6
"""Requests a second that are no rate, but the lack of one."""


def report_plan(answer: Answer, question: Question) -> Iterator[Part]:
    """Everything, the answer first."""
    for line in headlines(answer, question):
        yield Text(line, "strong")
    for whose, command in launches(answer.best) if answer.best else ():
        yield Text(f"launch {whose}:")
        yield Text(f"  {command}")
    if answer.best or answer.nearest:
        yield ""
        yield front_table(answer, question)
    yield ""
    yield lost_table(answer)
    yield ""
    yield Text(describe_tally(answer, question), "dim")


def headlines(answer: Answer, question: Question) -> Iterator[str]:
    """The answer in a few lines."""
    best, slos = answer.best, question.slos
    asked = ", ".join(f"{slo.label} ≤ {_seconds(slo.limit_s)}" for slo in slos)
    if best is None:
        yield from _nothing(answer, question, asked)
        return
    near, tight = best.near(slos), best.tightest(slos)
    verdict = "near" if near else "yes"
    yield (
        f"{describe(best)}: {_cost(best, question)}, {_rate(best)}; "
        f"{asked}: {verdict}; limited by {tight.label}."
    )
    for slo in slos:
        if best.requests * (1 - slo.percent / 100) < 1:
            requests = counted(best.requests, "request")
            yield f"{slo.label} of {requests} is that of the slowest, or nearly."
    if near:
        errors = ", ".join(f"{slo.label} × ÷ {best.error(slo):g}" for slo in near)
        yield f"near: within the clock's error of a limit ({errors}). {_safer(answer, question)}"
    if answer.second:
        rate = f", {_rate(answer.second)}" if question.exactly else ""
        yield f"runner-up: {describe(answer.second)}: {_cost(answer.second, question)}{rate}."


def _rate(trial: Trial) -> str:
    """``3.40 requests/s``; all at once is no rate."""
    return _per_second(trial.rate) if trial.rate < _AT_ONCE else "all at once"


def _nothing(answer: Answer, question: Question, asked: str) -> Iterator[str]:
    """That nothing does, what comes nearest, and what would help."""
    within = f"{'' if question.exactly else 'up to '}{counted(question.most_gpus, 'GPU')}"
    if answer.confirmed:
        yield (
            f"Nothing of {within} keeps {asked}, of the servers that do best on the "
            f"{answer.window:,} requests in a row with most prompt tokens a second."
        )
    else:
        more = "another number (--gpus)" if question.exactly else "more GPUs (--most-gpus)"
        yield (
            f"Nothing of {within} keeps {asked}: the table below says why. Allow {more}, other "
            "ones (--gpu), or more time."
        )
    if answer.nearest:
        near, slos = answer.nearest, question.slos
        times = ", ".join(
            f"{slo.label} {format_clocked(near.values_s[slo.label], near.error(slo))} s"
            for slo in slos
        )
        yield f"nearest: {describe(near)}: {_cost(near, question)}, {times}."
    for slo in question.slos:
        least_s, server = answer.tally.least_s.get(slo.label, (0.0, ""))
        if least_s > slo.limit_s:
            yield f"{slo.label} of requests alone is {_seconds(least_s)} or more ({server})."


def _safer(answer: Answer, question: Question) -> str:
    if question.exactly and answer.safer:
        return f"Safer: {_rate(answer.safer)}, by {describe(answer.safer)}."
    if question.exactly:
        return "At no rate do these servers keep every limit by more."
    if answer.safer is None:
        whose = "of these servers " if answer.confirmed else ""
        most = counted(question.most_gpus, "GPU")
        return f"Nothing {whose}of up to {most} keeps every limit by more."
    return f"Safer: {describe(answer.safer)}, {_cost(answer.safer, question)}."


def launches(trial: Trial) -> Iterator[tuple[str, str]]:
    """``2 prefill replicas`` and the command that starts one, of every role."""
    kind = trial.kind
    if kind.split is None:
        yield counted(trial.units, "replica"), kind.server.command
        return
    for role, count in kind.split._asdict().items():
        command = in_role(kind.server.command, role)
        yield counted(trial.units * count, f"{role} replica"), command


def describe(trial: Trial) -> str:
    """``2 × h200 TP8 behind dynamo``; one server is behind nothing."""
    return f"{_servers(trial)} behind {trial.kind.router}" if _is_many(trial) else _servers(trial)


def _is_many(trial: Trial) -> bool:
    return trial.units * (trial.kind.split or (1,))[0] > 1


def _servers(trial: Trial) -> str:
    """``2 × h200 TP8``, ``2 + 4 × h200 TP8 (prefill + decode)``."""
    counts = [trial.units * each for each in trial.kind.split or (1,)]
    roles = " (prefill + decode)" if trial.kind.split else ""
    server = trial.kind.server
    return f"{' + '.join(map(str, counts))} × {server.label}{roles} {server.variant}".rstrip()


def _cost(trial: Trial, question: Question) -> str:
    gpus = counted(trial.gpus, "GPU")
    return f"{gpus}, {trial.cost:,.2f} an hour" if question.prices else gpus


def _seconds(value: float) -> str:
    return format_duration(value * 1e9)


@dataclass(frozen=True)
class Against:
    """What a time is set against: cost, or of so many GPUs the rate.

    Attributes:
        name: Of it, as a title begins.
        axis: Of it, as a column or an axis is named.
        of: What a trial has of it.
        sign: 1 where less is better, -1 where more is.
        show: A value as text.
    """

    name: str
    axis: str
    of: Callable[[Trial], float]
    sign: int
    show: Callable[[float], str]


def _against(question: Question) -> Against:
    if question.exactly:
        return Against("Rate", "requests/s", attrgetter("rate"), -1, _per_second)
    if question.prices:
        return Against("Cost", "an hour", attrgetter("cost"), 1, _money)
    return Against("Cost", "GPUs", attrgetter("cost"), 1, _gpus)


def _per_second(rate: float) -> str:
    return f"{format_number(rate)} requests/s"


def _money(cost: float) -> str:
    return f"{cost:,.2f} an hour"


def _gpus(cost: float) -> str:
    return counted(int(cost), "GPU")


def _front(answer: Answer, against: Against, label: str) -> list[Trial]:
    trials = answer.confirmed or answer.trials
    return front(trials, label, lambda trial: against.sign * against.of(trial))


def draw_plan(answer: Answer, question: Question) -> str:
    """One HTML page: the answer, a picture of the front, the tables."""
    first, *rest = headlines(answer, question)
    best = answer.best
    sure = best is not None and not best.near(question.slos)
    opening = Section(
        "front",
        "What a higher rate costs" if question.exactly else "What a shorter time costs",
        "Filled where every limit is kept; bars are what a time is right within.",
        charts=_charts(answer, question),
        tables={"front-table": front_table(answer, question), "why-table": lost_table(answer)},
        findings=[Finding("note", line) for line in rest],
    )
    verdict = Finding("good" if sure else "warning", first)
    return render_page(Page("dsv4kv plan", verdict, [], [], opening, []))


def _charts(answer: Answer, question: Question) -> list[Chart]:
    first, against = question.slos[0], _against(question)
    trials = [each for each in answer.confirmed or answer.trials if each.values_s]
    leading = {id(each) for each in _front(answer, against, first.label)}
    places = [
        Place(
            _servers(each),
            against.of(each),
            each.values_s[first.label],
            each.error(first),
            each.meets,
            id(each) in leading,
        )
        for each in trials
    ]
    if not places:
        return []
    limit_s, name = first.limit_s, against.name
    return [front_chart(places, first.label, limit_s, name, against.axis, against.show)]


def front_table(answer: Answer, question: Question) -> Table:
    """Deployments that no other beats in both cost, or rate, and the first limited time."""
    slos, first, against = question.slos, question.slos[0], _against(question)
    ends = [e for e in (answer.best, answer.second, answer.safer, answer.nearest) if e]
    rows = _front(answer, against, first.label)
    shown = {(describe(each), each.requests, each.speed) for each in rows}
    rows += [e for e in ends if e.values_s and (describe(e), e.requests, e.speed) not in shown]
    longest = max((each.values_s[first.label] for each in rows), default=1.0)
    within = {slo.label: max((row.error(slo) for row in rows), default=1.0) for slo in slos}
    errors = ", ".join(f"{name} {format_factor(factor)}" for name, factor in within.items())
    costs = ["GPUs", *(["an hour"] if question.prices else [])]
    return Table(
        f"{against.name} against {first.label}",
        [
            *names("deployment"),
            *numbers(*([against.axis] if question.exactly else costs), "requests"),
            *numbers(*[slo.label for slo in slos], "good"),
            *names("limited by", first.label),
        ],
        [_front_cells(each, question, longest) for each in rows],
        note="the front of those simulated, and what is named above; times in "
        f"s by the model of replay, 9 in 10 within {errors}",
        keys=1,
    )


def _front_cells(trial: Trial, question: Question, longest: float) -> list[Text | Number]:
    slos = question.slos
    tight = trial.tightest(slos)
    kept = trial.values_s[tight.label] <= tight.limit_s
    costs = [f"{trial.gpus}", *([f"{trial.cost:,.2f}"] if question.prices else [])]
    return [
        Text(describe(trial), "plain" if trial.meets else "dim"),
        *map(Number, [format_number(trial.rate)] if question.exactly else costs),
        Number(f"{trial.requests:,}"),
        *[Number(format_clocked(trial.values_s[slo.label], trial.error(slo))) for slo in slos],
        Number(f"{trial.good:.1%}"),
        Text(tight.label if kept else f"{tight.label} broken"),
        bar(trial.values_s[slos[0].label] / longest),
    ]


def lost_table(answer: Answer) -> Table:
    """Why every other kind is not the answer."""
    named: dict[str, list[str]] = {}
    for name, why in answer.tally.reasons.items():
        named.setdefault(why, []).append(name)
    rows = [(why, _together(each)) for why, each in named.items()]
    return Table("Why not", prose("reason", "servers"), rows or [(ABSENT, ABSENT)])


_WAY = re.compile(r" (?=behind |args )")


def _together(kinds: Sequence[str]) -> str:
    """``h200 TP4, TP8 args 2; b200 DP8 EP8``: by GPU, without routers and args where all are."""
    ways: dict[str, list[str]] = {}
    for kind in kinds:
        server, *way = _WAY.split(kind, maxsplit=1)
        ways.setdefault(server, []).append("".join(way))
    most = max(map(len, ways.values()))
    layouts: dict[str, list[str]] = {}
    for server, each in ways.items():
        gpu, _, layout = server.partition(" ")
        some = len(each) < most or most == 1
        layouts.setdefault(gpu, []).append(f"{layout} {', '.join(each) if some else ''}".strip())
    return "; ".join(f"{gpu} {', '.join(each)}" for gpu, each in layouts.items())


def describe_tally(answer: Answer, question: Question) -> str:
    """How many were considered, ruled out and simulated, and on what."""
    tally = answer.tally
    pruned = ", ".join(f"{count:,} by {why}" for why, count in tally.pruned.items() if count)
    text = (
        f"{tally.considered:,} deployments considered; ruled out {pruned or 'none'}; "
        f"{len(answer.trials):,} simulated"
    )
    if answer.window < len(question.requests):
        text += (
            f" on the {answer.window:,} requests in a row with most prompt tokens a second (with "
            f"empty caches at first), {len(answer.confirmed)} on all {len(question.requests):,}"
        )
    return f"{text}."


def dumps(answer: Answer, question: Question) -> str:
    """Everything as JSON."""
    found = {
        "best": _document(answer.best, question),
        "runner_up": _document(answer.second, question),
        "safer": _document(answer.safer, question),
        "nearest": _document(answer.nearest, question),
        "least_seconds": {label: least for label, (least, _) in answer.tally.least_s.items()},
        "confirmed": [_document(each, question) for each in answer.confirmed],
        "simulated": [_document(each, question) for each in answer.trials],
        "considered": answer.tally.considered,
        "ruled_out": answer.tally.pruned,
        "reasons": answer.tally.reasons,
        "window_requests": answer.window,
    }
    return json.dumps(found, indent=1)


def _document(trial: Trial | None, question: Question) -> dict[str, Any] | None:
    if trial is None:
        return None
    server = trial.kind.server
    return {
        "gpu": server.gpu,
        "layout": server.layout.label,
        "variant": server.variant,
        "router": trial.kind.router,
        "replicas": trial.units * sum(trial.kind.split or (1,)),
        **_roles(trial),
        "gpus": trial.gpus,
        "cost": trial.cost,
        "speed": trial.speed,
        "requests_per_s": trial.rate,
        "seconds": trial.values_s,
        "good_share": trial.good,
        "keeps_all": trial.meets,
        "near": [slo.label for slo in trial.near(question.slos)] if trial.values_s else None,
        "requests": trial.requests,
        "command": server.command,
        "commands": dict(launches(trial)),
    }


def _roles(trial: Trial) -> dict[str, int]:
    split = trial.kind.split
    roles = split._asdict().items() if split else ()
    return {f"{role}_replicas": trial.units * count for role, count in roles}
