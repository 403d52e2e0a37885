"""A running server's cache at a glance: tables for a terminal, a line for a log."""

from collections.abc import Iterator
from dataclasses import fields

from dsv4kv.engines.remedies import remedy_of
from dsv4kv.recording.watched import Glance
from dsv4kv.replay.whatif import Setting, WhatIf
from dsv4kv.units import counted
from dsv4kv.view.replay import LOSSES
from dsv4kv.view.table import ABSENT, Finding, Part, Table, Text, names, numbers, prose

_MINUTE_S = 60.0
_SILENT_S = 60.0  # the slowest page of metrics is sampled more often


def dashboard(glance: Glance, what_if: WhatIf | None) -> Iterator[Part]:
    """Everything, for a terminal."""
    yield Text(watch_line(glance, what_if), "strong")
    yield from ("", hits_table(glance))
    yield from ("", moves_table(glance))
    if glance.groups:
        yield from ("", groups_table(glance))
    if what_if is None:
        yield from ("", Finding("note", "the last minutes are being replayed"))
    elif what_if.problem:
        yield from ("", Finding("warning", f"no replay: {what_if.problem}"))
    else:
        yield from ("", losses_table(what_if))
        yield from ("", settings_table(what_if))


def watch_line(glance: Glance, what_if: WhatIf | None) -> str:
    """The most important of it, in a line."""
    found, asked = next(iter(glance.found.values()), (0, 0))
    parts = [
        f"last {glance.window_s / _MINUTE_S:,.1f} min",
        f"hit rate {_share(found, asked)}",
        counted(glance.requests, "request"),
    ]
    if glance.used is not None:
        parts.append(f"{glance.used:.0%} of the pool in use")
    if glance.removed is not None:
        parts.append(f"{counted(glance.removed, 'block')} evicted")
    if glance.preempted:
        parts.append(f"{glance.preempted:,} preempted")
    if glance.silent_s > _SILENT_S:
        parts.insert(0, f"nothing was recorded for {glance.silent_s:,.0f} s")
    better = what_if.better if what_if else None
    if what_if and better:
        gain = _share(better.hit_tokens - what_if.present.hit_tokens, what_if.prompt_tokens)
        parts.append(f"{better.name} would find {gain} more")
    return ", ".join(parts)


def hits_table(glance: Glance) -> Table:
    """What the server found, by who says so and by where it was."""
    rows = [
        (f"by {name}", f"{found:,}", f"{asked:,}", _share(found, asked))
        for name, (found, asked) in glance.found.items()
    ]
    asked = next(iter(glance.found.values()), (0, 0))[1]
    rows += [
        (f"… on {where}", f"{found:,}", "", _share(found, asked))
        for where, found in glance.sources.items()
    ]
    return Table(
        "Hits",
        [*names("of prompt tokens"), *numbers("found", "asked for", "hit rate")],
        rows or [("the server does not say", ABSENT, ABSENT, ABSENT)],
    )


def moves_table(glance: Glance) -> Table:
    """What came and went."""
    minutes = glance.window_s / _MINUTE_S
    moved = {
        "blocks stored": glance.stored,
        "blocks evicted": glance.removed,
        "requests": glance.requests,
        "requests preempted": glance.preempted,
    }
    now = {"requests that run now": glance.running, "requests that wait now": glance.waiting}

    def rate(count: int | None) -> str:
        return ABSENT if count is None else f"{count / minutes:,.1f}"

    return Table(
        "Churn",
        [*names("what"), *numbers("in all", "a minute")],
        [
            *((what, _number(count), rate(count)) for what, count in moved.items()),
            *((what, _number(count), "") for what, count in now.items()),
        ],
    )


def groups_table(glance: Glance) -> Table:
    """Cached blocks by group, which no server says."""
    whole = sum(glance.groups.values())
    return Table(
        "Cached blocks (inferred)",
        [*numbers("group", "blocks", "share")],
        [
            (f"{group}", f"{blocks:,}", _share(blocks, whole))
            for group, blocks in glance.groups.items()
        ],
        note="stored less evicted, since the recording began; what was cached before is missing",
    )


def losses_table(what_if: WhatIf) -> Table:
    """What the present setting loses of what these minutes have in common."""
    lost = {each.name: getattr(what_if.losses, each.name) for each in fields(what_if.losses)}
    rows = sorted(((n, reason) for reason, n in lost.items() if n), reverse=True)
    return Table(
        "What the present setting loses",
        [*names("reason"), *numbers("tokens", "share"), *prose("what gets them back")],
        [
            (
                LOSSES[reason],
                f"{count:,}",
                _share(count, what_if.prompt_tokens),
                remedy_of(what_if.rule, reason),
            )
            for count, reason in rows
        ],
        note=f"the last minutes replayed by {what_if.rule}, from an empty cache",
    )


def settings_table(what_if: WhatIf) -> Table:
    """The same requests with other settings, the best first."""

    def row(setting: Setting) -> tuple[str, str, str, str]:
        apart = setting.hit_tokens - what_if.present.hit_tokens
        whole = what_if.prompt_tokens
        share = f"{apart / whole:+.2%}" if whole else ABSENT
        return setting.name, f"{setting.hit_tokens:,}", _share(setting.hit_tokens, whole), share

    return Table(
        "Other settings",
        [*names("setting"), *numbers("found", "hit rate", "against the present")],
        [row(each) for each in what_if.others],
        footer=[row(what_if.present)],
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ABSENT


def _number(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"
