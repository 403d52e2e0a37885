"""A recorded server next to a replay of it: on a terminal, as a page, as a document."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dsv4kv.replay.against import Against, Cause, Minute, Side
from dsv4kv.replay.settings import Known
from dsv4kv.view.table import (
    ABSENT,
    Facts,
    Finding,
    Part,
    Table,
    Text,
    names,
    numbers,
    prose,
)

if TYPE_CHECKING:
    from dsv4kv.view.page.build import Page

_MOST_MINUTES = 30
_QUANTITIES = (
    ("prompt tokens found", "hit_tokens"),
    ("blocks evicted", "evicted"),
    ("most blocks in use", "used"),
    ("requests preempted", "preempted"),
)


def report_against(found: Against, settings: Sequence[Known]) -> Iterator[Part]:
    """Everything that a terminal shows."""
    yield _facts(settings)
    yield from ("", total_table(found))
    yield from ("", minutes_table(found.minutes))
    yield from ("", causes_table(found))
    yield from (Finding("warning", caution) for caution in found.cautions)
    yield from ("", Text(answer(found), "strong"))


def answer(found: Against) -> str:
    """What came of it, in a sentence."""
    total, asked = found.total, found.total.prompt_tokens
    shares = [
        f"{side.hit_tokens / asked:.2%}" if asked and side.hit_tokens is not None else ABSENT
        for side in (total.server, total.replay)
    ]
    left = f"{abs(found.unexplained):,} tokens of the difference are not explained"
    if not found.unexplained:
        left = "all of the difference is explained" if found.difference else "they agree"
    return f"the server found {shares[0]} of its prompt tokens, the replay {shares[1]}: {left}"


def total_table(found: Against) -> Table:
    """Server, replay, difference, in all."""
    server, replay = found.total.server, found.total.replay
    return Table(
        "Server and replay",
        [*names("in all"), *numbers("server", "replay", "difference")],
        [
            (words, *_three(getattr(server, name), getattr(replay, name)))
            for words, name in _QUANTITIES
        ],
        note=f"{found.total.requests:,} requests, {found.total.prompt_tokens:,} prompt tokens for "
        "which the server reported what it found; what it does not report is left out",
    )


def minutes_table(minutes: Sequence[Minute]) -> Table:
    """The same by minute; of a long recording those that differ most."""
    shown, note = minutes, "minutes since the first request; blocks in use are the most that were"
    if len(minutes) > _MOST_MINUTES:
        by_size = sorted(minutes, key=lambda each: -abs(_apart(each)))[:_MOST_MINUTES]
        shown = sorted(by_size, key=lambda each: each.number)
        note += f"; the {_MOST_MINUTES} of {len(minutes):,} that differ most, --json has all"
    return Table(
        "By minute",
        [
            *numbers("minute", "requests", "prompt tokens"),
            *numbers("server found", "replay found", "difference"),
            *numbers("server evicted", "replay evicted", minor=True),
            *numbers("server in use", "replay in use", minor=True),
            *numbers("server preempted", "replay preempted", minor=True),
        ],
        [
            (
                f"{each.number:,}",
                f"{each.requests:,}",
                f"{each.prompt_tokens:,}",
                *_three(each.server.hit_tokens, each.replay.hit_tokens),
                *_pair(each, "evicted"),
                *_pair(each, "used"),
                *_pair(each, "preempted"),
            )
            for each in shown
        ],
        note=note,
    )


def causes_table(found: Against) -> Table:
    """What explains the difference, in tokens that the server found more than the replay."""

    def row(cause: Cause) -> tuple[str, ...]:
        return (cause.name, f"{cause.low:+,}", f"{cause.high:+,}", cause.seen)

    return Table(
        "What explains the difference",
        [*names("cause"), *numbers("tokens, from", "to"), *prose("known from")],
        [row(cause) for cause in found.causes],
        note="tokens that the server found more than the replay; negative where it found fewer",
        footer=[
            ("difference", *[f"{found.difference:+,}"] * 2, ""),
            ("not explained", *[f"{found.unexplained:+,}"] * 2, ""),
        ],
    )


def against_page(name: str, found: Against, settings: Sequence[Known]) -> "Page":
    """A page of it."""
    from dsv4kv.view.page.build import Page
    from dsv4kv.view.page.sections import Section

    tables = total_table(found), causes_table(found), minutes_table(found.minutes)
    return Page(
        title=f"{name} against a replay",
        verdict=Finding("warning" if found.unexplained else "good", answer(found)),
        cautions=[Finding("warning", caution) for caution in found.cautions],
        numbers=[],
        opening=Section(
            "against",
            "Where server and replay differ",
            facts=_facts(settings).rows,
            tables={f"table{number}": table for number, table in enumerate(tables)},
        ),
        articles=[],
    )


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


def _facts(settings: Sequence[Known]) -> Facts:
    return Facts({each.key: f"{each.value} ({each.source})" for each in settings})


def _three(server: int | None, replay: int | None) -> tuple[str, str, str]:
    apart = ABSENT if server is None or replay is None else f"{server - replay:+,}"
    return _number(server), _number(replay), apart


def _pair(minute: Minute, name: str) -> tuple[str, str]:
    server, replay = (getattr(side, name) for side in (minute.server, minute.replay))
    return _number(server), _number(replay)


def _number(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def _apart(minute: Minute) -> int:
    def hits(side: Side) -> int:
        return side.hit_tokens or 0

    return hits(minute.server) - hits(minute.replay)
