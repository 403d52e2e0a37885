"""``bench tiers`` in tables: what a prefix costs to store and restore, and its families."""

from collections.abc import Iterator

from dsv4kv.measure.statistics import Estimate, divide
from dsv4kv.moving.tiers_outcome import (
    CopyRow,
    Direction,
    FamilyRow,
    PrefixRow,
    TiersOutcome,
    Way,
)
from dsv4kv.units import format_bytes, format_duration
from dsv4kv.view.cells import format_number, measured
from dsv4kv.view.table import ABSENT, Number, Part, Table, Text, names, numbers


def report_tiers(outcome: TiersOutcome) -> Iterator[Part]:
    """Both tables, what was compared, and the answer."""
    yield prefixes_table(outcome)
    yield ""
    yield families_table(outcome)
    yield ""
    if outcome.copies:
        yield copies_table(outcome)
        yield ""
    yield Text(summary(outcome), "strong")
    if outcome.overlap:
        yield Text(outcome.overlap.sentence, "strong")
    for answer in outcome.answers():
        yield Text(answer, "strong")


def prefixes_table(outcome: TiersOutcome) -> Table:
    """One row for every store and length."""
    return Table(
        f"Prefixes of {outcome.model}, windows kept at {outcome.windows}",
        [
            *names("store"),
            *numbers("tokens", "read", "/useful", "restore ms"),
            *numbers(*(("resumed at", "again ms") if outcome.resumes_earlier else ())),
            *numbers("compute ms"),
            *numbers("store ms", "lookup pages/s", minor=True),
        ],
        [_prefix_cells(row, earlier=outcome.resumes_earlier) for row in outcome.prefixes],
        note=f"{_modelled(outcome)}; {_cold(outcome)}",
        keys=2,
    )


def _prefix_cells(row: PrefixRow, *, earlier: bool) -> tuple[str | Number, ...]:
    again, computed = (
        Number(ABSENT if ns is None else format_number(ns / 1e6))
        for ns in (row.again_ns, row.computed_ns)
    )
    return (
        row.store,
        Number(f"{row.tokens:,}"),
        Number(format_bytes(row.read_bytes)),
        Number(f"{row.amplification:.2f}"),
        measured(row.restored, 1e-6),
        *((Number(f"{row.resumed_tokens:,}"), again) if earlier else ()),
        computed,
        measured(row.stored, 1e-6),
        measured(divide(Estimate(row.pages, 0.0), row.looked_up), 1e9),
    )


def families_table(outcome: TiersOutcome) -> Table:
    """One row for every family of the longest prefix."""
    longest = max((row.tokens for row in outcome.prefixes), default=0)
    return Table(
        f"Families of {longest:,} tokens",
        [
            *names("store", "family"),
            *numbers("objects", "bytes", "restore", "GB/s", "% of limit"),
            *numbers("store", "GB/s", "% of limit", minor=True),
        ],
        [
            (
                row.store,
                row.family,
                Number(f"{row.objects:,}"),
                Number(format_bytes(row.bytes)),
                *_way_cells(row, row.restore_way),
                *_way_cells(row, row.store_way),
            )
            for row in outcome.families
        ],
        note="limit: as many copies in memory, or pieces of a new file by as many threads",
        keys=2,
    )


def copies_table(outcome: TiersOutcome) -> Table:
    """One row for every family between GPU and host."""
    return Table(
        "Between the GPU and pinned memory of the host",
        [
            *names("family"),
            *numbers("objects", "bytes", "to host GB/s", "by pages", "% of copy"),
            *numbers("back GB/s", "by pages", "% of copy"),
        ],
        [
            (
                row.family,
                Number(f"{row.objects:,}"),
                Number(format_bytes(row.bytes)),
                *(cell for way in (row.there, row.back) for cell in _direction_cells(row, way)),
            )
            for row in outcome.copies
        ],
        note="gathered by one launch; by pages: a copy for every piece; % of one copy as large",
    )


def _direction_cells(row: CopyRow, way: Direction) -> tuple[Number, ...]:
    size = Estimate(row.bytes, 0.0)
    return (
        measured(divide(size, way.gathered)),
        measured(divide(size, way.by_pages)),
        Number(f"{way.whole.value / way.gathered.value * 100:.0f}"),
    )


def _way_cells(row: FamilyRow, way: Way) -> tuple[Number, ...]:
    return (
        Number(format_duration(way.time.value)),
        measured(row.rate(way)),
        Number(f"{way.share.value * 100:.0f}" if way.share else ABSENT),
    )


def _modelled(outcome: TiersOutcome) -> str:
    what = "compute, again" if outcome.resumes_earlier else "compute"
    return f"{what}: modelled on {outcome.gpu}"


def _cold(outcome: TiersOutcome) -> str:
    how = [f"{store} is read cold, by {way}" for store, way in outcome.cold.items()]
    return "; ".join(how) or "nothing is read from a disk"


def summary(outcome: TiersOutcome) -> str:
    """How much was compared, and whether it was right."""
    if outcome.failures:
        return f"{len(outcome.failures):,} of {outcome.checks:,} comparisons failed."
    if not outcome.exact:
        return (
            f"All {outcome.checks:,} digests are equal. Windows are approximate: what is computed "
            "again has other bits than a run that never left, which a cache cannot judge."
        )
    return (
        f"All {outcome.checks:,} comparisons are equal: digests, and after further steps every "
        "bit of restored requests and of ones that never left."
    )
