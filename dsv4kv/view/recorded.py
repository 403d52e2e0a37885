"""A recorded server: at a glance, and next to a replay of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from dsv4kv.record.server import Glance
from dsv4kv.units import counted
from dsv4kv.view import table as tb

if TYPE_CHECKING:
    from dsv4kv.replay.against import Against, Minute
    from dsv4kv.replay.server import Known

_MINUTE_S = 60.0
K = TypeVar("K")
_MOST_ROWS = 20  # of a table
_SILENT_S = 60.0  # the slowest page of metrics is sampled more often


def dashboard(glance: Glance) -> Iterator[tb.Part]:
    yield tb.strong(watch_line(glance))
    asked = next(iter(glance.found.values()), (0, 0))[1]
    rows: list[tuple[Any, ...]] = [
        (f"by {name}", hit, of, tb.share(hit, of)) for name, (hit, of) in glance.found.items()
    ]
    for where, hit in _largest(glance.sources):
        rows.append((f"… on {where}", hit, "", tb.share(hit, asked)))
    rows = rows or [("not reported by the server", None, None, None)]
    yield from ("", tb.Table("Hits", ["prompt tokens", "hit", "requested", "hit rate"], rows))
    minutes = glance.window_s / _MINUTE_S
    moved = [
        ("blocks stored", glance.stored),
        ("blocks evicted", glance.removed),
        ("requests", glance.requests),
        ("requests preempted", glance.preempted),
    ]
    churn = [
        (what, total, None if total is None else f"{total / minutes:,.1f}")
        for what, total in moved
    ]
    now = ("running", glance.running), ("waiting", glance.waiting)
    churn += [(f"requests {what} now", count, "") for what, count in now]
    yield from ("", tb.Table("Churn", ["what", "total", "per minute"], churn))
    if glance.groups:
        cached = sum(glance.groups.values())
        columns: tb.Columns = [
            ("group", lambda item: f"{item[0]}"),
            ("blocks", lambda item: item[1]),
            ("share", lambda item: tb.share(item[1], cached)),
        ]
        note = "stored less evicted, since the recording began, without blocks cached before"
        groups = _largest(glance.groups)
        yield from ("", tb.Table("Cached blocks (inferred)", columns, groups, note=note))


def _largest(counts: Mapping[K, int]) -> list[tuple[K, int]]:
    """The largest in their order: of what a server names there may be thousands."""
    largest = dict(sorted(counts.items(), key=lambda item: -item[1])[:_MOST_ROWS])
    return [item for item in counts.items() if item[0] in largest]


def watch_line(glance: Glance) -> str:
    """The hit rate and what happened, in a line."""
    hit, asked = next(iter(glance.found.values()), (0, 0))
    parts = [
        f"last {glance.window_s / _MINUTE_S:,.1f} min",
        f"hit rate {tb.share(hit, asked)}",
        counted(glance.requests, "request"),
    ]
    if glance.used is not None:
        parts.append(f"{glance.used:.0%} of the pool in use")
    if glance.removed is not None:
        parts.append(f"{counted(glance.removed, 'block')} evicted")
    if glance.preempted:
        parts.append(f"{glance.preempted:,} preempted")
    if glance.damaged:
        parts.append(f"{counted(glance.damaged, 'damaged row')} skipped")
    if glance.silent_s > _SILENT_S:
        parts.insert(0, f"nothing was recorded for {glance.silent_s:,.0f} s")
    return ", ".join(parts)


# ---- next to a replay

_QUANTITIES = {
    "hit_tokens": "prompt tokens hit",
    "evicted": "blocks evicted",
    "used": "blocks in use, peak",
    "preempted": "requests preempted",
}


def against_page(name: str, found: "Against", settings: "Sequence[Known]") -> tb.Page:
    """Whether server and replay agree, what explains the difference, then minute by minute."""
    total = found.total

    both: tb.Columns = [
        ("in total", lambda name: _QUANTITIES[name]),
        ("server", lambda name: getattr(total.server, name)),
        ("replay", lambda name: getattr(total.replay, name)),
        ("difference", lambda name: _difference(total, name)),
    ]
    note = (
        f"{total.requests:,} requests, {total.prompt_tokens:,} prompt tokens with hits reported "
        "by the server"
    )
    causes = [(each.name, f"{each.low:+,}", f"{each.high:+,}", each.seen) for each in found.causes]
    sums = [
        (name, f"{tokens:+,}", f"{tokens:+,}", "")
        for name, tokens in (("difference", found.difference), ("unexplained", found.unexplained))
    ]
    columns = ["cause", "tokens, from", "to", "known from"]
    more = "tokens that the server hit more than the replay; negative: fewer"
    parts: list[tb.Part] = [
        tb.Finding("warning" if found.unexplained else "good", answer(found)),
        *(tb.warning(caution) for caution in found.cautions),
        *("", tb.Table("Server and replay", both, list(_QUANTITIES), note=note)),
        *("", tb.Table("What explains the difference", columns, causes, more, sums)),
    ]
    facts = tb.Facts({each.key: f"{each.value} ({each.source})" for each in settings})
    sections = [
        tb.Section("By minute", [_minutes_table(found.minutes)]),
        tb.Section("Settings of the replay", [facts]),
    ]
    return tb.Page(f"{name} against a replay", parts, sections)


def answer(found: "Against") -> str:
    """Both hit rates, and how many tokens of the difference are unexplained."""
    total = found.total
    server, replay = (
        tb.ABSENT if side.hit_tokens is None else tb.share(side.hit_tokens, total.prompt_tokens, 2)
        for side in (total.server, total.replay)
    )
    left = f"{abs(found.unexplained):,} tokens of the difference are not explained"
    if not found.unexplained:
        left = "all of the difference is explained" if found.difference else "they agree"
    return f"the server hit {server} of its prompt tokens, the replay {replay}: {left}"


def _minutes_table(minutes: "Sequence[Minute]") -> tb.Table:
    def both(name: str, words: str) -> Iterator[tb.Column]:
        yield f"server {words}", lambda minute: getattr(minute.server, name)
        yield f"replay {words}", lambda minute: getattr(minute.replay, name)

    columns: tb.Columns = [
        ("minute", lambda minute: minute.number),
        ("requests", lambda minute: minute.requests),
        ("prompt tokens", lambda minute: minute.prompt_tokens),
        *both("hit_tokens", "hit"),
        ("difference", lambda minute: _difference(minute, "hit_tokens")),
        *both("evicted", "evicted"),
        *both("used", "in use"),
        *both("preempted", "preempted"),
    ]
    return tb.Table("By minute", columns, minutes, note="minutes since the first request")


def against_document(name: str, found: "Against", settings: "Sequence[Known]") -> dict[str, Any]:
    return {
        "recording": name,
        "settings": [setting._asdict() for setting in settings],
        "difference_tokens": found.difference,
        "unexplained_tokens": found.unexplained,
        "total": asdict(found.total),
        "minutes": [asdict(each) for each in found.minutes],
        "causes": [asdict(each) for each in found.causes],
        "cautions": found.cautions,
    }


def _difference(sides: Any, name: str) -> tb.Number | None:
    server, replay = getattr(sides.server, name), getattr(sides.replay, name)
    return None if server is None or replay is None else tb.Number(f"{server - replay:+,}")
