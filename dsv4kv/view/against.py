"""A recorded server next to a replay of it: on a terminal, as a page, as a document."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dsv4kv.replay.against import Against, Minute
from dsv4kv.replay.server import Known
from dsv4kv.view.quantity import quantity, share
from dsv4kv.view.table import ABSENT, Columns, Facts, Finding, Number, Page, Part, Section, Table

_QUANTITIES = {
    "hit_tokens": "prompt tokens hit",
    "evicted": "blocks evicted",
    "used": "blocks in use, peak",
    "preempted": "requests preempted",
}


def against_page(name: str, found: Against, settings: Sequence[Known]) -> Page:
    """Whether server and replay agree, what explains the difference, then minute by minute."""
    total = found.total

    def of(side: Any) -> Callable[[str], Number]:
        return lambda name: quantity(getattr(side, name))

    both: Columns = [
        ("in total", lambda name: _QUANTITIES[name]),
        ("server", of(total.server)),
        ("replay", of(total.replay)),
        ("difference", lambda name: _difference(total.server, total.replay, name)),
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
    parts: list[Part] = [
        Finding("warning" if found.unexplained else "good", answer(found)),
        *(Finding("warning", caution) for caution in found.cautions),
        *("", Table("Server and replay", both, list(_QUANTITIES), note=note)),
        *("", Table("What explains the difference", columns, causes, more, sums)),
    ]
    facts = Facts({each.key: f"{each.value} ({each.source})" for each in settings})
    sections = [
        Section("By minute", [_minutes_table(found.minutes)]),
        Section("Settings of the replay", [facts]),
    ]
    return Page(f"{name} against a replay", parts, sections)


def answer(found: Against) -> str:
    """Both hit rates, and how many tokens of the difference are unexplained."""
    total = found.total
    server, replay = (
        ABSENT if side.hit_tokens is None else share(side.hit_tokens, total.prompt_tokens, 2)
        for side in (total.server, total.replay)
    )
    left = f"{abs(found.unexplained):,} tokens of the difference are not explained"
    if not found.unexplained:
        left = "all of the difference is explained" if found.difference else "they agree"
    return f"the server hit {server} of its prompt tokens, the replay {replay}: {left}"


def _minutes_table(minutes: Sequence[Minute]) -> Table:
    """The same by minute."""

    def both(name: str, words: str) -> Iterator[tuple[str, Any]]:
        yield f"server {words}", lambda minute: quantity(getattr(minute.server, name))
        yield f"replay {words}", lambda minute: quantity(getattr(minute.replay, name))

    columns: Columns = [
        ("minute", lambda minute: quantity(minute.number)),
        ("requests", lambda minute: quantity(minute.requests)),
        ("prompt tokens", lambda minute: quantity(minute.prompt_tokens)),
        *both("hit_tokens", "hit"),
        ("difference", lambda each: _difference(each.server, each.replay, "hit_tokens")),
        *both("evicted", "evicted"),
        *both("used", "in use"),
        *both("preempted", "preempted"),
    ]
    return Table("By minute", columns, minutes, note="minutes since the first request")


def against_document(name: str, found: Against, settings: Sequence[Known]) -> dict[str, Any]:
    """All of it as plain values."""
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


def _difference(server: Any, replay: Any, name: str) -> Number:
    before, after = getattr(server, name), getattr(replay, name)
    return Number(ABSENT if before is None or after is None else f"{before - after:+,}")
